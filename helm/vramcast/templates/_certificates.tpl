{{/* Both Secrets of mode `extender` if Helm generates them. An upgrade reads them back, so they stay the same. Several
     templates include this, so the first result is kept in the values. */}}
{{- define "vramcast.certificates" -}}
{{- if not (hasKey .Values "_certificates") -}}
{{- $server := lookup "v1" "Secret" .Release.Namespace (include "vramcast.serverSecret" .) -}}
{{- $client := lookup "v1" "Secret" .Release.Namespace (include "vramcast.clientSecret" .) -}}
{{- if and $server $client -}}
{{- $_ := set .Values "_certificates" (dict "server" $server.data "client" $client.data) -}}
{{- else -}}
{{- $ca := genCA (printf "%s-ca" (include "vramcast.fullname" .)) (int .Values.tls.days) -}}
{{- $name := include "vramcast.serverName" . -}}
{{- $names := list $name (printf "%s.cluster.local" $name) (include "vramcast.fullname" .) -}}
{{- $addresses := list -}}
{{- with .Values.extender.service.clusterIP -}}{{- $addresses = list . -}}{{- end -}}
{{- $serverPair := genSignedCert $name $addresses $names (int .Values.tls.days) $ca -}}
{{- $clientPair := genSignedCert "kube-scheduler" nil nil (int .Values.tls.days) $ca -}}
{{- $_ := set .Values "_certificates" (dict
    "server" (dict "ca.crt" ($ca.Cert | b64enc) "tls.crt" ($serverPair.Cert | b64enc) "tls.key" ($serverPair.Key | b64enc))
    "client" (dict "ca.crt" ($ca.Cert | b64enc) "tls.crt" ($clientPair.Cert | b64enc) "tls.key" ($clientPair.Key | b64enc))) -}}
{{- end -}}
{{- end -}}
{{- toJson .Values._certificates -}}
{{- end -}}

{{/* The Secret of the webhook if the chart generates it; kept by upgrades in the same way. */}}
{{- define "vramcast.webhookCertificate" -}}
{{- if not (hasKey .Values "_webhookCertificate") -}}
{{- $kept := lookup "v1" "Secret" .Release.Namespace (include "vramcast.webhookSecret" .) -}}
{{- if $kept -}}
{{- $_ := set .Values "_webhookCertificate" $kept.data -}}
{{- else -}}
{{- $ca := genCA (printf "%s-ca" (include "vramcast.webhookName" .)) (int .Values.tls.days) -}}
{{- $name := include "vramcast.webhookServerName" . -}}
{{- $pair := genSignedCert $name nil (list $name) (int .Values.tls.days) $ca -}}
{{- $_ := set .Values "_webhookCertificate" (dict "ca.crt" ($ca.Cert | b64enc) "tls.crt" ($pair.Cert | b64enc) "tls.key" ($pair.Key | b64enc)) -}}
{{- end -}}
{{- end -}}
{{- toJson .Values._webhookCertificate -}}
{{- end -}}

{{/* A CA for cert-manager, and the issuer of its name that signs with it. Takes a dict of `name` and `root`. */}}
{{- define "vramcast.selfSignedCa" }}
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: {{ .name }}-self-signed
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "vramcast.labels" .root | nindent 4 }}
spec:
  selfSigned: {}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "vramcast.labels" .root | nindent 4 }}
spec:
  isCA: true
  commonName: {{ .name }}
  secretName: {{ .name }}
  privateKey: {algorithm: ECDSA, size: 256}
  issuerRef: {kind: Issuer, name: {{ .name }}-self-signed}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "vramcast.labels" .root | nindent 4 }}
spec:
  ca: {secretName: {{ .name }}}
{{- end -}}
