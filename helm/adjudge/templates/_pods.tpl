{{/* The pod template of every component. Takes a dict: root; component; values, the component's own; pod, a template that
renders the component's container (image, args, env, ports, probes, volumeMounts …) and, beside it, volumes,
initContainers, restartPolicy and terminationGracePeriodSeconds as YAML. */}}
{{- define "adjudge.podTemplate" -}}
{{- $root := .root }}
{{- $component := .component }}
{{- $values := .values }}
{{- $pod := include .pod $root | fromYaml }}
{{- with $pod.Error }}{{ fail (printf "the pod of %s: %s" $component .) }}{{ end }}
{{- $containerContext := include "adjudge.securityContext" (list $root $values "containerSecurityContext") | fromYaml }}
{{- $containers := list }}
{{- range concat ($pod.initContainers | default list) (list (merge (dict "name" $component) $pod.container)) }}
{{- $container := deepCopy . }}
{{- $_ := set $container "imagePullPolicy" $root.Values.images.pullPolicy }}
{{- with $containerContext }}{{ $_ := set $container "securityContext" . }}{{ end }}
{{- with include "adjudge.env" (list $root (.env | default list) $values $component) | fromYamlArray }}{{ $_ := set $container "env" . }}{{ else }}{{ $_ := unset $container "env" }}{{ end }}
{{- with $values.extraEnvFrom }}{{ $_ := set $container "envFrom" . }}{{ end }}
{{- with concat (.volumeMounts | default list) ($values.extraVolumeMounts | default list) }}{{ $_ := set $container "volumeMounts" . }}{{ end }}
{{- if eq .name $component }}{{ with $values.lifecycle }}{{ $_ := set $container "lifecycle" . }}{{ end }}{{ end }}
{{- $containers = append $containers $container }}
{{- end }}
metadata:
  labels: {{- include "adjudge.labels" (list $root $component) | fromYaml | merge (deepCopy ($values.podLabels | default dict)) | toYaml | nindent 4 }}
  {{- with merge (deepCopy ($values.podAnnotations | default dict)) ($root.Values.commonAnnotations | default dict) }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "adjudge.account" (list $root $component) }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with include "adjudge.pullSecrets" $root | fromYamlArray }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "adjudge.securityContext" (list $root $values "podSecurityContext") | fromYaml }}
  securityContext: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  {{- with $pod.terminationGracePeriodSeconds }}
  terminationGracePeriodSeconds: {{ . }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" "schedulerName" "dnsConfig" "hostAliases" }}
  {{- with index $values $key }}
  {{ $key }}: {{- if kindIs "string" . }} {{ . }}{{ else }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- end }}
  {{- end }}
  topologySpreadConstraints:
    {{- with $values.topologySpreadConstraints }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: {{ $root.Values.spread.whenUnsatisfiable }}
      labelSelector:
        matchLabels: {{- include "adjudge.selector" (list $root $component) | nindent 10 }}
    {{- end }}
    {{- end }}
  {{- with concat (initial $containers) ($values.initContainers | default list) }}
  initContainers: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers: {{- toYaml (concat (list (last $containers)) ($values.sidecars | default list)) | nindent 4 }}
  {{- with concat ($pod.volumes | default list) ($values.extraVolumes | default list) }}
  volumes: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* A security context: the chart's with the component's changes; nothing where the component has null. Takes (list root
values key). */}}
{{- define "adjudge.securityContext" -}}
{{- $own := index . 1 }}
{{- $key := index . 2 }}
{{- if hasKey $own $key }}
{{- mergeOverwrite (deepCopy (index (index . 0).Values $key | default dict)) (index $own $key | default dict) | toYaml }}
{{- else }}{}{{ end }}
{{- end }}

{{/* The variables of a container: its own, then the chart's settings, then the component's extraEnv; of two with one name
the later one is taken. Takes (list root env values component). */}}
{{- define "adjudge.env" -}}
{{- $component := index . 3 }}
{{- $all := index . 1 }}
{{- if not (has $component (list "postgres" "redis" "test")) }}
{{- range $name, $value := (index . 0).Values.settings }}
{{- if or (ne $component "vllm") (not (hasPrefix "ADJUDGE_" $name)) }}
{{- $all = append $all (dict "name" $name "value" (toString $value)) }}
{{- end }}
{{- end }}
{{- end }}
{{- $all = concat $all ((index . 2).extraEnv | default list) }}
{{- $last := dict }}
{{- range $index, $entry := $all }}{{ $_ := set $last $entry.name $index }}{{ end }}
{{- $taken := list }}
{{- range $index, $entry := $all }}{{ if eq $index (index $last $entry.name) }}{{ $taken = append $taken $entry }}{{ end }}{{ end }}
{{- toYaml $taken }}
{{- end }}

{{/* Names of secrets, of the chart and of a parent chart, which may write {name: …}. */}}
{{- define "adjudge.pullSecrets" -}}
{{- $named := list }}
{{- range concat (.Values.images.pullSecrets | default list) ((.Values.global | default dict).imagePullSecrets | default list) }}
{{- $named = append $named (kindIs "map" . | ternary . (dict "name" .)) }}
{{- end }}
{{- toYaml ($named | uniq) }}
{{- end }}

{{/* A hook runs before the chart's own account is made. Takes (list root component). */}}
{{- define "adjudge.account" -}}
{{- $account := (index . 0).Values.serviceAccount }}
{{- if and $account.create (ne (index . 1) "migrate") }}{{ $account.name | default (include "adjudge.name" (index . 0)) }}
{{- else if $account.create }}default
{{- else }}{{ $account.name | default "default" }}{{ end }}
{{- end }}

{{/* Resources with GPUs. Takes (list resources gpus). */}}
{{- define "adjudge.resources" -}}
{{- $resources := deepCopy (index . 0 | default dict) }}
{{- if index . 1 }}
{{- range list "limits" "requests" }}
{{- $_ := set $resources . (merge (dict "nvidia.com/gpu" (index $ 1)) (index $resources . | default dict)) }}
{{- end }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* The volume of model files, if it is a claim that exists. Takes the cache. */}}
{{- define "adjudge.modelVolume" -}}
{{- with .existingClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- end }}

{{/* One PersistentVolumeClaim for model files. Takes (list root cache component). */}}
{{- define "adjudge.modelClaim" -}}
- metadata:
    name: models
    labels: {{- include "adjudge.selector" (list (index . 0) (index . 2)) | nindent 6 }}
  spec:
    accessModes: {{- toYaml (index . 1).accessModes | nindent 6 }}
    {{- with (index . 1).storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ (index . 1).size }}}}
{{- end }}

{{/* A Service of a component. Takes (list root component port ports service), where service has annotations and type. */}}
{{- define "adjudge.service" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $service := index . 4 }}
apiVersion: v1
kind: Service
metadata: {{- include "adjudge.metadata" (list $root $component (printf "%s-%s" (include "adjudge.name" $root) $component) ($service.annotations | default dict)) | nindent 2 }}
spec:
  {{- if $service.type }}
  type: {{ $service.type }}
  {{- else }}
  clusterIP: None
  {{- end }}
  selector: {{- include "adjudge.selector" (list $root $component) | nindent 4 }}
  ports: [{name: {{ index . 2 }}, port: {{ index . 3 }}, targetPort: {{ index . 2 }}}]
{{- end }}
