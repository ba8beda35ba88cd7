{{/* What every entry of the two webhook configurations shares. Takes a dict of `root` and `path`. */}}
{{- define "vramcast.webhookClient" -}}
admissionReviewVersions: [v1]
sideEffects: None
matchPolicy: Equivalent
failurePolicy: {{ .root.Values.webhook.failurePolicy }}
timeoutSeconds: {{ .root.Values.webhook.timeoutSeconds }}
clientConfig:
  service:
    name: {{ include "vramcast.webhookName" .root }}
    namespace: {{ .root.Release.Namespace }}
    path: {{ .path }}
    port: 443
  {{- with include "vramcast.webhookCaBundle" .root }}
  caBundle: {{ . }}
  {{- end }}
{{- end -}}

{{/* Empty where cert-manager fills it in. */}}
{{- define "vramcast.webhookCaBundle" -}}
{{- if eq .Values.webhook.certificates "chart" -}}
{{- index (include "vramcast.webhookCertificate" . | fromJson) "ca.crt" -}}
{{- else if eq .Values.webhook.certificates "secret" -}}
{{- required "webhook.certificates: secret needs webhook.caBundle." .Values.webhook.caBundle -}}
{{- end -}}
{{- end -}}

{{- define "vramcast.webhookAnnotations" -}}
{{- if eq .Values.webhook.certificates "cert-manager" -}}
annotations:
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/{{ include "vramcast.webhookSecret" . }}
{{- end -}}
{{- end -}}

{{/* CEL: whether the object's metadata has one of our annotations. Not with optional fields, which Kubernetes 1.29 lacks. */}}
{{- define "vramcast.describedAt" -}}
(has({{ . }}.annotations) && {{ . }}.annotations.exists(key, key.startsWith('vramcast.dev/')))
{{- end -}}
