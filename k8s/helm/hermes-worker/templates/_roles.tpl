{{- /* What roles have in common; each takes a role (see _helpers.tpl). */ -}}

{{- define "hermes.rollout" -}}
revisionHistoryLimit: 5
strategy:
  type: RollingUpdate
  rollingUpdate:
    maxSurge: {{ .surge | default 1 }}
    maxUnavailable: 0
selector:
  matchLabels:
    {{- include "hermes.selector" . | nindent 4 }}
{{- end }}

{{- define "hermes.podMetadata" -}}
labels:
  {{- include "hermes.selector" . | nindent 2 }}
  {{- with merge (dict) (.values.podLabels | default dict) .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/settings: {{ printf "%s %s" (include "hermes.settings" .root) (toYaml .root.Values.homeFiles) | sha256sum }}
  checksum/secrets: {{ include "hermes.secretsHash" . }}
  {{- with merge (dict) (.values.podAnnotations | default dict) .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "hermes.placed" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $.values $key | default (index $.root.Values $key) }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "hermes.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    {{- toYaml (.values.seccompProfile | default (dict "type" "RuntimeDefault")) | nindent 4 }}
{{- end }}

{{- define "hermes.pod" -}}
serviceAccountName: {{ include "hermes.name" .root }}-{{ .name }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- if .values.userNamespace }}
hostUsers: false
{{- end }}
priorityClassName: {{ include "hermes.priority" . }}
{{- include "hermes.placed" . }}
{{ include "hermes.podSecurity" . }}
topologySpreadConstraints:
{{- with .values.topologySpreadConstraints | default .root.Values.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
{{- else }}
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "hermes.selector" $ | nindent 8 }}
{{- end }}
{{- end }}
initContainers:
  # The gate: nothing starts before the schema is one that this version can work on.
  - name: wait-for-schema
    {{- include "hermes.program" . | nindent 4 }}
    args: [data, migrate, --check, --wait-s, "900"]
    {{- include "hermes.smallNeeds" . | nindent 4 }}
    env:
      {{- include "hermes.stateEnv" . | nindent 6 }}
  {{- with .values.initContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "hermes.smallNeeds" -}}
resources:
  requests:
    cpu: 50m
    memory: 96Mi
  limits:
    memory: 256Mi
{{- end }}

{{- /* Image, settings, rights and volumes of a container of ours. */ -}}
{{- define "hermes.program" -}}
image: {{ include "hermes.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
envFrom:
  - configMapRef:
      name: {{ include "hermes.name" .root }}-settings
  {{- with concat .root.Values.extraEnvFrom (.values.extraEnvFrom | default list) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
  {{- if .values.userNamespace }}
  procMount: Unmasked
  {{- end }}
volumeMounts:
  - name: home
    mountPath: /var/lib/hermes
  {{- range $file, $_ := .root.Values.homeFiles }}
  - name: home-files
    mountPath: /var/lib/hermes/{{ $file }}
    subPath: {{ $file }}
    readOnly: true
  {{- end }}
  {{- if eq (.home | default "") "workspaces" }}
  # The files that answers take along, which it reads.
  {{- range $folder := list "workspaces" "tenants" }}
  - name: shared
    mountPath: /var/lib/hermes/{{ $folder }}
    subPath: {{ $folder }}
    readOnly: true
  {{- end }}
  {{- end }}
  - name: tmp
    mountPath: /tmp
  - name: alive
    mountPath: /run/hermes
  - name: secrets
    mountPath: /run/secrets/hermes
    readOnly: true
  - name: encryption
    mountPath: /run/secrets/encryption
    readOnly: true
  {{- range $secret := .optional }}
  - name: given-{{ $secret }}
    mountPath: /run/secrets/{{ $secret }}
    readOnly: true
  {{- end }}
  {{- with concat .root.Values.extraVolumeMounts (.values.extraVolumeMounts | default list) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "hermes.stateEnv" -}}
- name: HERMES_DATABASE_URL_FILE
  value: /run/secrets/hermes/database-url
- name: HERMES_SECRETS_DIRECTORIES
  value: {{ range $i, $secret := prepend (.optional | default list) "encryption" }}{{ if $i }}:{{ end }}/run/secrets/{{ $secret }}{{ end }}
{{- with concat .root.Values.extraEnv (.values.extraEnv | default list) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "hermes.env" -}}
{{ include "hermes.stateEnv" . }}
- name: HERMES_BROKER_URL_FILE
  value: /run/secrets/hermes/broker-url
{{- if ne .name "worker-model" }}
- name: HERMES_MODEL_ASKED_ELSEWHERE
  value: "true"
{{- end }}
{{- end }}

{{- define "hermes.volumes" -}}
{{- if eq (.home | default "") "claim" -}}
- name: home
  persistentVolumeClaim:
    claimName: {{ .root.Values.storage.existingClaim | default (printf "%s-home" (include "hermes.name" .root)) }}
{{- else -}}
- name: home
  emptyDir:
    sizeLimit: {{ .homeSize | default "256Mi" }}
{{- end }}
{{- if eq (.home | default "") "workspaces" }}
- name: shared
  persistentVolumeClaim:
    claimName: {{ .root.Values.storage.existingClaim | default (printf "%s-home" (include "hermes.name" .root)) }}
    readOnly: true
{{- end }}
{{- if .root.Values.homeFiles }}
- name: home-files
  configMap:
    name: {{ include "hermes.name" .root }}-home-files
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .values.tmpSize | default "64Mi" }}
- name: alive
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ include "hermes.secret" (dict "root" .root "secret" "state") }}
          items:
            - key: database-url
              path: database-url
            - key: broker-url
              path: broker-url
      {{- range $secret, $key := .required | default dict }}
      - secret:
          name: {{ include "hermes.secret" (dict "root" $.root "secret" $secret) }}
          items:
            - key: {{ $key }}
              path: {{ $key }}
      {{- end }}
- name: encryption
  secret:
    secretName: {{ include "hermes.secret" (dict "root" .root "secret" "encryption") }}
    defaultMode: 0440
    optional: true
{{- range $secret := .optional }}
- name: given-{{ $secret }}
  secret:
    secretName: {{ include "hermes.secret" (dict "root" $.root "secret" $secret) }}
    defaultMode: 0440
    optional: true
{{- end }}
{{- with concat .root.Values.extraVolumes (.values.extraVolumes | default list) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "hermes.aliveProbes" -}}
startupProbe:
  exec:
    command: [test, -f, /run/hermes/alive]
  periodSeconds: 2
  failureThreshold: 60
{{ include "hermes.liveness" . }}
{{- end }}

{{- define "hermes.liveness" -}}
livenessProbe:
  exec:
    command: [sh, -c, '[ -n "$(find /run/hermes/alive -mmin -1)" ]']
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{- define "hermes.metricsPort" -}}
- name: metrics
  containerPort: 9464
{{- end }}

{{- define "hermes.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "hermes.metadata" . | nindent 2 }}
  {{- with merge (dict) (.values.serviceAccountAnnotations | default dict) .root.Values.serviceAccountAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}

{{- define "hermes.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "hermes.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .unavailable | default 1 }}
  selector:
    matchLabels:
      {{- include "hermes.selector" . | nindent 6 }}
{{- end }}

{{- define "hermes.publicAddresses" -}}
- ipBlock:
    cidr: 0.0.0.0/0
    except: [10.0.0.0/8, 100.64.0.0/10, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16]
- ipBlock:
    cidr: ::/0
    except: [fc00::/7, fe80::/10]
{{- end }}

{{- /* Out to public addresses, on some ports. */ -}}
{{- define "hermes.egress" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "hermes.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "hermes.selector" . | nindent 6 }}
  policyTypes: [Egress]
  egress:
    - to:
        {{- include "hermes.publicAddresses" . | nindent 8 }}
      ports:
        {{- range .ports }}
        - protocol: TCP
          port: {{ . }}
        {{- end }}
{{- end }}
