{{- /* Names, labels and texts. `root` is the top of the values; a role is a dict that each template of a role makes:
     root, name (worker-model), values (its group), priority (control or work). */ -}}

{{- define "hermes.name" -}}
{{ .Values.fullnameOverride | default .Release.Name }}
{{- end }}

{{- define "hermes.labels" -}}
app.kubernetes.io/name: hermes-worker
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .name }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "hermes.selector" -}}
app.kubernetes.io/name: hermes-worker
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .name }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- /* Of an object of a role, or with `suffix` of one of all roles. */ -}}
{{- define "hermes.metadata" -}}
name: {{ include "hermes.name" .root }}-{{ .suffix | default .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "hermes.labels" . | nindent 2 }}
{{- end }}

{{- define "hermes.image" -}}
{{- $image := merge (dict) (.values.image | default dict) .root.Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* The name of a secret: one that exists already, or this release's. */ -}}
{{- define "hermes.secret" -}}
{{ index .root.Values.existingSecrets .secret | default (printf "%s-%s" (include "hermes.name" .root) .secret) }}
{{- end }}

{{- define "hermes.priority" -}}
{{ .values.priorityClassName | default .root.Values.priorityClassName | default (index .root.Values.priorityClasses .priority) | default (printf "%s-%s" (include "hermes.name" .root) .priority) }}
{{- end }}

{{- /* A value as people write it: a whole number of JSON is no 1e+06. */ -}}
{{- define "hermes.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{- define "hermes.settings" -}}
{{- if .Values.browser.enabled }}
HERMES_BROWSER: "true"
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- if not (and (eq $name "HERMES_BROWSER") $.Values.browser.enabled) }}
{{ $name }}: {{ include "hermes.text" $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Of secrets that this release makes, and of those that are in the namespace, where Helm sees it. */ -}}
{{- define "hermes.secretsHash" -}}
{{- $given := dict "values" .root.Values.secrets "names" .root.Values.existingSecrets -}}
{{- range $secret := concat (list "state" "encryption") .secrets -}}
{{- $name := include "hermes.secret" (dict "root" $.root "secret" $secret) -}}
{{- $_ := set $given $name (lookup "v1" "Secret" $.root.Release.Namespace $name | default dict).data -}}
{{- end -}}
{{ toYaml $given | sha256sum }}
{{- end }}

{{- /* Memory in Mi, of a quantity that the schema let through. */ -}}
{{- define "hermes.mebibytes" -}}
{{- $units := dict "k" 1000.0 "M" 1000000.0 "G" 1000000000.0 "T" 1000000000000.0 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "" 1.0 -}}
{{- $unit := regexFind "[A-Za-z]*$" (toString .) -}}
{{- divf (mulf (float64 (trimSuffix $unit (toString .))) (index $units $unit)) 1048576.0 | floor | int64 -}}
{{- end }}
