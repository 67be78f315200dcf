{{/* What every pod is held to. Takes (list root values component). */}}
{{- define "adjudge.pod" -}}
{{- $root := index . 0 }}
{{- $values := index . 1 }}
{{/* A hook runs before the chart's own account is made. */ -}}
serviceAccountName: {{ ternary "default" (include "adjudge.name" $root) (eq (index . 2) "migrate") }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ $root.Values.spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels: {{- include "adjudge.selector" (list $root (index $ 2)) | nindent 8 }}
  {{- end }}
{{- end }}

{{- define "adjudge.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Resources with GPUs: takes (list resources gpus). */}}
{{- define "adjudge.resources" -}}
{{- $resources := deepCopy (index . 0) }}
{{- if index . 1 }}
{{- $_ := set $resources.limits "nvidia.com/gpu" (index . 1) }}
{{- $_ := set $resources.requests "nvidia.com/gpu" (index . 1) }}
{{- end }}
resources: {{- toYaml $resources | nindent 2 }}
{{- end }}

{{/* One PersistentVolumeClaim for model files. Takes (list root cache component). */}}
{{- define "adjudge.modelClaim" -}}
- metadata:
    name: models
    labels: {{- include "adjudge.selector" (list (index . 0) (index . 2)) | nindent 6 }}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with (index . 1).storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ (index . 1).size }}}}
{{- end }}
