{{/* Values → the operator's settings. tests/chart compares the names with everstep_operator.settings, in both directions. */}}
{{- define "everstep.environment" -}}
{{- $env := dict }}
{{- $_ := set $env "EVERSTEP_INSTALLATION" (include "everstep.installation" .) }}
{{- $_ := set $env "EVERSTEP_WATCH_NAMESPACES" (join "," .Values.watchNamespaces) }}
{{- if .Values.redis.enabled }}
{{- $_ := set $env "EVERSTEP_STORE_URL_FILE" "/dev/shm/everstep/url" }}
{{- $_ := set $env "EVERSTEP_AGENT_STORE_URL_FILE" "/dev/shm/everstep/agent-url" }}
{{- else }}
{{- $_ := set $env "EVERSTEP_STORE_URL_FILE" (printf "/etc/everstep/store/%s" .Values.journal.secretKeys.url) }}
{{- with .Values.journal.secretKeys.agentUrl }}
{{- $_ := set $env "EVERSTEP_AGENT_STORE_URL_FILE" (printf "/etc/everstep/store/%s" .) }}
{{- end }}
{{- with .Values.journal.secretKeys.ca }}
{{- $_ := set $env "EVERSTEP_STORE_CA_FILE" (printf "/etc/everstep/store/%s" .) }}
{{- end }}
{{- end }}
{{- $_ := set $env "EVERSTEP_DURABILITY" .Values.journal.durability }}
{{- $_ := set $env "EVERSTEP_DURABILITY_DECLARED" .Values.journal.durabilityDeclared }}
{{- $_ := set $env "EVERSTEP_DURABILITY_CHECK_SECONDS" .Values.journal.checkSeconds }}
{{- $_ := set $env "EVERSTEP_STORE_TIMEOUT_SECONDS" .Values.journal.timeoutSeconds }}
{{- $_ := set $env "EVERSTEP_KEY_SECRET" (include "everstep.keySecret" .) }}
{{- $_ := set $env "EVERSTEP_ENCRYPT" .Values.journal.encrypt }}
{{- $_ := set $env "EVERSTEP_ANCHOR_SECONDS" .Values.journal.anchorSeconds }}
{{- $_ := set $env "EVERSTEP_PROGRESS_SECONDS" .Values.journal.progressSeconds }}
{{- $_ := set $env "EVERSTEP_SWEEP_EVERY_SECONDS" .Values.journal.sweep.everySeconds }}
{{- $_ := set $env "EVERSTEP_SWEEP_AFTER_SECONDS" .Values.journal.sweep.afterSeconds }}
{{- if .Values.agent.image.repository }}
{{- $_ := set $env "EVERSTEP_DEFAULT_IMAGE" (include "everstep.image" (dict "image" .Values.agent.image "default" .Chart.AppVersion)) }}
{{- end }}
{{- $_ := set $env "EVERSTEP_AGENT_RESOURCES" (toJson .Values.agent.resources) }}
{{- $_ := set $env "EVERSTEP_TOLERATION_SECONDS" .Values.agent.tolerationSeconds }}
{{- $_ := set $env "EVERSTEP_NODE_LOSS_POLICY" .Values.agent.nodeLoss.policy }}
{{- $_ := set $env "EVERSTEP_NODE_LOSS_AFTER_SECONDS" .Values.agent.nodeLoss.afterSeconds }}
{{- $_ := set $env "EVERSTEP_ALLOWED_SERVICE_ACCOUNTS" (join "," .Values.agent.allowedServiceAccounts) }}
{{- $_ := set $env "EVERSTEP_WORKERS" .Values.operator.workers }}
{{- $_ := set $env "EVERSTEP_RESYNC_SECONDS" .Values.operator.resyncSeconds }}
{{- $_ := set $env "EVERSTEP_API_QPS" .Values.operator.apiQps }}
{{- $_ := set $env "EVERSTEP_API_BURST" .Values.operator.apiBurst }}
{{- $_ := set $env "EVERSTEP_API_TIMEOUT_SECONDS" .Values.operator.apiTimeoutSeconds }}
{{- $_ := set $env "EVERSTEP_BACKOFF_BASE_SECONDS" .Values.operator.backoffBaseSeconds }}
{{- $_ := set $env "EVERSTEP_BACKOFF_MAX_SECONDS" .Values.operator.backoffMaxSeconds }}
{{- $_ := set $env "EVERSTEP_LOG_LEVEL" .Values.operator.logLevel }}
{{- $_ := set $env "EVERSTEP_LOG_FORMAT" .Values.operator.logFormat }}
{{- $_ := set $env "EVERSTEP_HEALTH_PORT" 8080 }}
{{- $_ := set $env "EVERSTEP_METRICS_PORT" 8081 -}}
- name: EVERSTEP_OPERATOR_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- range $name, $value := $env }}
- name: {{ $name }}
  {{- /* Numbers of values.yaml are floats to a template; int64 keeps 3600000 from becoming 3.6e+06. */}}
  {{- if kindIs "float64" $value }}
  value: {{ ternary (int64 $value | toString) (toString $value) (eq (floor $value) $value) | quote }}
  {{- else }}
  value: {{ toString $value | quote }}
  {{- end }}
{{- end }}
{{- with .Values.operator.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
