"""Discovery and OpenAPI documents, and the validation of bodies against the schemas.

Discovery, schemas and OpenAPI of the lab's kinds are in ``documents.json``.
``python -m tests.apiserver.documents`` generates it from ``kinds.json`` and the models of the
official client, which are generated from the OpenAPI specification of Kubernetes.

kube-apiserver decodes bodies into Go types: fields of a wrong type are rejected, null is the same
as a missing field, and unknown fields are dropped, warned about or rejected, as the client requests
(``fieldValidation``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from yurtlab.api.negotiation import encode_json
from yurtlab.api.resources import Resource
from yurtlab.api.store import Object
from yurttunnel.http.accept import MediaRange
from yurttunnel.kube.protobuf_fields import encode_bytes

Schema = dict[str, Any]
Document = dict[str, Any]

REFERENCE = "#/components/schemas/"
"""The prefix of a reference to a schema."""

GNOSTIC_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The media type of the binary form of version 2; newer clients request it with an ``@`` before
``v1.0``, which Go cannot parse in a response."""

_AGGREGATED_VERSIONS = ("v2", "v2beta1")
_KUBERNETES_VERSION = ("1", "33", 0)
_GVK = "x-kubernetes-group-version-kind"
_INFO = {"title": "Kubernetes", "version": "v1.33.0"}


class Documents:
    """The documents for some kinds.

    ``content`` has plain and aggregated discovery by path, all schemas by name, and for each group
    and version the paths of OpenAPI with the names of the schemas that they need.
    """

    def __init__(self, content: Document) -> None:
        self._content = content
        self.schemas: dict[str, Schema] = content["schemas"]
        self._by_kind: dict[tuple[str, ...], Schema] = {
            tuple(one[_GVK][0].values()): one for one in self.schemas.values() if _GVK in one
        }

    @classmethod
    @functools.cache
    def of_lab(cls) -> Documents:
        """Return the documents of the lab's own kinds."""
        return cls(json.loads(Path(__file__).with_name("documents.json").read_bytes()))

    def schema(self, kind: Resource) -> Schema:
        """Return the schema of a kind."""
        return self._by_kind[kind.group, kind.version, kind.kind]

    def resolve(self, schema: Schema) -> Schema:
        """Return a schema, after following a reference."""
        reference = schema.get("$ref")
        return schema if reference is None else self.schemas[reference.removeprefix(REFERENCE)]

    def discovery(self, path: str, host: str) -> Document | None:
        """Return the plain document at ``path``, or ``None``.

        ``host`` is the address at which the client has reached the API, as HOST:PORT.
        """
        path = path.strip("/")
        found: Document | None = self._content["discovery"].get(path)
        if path == "api" and found is not None:
            address = {"clientCIDR": "0.0.0.0/0", "serverAddress": host}
            return {**found, "serverAddressByClientCIDRs": [address]}
        return found

    def aggregated(self, path: str, version: str) -> Document | None:
        """Return all of discovery below ``path``, in a version of ``apidiscovery.k8s.io``.

        kubectl requests it since 1.26 (KEP-3352).
        """
        items = self._content["aggregated"].get(path.strip("/"))
        if items is None:
            return None
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"apidiscovery.k8s.io/{version}",
            "metadata": {},
            "items": items,
        }

    def openapi_index(self) -> Document:
        """Return the index of OpenAPI 3; URLs of documents change with their content."""
        paths = {}
        for group in self._content["openapi"]:
            digest = hashlib.sha256(encode_json(self.openapi(group))).hexdigest()[:32]
            paths[group] = {"serverRelativeURL": f"/openapi/v3/{group}?hash={digest.upper()}"}
        return {"paths": paths}

    def openapi(self, group: str) -> Document | None:
        """Return the OpenAPI 3 document for a path such as ``api/v1``.

        From it kubectl determines whether PATCH accepts ``fieldValidation`` and ``dryRun``; if so,
        it leaves validation to the server.
        """
        found = self._content["openapi"].get(group)
        if found is None:
            return None
        schemas = {name: self.schemas[name] for name in found["schemas"]}
        return {
            "openapi": "3.0.0",
            "info": _INFO,
            "paths": found["paths"],
            "components": {"schemas": schemas},
        }


def aggregated_type(version: str) -> str:
    """Return the media type of aggregated discovery."""
    return f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def aggregated_version(accepted: Iterable[MediaRange]) -> str | None:
    """Return the version of aggregated discovery that a client prefers to plain discovery."""
    for one in accepted:
        parameters = one.parameters
        if parameters.get("as") == "APIGroupDiscoveryList":
            if parameters.get("v") in _AGGREGATED_VERSIONS:
                return parameters["v"]
        elif one.type in ("application/json", "*/*"):
            return None
    return None


def version_document() -> dict[str, str]:
    """Return the response for ``/version``, which kubectl compares with its own version."""
    major, minor, patch = _KUBERNETES_VERSION
    nothing = ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{major}.{minor}.{patch}+yurttunnel",
        **dict.fromkeys(nothing, ""),
        "platform": f"linux/{platform.machine()}",
    }


def gnostic_v2() -> bytes:
    """Return OpenAPI 2 without kinds, as protocol buffers of gnostic, which kubectl 1.20 requests.

    See openapiv2/OpenAPIv2.proto of github.com/google/gnostic: Document has ``swagger`` (1),
    ``info`` (2, with ``title`` 1 and ``version`` 2) and ``paths`` (8). Without kinds in it, such a
    kubectl does not validate itself.
    """
    info = encode_bytes(1, _INFO["title"].encode()) + encode_bytes(2, _INFO["version"].encode())
    return encode_bytes(1, b"2.0") + encode_bytes(2, info) + encode_bytes(8, b"")


JSON_V2: Document = {"swagger": "2.0", "info": _INFO, "paths": {}}
"""The same document as JSON."""


_JSON_TYPES: dict[type, str] = {
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
}
_EXPECTED: dict[str, type] = {"string": str, "boolean": bool, "array": list, "object": dict}

# Quantities (k8s.io/apimachinery pkg/api/resource) may be written as numbers, but are strings in
# the models. These fields are a quantity, or an object of quantities.
_QUANTITIES = frozenset(
    {"limits", "requests", "capacity", "allocatable", "overhead", "hard", "used"}
    | {"sizeLimit", "divisor", "allocatedResources"}
)


class WrongType(Exception):
    """A field has a value of the wrong type; the message names it in one line."""


def read(documents: Documents, kind: Resource, body: Object) -> tuple[Object, list[str]]:
    """Return ``body`` as it is stored, and the paths of unknown fields.

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
