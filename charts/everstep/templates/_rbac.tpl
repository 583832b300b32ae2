{{/* The operator's rights, verb by verb. tests/chart compares them with the calls the code makes, in both directions. */}}

{{/* In every namespace whose runs it serves. */}}
{{- define "everstep.rules.runs" -}}
- apiGroups: [everstep.dev]
  resources: [agentruns]
  verbs: [get, list, watch, delete]
- apiGroups: [everstep.dev]
  resources: [agentruns/status]
  verbs: [patch]
# Pods and Secrets name their run as owner with blockOwnerDeletion; some clusters (OpenShift) ask for this right then.
- apiGroups: [everstep.dev]
  resources: [agentruns/finalizers]
  verbs: [update]
- apiGroups: [everstep.dev]
  resources: [humanrequests]
  verbs: [get, list, watch, create]
- apiGroups: [everstep.dev]
  resources: [humanrequests/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
# Secrets: one per run with its journal's key and URL; get also serves goalFrom.secretKeyRef.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
# goalFrom.configMapKeyRef
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [get, create, patch]
{{- end }}

{{/* In its own namespace: the keys of journals and exports, the included Redis' passwords. create cannot be limited by name. */}}
{{- define "everstep.rules.own" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames:
    - {{ include "everstep.keySecret" . }}
    - {{ include "everstep.keySecret" . }}-signing
    - {{ include "everstep.keySecret" . }}-wrapping
    {{- if .Values.redis.enabled }}
    - {{ include "everstep.redisAuthSecret" . }}
    {{- end }}
  verbs: [get]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# A rotation of the keys that wrap data keys; nothing may change any other key.
- apiGroups: [""]
  resources: [secrets]
  resourceNames:
    - {{ include "everstep.keySecret" . }}-wrapping
  verbs: [patch]
{{- end }}

{{/* Of people, in the operator's namespace: what `kubectl exec deployment/…` asks for, and finding that deployment. The newer of
its two protocols is a GET (kubectl >= 1.31), the older a POST. */}}
{{- define "everstep.rules.journalAccess" -}}
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [""]
  resources: [pods/exec]
  verbs: [get, create]
{{- end }}

{{/* Cluster-wide only: how long a pod's node has been out of reach. Without it a lost node is judged by its pods alone. */}}
{{- define "everstep.rules.cluster" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get]
{{- end }}
