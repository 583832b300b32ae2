{{/* Everything here is one per cluster and outlives the release: removing it would delete every run, or open a gap in who may
answer. `helm template … | kubectl delete -f -` removes it for good. */}}
{{- define "everstep-crds.annotations" -}}
helm.sh/resource-policy: keep
{{- end }}

{{- define "everstep-crds.labels" -}}
app.kubernetes.io/name: everstep
app.kubernetes.io/component: api
app.kubernetes.io/part-of: everstep
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: everstep-crds-{{ .Chart.Version }}
{{- end }}
