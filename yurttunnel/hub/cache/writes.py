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


def scope_size(scope: Scope) -> int:
    """Return the approximate size of a selection in bytes; its strings are also in an index."""
    text = scope.collection.view + scope.label_selector + scope.field_selector
    return OVERHEAD + 2 * len(text.encode())


MAX_BATCH_SIZE = 1024 * 1024
"""Maximum size of changes that are written together, in bytes."""


class WriteResult(NamedTuple):
    """The result of writes.

    ``written`` objects were new or had another version; ``unchanged`` objects did not. ``events``
    is the change of the number of events, ``events_lost`` the number of evicted ones. ``evicted``
    are the evicted clients, ``documents`` is the number of evicted documents.
    """

    written: int = 0
    unchanged: int = 0
    events: int = 0
    events_lost: int = 0
    evicted: tuple[str, ...] = ()
    documents: int = 0


class Write:
    """A write; ``size`` is the memory that it takes, in bytes.

    ``owner`` is the account whose share of the memory it takes, empty for none. A list takes none
    (``is_list``).
    """

    size = OVERHEAD
    owner = ""
    is_list = False

    def execute(self, connection: Connection) -> WriteResult:
        """Do the write in the thread, within a transaction."""
        raise NotImplementedError

    def drop(self) -> Iterable[Collection]:
        """Drop the write; return the collections that are now incomplete."""
        return ()


class Statements(Write):
    """SQL statements.

    If they are dropped, the collections ``incomplete`` are, and ``dropped`` is called.
    """

    def __init__(
        self,
        *statements: tuple[str, Sequence[Any]],
        size: int = OVERHEAD,
        dropped: Callable[[], object] = lambda: None,
        incomplete: Iterable[Collection] = (),
    ) -> None:
        self.size = size
        self._incomplete = incomplete
        self._statements = statements
        self._dropped = dropped

    def execute(self, connection: Connection) -> WriteResult:
        for statement, values in self._statements:
            connection.execute(statement, values)
        return WriteResult()

    def drop(self) -> Iterable[Collection]:
        self._dropped()
        return self._incomplete


class Key(NamedTuple):
    """The key of an object."""

    collection: Collection
    namespace: str
    name: str


class ScopeExit(NamedTuple):
    """A part that an object has left while it may still exist, and its last state there."""

    part: Scope
    item: Item


class Change(NamedTuple):
    """A change of an object; without an item it was deleted, or has left a part."""

    version: Version
    type: TypeMeta | None = None
    item: Item | None = None
    scope_exit: ScopeExit | None = None

    @property
    def size(self) -> int:
        """Approximate memory of the change in bytes."""
        return OVERHEAD + (0 if self.item is None else len(self.item.body))


