"""The structure of each kind, as the models of the official Kubernetes client have it.

They are made from the OpenAPI specification of Kubernetes; this turns them back into it, with the
names and descriptions that ``kubectl explain`` shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kubernetes.client import models

from yurttunnel.quickstart.api.resources import Resource

Schema = dict[str, Any]

REFERENCE = "#/components/schemas/"
_MODEL_REFERENCE = "#/$defs/"

# Models carry the version in front, and the group where two groups have a type of one name.
_MODEL_PREFIX = re.compile(
    r"^(?:Authentication|Core|Discovery|Events|Rbac|Storage|Flowcontrol)?V\d+(?:(?:alpha|beta)\d+)?"
)
_META_TYPES = frozenset(
    {"ObjectMeta", "ListMeta", "OwnerReference", "ManagedFieldsEntry", "LabelSelector"}
    | {"LabelSelectorRequirement", "Condition", "MicroTime", "Status", "DeleteOptions"}
)
# The models end the description with a remark on themselves.
_MODEL_REMARK = "\n\nAttributes:"


class Schemas:
    """The schemas of ``kinds`` and of everything in them; making them takes a good second."""

    def __init__(self, kinds: Iterable[Resource]) -> None:
        self.definitions: dict[str, Schema] = {}
        self._names: dict[Resource, str] = {}
        for kind in kinds:
            self._add(kind)
            for subresource in kind.subresources:
                if subresource.body is not None:
                    self._add(subresource.body)

    def name(self, kind: Resource) -> str:
        """Give the name of the definition of a kind."""
        return self._names[kind]

    def of(self, kind: Resource) -> Schema:
        """Give the schema of a kind."""
        return self.definitions[self._names[kind]]

    def resolve(self, schema: Schema) -> Schema:
        """Follow a reference to a definition."""
        if "$ref" in schema:
            return self.definitions[schema["$ref"].removeprefix(REFERENCE)]
        return schema

    def of_group(self, kinds: Iterable[Resource]) -> dict[str, Schema]:
        """Give the definitions that these kinds need, and those that these need, and so on."""
        found: dict[str, Schema] = {}
        names = [self._names[kind] for kind in kinds]
        while names:
            name = names.pop()
            if name not in found:
                found[name] = self.definitions[name]
                names += _references(found[name])
        return found

    def _add(self, kind: Resource) -> None:
        model: Any = getattr(models, kind.model)
        whole = model.model_json_schema()
        for name, schema in whole.pop("$defs", {}).items():
            self.definitions.setdefault(_definition_name(name, kind), _definition(schema, kind))
        name = _definition_name(kind.model, kind)
        definition = _definition(whole, kind)
        gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        definition["x-kubernetes-group-version-kind"] = [gvk]
        self.definitions[name] = definition
        self._names[kind] = name


def _definition_name(model: str, kind: Resource) -> str:
    name = _MODEL_PREFIX.sub("", model)
    if name in _META_TYPES:
        return f"io.k8s.apimachinery.pkg.apis.meta.v1.{name}"
    group = kind.group.partition(".")[0] or "core"
    return f"io.k8s.api.{group}.{kind.version}.{name}"


def _definition(schema: Schema, kind: Resource) -> Schema:
    made: Schema = {"type": "object"}
    made["description"] = schema.get("description", "").partition(_MODEL_REMARK)[0]
    made["properties"] = {name: _property(one, kind) for name, one in schema["properties"].items()}
    if "required" in schema:
        made["required"] = schema["required"]
    return made


def _property(schema: Schema, kind: Resource) -> Schema:
    made = _type(schema, kind)
    # References have no siblings in OpenAPI 3.0.
    if "description" in schema and "$ref" not in made:
        made["description"] = schema["description"]
    return made


def _type(schema: Schema, kind: Resource) -> Schema:
    if "$ref" in schema:
        name = _definition_name(schema["$ref"].removeprefix(_MODEL_REFERENCE), kind)
        return {"$ref": REFERENCE + name}
    if "anyOf" in schema:
        return _any_of([one for one in schema["anyOf"] if one.get("type") != "null"], kind)
    made: Schema = {key: schema[key] for key in ("type", "format") if key in schema}
    if "items" in schema:
        made["items"] = _type(schema["items"], kind)
    if isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = _type(schema["additionalProperties"], kind)
    return made


def _any_of(schemas: list[Schema], kind: Resource) -> Schema:
    types = {one.get("type") for one in schemas}
    if types == {"integer", "string"}:
        alternatives = [{"type": "integer"}, {"type": "string"}]
        return {"format": "int-or-string", "oneOf": alternatives}
    if types == {"string"} and len(schemas) == 2:
        # Bytes: in JSON a text in base64.
        return {"type": "string", "format": "byte"}
    return _type(schemas[0], kind)


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for one in value for name in _references(one)]
    if not isinstance(value, dict):
        return []
    reference = value.get("$ref")
    if isinstance(reference, str):
        return [reference.removeprefix(REFERENCE)]
    return [name for one in value.values() for name in _references(one)]
