"""What all sources say of one kind of objects."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from yurttunnel.kube.cache import Key


class Named(Protocol):
    """An object in a namespace."""

    @property
    def namespace(self) -> str:
        """Its namespace."""

    @property
    def name(self) -> str:
        """Its name there."""


Kept = TypeVar("Kept", bound=Named)


class Operation(enum.Enum):
    """What an update does with what its source has said before."""

    SET = "set"
    """Replace all of it."""
    ADD = "add"
    """Add objects, or replace them by others of their names."""
    REMOVE = "remove"
    """Remove the objects of these names."""


@dataclass(frozen=True, slots=True)
class Update(Generic[Kept]):
    """What a source says."""

    operation: Operation
    objects: Collection[Kept]


class Store(Generic[Kept]):
    """Objects by the sources that they are from.

    An object that several sources have is taken from the one that was added first.
    """

    def __init__(self) -> None:
        self._sources: dict[str, dict[Key, Kept] | None] = {}

    def add(self, source: str) -> None:
        """Expect all objects of ``source``."""
        self._sources.setdefault(source, None)

    def merge(self, source: str, update: Update[Kept]) -> bool:
        """Take an update; return whether that has changed anything."""
        objects = {(each.namespace, each.name): each for each in update.objects}
        known = self._sources[source]
        if known is None or update.operation is Operation.SET:
            self._sources[source] = {} if update.operation is Operation.REMOVE else objects
            return known != objects
        if update.operation is Operation.REMOVE:
            removed = [known.pop(key, None) for key in objects]
            return any(each is not None for each in removed)
        changed = any(known.get(key) != each for key, each in objects.items())
        known.update(objects)
        return changed

    def merged(self) -> Collection[Kept]:
        """Return all objects."""
        found: dict[Key, Kept] = {}
        for objects in reversed(self._sources.values()):
            found.update(objects or {})
        return found.values()

    def incomplete(self) -> list[str]:
        """Return the sources that have not said all once."""
        return [source for source, objects in self._sources.items() if objects is None]
