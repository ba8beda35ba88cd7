{{/* Names, labels and the few decisions that several templates share. */}}

{{- define "vramcast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "vramcast.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "vramcast.labels" -}}
{{ include "vramcast.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "vramcast.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "vramcast.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "vramcast.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* v1.31.4-eks-2d5f260 -> v1.31.4: vendors run upstream's scheduler under versions of their own. */}}
{{- define "vramcast.schedulerImage" -}}
{{- $tag := .Values.scheduler.image.tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) -}}
{{- printf "%s:%s" .Values.scheduler.image.repository $tag -}}
{{- end -}}

{{/* Two vramcasts that answer at the same time would promise the same GPU twice. */}}
{{- define "vramcast.replicas" -}}
{{- if kindIs "invalid" .Values.replicas -}}
{{- ternary 2 1 (eq .Values.mode "scheduler") -}}
{{- else if and (ne .Values.mode "scheduler") (gt (int .Values.replicas) 1) -}}
{{- fail (printf "replicas: %d is not possible in mode %s: two that answer at the same time would promise the same GPU twice. Leave replicas out, or use mode scheduler, where one leads and the others stand by." (int .Values.replicas) .Values.mode) -}}
{{- else -}}
{{- int .Values.replicas -}}
{{- end -}}
{{- end -}}

{{/* What was learned. Not made by the chart: an upgrade would write over it. */}}
{{- define "vramcast.memoryName" -}}
{{- printf "%s-learned" (include "vramcast.fullname" .) -}}
{{- end -}}

{{- define "vramcast.leaseName" -}}
{{- include "vramcast.fullname" . -}}
{{- end -}}

{{- define "vramcast.serverName" -}}
{{- printf "%s.%s.svc" (include "vramcast.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "vramcast.serverSecret" -}}
{{- ternary .Values.tls.secretName (printf "%s-server-tls" (include "vramcast.fullname" .)) (eq .Values.tls.source "secret") -}}
{{- end -}}

{{- define "vramcast.clientSecret" -}}
{{- printf "%s-client-tls" (include "vramcast.fullname" .) -}}
{{- end -}}

{{/* One entry of `extenders`, wherever the kube-scheduler runs. */}}
{{- define "vramcast.extenderVerbs" -}}
filterVerb: filter
prioritizeVerb: prioritize
bindVerb: bind
{{- if .Values.extender.preempt }}
preemptVerb: preempt
{{- end }}
weight: {{ .Values.extender.weight }}
httpTimeout: {{ .Values.extender.httpTimeout }}
nodeCacheCapable: true
ignorable: {{ .Values.extender.ignorable }}
{{- with .Values.extender.managedResources }}
managedResources:
{{- range . }}
  - name: {{ . }}
    ignoredByScheduler: false
{{- end }}
{{- end }}
{{- end -}}

{{/* What the cluster's own kube-scheduler needs in its configuration; printed by NOTES.txt. */}}
{{- define "vramcast.extenderSnippet" -}}
extenders:
  - urlPrefix: https://{{ .Values.extender.service.clusterIP | default "CLUSTER-IP" }}:{{ .Values.extender.port }}
{{ include "vramcast.extenderVerbs" . | indent 4 }}
    enableHTTPS: true
    tlsConfig:
      serverName: {{ include "vramcast.serverName" . }}
      caFile: /etc/kubernetes/vramcast/ca.crt
      certFile: /etc/kubernetes/vramcast/tls.crt
      keyFile: /etc/kubernetes/vramcast/tls.key
{{- end -}}

{{/* Restricted Pod Security, and a root file system that nobody writes to. */}}
{{- define "vramcast.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "vramcast.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}
