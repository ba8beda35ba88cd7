{{- define "vramcast.container" -}}
- name: vramcast
  image: {{ include "vramcast.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [serve, --config=/etc/vramcast/vramcast.yaml]
  env:
    # Set even where it is the default: an empty `env` would be null.
    - name: PYTHONUNBUFFERED
      value: "1"
    {{- if eq .Values.mode "scheduler" }}
    # The leader names itself by its host, which is the pod's name.
    - name: VRAMCAST_LEADER_IDENTITY
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    {{- end }}
    {{- if ne .Values.model.source "builtin" }}
    - name: VRAMCAST_ARTIFACT
      value: {{ printf "/model/%s" .Values.model.path | trimSuffix "/" }}
    {{- end }}
    {{- with .Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    {{- if eq .Values.mode "extender" }}
    - {name: extender, containerPort: {{ .Values.extender.port }}}
    {{- end }}
    - {name: metrics, containerPort: {{ .Values.metrics.port }}}
  startupProbe:
    httpGet: {path: /healthz, port: metrics}
    periodSeconds: 1
    failureThreshold: 60
  livenessProbe:
    httpGet: {path: /healthz, port: metrics}
    periodSeconds: 10
    timeoutSeconds: 5
  readinessProbe:
    httpGet: {path: /readyz, port: metrics}
    periodSeconds: 2
    timeoutSeconds: 2
  resources: {{- toYaml .Values.resources | nindent 4 }}
  securityContext: {{- include "vramcast.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: config, mountPath: /etc/vramcast, readOnly: true}
    - {name: tmp, mountPath: /tmp}
    {{- if eq .Values.mode "extender" }}
    - {name: tls, mountPath: /etc/vramcast-tls, readOnly: true}
    {{- end }}
    {{- if ne .Values.model.source "builtin" }}
    - {name: model, mountPath: /model, readOnly: true}
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "vramcast.schedulerContainer" -}}
- name: kube-scheduler
  image: {{ include "vramcast.schedulerImage" . }}
  imagePullPolicy: IfNotPresent
  command: [kube-scheduler]
  args:
    - --config=/etc/vramcast/scheduler.yaml
    - --v={{ .Values.scheduler.logLevel }}
    {{- with .Values.scheduler.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - {name: scheduler, containerPort: 10259}
  startupProbe:
    httpGet: {path: /livez, port: scheduler, scheme: HTTPS}
    periodSeconds: 1
    failureThreshold: 60
  livenessProbe:
    httpGet: {path: /livez, port: scheduler, scheme: HTTPS}
    periodSeconds: 10
    timeoutSeconds: 5
  resources: {{- toYaml .Values.scheduler.resources | nindent 4 }}
  securityContext: {{- include "vramcast.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: config, mountPath: /etc/vramcast, readOnly: true}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "vramcast.modelVolume" -}}
{{- if eq .Values.model.source "configMap" -}}
- name: model
  configMap:
    name: {{ required "model.source configMap needs model.name, the name of the ConfigMap" .Values.model.name }}
{{- else if eq .Values.model.source "claim" -}}
- name: model
  persistentVolumeClaim:
    claimName: {{ required "model.source claim needs model.name, the name of the PersistentVolumeClaim" .Values.model.name }}
    readOnly: true
{{- else if eq .Values.model.source "oci" -}}
{{- if semverCompare "<1.33.0-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "model.source oci needs Kubernetes 1.33 or newer, this is %s: use configMap or claim." .Capabilities.KubeVersion.Version) -}}
{{- end -}}
- name: model
  image:
    reference: {{ required "model.source oci needs model.name, the reference of the image" .Values.model.name }}
    pullPolicy: IfNotPresent
{{- end -}}
{{- end -}}
