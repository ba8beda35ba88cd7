{{- define "vramcast.container" -}}
- name: vramcast
  image: {{ include "vramcast.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [serve, --config=/etc/vramcast/vramcast.yaml]
  env:
    # Always set, because an empty `env` would render as null.
    - name: PYTHONUNBUFFERED
      value: "1"
    {{- if eq .Values.mode "scheduler" }}
    # The kube-scheduler puts its host name, which is the pod's name, into the lease.
    - name: VRAMCAST_LEADER_IDENTITY
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    {{- end }}
    {{- if include "vramcast.artifactSource" (dict "name" "model" "from" .Values.model) }}
    - name: VRAMCAST_ARTIFACT
      value: {{ printf "/model/%s" .Values.model.path | trimSuffix "/" }}
    {{- end }}
    {{- if include "vramcast.artifactSource" (dict "name" "candidate" "from" .Values.candidate) }}
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
    {{- if .Values.view.enabled }}
    - {name: view, containerPort: {{ .Values.view.port }}}
    {{- end }}
    {{- if .Values.webhook.enabled }}
    - {name: webhook, containerPort: {{ .Values.webhook.port }}}
    {{- end }}
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
  {{- with .Values.securityContext }}
  securityContext: {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - {name: config, mountPath: /etc/vramcast, readOnly: true}
    - {name: tmp, mountPath: /tmp}
    {{- if eq .Values.mode "extender" }}
    - {name: tls, mountPath: /etc/vramcast-tls, readOnly: true}
    {{- end }}
    {{- if .Values.webhook.enabled }}
    - {name: webhook-tls, mountPath: /etc/vramcast-webhook, readOnly: true}
    {{- end }}
    {{- if include "vramcast.artifactSource" (dict "name" "model" "from" .Values.model) }}
    - {name: model, mountPath: /model, readOnly: true}
    {{- end }}
    {{- if include "vramcast.artifactSource" (dict "name" "candidate" "from" .Values.candidate) }}
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
  {{- with .Values.securityContext }}
  securityContext: {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - {name: config, mountPath: /etc/vramcast, readOnly: true}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{/* Which of an artifact's values is set: existingConfigMap, existingClaim, image, or none of them (empty). Takes a dict
     of `name` (model or candidate) and `from` (its values). */}}
{{- define "vramcast.artifactSource" -}}
{{- $given := list -}}
{{- range $key := list "existingConfigMap" "existingClaim" "image" -}}
{{- if get $.from $key -}}{{- $given = append $given $key -}}{{- end -}}
{{- end -}}
{{- if gt (len $given) 1 -}}
{{- fail (printf "%s.%s and %s.%s exclude each other: set one of them." .name (first $given) .name (last $given)) -}}
{{- end -}}
{{- join "" $given -}}
{{- end -}}

{{/* The volume of an artifact. Takes the same dict, with the `version` of Kubernetes. */}}
{{- define "vramcast.artifactVolume" -}}
{{- $source := include "vramcast.artifactSource" . -}}
{{- if eq $source "existingConfigMap" -}}
- name: {{ .name }}
  configMap:
    name: {{ .from.existingConfigMap }}
    {{- if eq .name "candidate" }}
    optional: true
    {{- end }}
{{- else if eq $source "existingClaim" -}}
- name: {{ .name }}
  persistentVolumeClaim:
    claimName: {{ .from.existingClaim }}
    readOnly: true
{{- else if eq $source "image" -}}
{{- if semverCompare "<1.33.0-0" .version -}}
{{- fail (printf "%s.image needs Kubernetes 1.33 or newer, this is %s: use %s.existingConfigMap or %s.existingClaim." .name .version .name .name) -}}
{{- end -}}
- name: {{ .name }}
  image:
    reference: {{ .from.image }}
    pullPolicy: IfNotPresent
{{- end -}}
{{- end -}}

{{- define "vramcast.artifactVolumes" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- include "vramcast.artifactVolume" (dict "name" "model" "from" .Values.model "version" $version) }}
{{ include "vramcast.artifactVolume" (dict "name" "candidate" "from" .Values.candidate "version" $version) }}
{{- end -}}
