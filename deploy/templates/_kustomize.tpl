{{- /*
The subset of Kustomize that the kustomizations of this directory use, so that the chart needs no objects
of its own: resources, components, replicas, configMapGenerator, and patches by RFC 6902 and as
strategic merges. Templates can only return text, so these modify their arguments: the maps of a state,
"objects" (the result so far) and "seen" (directories), and the maps of objects.
*/}}

{{- /* Adds the objects of a directory, unless it was added before. */}}
{{- define "kustomization" }}
{{- $state := .state }}
{{- $files := .files }}
{{- $directory := .directory }}
{{- if not (has $directory $state.seen) }}
{{- $_ := set $state "seen" (append $state.seen $directory) }}
{{- $read := fromYaml ($files.Get (printf "%s/kustomization.yaml" $directory)) }}
{{- range concat (default list $read.resources) (default list $read.components) }}
{{- $path := clean (printf "%s/%s" $directory .) }}
{{- if hasSuffix ".yaml" $path }}
{{- range splitList "\n---\n" ($files.Get $path) }}
{{- $_ := set $state "objects" (append $state.objects (fromYaml (printf "%s\n" .))) }}
{{- end }}
{{- else }}
{{- include "kustomization" (dict "state" $state "files" $files "directory" $path) }}
{{- end }}
{{- end }}
{{- range default list $read.configMapGenerator }}
{{- $data := dict }}
{{- range .files }}
{{- $_ := set $data . ($files.Get (printf "%s/%s" $directory .)) }}
{{- end }}
{{- $metadata := dict "name" .name "namespace" $read.namespace }}
{{- with .options }}
{{- $_ := set $metadata "labels" .labels }}
{{- end }}
{{- $object := dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" $metadata "data" $data }}
{{- $_ := set $state "objects" (append $state.objects $object) }}
{{- end }}
{{- range default list $read.patches }}
{{- $patch := default ($files.Get (printf "%s/%v" $directory .path)) .patch }}
{{- include "patch" (dict "state" $state "target" .target "patch" $patch) }}
{{- end }}
{{- range default list $read.replicas }}
{{- $patch := printf "[{op: replace, path: /spec/replicas, value: %v}]" .count }}
{{- $target := dict "kind" "Deployment" "name" .name }}
{{- include "patch" (dict "state" $state "target" $target "patch" $patch) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Patches the objects of a target; without a target, those of the patch's own kind and name. */}}
{{- define "patch" }}
{{- $patch := .patch }}
{{- $merged := fromYaml $patch }}
{{- /* fromYaml returns an error for a list of operations. */}}
{{- $operations := list }}
{{- if hasKey $merged "Error" }}
{{- $operations = fromYamlArray $patch }}
{{- end }}
{{- $target := .target }}
{{- if not $target }}
{{- $target = dict "kind" $merged.kind "name" $merged.metadata.name }}
{{- end }}
{{- $kept := list }}
{{- $found := false }}
{{- range $object := .state.objects }}
{{- $isKind := regexMatch (printf "^(%s)$" $target.kind) $object.kind }}
{{- if and $isKind (regexMatch (printf "^(%s)$" $target.name) $object.metadata.name) }}
{{- $found = true }}
{{- if not $operations }}
{{- include "merge" (dict "onto" $object "from" $merged) }}
{{- end }}
{{- range $operations }}
{{- include "operation" (dict "object" $object "operation" .) }}
{{- end }}
{{- end }}
{{- if not (hasKey $object "$patch") }}
{{- $kept = append $kept $object }}
{{- end }}
{{- end }}
{{- if not $found }}
{{- fail (printf "a patch is for %s %s, of which there is none" $target.kind $target.name) }}
{{- end }}
{{- $_ := set .state "objects" $kept }}
{{- end }}

{{- /*
One operation of RFC 6902, without "copy" and "move". Templates cannot modify a list, so the map that
contains it gets a new list. An impossible operation is an error, as in Kustomize.
*/}}
{{- define "operation" }}
{{- $op := .operation.op }}
{{- $value := .operation.value }}
{{- $what := printf "%v %v" $op .operation.path }}
{{- if not (has $op (list "add" "remove" "replace" "test")) }}
{{- fail (printf "a patch cannot do %s" $what) }}
{{- end }}
{{- $at := .object }}
{{- $map := .object }}
{{- $key := "" }}
{{- $path := rest (splitList "/" .operation.path) }}
{{- range initial $path }}
{{- if kindIs "slice" $at }}
{{- $at = index $at (int .) }}
{{- else }}
{{- $key = replace "~1" "/" . }}
{{- if not (and (kindIs "map" $at) (hasKey $at $key)) }}
{{- fail (printf "%s: there is no %s" $what $key) }}
{{- end }}
{{- $map = $at }}
{{- $at = get $map $key }}
{{- end }}
{{- end }}
{{- $last := replace "~1" "/" (last $path) }}
{{- if not (kindIs "slice" $at) }}
{{- if and (has $op (list "remove" "test")) (not (hasKey $at $last)) }}
{{- fail (printf "%s: there is no %s" $what $last) }}
{{- end }}
{{- if eq $op "remove" }}
{{- $_ := unset $at $last }}
{{- else if eq $op "test" }}
{{- include "equal" (dict "name" $last "item" (get $at $last) "value" $value) }}
{{- else }}
{{- $_ := set $at $last $value }}
{{- end }}
{{- else if and (eq $op "add") (has $last (list "-" (printf "%d" (len $at)))) }}
{{- $_ := set $map $key (append $at $value) }}
{{- else }}
{{- $items := list }}
{{- $found := false }}
{{- range $number, $item := $at }}
{{- if ne (printf "%d" $number) $last }}
{{- $items = append $items $item }}
{{- else }}
{{- $found = true }}
{{- if has $op (list "add" "replace") }}
{{- $items = append $items $value }}
{{- end }}
{{- if eq $op "test" }}
{{- include "equal" (dict "name" $key "item" $item "value" $value) }}
{{- end }}
{{- if has $op (list "add" "test") }}
{{- $items = append $items $item }}
{{- end }}
{{- end }}
{{- end }}
{{- if not $found }}
{{- fail (printf "%s: %s has no item %s" $what $key $last) }}
{{- end }}
{{- $_ := set $map $key $items }}
{{- end }}
{{- end }}

{{- /* The operation "test": fails if the values differ. */}}
{{- define "equal" }}
{{- if ne (toYaml .item) (toYaml .value) }}
{{- fail (printf "%s has %v where a patch wants %v" .name .item .value) }}
{{- end }}
{{- end }}

{{- /*
A strategic merge. Lists whose items have a key are merged by that key, in the order of
the patch and before the other items, as in Kustomize; other lists are replaced.
*/}}
{{- define "merge" }}
{{- $onto := .onto }}
{{- $named := list "containers" "env" "imagePullSecrets" "initContainers" "volumes" }}
{{- $keys := dict "hostAliases" "ip" "ports" "port" "topologySpreadConstraints" "topologyKey" "volumeMounts" "mountPath" }}
{{- range $key, $value := .from }}
{{- $there := get $onto $key }}
{{- $by := ternary "name" (get $keys $key) (has $key $named) }}
{{- $order := "" }}
{{- if kindIs "map" $value }}
{{- $order = get $value "$patch" }}
{{- end }}
{{- if or (kindIs "invalid" $value) (eq $order "delete") }}
{{- $_ := unset $onto $key }}
{{- else if eq $order "replace" }}
{{- $_ := set $onto $key (omit $value "$patch") }}
{{- else if and (kindIs "map" $value) (kindIs "map" $there) }}
{{- include "merge" (dict "onto" $there "from" $value) }}
{{- else if and $by (kindIs "slice" $value) (kindIs "slice" $there) }}
{{- $items := list }}
{{- $others := $there }}
{{- range $item := $value }}
{{- $merged := $item }}
{{- $left := list }}
{{- range $old := $others }}
{{- if eq (include "item key" (dict "item" $old "by" $by)) (include "item key" (dict "item" $item "by" $by)) }}
{{- $merged = $old }}
{{- include "merge" (dict "onto" $old "from" $item) }}
{{- else }}
{{- $left = append $left $old }}
{{- end }}
{{- end }}
{{- $others = $left }}
{{- if ne (get $item "$patch") "delete" }}
{{- $items = append $items $merged }}
{{- end }}
{{- end }}
{{- $_ := set $onto $key (default list (concat $items $others)) }}
{{- else }}
{{- $_ := set $onto $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The key of a list item; the same port may occur once for each protocol. */}}
{{- define "item key" }}
{{- $value := get .item .by }}
{{- if eq .by "port" }}
{{- $value = printf "%v/%s" (default .item.port .item.containerPort) (default "TCP" .item.protocol) }}
{{- end }}
{{- $value }}
{{- end }}
