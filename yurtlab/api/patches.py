"""Patches: JSON Patch (RFC 6902), JSON Merge Patch (RFC 7396), and strategic merge.

In a strategic merge, lists of objects with a merge key are merged by that key, not replaced. The
rules are those of k8s.io/apimachinery pkg/util/strategicpatch. Kubernetes declares the merge keys
as ``patchMergeKey`` in the types of k8s.io/api; lists that are not in ``merge_keys.json`` are
replaced as a whole there, too.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_OPERATIONS = 10_000
"""The maximum number of operations in a patch, as in kube-apiserver."""

MAX_COPIED = 3 * 1024 * 1024
"""The maximum number of bytes that ``copy`` may add in a patch: each copy could double the size."""


class PatchFailed(Exception):
    """The patch does not apply to this document; the message says why in one line."""


class BadPatch(Exception):
    """The patch is invalid for any document; the message says why in one line."""


def merge_patch(document: Any, patch: Any) -> Any:
    """Return the result of a merge patch (RFC 7396 section 2); nothing is changed in place."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(document: Any, patch: Any) -> Any:
    """Return the result of a JSON patch on a copy of ``document``.

    Raises :class:`PatchFailed` or :class:`BadPatch`.
    """
    if not isinstance(patch, list):
        raise BadPatch("a JSON patch is a list of operations")
    if len(patch) > MAX_OPERATIONS:
        raise BadPatch(f"a JSON patch has at most {MAX_OPERATIONS} operations, not {len(patch)}")
    patching = _Patching(copy.deepcopy(document))
    try:
        for operation in patch:
            patching.apply(operation)
    except RecursionError:
        # Copying the document into its deepest value doubles its depth.
        raise PatchFailed("the patch nests values too deep") from None
    return patching.root[0]


class _Patching:
    """The application of a patch to a document, which is the only value in ``root``."""

    def __init__(self, document: Any) -> None:
        # The whole document is a value like any other (RFC 6901 section 5) inside this list.
        self.root = [document]
        self._copied = 0

    def apply(self, operation: Any) -> None:
        """Apply one operation. Raise :class:`PatchFailed` or :class:`BadPatch`."""
        if not isinstance(operation, dict):
            raise BadPatch("an operation of a JSON patch is an object")
        apply: dict[Any, Callable[[dict[str, Any], list[str]], None]] = {
            "add": lambda it, path: self._add(path, copy.deepcopy(_value(it))),
            "remove": lambda _, path: self._remove(path),
            "replace": lambda it, path: self._replace(path, copy.deepcopy(_value(it))),
            "move": self._move,
            "copy": self._copy,
            "test": self._test,
        }
        name = operation.get("op")
        if not isinstance(name, str) or name not in apply:
            raise BadPatch(f"a JSON patch has no operation {name!r}")
        apply[name](operation, _pointer(operation, "path"))

    def _add(self, path: list[str], value: Any) -> None:
        parent, key = self._parent(path)
        if isinstance(parent, dict):
            parent[key] = value
        elif key == "-":
            parent.append(value)
        elif path:
            parent.insert(_index(path, key, len(parent)), value)
        else:
            parent[0] = value

    def _remove(self, path: list[str]) -> Any:
        if not path:
            raise BadPatch("a JSON patch cannot remove the whole document")
        value = self._get(path)
        parent, key = self._parent(path)
        del parent[key if isinstance(parent, dict) else int(key)]
        return value

    def _replace(self, path: list[str], value: Any) -> None:
        self._get(path)
        parent, key = self._parent(path)
        parent[key if isinstance(parent, dict) else int(key)] = value

    def _move(self, operation: dict[str, Any], path: list[str]) -> None:
        source = _pointer(operation, "from")
        if path[: len(source)] == source and path != source:
            raise BadPatch("a JSON patch cannot move a value into itself")
        if path == source:
            self._get(path)
        else:
            self._add(path, self._remove(source))

    def _copy(self, operation: dict[str, Any], path: list[str]) -> None:
        value = self._get(_pointer(operation, "from"))
        self._copied += len(json.dumps(value))
        if self._copied > MAX_COPIED:
            raise PatchFailed(f"the patch copies more than {MAX_COPIED} bytes")
        self._add(path, copy.deepcopy(value))

    def _test(self, operation: dict[str, Any], path: list[str]) -> None:
        # Go's zero values: a missing field equals null.
        try:
            actual = self._get(path)
        except PatchFailed:
            actual = None
        if not _same(actual, operation.get("value")):
            raise PatchFailed(f"testing value {_text(path)} failed: test failed")

    def _get(self, path: list[str]) -> Any:
        value: Any = self.root[0]
        for depth, key in enumerate(path, 1):
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list):
                value = value[_index(path[:depth], key, len(value) - 1)]
            else:
                raise PatchFailed(f"{_text(path[:depth])} is not there: missing value")
        return value

    def _parent(self, path: list[str]) -> tuple[Any, str]:
        if not path:
            return self.root, "0"
        parent = self._get(path[:-1])
        if not isinstance(parent, dict | list):
            raise PatchFailed(f"{_text(path[:-1])} has no members")
        return parent, path[-1]


def _value(operation: dict[str, Any]) -> Any:
    if "value" not in operation:
        raise BadPatch(f"the operation {operation['op']!r} of a JSON patch needs a value")
    return operation["value"]


def _pointer(operation: dict[str, Any], field: str) -> list[str]:
    """Parse a JSON pointer (RFC 6901)."""
    text = operation.get(field)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise BadPatch(f"{field!r} of a JSON patch is a JSON pointer, such as /metadata/labels")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _index(path: list[str], key: str, highest: int) -> int:
    number = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else -1
    if str(number) != key or not 0 <= number <= highest:
        raise PatchFailed(f"{_text(path)} is not there: invalid index")
    return number


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON does, where true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _text(path: list[str]) -> str:
    return "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


_MERGE_KEYS: dict[str, str] = json.loads(Path(__file__).with_name("merge_keys.json").read_bytes())
"""The merge keys of lists by name; qualified by the enclosing field where that is necessary."""

_MERGED_PRIMITIVES = frozenset({"finalizers", "podCIDRs"})

_DIRECTIVE = "$patch"
_RETAIN_KEYS = "$retainKeys"
_ELEMENT_ORDER = "$setElementOrder/"
_DELETED_PRIMITIVES = "$deleteFromPrimitiveList/"


def strategic_merge(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Apply ``patch`` and return the result; nothing is changed in place.

    Raises :class:`BadPatch`.
    """
    merged = _merge_object(document, patch, "")
    return {} if merged is None else merged


def _merge_object(
    document: dict[str, Any], patch: dict[str, Any], field: str
) -> dict[str, Any] | None:
    """Merge objects; return ``None`` if the patch deletes this one."""
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
    """Return the index of the element whose ``merge_key`` is ``value``, or the list's length."""
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
    """Sort the elements that ``order`` names; the others keep their distance to the front."""
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
    """Remove the directives from a value that is stored."""
    if isinstance(value, dict):
        return {key: _bare(one) for key, one in value.items() if not key.startswith("$")}
    return value


def _merge_key(parent: str, field: str) -> str | None:
    return _MERGE_KEYS.get(f"{parent}.{field}") or _MERGE_KEYS.get(field)


def _identity(element: Any, merge_key: str | None) -> str:
    if merge_key is not None and isinstance(element, dict):
        element = element.get(merge_key)
    return json.dumps(element, sort_keys=True)


def _list(patch: dict[str, Any], directive: str) -> list[Any]:
    value = patch[directive]
    if not isinstance(value, list):
        raise BadPatch(f"{directive} needs a list")
    return value
