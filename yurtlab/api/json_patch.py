"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7396)."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

MAX_OPERATIONS = 10_000
"""How many operations a patch may have, as kube-apiserver has it."""

MAX_COPIED = 3 * 1024 * 1024
"""How many bytes ``copy`` may add in one patch: each could double what the one before it made."""


class PatchFailed(Exception):
    """The patch does not apply to this document; one line that says why."""


class BadPatch(Exception):
    """The patch applies to no document; one line that says why."""


def merge_patch(document: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7396 section 2) and give the result; nothing is changed in place."""
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
    """Apply a JSON patch to a copy of ``document`` and give that.

    Raises :class:`PatchFailed` or :class:`BadPatch`.
    """
    if not isinstance(patch, list):
        raise BadPatch("a JSON patch is a list of operations")
    if len(patch) > MAX_OPERATIONS:
        raise BadPatch(f"a JSON patch has at most {MAX_OPERATIONS} operations, not {len(patch)}")
    return _Patching(copy.deepcopy(document)).apply(patch)


class _Patching:
    """One patch at work on a document."""

    def __init__(self, document: Any) -> None:
        # The whole document is a value like any other (RFC 6901 section 5) inside this list.
        self._root = [document]
        self._copied = 0

    def apply(self, patch: list[Any]) -> Any:
        for operation in patch:
            self._apply_one(operation)
        return self._root[0]

    def _apply_one(self, operation: Any) -> None:
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
        value: Any = self._root[0]
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
            return self._root, "0"
        parent = self._get(path[:-1])
        if not isinstance(parent, dict | list):
            raise PatchFailed(f"{_text(path[:-1])} has no members")
        return parent, path[-1]


def _value(operation: dict[str, Any]) -> Any:
    if "value" not in operation:
        raise BadPatch(f"the operation {operation['op']!r} of a JSON patch needs a value")
    return operation["value"]


def _pointer(operation: dict[str, Any], field: str) -> list[str]:
    """Read a JSON pointer (RFC 6901)."""
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
