{{/* The two files that the containers read. */}}

{{/* The chart's own settings win: they must agree with the rest of the pod. */}}
{{- define "vramcast.settings" -}}
{{- $own := dict "mode" (ternary "observe" "decide" (eq .Values.mode "observe")) "port" (int .Values.extender.port) "metrics_host" "0.0.0.0" "metrics_port" (int .Values.metrics.port) -}}
{{- if eq .Values.mode "extender" -}}
{{- $_ := set $own "host" "0.0.0.0" -}}
{{- $_ := set $own "tls_cert_file" "/etc/vramcast-tls/tls.crt" -}}
{{- $_ := set $own "tls_key_file" "/etc/vramcast-tls/tls.key" -}}
{{- $_ := set $own "tls_client_ca_file" "/etc/vramcast-tls/ca.crt" -}}
{{- else -}}
{{- $_ := set $own "host" "127.0.0.1" -}}
{{- end -}}
{{- if eq .Values.mode "observe" -}}
{{- $_ := set $own "requeue_interval_seconds" 0 -}}
{{- end -}}
{{- if eq .Values.mode "scheduler" -}}
{{- $_ := set $own "leader_lease" (printf "%s/%s" .Release.Namespace (include "vramcast.leaseName" .)) -}}
{{- end -}}
{{- range $name, $_ := $own -}}
{{- if hasKey $.Values.settings $name -}}
{{- fail (printf "settings.%s cannot be set: the chart sets it, from mode, extender.port, metrics.port and tls." $name) -}}
{{- end -}}
{{- end -}}
{{- $default := dict "calibration_config_map" (printf "%s/%s" .Release.Namespace (include "vramcast.memoryName" .)) -}}
{{- toYaml (merge $own .Values.settings $default) -}}
{{- end -}}

{{/* Leader election always: with one replica too, a rollout has two for a moment. */}}
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
    # All of them: a pod is turned away when no node of the sample fits, even if another would.
    percentageOfNodesToScore: 100
    {{- with .Values.scheduler.plugins }}
    plugins: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.scheduler.pluginConfig }}
    pluginConfig: {{- toYaml . | nindent 6 }}
    {{- end }}
extenders:
  - urlPrefix: http://127.0.0.1:{{ .Values.extender.port }}
{{ include "vramcast.extenderVerbs" . | indent 4 }}
{{- end -}}
