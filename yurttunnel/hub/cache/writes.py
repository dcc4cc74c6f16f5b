"""Writes: created in the reactor, done in the writer thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any, NamedTuple

from yurttunnel.hub.cache import objects
from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.cache.versions import Version, newest
from yurttunnel.hub.media.interfaces import Item, TypeMeta

OVERHEAD = 500
"""Approximate memory of an object besides its body, in bytes."""


def size_of_scope(scope: Scope) -> int:
    """Return the approximate size of a selection in bytes; its strings are also in an index."""
    texts = scope.collection.view, scope.label_selector, scope.field_selector
    return OVERHEAD + 2 * sum(len(text.encode()) for text in texts)


MOST_IN_ONE = 1024 * 1024
"""Maximum size of changes that are written together, in bytes."""


class Done(NamedTuple):
    """The result of writes.

    ``written`` objects were new or had another version; ``unchanged`` objects did not. ``events``
    is the change of the number of events, ``events_lost`` the number of evicted ones. ``forgotten``
    are the evicted clients, ``documents`` is the number of evicted documents.
    """

    written: int = 0
    unchanged: int = 0
    events: int = 0
    events_lost: int = 0
    forgotten: tuple[str, ...] = ()
    documents: int = 0


class Write:
    """A write; ``size`` is the memory that it takes, in bytes."""

    size = OVERHEAD

    def do(self, connection: Connection) -> Done:
        """Do the write in the thread, within a transaction."""
        raise NotImplementedError

    def drop(self) -> Iterable[Collection]:
        """Drop the write; return the collections that are now incomplete."""
        return ()


class Statements(Write):
    """SQL statements that do not change objects.

    ``dropped`` is called if they are dropped.
    """

    def __init__(
        self,
        *statements: tuple[str, Sequence[Any]],
        size: int = OVERHEAD,
        dropped: Callable[[], object] = lambda: None,
    ) -> None:
        self.size = size
        self._statements = statements
        self._dropped = dropped

    def do(self, connection: Connection) -> Done:
        """See :class:`Write`."""
        for statement, values in self._statements:
            connection.execute(statement, values)
        return Done()

    def drop(self) -> Iterable[Collection]:
        """See :class:`Write`."""
        self._dropped()
        return ()


class Key(NamedTuple):
    """The key of an object."""

    collection: Collection
    namespace: str
    name: str


class Left(NamedTuple):
    """A part that an object has left while it may still exist, and its last state there."""

    part: Scope
    item: Item


class Change(NamedTuple):
    """A change of an object; without an item it was deleted, or has ``left`` a part."""

    version: Version
    type: TypeMeta | None = None
    item: Item | None = None
    left: Left | None = None

    @property
    def size(self) -> int:
        """Approximate memory of the change in bytes."""
        return OVERHEAD + (0 if self.item is None else len(self.item.body))


@dataclass
class Changes(Write):
    """The last change of each object, and the ranges of versions that the changes complete.

    ``left`` has the objects that left a part, regardless of later changes. ``seen`` has the ranges
    in order of arrival; each is valid only after all earlier ones.
    """

    size: int = 0
    of: dict[Key, Change] = field(default_factory=dict)
    left: dict[Scope, list[Item]] = field(default_factory=dict)
    seen: dict[Scope, list[tuple[Version, Version]]] = field(default_factory=dict)

    def put(self, key: Key, change: Change) -> None:
        """Add a change, replacing an earlier one of the object.

        If an object is deleted before it was written, its type is kept for the collection.
        """
        before = self.of.get(key)
        if before is not None and change.type is None:
            change = change._replace(type=before.type)
        self.size += change.size - (0 if before is None else before.size)
        self.of[key] = change

    def leave(self, left: Left) -> None:
        """Record that an object has left a part."""
        self.size += OVERHEAD + sum(
            len(name) + len(text) for name, text in left.item.labels.items()
        )
        if left.part not in self.left:
            self.size += size_of_scope(left.part)
        self.left.setdefault(left.part, []).append(left.item)

    def see(self, scope: Scope, since: Version, version: Version) -> None:
        """Record that a scope is known from one version to another."""
        told = self.seen.setdefault(scope, [])
        if told and told[-1][0] == since:
            _, before = told.pop()
            version = newest([before, version])
        else:
            self.size += size_of_scope(scope) + len(str(since))
        told.append((since, version))

    def drop_oldest(self) -> Collection:
        """Drop the oldest change."""
        key = next(iter(self.of))
        self.size -= self.of.pop(key).size
        return key.collection

    def do(self, connection: Connection) -> Done:
        """See :class:`Write`."""
        by_collection: dict[Collection, list[tuple[Key, Change]]] = {}
        for each in self.of.items():
            by_collection.setdefault(each[0].collection, []).append(each)
        done = [
            _change(connection, collection, changes)
            for collection, changes in by_collection.items()
        ]
        for part, items in self.left.items():
            row = objects.find(connection, part.collection)
            if row is not None:
                objects.note_left(connection, row, part, items)
        for scope, told in self.seen.items():
            row = objects.find(connection, scope.collection)
            if row is None:
                continue
            for since, version in told:
                objects.see(connection, row, version)
                objects.see_scope(connection, row, scope, since, version)
        return Done(sum(each.written for each in done), sum(each.unchanged for each in done))

    def drop(self) -> Iterable[Collection]:
        """See :class:`Write`."""
        return {key.collection for key in self.of} | {part.collection for part in self.left}


class Removals(Write):
    """The deletions of some changes, done before all additions to make room.

    The changes must follow in the same transaction; they restore objects that are newer.
    """

    size = 0

    def __init__(self, writes: Iterable[Write]) -> None:
        self._keys = [
            (key, change.version)
            for write in writes
            if isinstance(write, Changes)
            for key, change in write.of.items()
            if change.item is None
        ]

    def do(self, connection: Connection) -> Done:
        """See :class:`Write`."""
        gone: dict[Collection, list[tuple[str, str, Version]]] = {}
        for key, version in self._keys:
            gone.setdefault(key.collection, []).append((key.namespace, key.name, version))
        for collection, keys in gone.items():
            row = objects.find(connection, collection)
            if row is not None:
                objects.remove(connection, row, keys)
        return Done()


def _change(
    connection: Connection, collection: Collection, changes: Sequence[tuple[Key, Change]]
) -> Done:
    version = newest([change.version for _, change in changes])
    types = [change.type for _, change in changes if change.type is not None]
    if types:
        row: int | None = objects.enter(connection, collection, types[-1], version)
    else:
        row = objects.find(connection, collection)
    if row is None:
        # The deleted object was never stored.
        return Done()
    objects.see(connection, row, version)
    gone = [
        (key.namespace, key.name, change.version) for key, change in changes if change.item is None
    ]
    objects.remove(connection, row, gone)
    items = [change.item for _, change in changes if change.item is not None]
    written = objects.put(connection, row, items)
    return Done(written, len(items) - written)


class Unlist(Write):
    """Incomplete collections, and all those of clients for which ``of_all`` is true."""

    size = 0

    def __init__(
        self, collections: set[Collection], of_all: Callable[[str], bool] | None = None
    ) -> None:
        self.collections = collections
        self.of_all = of_all

    def do(self, connection: Connection) -> Done:
        """See :class:`Write`."""
        for collection in self.collections:
            objects.unlist(connection, collection)
        if self.of_all is not None:
            objects.unlist_all(connection, self.of_all)
        return Done()
