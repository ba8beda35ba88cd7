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
    {{- if ne .Values.candidate.source "none" }}
    - name: VRAMCAST_CANDIDATE_ARTIFACT
      value: {{ printf "/candidate/%s" .Values.candidate.path | trimSuffix "/" }}
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
    {{- if ne .Values.candidate.source "none" }}
    - {name: candidate, mountPath: /candidate, readOnly: true}
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

{{/* The volume of an artifact: a dict of `name` (model or candidate), `from` (its values), `version` of Kubernetes. */}}
{{- define "vramcast.artifactVolume" -}}
{{- if eq .from.source "configMap" -}}
- name: {{ .name }}
  configMap:
    name: {{ required (printf "%s.source configMap needs %s.name, the name of the ConfigMap" .name .name) .from.name }}
    {{- if eq .name "candidate" }}
    optional: true
    {{- end }}
{{- else if eq .from.source "claim" -}}
- name: {{ .name }}
  persistentVolumeClaim:
    claimName: {{ required (printf "%s.source claim needs %s.name, the name of the PersistentVolumeClaim" .name .name) .from.name }}
    readOnly: true
{{- else if eq .from.source "oci" -}}
{{- if semverCompare "<1.33.0-0" .version -}}
{{- fail (printf "%s.source oci needs Kubernetes 1.33 or newer, this is %s: use configMap or claim." .name .version) -}}
{{- end -}}
- name: {{ .name }}
  image:
    reference: {{ required (printf "%s.source oci needs %s.name, the reference of the image" .name .name) .from.name }}
    pullPolicy: IfNotPresent
{{- end -}}
{{- end -}}

{{- define "vramcast.artifactVolumes" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- include "vramcast.artifactVolume" (dict "name" "model" "from" .Values.model "version" $version) }}
{{ include "vramcast.artifactVolume" (dict "name" "candidate" "from" .Values.candidate "version" $version) }}
{{- end -}}
