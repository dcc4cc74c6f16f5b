"""The schema of each kind, from the models of the official Kubernetes client.

The models are generated from the OpenAPI specification of Kubernetes; this converts them back,
with the names and descriptions that ``kubectl explain`` shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kubernetes.client import models
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from yurtlab.api.documents import REFERENCE, Schema
from yurtlab.api.resources import Resource

_MODEL_REFERENCE = "#/$defs/"
MODE: JsonSchemaMode = "validation"

# Models are prefixed with the version, and with the group if two groups have a type of one name.
_MODEL_PREFIX = re.compile(
    r"^(?:Authentication|Core|Discovery|Events|Rbac|Storage|Flowcontrol)?V\d+(?:(?:alpha|beta)\d+)?"
)
_META_TYPES = frozenset(
    {"ObjectMeta", "ListMeta", "OwnerReference", "ManagedFieldsEntry", "LabelSelector"}
    | {"LabelSelectorRequirement", "Condition", "MicroTime", "Status", "DeleteOptions"}
)
# The models' descriptions end with a note about the model.
_MODEL_REMARK = "\n\nAttributes:"


class Schemas:
    """The schemas of ``kinds``, of the bodies of their subresources, and of everything in them."""

    def __init__(self, kinds: Iterable[Resource]) -> None:
        self.definitions: dict[str, Schema] = {}
        self._names: dict[Resource, str] = {}
        everything: list[Resource] = []
        for kind in kinds:
            bodies = (subresource.body for subresource in kind.subresources)
            everything += [kind, *(body for body in bodies if body is not None)]
        parts = _model_schemas({kind.model for kind in everything})
        for kind in everything:
            self._add(kind, parts)

    def name(self, kind: Resource) -> str:
        """Return the name of the definition of a kind."""
        return self._names[kind]

    def of_group(self, kinds: Iterable[Resource]) -> dict[str, Schema]:
        """Return the definitions that these kinds use, directly or indirectly."""
        return _reached(self.definitions, [self._names[kind] for kind in kinds])

    def _add(self, kind: Resource, parts: dict[str, Schema]) -> None:
        name = _definition_name(kind.model, kind)
        definition = _definition(parts[kind.model], kind)
        gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        definition["x-kubernetes-group-version-kind"] = [gvk]
        self.definitions[name] = definition
        self._names[kind] = name
        for model in _reached(parts, _references(parts[kind.model])):
            part = _definition_name(model, kind)
            if part not in self.definitions:
                self.definitions[part] = _definition(parts[model], kind)


def _model_schemas(names: Iterable[str]) -> dict[str, Schema]:
    """Return the schemas of the models and of the types in them, by name.

    All at once, since many models share most types: one by one it takes four times as long.
    """
    desired = [(getattr(models, name), MODE) for name in sorted(names)]
    _, whole = models_json_schema(desired)
    made: dict[str, Schema] = whole["$defs"]
    return made


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
        # Bytes: in JSON a string in base64.
        return {"type": "string", "format": "byte"}
    return _type(schemas[0], kind)


def _reached(schemas: dict[str, Schema], names: list[str]) -> dict[str, Schema]:
    """Return the schemas with these names, and those that they refer to, directly or indirectly."""
    found: dict[str, Schema] = {}
    while names:
        name = names.pop()
        if name not in found:
            found[name] = schemas[name]
            names += _references(found[name])
    return found


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for one in value for name in _references(one)]
    if not isinstance(value, dict):
        return []
    reference = value.get("$ref")
    if isinstance(reference, str):
        return [reference.rpartition("/")[2]]
    return [name for one in value.values() for name in _references(one)]
