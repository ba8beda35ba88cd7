{{/* The two files that the containers read. */}}

{{/* Settings that must agree with the rest of the release, and the value that governs each of them. */}}
{{- define "vramcast.governedSettings" -}}
{{- $governed := dict "mode" "mode" "host" "mode" "port" "extender.port" "metrics_host" "metrics" "metrics_port" "metrics.port" "tls_cert_file" "tls" "tls_key_file" "tls" "tls_client_ca_file" "tls" "leader_lease" "mode" "leader_identity" "mode" "page" "page.enabled" "view_host" "view" "view_port" "view.port" -}}
{{- range $name := list "host" "port" "cert_file" "key_file" "validate" "tell_forecast" "scheduler_name" "task_resource" "caps" "resource" "dialects" "claim_classes" -}}
{{- $_ := set $governed (printf "webhook_%s" $name) "webhook" -}}
{{- end -}}
{{- if eq .Values.mode "observe" -}}
{{- $_ := set $governed "requeue_interval_seconds" "mode" -}}
{{- end -}}
{{- if include "vramcast.artifactSource" (dict "name" "model" "from" .Values.model) -}}
{{- $_ := set $governed "artifact" "model" -}}
{{- end -}}
{{- if include "vramcast.artifactSource" (dict "name" "candidate" "from" .Values.candidate) -}}
{{- $_ := set $governed "candidate_artifact" "candidate" -}}
{{- end -}}
{{- toJson $governed -}}
{{- end -}}

{{/* Refuses what values.schema.json, which is generated from the service's settings, cannot express. */}}
{{- define "vramcast.checkSettings" -}}
{{- range $name, $value := include "vramcast.governedSettings" . | fromJson -}}
{{- if hasKey $.Values.settings $name -}}
{{- fail (printf "settings.%s cannot be set: the chart sets it from the value `%s`." $name $value) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.settings.prometheus_url .Values.settings.exporter_urls -}}
{{- fail "settings.prometheus_url and settings.exporter_urls exclude each other: set one of them." -}}
{{- end -}}
{{- end -}}

{{- define "vramcast.settings" -}}
{{- include "vramcast.checkSettings" . -}}
{{- $all := deepCopy .Values.settings -}}
{{- $_ := set $all "mode" (ternary "observe" "decide" (eq .Values.mode "observe")) -}}
{{- $_ := set $all "host" (ternary "0.0.0.0" "127.0.0.1" (eq .Values.mode "extender")) -}}
{{- $_ := set $all "port" (int .Values.extender.port) -}}
{{- $_ := set $all "page" .Values.page.enabled -}}
{{- $_ := set $all "metrics_host" "0.0.0.0" -}}
{{- $_ := set $all "metrics_port" (int .Values.metrics.port) -}}
{{- if .Values.view.enabled -}}
{{- $_ := set $all "view_host" "0.0.0.0" -}}
{{- $_ := set $all "view_port" (int .Values.view.port) -}}
{{- end -}}
{{- if eq .Values.mode "scheduler" -}}
{{- $_ := set $all "leader_lease" (printf "%s/%s" .Release.Namespace (include "vramcast.leaseName" .)) -}}
{{- else if eq .Values.mode "extender" -}}
{{- $_ := set $all "tls_cert_file" "/etc/vramcast-tls/tls.crt" -}}
{{- $_ := set $all "tls_key_file" "/etc/vramcast-tls/tls.key" -}}
{{- $_ := set $all "tls_client_ca_file" "/etc/vramcast-tls/ca.crt" -}}
{{- else -}}
{{- $_ := set $all "requeue_interval_seconds" 0 -}}
{{- end -}}
{{- if .Values.webhook.enabled -}}
{{- $_ := set $all "webhook_host" "0.0.0.0" -}}
{{- $_ := set $all "webhook_port" (int .Values.webhook.port) -}}
{{- $_ := set $all "webhook_cert_file" "/etc/vramcast-webhook/tls.crt" -}}
{{- $_ := set $all "webhook_key_file" "/etc/vramcast-webhook/tls.key" -}}
{{- $_ := set $all "webhook_validate" .Values.webhook.validate -}}
{{- $_ := set $all "webhook_tell_forecast" .Values.webhook.tellForecast -}}
{{- $_ := set $all "webhook_caps" (join "," .Values.webhook.caps) -}}
{{- $_ := set $all "webhook_resource" .Values.webhook.resource -}}
{{- $_ := set $all "webhook_dialects" (join "," .Values.webhook.dialects) -}}
{{- $_ := set $all "webhook_claim_classes" (join "," .Values.webhook.claimClasses) -}}
{{- if eq .Values.mode "scheduler" -}}
{{- $_ := set $all "webhook_scheduler_name" .Values.scheduler.name -}}
{{- else if eq .Values.mode "extender" -}}
{{- $_ := set $all "webhook_task_resource" (include "vramcast.taskResource" .) -}}
{{- end -}}
{{- end -}}
{{- if include "vramcast.keepsLearnedState" . -}}
{{- $_ := set $all "calibration_config_map" (printf "%s/%s" .Release.Namespace (include "vramcast.learnedName" .)) -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* No node has the resource of `webhook.resource`, so the plugin that fits resources must not look for it. Not by
     `managedResources`: with any, the scheduler calls vramcast only for pods that request one. */}}
{{- define "vramcast.pluginConfig" -}}
{{- $given := deepCopy .Values.scheduler.pluginConfig -}}
{{- if and .Values.webhook.enabled .Values.webhook.resource -}}
{{- $fit := dict "name" "NodeResourcesFit" "args" dict -}}
{{- $others := list -}}
{{- range $given -}}
{{- if eq .name "NodeResourcesFit" -}}{{- $fit = . -}}{{- else -}}{{- $others = append $others . -}}{{- end -}}
{{- end -}}
{{- $args := $fit.args | default dict -}}
{{- $_ := set $args "ignoredResources" (append ($args.ignoredResources | default list) (include "vramcast.memoryResource" .) | uniq) -}}
{{- $_ := set $fit "args" $args -}}
{{- $given = append $others $fit -}}
{{- end -}}
{{- toJson $given -}}
{{- end -}}

{{/* Leader election is always on: even with one replica, a rollout runs two for a moment. */}}
{{- define "vramcast.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  qps: {{ .Values.scheduler.queriesPerSecond }}
  burst: {{ .Values.scheduler.burst }}
leaderElection:
  leaderElect: true
  resourceLock: leases
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: {{ include "vramcast.leaseName" . }}
  leaseDuration: {{ .Values.scheduler.leaderElection.leaseDuration }}
  renewDeadline: {{ .Values.scheduler.leaderElection.renewDeadline }}
  retryPeriod: {{ .Values.scheduler.leaderElection.retryPeriod }}
podMaxBackoffSeconds: {{ .Values.scheduler.podMaxBackoffSeconds }}
profiles:
  - schedulerName: {{ .Values.scheduler.name }}
    # Score every node: with a sample, a pod is unschedulable if only nodes outside the sample fit it.
    percentageOfNodesToScore: 100
    {{- with .Values.scheduler.plugins }}
    plugins: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with include "vramcast.pluginConfig" . | fromJsonArray }}
    pluginConfig: {{- toYaml . | nindent 6 }}
    {{- end }}
extenders:
  - urlPrefix: http://127.0.0.1:{{ .Values.extender.port }}
{{ include "vramcast.extenderVerbs" . | indent 4 }}
{{- end -}}
