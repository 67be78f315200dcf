{{/* Names and labels. */}}
{{- define "adjudge.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Takes (list root component). */}}
{{- define "adjudge.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "adjudge.labels" -}}
{{ include "adjudge.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{/* Takes (list root image). */}}
{{- define "adjudge.image" -}}
{{- $images := (index . 0).Values.images }}
{{- with index $images.digests (index . 1) -}}
{{ $images.registry }}/adjudge-{{ index $ 1 }}@{{ . }}
{{- else -}}
{{ $images.registry }}/adjudge-{{ index . 1 }}:{{ $images.tag | default (index . 0).Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* Where the api finds judges: all that there may be, since those that are not up are left out and asked again. */}}
{{- define "adjudge.judges" -}}
{{- $judge := .Values.judge }}
{{- $count := ternary $judge.replicas $judge.autoscaling.maxReplicas (eq $judge.autoscaling.kind "none") | int }}
{{- range $index := until $count }}
{{- if $index }} {{ end }}http://{{ include "adjudge.name" $ }}-judge-{{ $index }}.{{ include "adjudge.name" $ }}-judge:8001
{{- end }}
{{- end }}

{{- define "adjudge.engine" -}}
{{- $options := ternary "" (printf "?%s" .Values.judge.options) (empty .Values.judge.options) }}
{{- if eq .Values.judge.kind "cpu" }}llamacpp://{{ .Values.judge.model }}{{ $options }}
{{- else if eq .Values.judge.kind "gpu" }}vllm://{{ .Values.judge.model }}{{ $options }}
{{- else }}
{{- range $index := until (int .Values.vllm.replicas) }}
{{- if $index }} {{ end }}openai+http://{{ include "adjudge.name" $ }}-vllm-{{ $index }}.{{ include "adjudge.name" $ }}-vllm:8000/v1{{ $options }}
{{- end }}
{{- end }}
{{- end }}

{{/* Environment from the secret: takes (list root NAME key NAME key …). */}}
{{- define "adjudge.secretEnv" -}}
{{- $secret := (index . 0).Values.secret }}
{{- $rest := rest . }}
{{- range $index := until (div (len $rest) 2 | int) }}
- name: {{ index $rest (mul 2 $index) }}
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ index $rest (add1 (mul 2 $index)) }}}}
{{- end }}
{{- end }}

{{/* The hub's token, for models that are gated; the secret need not hold one. */}}
{{- define "adjudge.hubToken" -}}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: hf-token, optional: true}}
{{- end }}

{{- define "adjudge.settings" -}}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
