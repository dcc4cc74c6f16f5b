"""Reads of the cache, in a thread that does not wait for writes."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from yurttunnel.hub.cache import objects, schema
from yurttunnel.hub.cache.connection import Connection, uri_of
from yurttunnel.hub.cache.errors import BodyDamaged, is_of_full_disk, not_a_file
from yurttunnel.hub.cache.interfaces import CacheFailed, Collection, Scope, Stored
from yurttunnel.hub.cache.selectors import has_one_name, selector
from yurttunnel.hub.cache.versions import Version
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta

PIECE = 256 * 1024
"""The number of bytes of bodies that are read at once."""

_Result = TypeVar("_Result")


class Reader(Connection):
    """A connection for reading.

    Methods raise :class:`CacheFailed`; the connection is closed then, and the next call opens it
    again.
    """

    def read(self, read: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Return the result of ``read``."""
        with self._converting_errors():
            if self._connection is None:
                self._connection = self._opened()
            return read(self._connection)

    def snapshot(self, scope: Scope) -> Snapshot | None:
        """Return a snapshot of a scope, with a connection of its own."""
        reader = Reader(self._path, self._connect)
        snapshot = reader.read(lambda connection: _snapshot(reader, connection, scope))
        if snapshot is None:
            reader.close()
        return snapshot

    def _opened(self) -> sqlite3.Connection:
        if os.path.exists(self._path) and not os.path.isfile(self._path):
            # A pipe would keep this thread until another process opens it.
            raise not_a_file(self._path)
        try:
            return self._open("mode=ro")
        except sqlite3.OperationalError as error:
            # On a file system that is full or read-only, SQLite cannot create its other files.
            if _is_complete(self._path, error):
                return self._open("mode=ro&immutable=1")
            if not os.statvfs(self._path).f_flag & os.ST_RDONLY:
                raise
            # Without locks, which nothing needs that cannot change, the log's index is in memory.
            return self._open("mode=ro&vfs=unix-none", "EXCLUSIVE")

    def _open(self, query: str, locking_mode: str = "NORMAL") -> sqlite3.Connection:
        connection = self._connect(uri_of(self._path, query))
        try:
            connection.execute(f"PRAGMA locking_mode = {locking_mode}")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != schema.VERSION:
                other = f"is of another version of yurthub ({version})"
                problem = other if version else "has not been created yet"
                raise CacheFailed(f"the cache {self._path} {problem}")
        except BaseException:
            connection.close()
            raise
        return connection


class Snapshot:
    """A list being read, in a transaction of its own: see :class:`ICachedList`."""

    def __init__(
        self, reader: Reader, meta: ListMeta, complete: bool, rows: Sequence[tuple[int, int]]
    ) -> None:
        self._reader = reader
        self._rows = rows
        self._next = 0
        self.meta = meta
        self.complete = complete
        self.sizes = [size for _, size in rows]

    def read(self) -> Sequence[Item]:
        """Return the next items."""
        first, size = self._next, 0
        while self._next < len(self._rows) and size < PIECE:
            size += self.sizes[self._next]
            self._next += 1
        ids = json.dumps([id for id, _ in self._rows[first : self._next]])
        rows = self._reader.read(
            lambda connection: connection.execute(
                f"SELECT {objects.TEXTS}, checksum, body"
                " FROM json_each(?) AS wanted CROSS JOIN objects ON objects.id = wanted.value",
                (ids,),
            ).fetchall()
        )
        return [_item(*row) for row in rows]

    def close(self) -> None:
        """Close the snapshot."""
        self._reader.close()


def _is_complete(path: Path, error: sqlite3.OperationalError) -> bool:
    """Return whether the file alone is complete, if it cannot be opened with its log.

    An empty log may belong to a process that is about to write, unless there was no room for its
    other files.
    """
    try:
        return os.stat(f"{path}-wal").st_size == 0 and is_of_full_disk(error)
    except OSError:
        return True


def find(
    connection: sqlite3.Connection, collection: Collection, namespace: str, name: str
) -> Stored | None:
    """Return an object."""
    row = connection.execute(
        f"SELECT api_version, kind, {objects.TEXTS}, checksum, body"
        " FROM collections JOIN objects ON collection = collections.id"
        " WHERE (client, resource, form, view) = (?, ?, ?, ?) AND (namespace, name) = (?, ?)",
        (*collection, namespace, name),
    ).fetchone()
    if row is None:
        return None
    return Stored(TypeMeta(*row[:2]), _item(*row[2:]))


def check_body(name: str, checksum: int, body: bytes) -> None:
    """Raise :class:`BodyDamaged` if a body does not have this checksum."""
    if not isinstance(body, bytes) or crc32(body) != checksum:
        raise BodyDamaged.of_row(name)


def known_version(scope: Scope, connection: sqlite3.Connection) -> str | None:
    """Return the version up to which a scope is known."""
    collection = objects.find(connection, scope.collection)
    found = None if collection is None else _known_version(connection, collection, scope)
    return None if found is None else str(found)


def _known_version(connection: sqlite3.Connection, collection: int, scope: Scope) -> Version | None:
    found = objects.known_version(connection, collection, scope)
    if found is not None and not objects.are_whole(connection, collection):
        raise BodyDamaged("the cache is damaged (objects of a complete list are missing)")
    return found


def _snapshot(reader: Reader, connection: sqlite3.Connection, scope: Scope) -> Snapshot | None:
    connection.execute("BEGIN")
    found = connection.execute(
        "SELECT id, api_version, kind, version, columns FROM collections"
        " WHERE (client, resource, form, view) = (?, ?, ?, ?)",
        scope.collection,
    ).fetchone()
    if found is None:
        return None
    id, api_version, kind, version, columns = found
    listed = _known_version(connection, id, scope)
    rows = _rows(connection, id, scope)
    if listed is not None:
        version = listed
    elif rows and has_one_name(scope):
        # Later changes of these objects are not known, however new other objects are.
        version = _oldest(connection, rows)
    meta = ListMeta(TypeMeta(api_version, kind), str(version), columns=columns)
    return Snapshot(reader, meta, listed is not None, rows)


def _oldest(connection: sqlite3.Connection, rows: Sequence[tuple[int, int]]) -> Version:
    version: Version
    (version,) = connection.execute(
        "SELECT min(version) FROM json_each(?) AS wanted"
        " CROSS JOIN objects ON objects.id = wanted.value",
        (json.dumps([id for id, _ in rows]),),
    ).fetchone()
    return version


def _rows(
    connection: sqlite3.Connection, collection: int, scope: Scope
) -> Sequence[tuple[int, int]]:
    """Return the rows of a scope's objects and their sizes in bytes, in the API's order."""
    within, values = objects.within_scope(collection, scope)
    # No row without a number, whatever has changed on the disk.
    columns = "id, CAST(coalesce(size, 0) AS INTEGER)"
    order = f"FROM objects WHERE {within} ORDER BY namespace, name"
    if not objects.has_selectors(scope):
        rows: list[tuple[int, int]] = connection.execute(
            f"SELECT {columns} {order}", values
        ).fetchall()
        return rows
    return list(
        _selected(
            scope,
            connection.execute(f"SELECT id, {objects.TEXTS} {order}", values),
        )
    )


def _selected(scope: Scope, rows: sqlite3.Cursor) -> Iterator[tuple[int, int]]:
    selects = selector(scope)
    for id, *texts in rows:
        if selects(objects.item_of(*texts)):
            yield id, texts[5]


def _item(*row: Any) -> Item:
    *texts, checksum, body = row
    item = objects.item_of(*texts)
    check_body(item.name, checksum, body)
    return item._replace(body=body)
