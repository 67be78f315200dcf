{{/* Names, labels, images, and what is taken from secrets. */}}
{{- define "adjudge.chart" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* The name of the release's objects; the longest has 22 characters more. */}}
{{- define "adjudge.name" -}}
{{- $chart := include "adjudge.chart" . }}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $chart .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $chart | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Takes (list root component). */}}
{{- define "adjudge.selector" -}}
app.kubernetes.io/name: {{ include "adjudge.chart" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "adjudge.labels" -}}
{{- $root := index . 0 }}
{{- $own := include "adjudge.selector" . | fromYaml }}
{{- $_ := set $own "app.kubernetes.io/version" $root.Chart.AppVersion }}
{{- $_ := set $own "app.kubernetes.io/managed-by" $root.Release.Service }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version) }}
{{- toYaml (merge $own ($root.Values.commonLabels | default dict)) }}
{{- end }}

{{/* The metadata of an object. Takes (list root component name), and optionally annotations and labels of its own. */}}
{{- define "adjudge.metadata" -}}
{{- $root := index . 0 }}
{{- $annotations := dict }}
{{- if gt (len .) 3 }}{{ $annotations = deepCopy (index . 3) }}{{ end }}
name: {{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
labels: {{- include "adjudge.labels" (list $root (index . 1)) | nindent 2 }}
  {{- if gt (len .) 4 }}{{ with index . 4 }}{{ toYaml . | nindent 2 }}{{ end }}{{ end }}
{{- with merge $annotations ($root.Values.commonAnnotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* One of the chart's own images. Takes (list root image). */}}
{{- define "adjudge.image" -}}
{{- $root := index . 0 }}
{{- $images := $root.Values.images }}
{{- $registry := ($root.Values.global | default dict).imageRegistry | default $images.registry }}
{{- $image := printf "%s/adjudge-%s" (required "images.registry must be set: where the images of docker/Dockerfile are" $registry) (index . 1) }}
{{- with index ($images.digests | default dict) (index . 1) }}{{ $image }}@{{ . }}{{ else }}{{ $image }}:{{ $images.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Somebody else's image. Takes (list root image). */}}
{{- define "adjudge.foreignImage" -}}
{{- with ((index . 0).Values.global | default dict).imageRegistry }}{{ . }}/{{ end }}{{ index . 1 }}
{{- end }}

{{/* "true" in a trial: an installation without a Secret, which makes its own and has its own stores. */}}
{{- define "adjudge.trial" -}}
{{- if not .Values.existingSecret }}
{{- range $store := list "database" "cache" "queue" }}
{{- with index $.Values $store }}{{ if or .existingSecret .passwordKey .host }}
{{- fail (printf "existingSecret must be set, since %s is given: name a Secret with signing-secret, judge-token and what README.md lists. Or give no store at all: the chart then makes a Secret and small stores, to try it with" $store) }}
{{- end }}{{ end }}
{{- end }}true
{{- end }}
{{- end }}

{{/* "true" where the chart runs PostgreSQL and Valkey. */}}
{{- define "adjudge.ownStores" -}}
{{- if or .Values.devStores.enabled (include "adjudge.trial" .) }}true{{ end }}
{{- end }}

{{- define "adjudge.secret" -}}
{{- if include "adjudge.trial" . }}{{ include "adjudge.name" . }}-trial{{ else }}{{ .Values.existingSecret }}{{ end }}
{{- end }}

{{/* The Secret with the bootstrap key. */}}
{{- define "adjudge.bootstrapSecret" -}}
{{- $bootstrap := .Values.bootstrapKey }}
{{- if $bootstrap.existingSecret }}{{ $bootstrap.existingSecret }}
{{- else if $bootstrap.generate }}{{ include "adjudge.name" . }}-bootstrap-key
{{- else }}{{ include "adjudge.secret" . }}{{ end }}
{{- end }}

{{/* A new API key with every scope. */}}
{{- define "adjudge.newKey" -}}
{{ printf "adj_%s_%s" (randBytes 10 | b64dec | b32enc | lower) (randAlphaNum 43) }}
{{- end }}

{{/* A variable from a key of a Secret. Takes (list NAME secret key), and true if the key may be missing. */}}
{{- define "adjudge.fromSecret" -}}
- name: {{ index . 0 }}
  valueFrom: {secretKeyRef: {name: {{ index . 1 }}, key: {{ index . 2 }}{{ if gt (len .) 3 }}, optional: true{{ end }}}}
{{- end }}

{{/* The values of a store: in a trial, those of the chart's own. Takes (list root store), as in "database". */}}
{{- define "adjudge.store" -}}
{{- $root := index . 0 }}
{{- $store := deepCopy (index $root.Values (index . 1)) }}
{{- if include "adjudge.trial" $root }}
{{- $name := include "adjudge.name" $root }}
{{- $postgres := dict "host" (printf "%s-postgres" $name) "passwordKey" "postgres-password" "port" 5432 "name" "adjudge" "user" "adjudge" }}
{{- $redis := dict "host" (printf "%s-redis" $name) "passwordKey" "redis-password" "port" 6379 }}
{{- $store = mergeOverwrite $store (ternary $postgres $redis (eq (index . 1) "database")) }}
{{- end }}
{{- $_ := set $store "existingSecret" ($store.existingSecret | default (include "adjudge.secret" $root)) }}
{{- toYaml $store }}
{{- end }}

{{/* The URL of a store, or its password and a URL without one. Takes (list root store), as in "database". */}}
{{- define "adjudge.storeEnv" -}}
{{- $store := include "adjudge.store" . | fromYaml }}
{{- $secret := $store.existingSecret }}
{{- $name := printf "ADJUDGE_%s" (upper (index . 1)) }}
{{- if $store.passwordKey }}
{{- $host := required (printf "%s.host must be set with %s.passwordKey" (index . 1) (index . 1)) $store.host }}
{{- $user := empty $store.user | ternary "" (printf "%s@" $store.user) }}
{{- $options := empty $store.options | ternary "" (printf "?%s" $store.options) }}
{{- include "adjudge.fromSecret" (list (printf "%s_PASSWORD" $name) $secret $store.passwordKey) }}
- name: {{ $name }}_URL
  value: {{ printf "%s://%s%s:%d/%s%s" ($store.scheme | default "postgresql") $user $host (int $store.port) $store.name $options | quote }}
{{- else }}
{{- include "adjudge.fromSecret" (list (printf "%s_URL" $name) $secret $store.urlKey) }}
{{- end }}
{{- end }}

{{/* The hub's token, for models that are gated; the secret need not hold one. */}}
{{- define "adjudge.hubToken" -}}
{{- include "adjudge.fromSecret" (list "HF_TOKEN" (include "adjudge.secret" .) "hf-token" true) }}
{{- end }}

{{/* Where the api finds judges: all that there may be, since those that are not up are left out and asked again. */}}
{{- define "adjudge.judges" -}}
{{- $judge := .Values.judge }}
{{- $count := ternary $judge.replicas $judge.autoscaling.maxReplicas (eq $judge.autoscaling.kind "none") | int }}
{{- range $index := until $count }}
{{- if $index }} {{ end }}http://{{ include "adjudge.name" $ }}-judge-{{ $index }}.{{ include "adjudge.name" $ }}-judge:8001
{{- end }}
{{- end }}

{{/* The values of the judge, with kind and model where they are not set, and a trial's resources. */}}
{{- define "adjudge.judge" -}}
{{- $trial := include "adjudge.trial" . }}
{{- $judge := deepCopy .Values.judge }}
{{- $_ := set $judge "kind" ($judge.kind | default (ternary "gpu" "cpu" (empty $trial))) }}
{{- $small := and $trial (eq $judge.kind "cpu") }}
{{- $_ := set $judge "model" ($judge.model | default (ternary "Qwen/Qwen2.5-7B-Instruct" "qwen2.5-coder-1.5b" (empty $small))) }}
{{- if $small }}{{ $_ := set $judge "resources" $judge.trialResources }}{{ end }}
{{- toYaml $judge }}
{{- end }}

{{- define "adjudge.engine" -}}
{{- $judge := include "adjudge.judge" . | fromYaml }}
{{- $options := ternary "" (printf "?%s" $judge.options) (empty $judge.options) }}
{{- if eq $judge.kind "cpu" }}llamacpp://{{ $judge.model }}{{ $options }}
{{- else if eq $judge.kind "gpu" }}vllm://{{ $judge.model }}{{ $options }}
{{- else }}
{{- range $index := until (int .Values.vllm.replicas) }}
{{- if $index }} {{ end }}openai+http://{{ include "adjudge.name" $ }}-vllm-{{ $index }}.{{ include "adjudge.name" $ }}-vllm:8000/v1{{ $options }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where the api is, for pods of the release. */}}
{{- define "adjudge.url" -}}
http://{{ include "adjudge.name" . }}-api:{{ .Values.api.service.port }}
{{- end }}
