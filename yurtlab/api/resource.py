"""What the API knows of a kind of objects."""

from __future__ import annotations

from dataclasses import dataclass

from yurtlab.api.columns import BASIC_COLUMNS, Column

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
"""What can be done with the objects of most kinds, as discovery names it."""


@dataclass(frozen=True, slots=True)
class Subresource:
    """What is served below an object, and what can be done with it.

    ``kind`` is the kind of what goes in or out; ``body`` is set when that is of another group.
    """

    name: str
    kind: str
    verbs: tuple[str, ...]
    body: Resource | None = None


@dataclass(frozen=True, slots=True)
class SelectableField:
    """A field that a field selector may name.

    ``path`` is where its value is when that is not its name, ``default`` what an object without
    a value has.
    """

    name: str
    path: str = ""
    default: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Resource:
    """One kind of objects.

    ``model`` is what the official client for Python has for it. ``group`` is empty for the core.
    ``counts_generations``: a change of the specification raises
    ``metadata.generation``. ``selectable_fields`` are those beside the name and the namespace.
    ``keep_at_most`` bounds how many there are: the oldest are dropped,
    as kube-apiserver drops events after an hour.
    """

    version: str
    plural: str
    singular: str
    kind: str
    model: str
    group: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    counts_generations: bool = False
    keep_at_most: int | None = None
    selectable_fields: tuple[SelectableField, ...] = ()
    columns: tuple[Column, ...] = BASIC_COLUMNS

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of the objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        """The ``kind`` of their lists."""
        return f"{self.kind}List"

    @property
    def has_status(self) -> bool:
        """The status is written by ``/status`` only."""
        return self.subresource("status") is not None

    def subresource(self, name: str) -> Subresource | None:
        """Find a subresource by name."""
        return next((one for one in self.subresources if one.name == name), None)


def fields(*names: str) -> tuple[SelectableField, ...]:
    """Return selectable fields that are where their names say."""
    return tuple(SelectableField(name) for name in names)


def status(kind: str) -> Subresource:
    """Return the subresource of the status of a kind."""
    return Subresource("status", kind, ("get", "patch", "update"))