@dataclass(eq=False)
class Changes(Write):
    """The last change of each object, and the ranges of versions that the changes complete.

    ``exits`` has the objects that left a part, regardless of later changes. ``ranges`` has the
    ranges in order of arrival; each is valid only after all earlier ones.
    """

    size: int = 0
    by_key: dict[Key, Change] = field(default_factory=dict)
    exits: dict[Scope, list[Item]] = field(default_factory=dict)
    ranges: dict[Scope, list[tuple[Version, Version]]] = field(default_factory=dict)

    def put(self, key: Key, change: Change) -> None:
        """Add a change, replacing an earlier one of the object.

        If an object is deleted before it was written, its type is kept for the collection.
        """
        before = self.by_key.get(key)
        if before is not None and change.type is None:
            change = change._replace(type=before.type)
        self.size += change.size - (0 if before is None else before.size)
        self.by_key[key] = change

    def add_exit(self, scope_exit: ScopeExit) -> None:
        """Record that an object has left a part."""
        self.size += OVERHEAD + sum(
            len(name) + len(text) for name, text in scope_exit.item.labels.items()
        )
        if scope_exit.part not in self.exits:
            self.size += scope_size(scope_exit.part)
        self.exits.setdefault(scope_exit.part, []).append(scope_exit.item)

    def advance(self, scope: Scope, since: Version, version: Version) -> None:
        """Record that a scope is known from one version to another."""
        ranges = self.ranges.setdefault(scope, [])
        if ranges and ranges[-1][0] == since:
            _, before = ranges.pop()
            version = newest([before, version])
        else:
            self.size += scope_size(scope) + len(str(since))
        ranges.append((since, version))

    def drop_oldest(self) -> Collection:
        """Drop the oldest change."""
        key = next(iter(self.by_key))
        self.size -= self.by_key.pop(key).size
        return key.collection

    def execute(self, connection: Connection) -> WriteResult:
        by_collection: dict[Collection, list[tuple[Key, Change]]] = {}
        for each in self.by_key.items():
            by_collection.setdefault(each[0].collection, []).append(each)
        done = [
            _change(connection, collection, changes)
            for collection, changes in by_collection.items()
        ]
        for part, items in self.exits.items():
            row = objects.find(connection, part.collection)
            if row is not None:
                objects.record_exits(connection, row, part, items)
        ranges: dict[Collection, list[tuple[Scope, Version, Version]]] = {}
        for scope, of_scope in self.ranges.items():
            ranges.setdefault(scope.collection, []).extend((scope, *each) for each in of_scope)
        for collection, of_collection in ranges.items():
            row = objects.find(connection, collection)
            if row is not None:
                newest_version = newest([version for _, _, version in of_collection])
                objects.raise_version(connection, row, newest_version)
                objects.advance_scopes(connection, row, of_collection)
        return WriteResult(sum(each.written for each in done), sum(each.unchanged for each in done))

    def drop(self) -> Iterable[Collection]:
        return {key.collection for key in self.by_key} | {part.collection for part in self.exits}


class Deletions(Write):
    """The deletions of some changes, done before all additions to make room.

    The changes must follow in the same transaction; they restore objects that are newer.
    """

    size = 0

    def __init__(self, writes: Iterable[Write]) -> None:
        self._keys = [
            (key, change.version)
            for write in writes
            if isinstance(write, Changes)
            for key, change in write.by_key.items()
            if change.item is None
        ]

    def execute(self, connection: Connection) -> WriteResult:
        removed: dict[Collection, list[tuple[str, str, Version]]] = {}
        for key, version in self._keys:
            removed.setdefault(key.collection, []).append((key.namespace, key.name, version))
        for collection, keys in removed.items():
            row = objects.find(connection, collection)
            if row is not None:
                objects.remove(connection, row, keys)
        return WriteResult()


def _change(
    connection: Connection, collection: Collection, changes: Sequence[tuple[Key, Change]]
) -> WriteResult:
    version = newest([change.version for _, change in changes])
    types = [change.type for _, change in changes if change.type is not None]
    if types:
        row: int | None = objects.upsert_collection(connection, collection, types[-1], version)
    else:
        row = objects.find(connection, collection)
    if row is None:
        # The deleted object was never stored.
        return WriteResult()
    objects.raise_version(connection, row, version)
    removed = [
        (key.namespace, key.name, change.version) for key, change in changes if change.item is None
    ]
    objects.remove(connection, row, removed)
    items = [change.item for _, change in changes if change.item is not None]
    written = objects.put(connection, row, items)
    return WriteResult(written, len(items) - written)


def in_all_forms(client: str, resource: str) -> Collection:
    """Return what stands for all collections of a client's resource in :class:`MarkIncomplete`."""
    return Collection(client, resource, "")


class MarkIncomplete(Write):
    """Incomplete collections, and all those of clients for which ``of_all`` is true.

    One without a form stands for those of all forms and views (:func:`in_all_forms`).
    """

    size = 0
    of_all: Callable[[str], bool] | None = None

    def __init__(self, collections: set[Collection]) -> None:
        self.collections = collections

    def execute(self, connection: Connection) -> WriteResult:
        for collection in self.collections:
            objects.mark_incomplete(connection, collection)
        if self.of_all is not None:
            objects.mark_all_incomplete(connection, self.of_all)
        return WriteResult()
