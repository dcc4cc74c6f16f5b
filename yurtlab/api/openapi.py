"""OpenAPI documents: what ``kubectl explain`` shows, and how kubectl learns what can be done.

Version 3 has a document for each group and version. kubectl looks there whether PATCH takes
``fieldValidation`` and ``dryRun``; if so, it leaves validation to the server. Version 2 is asked
for by kubectl before 1.24, in the binary form of gnostic; without any kind in it such a kubectl
does not validate by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from yurtlab.api.negotiation import encode_json
from yurtlab.api.objects import JSON_PATCH, MERGE_PATCH
from yurtlab.api.resources import Resource
from yurtlab.api.schemas import REFERENCE, Schemas

GNOSTIC_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The media type of the binary form of version 2; newer clients ask for it with an ``@`` before
``v1.0``, which Go cannot read in an answer."""

_TITLE = "Kubernetes"
_VERSION = "v1.33.0"


class OpenAPI:
    """The documents for ``kinds``, made when they are asked for first."""

    def __init__(self, kinds: Iterable[Resource], schemas: Schemas) -> None:
        self._schemas = schemas
        self._groups: dict[str, list[Resource]] = {}
        for kind in kinds:
            root = "apis" if kind.group else "api"
            self._groups.setdefault(f"{root}/{kind.api_version}", []).append(kind)
        self._documents: dict[str, bytes] = {}

    def index(self) -> dict[str, Any]:
        """Return the list of documents of version 3; their address changes with their content."""
        paths = {}
        for group in self._groups:
            digest = hashlib.sha256(self._document(group)).hexdigest()[:32]
            paths[group] = {"serverRelativeURL": f"/openapi/v3/{group}?hash={digest.upper()}"}
        return {"paths": paths}

    def document(self, group: str) -> bytes | None:
        """Return a document of version 3 as JSON, by a path such as ``api/v1``."""
        return self._document(group) if group in self._groups else None

    def _document(self, group: str) -> bytes:
        if group not in self._documents:
            self._documents[group] = encode_json(self._make(group))
        return self._documents[group]

    def _make(self, group: str) -> dict[str, Any]:
        kinds = self._groups[group]
        paths: dict[str, Any] = {}
        for kind in kinds:
            scope = "namespaces/{namespace}/" if kind.namespaced else ""
            collection = f"/{group}/{scope}{kind.plural}"
            paths[collection] = self._collection(kind)
            if operations := self._one(kind):
                paths[f"{collection}/{{name}}"] = operations
        return {
            "openapi": "3.0.0",
            "info": {"title": _TITLE, "version": _VERSION},
            "paths": paths,
            "components": {"schemas": self._schemas.of_group(kinds)},
        }

    def _collection(self, kind: Resource) -> dict[str, Any]:
        return {"post": self._operation(kind, "post", ["application/json"])}

    def _one(self, kind: Resource) -> dict[str, Any]:
        # Strategic merge patches are taken, too; they are not listed, since kubectl would then
        # look for merge keys in the schemas, instead of knowing them by itself.
        bodies = {
            "get": ("get", []),
            "put": ("update", ["application/json"]),
            "patch": ("patch", [JSON_PATCH, MERGE_PATCH]),
            "delete": ("delete", []),
        }
        return {
            method: self._operation(kind, method, types)
            for method, (verb, types) in bodies.items()
            if verb in kind.verbs
        }

    def _operation(self, kind: Resource, action: str, bodies: list[str]) -> dict[str, Any]:
        reference = {"$ref": REFERENCE + self._schemas.name(kind)}
        operation: dict[str, Any] = {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {
                "group": kind.group,
                "version": kind.version,
                "kind": kind.kind,
            },
            "responses": {
                "200": {"description": "OK", "content": {"application/json": {"schema": reference}}}
            },
        }
        names = [] if action == "get" else ["dryRun"]
        if bodies:
            schema = {"type": "object"} if action == "patch" else reference
            content = {body: {"schema": schema} for body in bodies}
            operation["requestBody"] = {"content": content, "required": True}
            names += ["fieldManager", "fieldValidation"]
        operation["parameters"] = [_query_parameter(name) for name in names]
        return operation


def gnostic_v2() -> bytes:
    """Return a document of version 2 without kinds, in the protocol buffers of gnostic.

    See openapiv2/OpenAPIv2.proto of github.com/google/gnostic: Document has ``swagger`` (1),
    ``info`` (2, with ``title`` 1 and ``version`` 2) and ``paths`` (8).
    """
    info = _field(1, _TITLE.encode()) + _field(2, _VERSION.encode())
    return _field(1, b"2.0") + _field(2, info) + _field(8, b"")


def json_v2() -> dict[str, Any]:
    """Return the same document as JSON."""
    return {"swagger": "2.0", "info": {"title": _TITLE, "version": _VERSION}, "paths": {}}


def _query_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of protocol buffers whose length precedes it, and is below 128."""
    return bytes([number << 3 | 2, len(content)]) + content
