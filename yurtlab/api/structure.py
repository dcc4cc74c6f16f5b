"""Bodies checked against the structure of their kind, and brought to the form that is stored.

kube-apiserver does this by decoding into Go types: fields of a wrong type are refused, null is
the same as nothing, and fields that do not exist are dropped, told of or refused as the client
wants (``fieldValidation``).
"""

from __future__ import annotations

from typing import Any

from yurtlab.api.documents import Documents, Schema
from yurtlab.api.resources import Resource
from yurtlab.api.store import Object

_JSON_TYPES: dict[type, str] = {
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
}
_EXPECTED: dict[str, type] = {"string": str, "boolean": bool, "array": list, "object": dict}

# Quantities (k8s.io/apimachinery pkg/api/resource) may be written as numbers; the models know
# them as texts only. These fields are one, or an object of them.
_QUANTITIES = frozenset(
    {"limits", "requests", "capacity", "allocatable", "overhead", "hard", "used"}
    | {"sizeLimit", "divisor", "allocatedResources"}
)


class WrongType(Exception):
    """A field has a value of another type than it can have; one line that says which."""


def read(documents: Documents, kind: Resource, body: Object) -> tuple[Object, list[str]]:
    """Return ``body`` as it is stored, and the paths of fields that its kind does not have.

    Raises :class:`WrongType`.
    """
    reader = _Reader(documents)
    checked: Object = reader.read(documents.schema(kind), body, "")
    return checked, reader.unknown


class _Reader:
    """Reads one body."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self.unknown: list[str] = []

    def read(self, schema: Schema, value: Any, path: str) -> Any:
        schema = self._documents.resolve(schema)
        if "oneOf" in schema:
            if not isinstance(value, str) and not _is_integer(value):
                raise _wrong(value, path, "int-or-string")
            return value
        self._check_type(schema, value, path)
        if "properties" in schema:
            return self._read_object(schema["properties"], value, path)
        if "additionalProperties" in schema:
            return self._read_map(schema["additionalProperties"], value, path)
        if "items" in schema:
            return self._read_list(schema["items"], value, path)
        return value

    def _check_type(self, schema: Schema, value: Any, path: str) -> None:
        desired = schema.get("type")
        if desired == "integer":
            right = _is_integer(value)
        elif desired == "number":
            right = isinstance(value, int | float) and not isinstance(value, bool)
        else:
            right = desired is None or isinstance(value, _EXPECTED[desired])
        if not right:
            raise _wrong(value, path, str(desired))

    def _read_object(self, properties: dict[str, Schema], value: Object, path: str) -> Object:
        result: Object = {}
        for key, one in value.items():
            inner = f"{path}.{key}" if path else key
            if key not in properties:
                self.unknown.append(inner)
            elif one is not None:
                if key in _QUANTITIES:
                    one = _as_quantities(one)
                result[key] = self.read(properties[key], one, inner)
        return result

    def _read_map(self, schema: Schema, value: Object, path: str) -> Object:
        return {
            key: self.read(schema, "" if one is None else one, f"{path}.{key}")
            for key, one in value.items()
        }

    def _read_list(self, schema: Schema, value: list[Any], path: str) -> list[Any]:
        return [self.read(schema, one, f"{path}[{index}]") for index, one in enumerate(value)]


def _as_quantities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_quantities(one) for key, one in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(value: Any, path: str, desired: str) -> WrongType:
    actual = _JSON_TYPES.get(type(value), "null")
    return WrongType(f"json: cannot unmarshal {actual} into field {path or '.'} of type {desired}")
