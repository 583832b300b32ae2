{{/* Names and labels. No function here may be random or read the clock: a chart rendered twice must be equal byte for byte. */}}
{{- define "everstep.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "everstep.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains (include "everstep.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "everstep.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "everstep.selector" -}}
app.kubernetes.io/name: {{ include "everstep.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "everstep.labels" -}}
{{ include "everstep.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: everstep
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "everstep.serviceAccount" -}}
{{- default (include "everstep.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "everstep.keySecret" -}}
{{- default (printf "%s-keys" (include "everstep.fullname" .)) .Values.journal.keySecret }}
{{- end }}

{{- define "everstep.redisName" -}}
{{- printf "%s-redis" (include "everstep.fullname" .) }}
{{- end }}

{{- define "everstep.redisAuthSecret" -}}
{{- default (printf "%s-redis-auth" (include "everstep.fullname" .)) .Values.redis.authSecret }}
{{- end }}

{{- define "everstep.installation" -}}
{{- default (printf "%s-%s" .Release.Namespace (include "everstep.fullname" .) | trunc 63 | trimSuffix "-") .Values.installation }}
{{- end }}

{{/* Image reference of (dict "image" … "default" tag). */}}
{{- define "everstep.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .default .image.tag }}
{{- end }}
{{- end }}

{{/* Pod-level security of Pod Security's level "restricted". Argument: uid. */}}
{{- define "everstep.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "everstep.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What the schema cannot say. */}}
{{- define "everstep.check" -}}
{{- if and .Values.redis.enabled .Values.journal.existingSecret }}
{{- fail "\n\nredis.enabled and journal.existingSecret exclude each other: set redis.enabled=false to use your own Redis, or leave journal.existingSecret empty to use the included one.\n" }}
{{- end }}
{{- if and (not .Values.redis.enabled) (not .Values.journal.existingSecret) }}
{{- fail "\n\nredis.enabled is false and journal.existingSecret is empty: there is no journal. Make a Secret with the URL of your Redis (kubectl create secret generic everstep-store --from-literal=url=rediss://…) and set journal.existingSecret to its name.\n" }}
{{- end }}
{{- if and (not .Values.redis.enabled) (not .Values.installation) }}
{{- fail "\n\ninstallation is empty: with your own Redis give this installation a name of its own (installation=prod-eu), since every installation that shares the Redis needs another one.\n" }}
{{- end }}
{{- if and .Values.journalAccess.subjects (not .Values.journalAccess.enabled) }}
{{- fail "\n\njournalAccess.subjects names somebody, but journalAccess.enabled is false, so nothing would be bound: set journalAccess.enabled=true (read in values.yaml what it gives away), or leave subjects empty.\n" }}
{{- end }}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}
{{- fail "\n\nserviceAccount.create is false and serviceAccount.name is empty: name the service account to use.\n" }}
{{- end }}
{{- end }}
