"""OpenAPI 3, for ``kubectl explain`` and for the operations that kubectl supports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.apiserver.schemas import Schemas
from yurtlab.api.documents import REFERENCE
from yurtlab.api.objects import JSON_PATCH, MERGE_PATCH
from yurtlab.api.resources import Resource


class OpenAPI:
    """The documents for ``kinds``."""

    def __init__(self, kinds: Iterable[Resource], schemas: Schemas) -> None:
        self._schemas = schemas
        self._groups: dict[str, list[Resource]] = {}
        for kind in kinds:
            root = "apis" if kind.group else "api"
            self._groups.setdefault(f"{root}/{kind.api_version}", []).append(kind)

    def documents(self) -> dict[str, Any]:
        """Return paths and names of schemas by groups and versions, such as ``api/v1``."""
        return {group: self._make(group) for group in self._groups}

    def _make(self, group: str) -> dict[str, Any]:
        kinds = self._groups[group]
        paths: dict[str, Any] = {}
        for kind in kinds:
            scope = "namespaces/{namespace}/" if kind.namespaced else ""
            collection = f"/{group}/{scope}{kind.plural}"
            paths[collection] = self._collection(kind)
            if operations := self._one(kind):
                paths[f"{collection}/{{name}}"] = operations
        return {"paths": paths, "schemas": sorted(self._schemas.of_group(kinds))}

    def _collection(self, kind: Resource) -> dict[str, Any]:
        return {"post": self._operation(kind, "post", ["application/json"])}

    def _one(self, kind: Resource) -> dict[str, Any]:
        # Strategic merge patches are supported, but not listed, since kubectl would then use the
        # merge keys of the schemas instead of its own.
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


def _query_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
