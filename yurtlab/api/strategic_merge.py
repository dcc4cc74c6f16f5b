"""Strategic merge patches: lists of named things are merged by name, not replaced.

The rules are those of k8s.io/apimachinery pkg/util/strategicpatch. Which lists are merged, and
by which field of their members, Kubernetes has as ``patchMergeKey`` beside each type of
k8s.io/api; what is not listed here is replaced as a whole there, too.
"""

from __future__ import annotations

import json
from typing import Any

from yurtlab.api.json_patch import BadPatch

# Where one name means lists of different things, the field around it decides.
_MERGE_KEYS: dict[tuple[str, str] | str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "podIPs": "ip",
    "conditions": "type",
    "ownerReferences": "uid",
    "secrets": "name",
    ("containers", "ports"): "containerPort",
    ("initContainers", "ports"): "containerPort",
    ("ephemeralContainers", "ports"): "containerPort",
    ("spec", "ports"): "port",
    ("status", "addresses"): "type",
}
_MERGED_PRIMITIVES = frozenset({"finalizers", "podCIDRs"})

_DIRECTIVE = "$patch"
_RETAIN_KEYS = "$retainKeys"
_ELEMENT_ORDER = "$setElementOrder/"
_DELETED_PRIMITIVES = "$deleteFromPrimitiveList/"


def strategic_merge(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Apply ``patch`` and give the result; nothing is changed in place.

    Raises :class:`BadPatch`.
    """
    merged = _merge_object(document, patch, "")
    return {} if merged is None else merged


def _merge_object(
    document: dict[str, Any], patch: dict[str, Any], field: str
) -> dict[str, Any] | None:
    """Merge objects; ``None`` when the patch deletes this one."""
    directive = patch.get(_DIRECTIVE, "merge")
    if directive == "delete":
        return None
    if directive == "replace":
        document = {}
    elif directive != "merge":
        raise BadPatch(f"{_DIRECTIVE} is delete, replace or merge, not {directive!r}")
    result = dict(document)
    if _RETAIN_KEYS in patch:
        retained = _list(patch, _RETAIN_KEYS)
        result = {key: value for key, value in result.items() if key in retained}
    _delete_primitives(result, patch)
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_field(result, key, value, field)
    _set_orders(result, patch, field)
    return result


def _merge_field(result: dict[str, Any], key: str, value: Any, parent: str) -> None:
    current = result.get(key)
    if isinstance(value, dict):
        value = _merge_object(current if isinstance(current, dict) else {}, value, key)
    elif isinstance(value, list):
        value = _merge_list(current if isinstance(current, list) else [], value, parent, key)
    if value is None:
        result.pop(key, None)
    else:
        result[key] = value


def _merge_list(current: list[Any], patch: list[Any], parent: str, field: str) -> list[Any]:
    if field in _MERGED_PRIMITIVES:
        return current + [one for one in patch if one not in current]
    merge_key = _merge_key(parent, field)
    if merge_key is None or {_DIRECTIVE: "replace"} in patch:
        return [_bare(one) for one in patch if one != {_DIRECTIVE: "replace"}]
    result = list(current)
    for element in patch:
        _merge_element(result, element, merge_key, field)
    return result


def _merge_element(result: list[Any], element: Any, merge_key: str, field: str) -> None:
    if not isinstance(element, dict) or merge_key not in element:
        raise BadPatch(f"map: {element} does not contain declared merge key: {merge_key}")
    position = _position(result, merge_key, element[merge_key])
    existing = result[position] if position < len(result) else {}
    merged = _merge_object(existing, element, field)
    result[position : position + 1] = [] if merged is None else [merged]


def _position(elements: list[Any], merge_key: str, value: Any) -> int:
    """Find the element whose ``merge_key`` is ``value``; behind the last when there is none."""
    for position, one in enumerate(elements):
        if isinstance(one, dict) and one.get(merge_key) == value:
            return position
    return len(elements)


def _set_orders(result: dict[str, Any], patch: dict[str, Any], parent: str) -> None:
    for directive in patch:
        if directive.startswith(_ELEMENT_ORDER):
            field = directive.removeprefix(_ELEMENT_ORDER)
            if isinstance(result.get(field), list):
                merge_key = _merge_key(parent, field)
                order = _list(patch, directive)
                result[field] = _in_order(result[field], order, merge_key)


def _in_order(elements: list[Any], order: list[Any], merge_key: str | None) -> list[Any]:
    """Sort the elements that ``order`` names so; the others keep their distance to the front."""
    ranks = {_identity(one, merge_key): rank for rank, one in enumerate(order)}
    named = [one for one in elements if _identity(one, merge_key) in ranks]
    result = sorted(named, key=lambda one: ranks[_identity(one, merge_key)])
    for position, one in enumerate(elements):
        if _identity(one, merge_key) not in ranks:
            result.insert(position, one)
    return result


def _delete_primitives(result: dict[str, Any], patch: dict[str, Any]) -> None:
    for directive in patch:
        if directive.startswith(_DELETED_PRIMITIVES):
            field = directive.removeprefix(_DELETED_PRIMITIVES)
            deleted = _list(patch, directive)
            if isinstance(result.get(field), list):
                result[field] = [one for one in result[field] if one not in deleted]


def _bare(value: Any) -> Any:
    """Leave directives out of what is stored as it is."""
    if isinstance(value, dict):
        return {key: _bare(one) for key, one in value.items() if not key.startswith("$")}
    return value


def _merge_key(parent: str, field: str) -> str | None:
    return _MERGE_KEYS.get((parent, field)) or _MERGE_KEYS.get(field)


def _identity(element: Any, merge_key: str | None) -> str:
    if merge_key is not None and isinstance(element, dict):
        element = element.get(merge_key)
    return json.dumps(element, sort_keys=True)


def _list(patch: dict[str, Any], directive: str) -> list[Any]:
    value = patch[directive]
    if not isinstance(value, list):
        raise BadPatch(f"{directive} needs a list")
    return value
