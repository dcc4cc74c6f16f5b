"""The cache file in the writer thread."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from twisted.python.failure import Failure

from yurttunnel.hub.cache import documents, events, schema
from yurttunnel.hub.cache.clients import (
    GUESTS_SHARE,
    KUBELET,
    BoundGuests,
    IsGuest,
    MakeRoom,
)
from yurttunnel.hub.cache.connection import Connect, Connection, uri_of
from yurttunnel.hub.cache.interfaces import CacheFailed
from yurttunnel.hub.cache.trouble import BoundReached, CacheDamaged, NobodyLeft, trouble_of
from yurttunnel.hub.cache.writes import MOST_IN_ONE, Changes, Done, Removals, Statements, Write
from yurttunnel.pki.directory import StateDirectory, StateError

_PAGE = 4096
"""The page size in bytes, which is that of flash memory and of most disks."""

_PRAGMAS = (
    # Must come before the first table.
    f"PRAGMA page_size = {_PAGE}",
    "PRAGMA auto_vacuum = INCREMENTAL",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    # Deleted secrets are overwritten if that needs no additional write.
    "PRAGMA secure_delete = FAST",
    "PRAGMA cell_size_check = ON",
    "PRAGMA temp_store = MEMORY",
    # In pages of 4 KiB; changes of a large list that exceed it are moved to the log early.
    "PRAGMA cache_size = 1000",
    "PRAGMA journal_size_limit = 4194304",
)

_LISTED = (
    "CREATE TEMP TABLE listed"
    " (namespace TEXT, name TEXT, PRIMARY KEY (namespace, name)) WITHOUT ROWID"
)


_ONE_PAGE = Statements(
    ("UPDATE hours SET hour = hour + 1", ()), ("UPDATE hours SET hour = hour - 1", ())
)
"""A write that changes nothing but writes a page; a single UPDATE without a change would not."""


class Contents(NamedTuple):
    """The bytes in use in a file, the number of its clients, and the bytes of its log."""

    size: int
    clients: int
    log: int


class Written(NamedTuple):
    """The result of writes; ``defects`` are the errors of writes that cannot be done.

    ``contents`` is the state afterwards. If the writes are ``refused`` for lack of room, none is
    done; fewer may succeed.
    """

    done: Sequence[Done]
    defects: Sequence[Failure]
    contents: Contents
    refused: CacheFailed | None = None


class Database(Connection):
    """The writing connection.

    Methods raise :class:`CacheFailed`, or its subclass :class:`CacheDamaged` if a new file has to
    be created. The connection is closed then, and the next call opens it again.
    """

    # This connection also creates and moves the file.
    _troubles = (*Connection._troubles, OSError)

    def __init__(self, path: Path, connect: Connect, most: int, is_guest: IsGuest) -> None:
        super().__init__(path, connect)
        self._most = most
        self._is_guest = is_guest
        self._inode = 0

    def open(self) -> tuple[Contents, int]:
        """Open the file, created if necessary; return its contents and the number of events."""
        with self._explained():
            connection = self._opened()
            return _contents(connection, self._path), events.count(connection)

    def bound(self, most: int) -> None:
        """Change the maximum size in bytes; a file that is larger does not grow further."""
        self._most = most

    def write(self, writes: Sequence[Write], of_guests: bool) -> Written:
        """Do all writes or none, with one fsync(2); writes ``of_guests`` only if there is room."""
        with self._explained():
            connection = self._opened()
            # SQLite's limit is never below the current size of the file, which may have become
            # smaller.
            _bound(connection, self._most)
            return self._done_within_bound(connection, events.bounded(writes), of_guests)

    def _done_within_bound(
        self, connection: sqlite3.Connection, writes: Sequence[Write], of_guests: bool
    ) -> Written:
        # If the writes do not fit even after all evictions, the evictions are rolled back, too.
        room: list[Write] = []
        more = self._what_makes_room(writes, of_guests)
        size = sum(write.size for write in writes)
        while True:
            try:
                done, defects = self._done(connection, [*room, *writes])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    raise
                if _bytes(connection) + 2 * size < self._most:
                    return self._without_room_on_disk(connection, writes, error)
                if size > self._most:
                    return self._without_room(connection, writes)
                room.append(next(more))
            except NobodyLeft:
                return self._without_room(connection, writes)
            else:
                if of_guests:
                    done += _in_transaction(connection, [self._bound_guests()])
                return Written(done, defects, _contents(connection, self._path))

    def _what_makes_room(self, writes: Sequence[Write], of_guests: bool) -> Iterator[Write]:
        """Yield writes that make room, one after another, and larger ones as more is evicted."""
        if any(isinstance(write, Changes) for write in writes):
            yield Removals(writes)
        gone = 0
        while True:
            number = 1 + gone // 4
            yield MakeRoom(self._is_guest, of_guests, number)
            gone += number

    def _without_room(self, connection: sqlite3.Connection, writes: Sequence[Write]) -> Written:
        refused = BoundReached(self._path, self._most, [KUBELET])
        if not any(write.size for write in writes):
            # Incomplete collections have to be recorded, so an Unlist is not dropped.
            raise refused
        return Written((), (), _contents(connection, self._path), refused)

    def _without_room_on_disk(
        self, connection: sqlite3.Connection, writes: Sequence[Write], error: Exception
    ) -> Written:
        """Refuse a large write, or several; a small one raises, and waits until there is room."""
        if _is_small(writes):
            raise error
        # This raises the same error if there is no room for anything.
        _in_transaction(connection, [_ONE_PAGE])
        return Written((), (), _contents(connection, self._path), trouble_of(error, self._path))

    def _bound_guests(self) -> BoundGuests:
        most = round(self._most * GUESTS_SHARE)
        most_documents = min(documents.MOST_BYTES, round(self._most * documents.SHARE))
        return BoundGuests(self._is_guest, most, most_documents)

    def _done(
        self, connection: sqlite3.Connection, writes: Sequence[Write]
    ) -> tuple[list[Done], list[Failure]]:
        try:
            return _in_transaction(connection, writes), []
        except Exception as error:
            # An error that is not caused by the file is a defect of a single write.
            if trouble_of(error, self._path) is not None:
                raise
            if len(writes) == 1:
                return [], [Failure()]
        # The other writes are done one by one, so that they are not lost with the defective one.
        each = [self._done(connection, [write]) for write in writes]
        return (
            [done for dones, _ in each for done in dones],
            [defect for _, defects in each for defect in defects],
        )

    def set_aside(self) -> Path:
        """Rename the damaged file, replacing an older one; return its new path."""
        self.close()
        aside = self._path.with_name(f"{self._path.name}.damaged")
        with self._explained():
            for suffix in ("", "-wal"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{aside}{suffix}")
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self._path}{suffix}", f"{aside}{suffix}")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._path}-shm")
        return aside

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and os.stat(self._path).st_ino != self._inode:
            raise CacheFailed(f"the cache {self._path} was replaced by another file")
        if self._connection is None:
            try:
                StateDirectory.open(self._path.parent)
            except StateError as error:
                raise CacheFailed(f"the cache: {error}") from error
            _make_private(self._path)
            self._connection = self._connect(uri_of(self._path, "mode=rw"))
            self._inode = os.stat(self._path).st_ino
            _prepare(self._connection)
        return self._connection


def _in_transaction(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[Done]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = [write.do(connection) for write in writes]
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself for most errors.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return done


def _is_small(writes: Sequence[Write]) -> bool:
    """Return whether there is a single write, and it is not large.

    Changes never count as large: only their last object may exceed :data:`MOST_IN_ONE`.
    """
    sizes = [write.size for write in writes if write.size]
    return len(sizes) <= 1 and sum(sizes) <= 2 * MOST_IN_ONE


def _contents(connection: sqlite3.Connection, path: Path) -> Contents:
    [clients] = connection.execute("SELECT count(DISTINCT client) FROM collections").fetchone()
    log = 0
    with contextlib.suppress(FileNotFoundError):
        log = os.stat(f"{path}-wal").st_size
    return Contents(_bytes(connection), clients, log)


def _bytes(connection: sqlite3.Connection) -> int:
    """Return the bytes in use, without the log."""
    pages, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count")
    )
    return int(pages - free) * _PAGE


def _make_private(path: Path) -> None:
    """Create the file with private permissions, which SQLite also applies to the files beside it.

    An existing file is not opened: closing it would release SQLite's locks on it
    (https://sqlite.org/howtocorrupt.html, 2.2).
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise CacheFailed(f"the cache {path} is not a plain file: remove it") from None
        if status.st_mode & 0o077:
            os.chmod(path, 0o600)


def _bound(connection: sqlite3.Connection, most: int) -> None:
    connection.execute(f"PRAGMA max_page_count = {most // _PAGE}")


def _prepare(connection: sqlite3.Connection) -> None:
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    connection.execute(_LISTED)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.executescript(
            f"BEGIN IMMEDIATE; {schema.TABLES}"
            f"PRAGMA application_id = {schema.APPLICATION};"
            f"PRAGMA user_version = {schema.VERSION}; COMMIT"
        )
    elif version != schema.VERSION:
        raise CacheDamaged(f"the cache is of another version of yurthub ({version})")
