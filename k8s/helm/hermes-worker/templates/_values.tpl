{{- /* What is wrong with values, in sentences. Helm's own check of values.schema.json would stop before any template is
     rendered, and tell a misspelt name without its nearest one. */ -}}

{{- /* Adds a sentence to found.said for each mistake of `value`, which stands at `path`, by `schema`: the keywords of JSON
     Schema that values.schema.json has. `title` completes "it must be". */ -}}
{{- define "hermes.judge" -}}
{{- $rules := .rules -}}{{- $found := .found -}}{{- $path := .path -}}{{- $value := .value -}}{{- $schema := .schema -}}
{{- range concat ($schema.allOf | default list) (hasKey $schema "$ref" | ternary (list $schema) list) -}}
{{- $other := index $rules.definitions (base (index . "$ref")) -}}
{{- include "hermes.judge" (dict "rules" $rules "found" $found "path" $path "value" $value "schema" $other) -}}
{{- end -}}
{{- $kind := get (dict "string" "string" "bool" "boolean" "map" "object" "slice" "array" "invalid" "null") (kindOf $value) | default "number" -}}
{{- $types := kindIs "slice" $schema.type | ternary $schema.type (list $schema.type) -}}
{{- $isWhole := and (eq $kind "number") (eq (floor $value) (float64 $value)) -}}
{{- if and $schema.type (not (has $kind $types)) (not (and $isWhole (has "integer" $types))) -}}
{{- $is := get (dict "string" "a text" "object" "a map" "array" "a list" "null" "empty") $kind | default (include "hermes.text" $value) -}}
{{- if or (hasPrefix "secrets." $path) (hasSuffix ".value" $path) -}}{{- $is = "something else" -}}{{- end -}}
{{- $_ := set $found "said" (append $found.said (printf "%s is %s; it must be %s" $path $is (include "hermes.wanted" $schema))) -}}
{{- else if or (and $schema.enum (not (has $value $schema.enum))) (and (eq $kind "number") (or (and (hasKey $schema "minimum") (lt (float64 $value) (float64 $schema.minimum))) (and $schema.maximum (gt (float64 $value) (float64 $schema.maximum))))) (and (eq $kind "string") (or (lt (len $value) (int ($schema.minLength | default 0))) (and $schema.maxLength (gt (len $value) (int $schema.maxLength))) (and $schema.pattern (not (regexMatch $schema.pattern $value))))) -}}
{{- $is := eq $kind "string" | ternary (quote $value) (include "hermes.text" $value) -}}
{{- $_ := set $found "said" (append $found.said (printf "%s is %s; it must be %s" $path (trunc 200 $is) (include "hermes.wanted" $schema))) -}}
{{- else if eq $kind "array" -}}
{{- range $i, $each := $value -}}
{{- include "hermes.judge" (dict "rules" $rules "found" $found "path" (printf "%s[%d]" $path $i) "value" $each "schema" ($schema.items | default dict)) -}}
{{- end -}}
{{- else if eq $kind "object" -}}
{{- $properties := $schema.properties | default dict -}}
{{- $more := $schema.additionalProperties -}}
{{- range $name, $each := $value -}}
{{- $at := eq $path "" | ternary $name (printf "%s.%s" $path $name) -}}
{{- if hasKey $properties $name -}}
{{- include "hermes.judge" (dict "rules" $rules "found" $found "path" $at "value" $each "schema" (get $properties $name)) -}}
{{- else if kindIs "map" $more -}}
{{- with $schema.propertyNames -}}{{- if not (regexMatch .pattern $name) -}}
{{- $_ := set $found "said" (append $found.said (printf "%s is a wrong name; it must be %s" (trunc 200 $at) .title)) -}}
{{- end -}}{{- end -}}
{{- include "hermes.judge" (dict "rules" $rules "found" $found "path" $at "value" $each "schema" $more) -}}
{{- else if kindIs "bool" $more -}}
{{- $nearest := include "hermes.nearest" (dict "name" $name "names" (keys $properties)) -}}
{{- $instead := printf "; %s has %s" $path (keys $properties | sortAlpha | join ", ") -}}
{{- if $nearest -}}{{- $instead = printf "; did you mean %s?" (eq $path "" | ternary $nearest (printf "%s.%s" $path $nearest)) -}}
{{- else if not $path -}}{{- $instead = "; values.yaml shows every value" -}}{{- end -}}
{{- $_ := set $found "said" (append $found.said (printf "%s is no value of the chart%s" (trunc 200 $at) $instead)) -}}
{{- end -}}
{{- end -}}
{{- range $schema.required -}}
{{- if not (hasKey $value .) -}}{{- $_ := set $found "said" (append $found.said (printf "%s is missing" (eq $path "" | ternary . (printf "%s.%s" $path .)))) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* What a value must be, for the end of a sentence. */ -}}
{{- define "hermes.wanted" -}}
{{- if .title -}}{{ .title }}
{{- else if .enum -}}one of {{ join ", " .enum }}
{{- else if eq .type "integer" -}}a whole number{{ with .maximum }} from {{ $.minimum }} to {{ . }}{{ else }} of at least {{ .minimum | default 0 }}{{ end }}
{{- else -}}{{ get (dict "string" (hasKey . "minLength" | ternary "a text that is not empty" "a text") "boolean" "true or false" "object" "a map" "array" "a list") .type }}
{{- end -}}
{{- end }}

{{- /* The one of `names` that has most pairs of letters in common with `name`, unless too few. */ -}}
{{- define "hermes.nearest" -}}
{{- $a := .name | trunc 100 | lower | trimPrefix "hermes_" -}}{{- $best := 0.5 -}}{{- $nearest := "" -}}
{{- range $each := sortAlpha .names -}}
{{- $b := lower $each | trimPrefix "hermes_" -}}{{- $shared := 0 -}}
{{- range $i := until (int (max 0 (sub (len $a) 1))) -}}
{{- if contains (substr $i (int (add $i 2)) $a) $b -}}{{- $shared = add1 $shared -}}{{- end -}}
{{- end -}}
{{- $likeness := divf (mulf 2 $shared) (max 1 (sub (add (len $a) (len $b)) 2)) -}}
{{- if gt $likeness $best -}}{{- $best = $likeness -}}{{- $nearest = $each -}}{{- end -}}
{{- end -}}
{{- $nearest -}}
{{- end }}
