"""The kinds of objects that the API serves, which are in ``kinds.json``.

Each kind in that file has discovery, all verbs, watches, patches and a table. Code for special
behavior (admission, subresources of nodes) refers to kinds by the constants.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from yurtlab.api.columns import AGE, CELLS, NAME, Cell, Column, at, count_of

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
"""The verbs of most kinds, as named in discovery."""

_SHARED_COLUMNS = {"name": NAME, "age": AGE}


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource of an object, and its verbs.

    ``kind`` is the kind of its bodies; ``body`` is set if that is of another group.
    """

    name: str
    kind: str
    verbs: tuple[str, ...]
    body: Resource | None = None


@dataclass(frozen=True, slots=True)
class SelectableField:
    """A field that a field selector may name.

    ``path`` is where its value is, if that differs from its name; ``default`` is the value of an
    object that has none.
    """

    name: str
    path: str = ""
    default: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Resource:
    """A kind of objects.

    ``model`` is its class in the official client for Python. ``group`` is empty for the core group.
    With ``counts_generations`` a change of the specification increments ``metadata.generation``.
    ``selectable_fields`` are those besides the name and the namespace.
    ``keep_at_most`` limits the number of objects: the oldest are deleted,
    as kube-apiserver deletes events after an hour.
    """

    kind: str
    plural: str
    singular: str
    model: str
    group: str = ""
    version: str = "v1"
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    counts_generations: bool = False
    keep_at_most: int | None = None
    selectable_fields: tuple[SelectableField, ...] = ()
    columns: tuple[Column, ...] = (NAME, AGE)

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        """The ``kind`` of its lists."""
        return f"{self.kind}List"

    @property
    def has_status(self) -> bool:
        """Whether the status is only written through ``/status``."""
        return self.subresource("status") is not None

    def subresource(self, name: str) -> Subresource | None:
        """Return the subresource of that name, or ``None``."""
        return next((one for one in self.subresources if one.name == name), None)


def load_kinds(path: Path, cells: Mapping[str, Cell]) -> Sequence[Resource]:
    """Load a file of kinds; ``cells`` are the cells that its columns may name."""
    return [_kind(entry, cells) for entry in json.loads(path.read_bytes())]


def _kind(entry: dict[str, Any], cells: Mapping[str, Cell]) -> Resource:
    given = {key: tuple(one) if isinstance(one, list) else one for key, one in entry.items()}
    kind = entry["kind"]
    made = Resource(**{"singular": kind.lower(), "model": f"V1{kind}", **given})
    subresources = (_subresource(one, cells) for one in entry.get("subresources", ()))
    fields = (SelectableField(**one) for one in entry.get("selectable_fields", ()))
    made = replace(made, subresources=tuple(subresources), selectable_fields=tuple(fields))
    if "columns" in entry:
        made = replace(made, columns=tuple(_column(one, cells) for one in entry["columns"]))
    return made


def _subresource(entry: dict[str, Any], cells: Mapping[str, Cell]) -> Subresource:
    body = _kind(entry["body"], cells) if "body" in entry else None
    return Subresource(entry["name"], entry["kind"], tuple(entry["verbs"]), body)


def _column(entry: str | dict[str, Any], cells: Mapping[str, Cell]) -> Column:
    """Return a column: ``name``, ``age``, or one that shows a value, a number or a cell."""
    if isinstance(entry, str):
        return _SHARED_COLUMNS[entry]
    given = dict(entry)
    if "value" in given:
        cell = at(given.pop("value"), given.pop("default", ""))
    elif "count" in given:
        cell = count_of(*given.pop("count"))
    else:
        cell = cells[given.pop("cell")]
    return Column(cell=cell, **given)


RESOURCES = load_kinds(Path(__file__).with_name("kinds.json"), CELLS)
"""All kinds."""

_BY_NAME = {kind.plural: kind for kind in RESOURCES}

CONFIG_MAPS = _BY_NAME["configmaps"]
ENDPOINT_SLICES = _BY_NAME["endpointslices"]
EVENTS = _BY_NAME["events"]
LEASES = _BY_NAME["leases"]
NAMESPACES = _BY_NAME["namespaces"]
NODES = _BY_NAME["nodes"]
PODS = _BY_NAME["pods"]
SECRETS = _BY_NAME["secrets"]
SERVICES = _BY_NAME["services"]
SERVICE_ACCOUNTS = _BY_NAME["serviceaccounts"]

MAKE_PODS = frozenset(kind for kind in RESOURCES if kind.group in ("apps", "batch"))
"""The kinds whose controllers, which the lab does not have, create pods."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a path: all objects of a kind, those of a namespace, or one of them.

    ``rest`` is the path after a subresource, as it was sent, with its leading slash.
    """

    kind: Resource
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None
    rest: str = ""


class Routes:
    """Parses paths into targets of ``kinds``."""

    def __init__(self, kinds: Iterable[Resource]) -> None:
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in kinds}

    def find(self, path: str) -> Target | None:
        """Return the target of a path, percent-encoded as it was sent, or ``None``."""
        match path.split("/"):
            case ["", "api", version, *segments] if segments:
                return self._find("", version, segments)
            case ["", "apis", group, version, *segments] if segments:
                return self._find(unquote(group), version, segments)
        return None

    def _find(self, group: str, version: str, segments: Sequence[str]) -> Target | None:
        namespace = None
        if segments[0] == "namespaces" and len(segments) > 2:
            inside = self._kinds.get((group, version, unquote(segments[2])))
            # Other segments after the name of a namespace are its own subresources.
            if inside is not None and inside.namespaced:
                namespace, segments = unquote(segments[1]), segments[2:]
        kind = self._kinds.get((group, version, unquote(segments[0])))
        if kind is None:
            return None
        return _target(kind, namespace, segments[1:])


def _target(kind: Resource, namespace: str | None, segments: Sequence[str]) -> Target | None:
    if not segments or segments == [""]:
        return Target(kind, namespace)
    name = unquote(segments[0])
    if kind.namespaced and namespace is None:
        return None
    if len(segments) == 1:
        return Target(kind, namespace, name)
    subresource = kind.subresource(unquote(segments[1]))
    if subresource is None:
        return None
    rest = "".join(f"/{segment}" for segment in segments[2:])
    if rest and subresource.name != "proxy":
        return None
    return Target(kind, namespace, name, subresource.name, rest)
