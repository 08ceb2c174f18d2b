{{- define "hermes.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "hermes.image" -}}
{{ .Values.image.repository }}:{{ include "hermes.tag" . }}
{{- end }}
