{{/* Names, labels and the few decisions that several templates share. */}}

{{- define "vramcast.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* 50 characters: the longest suffix that a template appends must still fit into 63. */}}
{{- define "vramcast.fullname" -}}
{{- $name := include "vramcast.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "vramcast.selectorLabels" -}}
app.kubernetes.io/name: {{ include "vramcast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "vramcast.labels" -}}
{{ include "vramcast.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/part-of: {{ .Chart.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Another name than the service's: its Service, monitors and policies must not select the agents. */}}
{{- define "vramcast.agentSelectorLabels" -}}
app.kubernetes.io/name: {{ include "vramcast.name" . }}-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "vramcast.agentLabels" -}}
{{ merge (include "vramcast.agentSelectorLabels" . | fromYaml) (dict "app.kubernetes.io/component" "agent") (include "vramcast.labels" . | fromYaml) | toYaml }}
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

{{/* v1.31.4-eks-2d5f260 -> v1.31.4: upstream publishes no images for vendors' versions. */}}
{{- define "vramcast.schedulerImage" -}}
{{- $tag := .Values.scheduler.image.tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) -}}
{{- printf "%s:%s" .Values.scheduler.image.repository $tag -}}
{{- end -}}

{{/* Only mode scheduler elects a leader. Elsewhere two replicas would promise the same GPU twice. */}}
{{- define "vramcast.replicas" -}}
{{- if kindIs "invalid" .Values.replicaCount -}}
{{- ternary 2 1 (eq .Values.mode "scheduler") -}}
{{- else if and (ne .Values.mode "scheduler") (gt (int .Values.replicaCount) 1) -}}
{{- fail (printf "replicaCount: %d is not possible in mode %s: without leader election two replicas would promise the same GPU twice. Leave replicaCount out, or use mode scheduler." (int .Values.replicaCount) .Values.mode) -}}
{{- else -}}
{{- int .Values.replicaCount -}}
{{- end -}}
{{- end -}}

{{/* The ConfigMap of the learned state. Whoever names another one in the settings creates it and grants the rights. */}}
{{- define "vramcast.keepsLearnedState" -}}
{{- if not (hasKey .Values.settings "calibration_config_map") -}}true{{- end -}}
{{- end -}}

{{- define "vramcast.learnedName" -}}
{{- printf "%s-learned" (include "vramcast.fullname" .) -}}
{{- end -}}

{{- define "vramcast.leaseName" -}}
{{- include "vramcast.fullname" . -}}
{{- end -}}

{{/* Where the certificates of mode extender come from: secret, cert-manager or helm. */}}
{{- define "vramcast.certificateSource" -}}
{{- if and .Values.tls.existingSecret .Values.tls.certManager.enabled -}}
{{- fail "tls.existingSecret and tls.certManager.enabled exclude each other: set one of them." -}}
{{- end -}}
{{- if .Values.tls.existingSecret -}}secret{{- else if .Values.tls.certManager.enabled -}}cert-manager{{- else -}}helm{{- end -}}
{{- end -}}

{{- define "vramcast.serverName" -}}
{{- printf "%s.%s.svc" (include "vramcast.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "vramcast.serverSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-server-tls" (include "vramcast.fullname" .)) -}}
{{- end -}}

{{- define "vramcast.clientSecret" -}}
{{- printf "%s-client-tls" (include "vramcast.fullname" .) -}}
{{- end -}}

{{- define "vramcast.webhookName" -}}
{{- printf "%s-webhook" (include "vramcast.fullname" .) -}}
{{- end -}}

{{- define "vramcast.webhookServerName" -}}
{{- printf "%s.%s.svc" (include "vramcast.webhookName" .) .Release.Namespace -}}
{{- end -}}

{{- define "vramcast.webhookSecret" -}}
{{- if eq .Values.webhook.certificates "secret" -}}
{{- required "webhook.certificates: secret needs webhook.existingSecret." .Values.webhook.existingSecret -}}
{{- else -}}
{{- printf "%s-tls" (include "vramcast.webhookName" .) -}}
{{- end -}}
{{- end -}}

{{/* Whether to install the ValidatingAdmissionPolicies. Mode observe makes no promises. Kubernetes has had them since 1.30;
     KubeVersion and not APIVersions, because `helm template` knows only the former. */}}
{{- define "vramcast.admissionPolicy" -}}
{{- if and .Values.admissionPolicy.enabled (ne .Values.mode "observe") (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}true{{- end -}}
{{- end -}}

{{/* A resource that no node has. The scheduler calls an extender for every pod, or for pods that request a resource. In mode
     `extender` it must not be for every pod: while vramcast is down the whole cluster would wait, vramcast included. */}}
{{- define "vramcast.taskResource" -}}
vramcast.dev/task
{{- end -}}

{{/* Of `webhook.resource`. No node has it either. */}}
{{- define "vramcast.memoryResource" -}}
vramcast.dev/gpu-memory
{{- end -}}

{{- define "vramcast.managedResources" -}}
{{- $named := .Values.extender.managedResources -}}
{{- if eq .Values.mode "extender" -}}
{{- if and .Values.webhook.enabled .Values.webhook.resource -}}{{- $named = prepend $named (include "vramcast.memoryResource" .) -}}{{- end -}}
{{- $named = prepend $named (include "vramcast.taskResource" .) | uniq -}}
{{- end -}}
{{- toJson $named -}}
{{- end -}}

{{/* An entry of `extenders`, the same wherever the kube-scheduler runs. */}}
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
{{- with include "vramcast.managedResources" . | fromJsonArray }}
managedResources:
{{- range . }}
  - name: {{ . }}
    ignoredByScheduler: {{ has . (list (include "vramcast.taskResource" $) (include "vramcast.memoryResource" $)) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* For the configuration of the cluster's own kube-scheduler. NOTES.txt prints it. */}}
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
