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
    IsGuest,
    LimitGuests,
    MakeRoom,
)
from yurttunnel.hub.cache.connection import Connect, Connection, uri_of
from yurttunnel.hub.cache.errors import (
    CacheDamaged,
    LimitReached,
    NothingToEvict,
    OtherVersion,
    cache_error,
    not_a_file,
)
from yurttunnel.hub.cache.interfaces import CacheFailed
from yurttunnel.hub.cache.writes import (
    MAX_BATCH_SIZE,
    Changes,
    Deletions,
    Statements,
    Write,
    WriteResult,
)
from yurttunnel.pki.directory import StateDirectory, StateError

_PAGE = 4096
"""The page size in bytes, which is that of flash memory and of most disks."""

_MIN_ROOM = 256 * 1024
"""The room in bytes that the disk must have for a file with the index of the log."""

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


class WriteOutcome(NamedTuple):
    """The result of writes; ``defects`` are the errors of writes that cannot be done.

    ``contents`` is the state afterwards. If the writes are ``refused`` for lack of room, none is
    done; fewer may succeed.
    """

    done: Sequence[WriteResult]
    defects: Sequence[Failure]
    contents: Contents
    refused: CacheFailed | None = None


class Database(Connection):
    """The writing connection.

    Methods raise :class:`CacheFailed`, or its subclass :class:`CacheDamaged` if a new file has to
    be created. The connection is closed then, and the next call opens it again.
    """

    # This connection also creates and moves the file.
    _convertible = (*Connection._convertible, OSError)

    def __init__(self, path: Path, connect: Connect, max_bytes: int, is_guest: IsGuest) -> None:
        super().__init__(path, connect)
        self._max_bytes = max_bytes
        self._is_guest = is_guest
        # That of the last file, 0 if it was set aside, None before the first one.
        self._inode: int | None = None
        # As long as it is open, all connections of this process share an index in memory.
        self._index: sqlite3.Connection | None = None
        self.replacements = 0
        """How often a new or another file was opened in place of an earlier one."""

    def open(self) -> tuple[Contents, int]:
        """Open the file, created if necessary; return its contents and the number of events."""
        with self._converting_errors():
            connection = self._opened()
            return _contents(connection, self._path), events.count(connection)

    def close(self) -> None:
        super().close()
        self._replace_index(None)

    def set_limit(self, max_bytes: int) -> None:
        """Change the maximum size in bytes; a file that is larger does not grow further."""
        self._max_bytes = max_bytes

    def write(self, writes: Sequence[Write], of_guests: bool) -> WriteOutcome:
        """Do all writes or none, with one fsync(2); writes ``of_guests`` only if there is room."""
        with self._converting_errors():
            connection = self._opened()
            # SQLite's limit is never below the current size of the file, which may have become
            # smaller.
            _set_limit(connection, self._max_bytes)
            return self._done_within_bound(connection, events.with_eviction(writes), of_guests)

    def _done_within_bound(
        self, connection: sqlite3.Connection, writes: Sequence[Write], of_guests: bool
    ) -> WriteOutcome:
        # If the writes do not fit even after all evictions, the evictions are rolled back, too.
        room: list[Write] = []
        more = self._evictions(writes, of_guests)
        size = sum(write.size for write in writes)
        while True:
            try:
                done, defects = self._done(connection, [*room, *writes])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    raise
                if _bytes(connection) + 2 * size < self._max_bytes:
                    return self._without_room_on_disk(connection, writes, error)
                if size > self._max_bytes:
                    return self._without_room(connection, writes)
                room.append(next(more))
            except NothingToEvict:
                return self._without_room(connection, writes)
            else:
                if of_guests:
                    done += _in_transaction(connection, [self._limit_guests()])
                return WriteOutcome(done, defects, _contents(connection, self._path))

    def _evictions(self, writes: Sequence[Write], of_guests: bool) -> Iterator[Write]:
        """Yield writes that make room, one after another, and larger ones as more is evicted."""
        if any(isinstance(write, Changes) for write in writes):
            yield Deletions(writes)
        evicted = 0
        while True:
            number = 1 + evicted // 4
            yield MakeRoom(self._is_guest, of_guests, number)
            evicted += number

    def _without_room(
        self, connection: sqlite3.Connection, writes: Sequence[Write]
    ) -> WriteOutcome:
        refused = LimitReached(self._path, self._max_bytes, [KUBELET])
        if not any(write.size for write in writes):
            # Incomplete collections have to be recorded, so an Unlist is not dropped.
            raise refused
        return WriteOutcome((), (), _contents(connection, self._path), refused)

    def _without_room_on_disk(
        self, connection: sqlite3.Connection, writes: Sequence[Write], error: Exception
    ) -> WriteOutcome:
        """Refuse a large write, or several; a small one raises, and waits until there is room."""
        if _is_small(writes):
            raise error
        # This raises the same error if there is no room for anything.
        _in_transaction(connection, [_ONE_PAGE])
        return WriteOutcome(
            (), (), _contents(connection, self._path), cache_error(error, self._path)
        )

    def _limit_guests(self) -> LimitGuests:
        max_bytes = round(self._max_bytes * GUESTS_SHARE)
        most_documents = min(documents.MAX_BYTES, round(self._max_bytes * documents.SHARE))
        return LimitGuests(self._is_guest, max_bytes, most_documents)

    def _done(
        self, connection: sqlite3.Connection, writes: Sequence[Write]
    ) -> tuple[list[WriteResult], list[Failure]]:
        try:
            return _in_transaction(connection, writes), []
        except Exception as error:
            # An error that is not caused by the file is a defect of a single write.
            if cache_error(error, self._path) is not None:
                raise
            if len(writes) == 1:
                return [], [Failure()]
        # The other writes are done one by one, so that they are not lost with the defective one.
        each = [self._done(connection, [write]) for write in writes]
        return (
            [done for dones, _ in each for done in dones],
            [defect for _, defects in each for defect in defects],
        )

    def set_aside(self, damage: CacheDamaged) -> Path:
        """Rename the file, replacing an older one; return its new path.

        That of another version is used by that version again, until this one was online for long.
        """
        self.close()
        self._inode = 0
        aside = self._path.with_name(f"{self._path.name}.damaged")
        with self._converting_errors():
            if isinstance(damage, OtherVersion):
                aside = self._of_version(damage.version)
            _move(self._path, aside)
        return aside

    def _of_version(self, version: int | str) -> Path:
        """Return the path of the file of a version while a hub of another version runs."""
        return self._path.with_name(f"{self._path.name}.version-{version}")

    def remove_others(self) -> None:
        """Remove the files of other versions."""
        with contextlib.suppress(OSError):
            for other in self._path.parent.glob(self._of_version("*").name):
                other.unlink()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and os.stat(self._path).st_ino != self._inode:
            raise CacheFailed(f"the cache {self._path} was replaced by another file")
        if self._connection is None:
            try:
                StateDirectory.open(self._path.parent)
            except StateError as error:
                raise CacheFailed(f"the cache: {error}") from error
            own = self._of_version(schema.VERSION)
            if own.exists() and not (self._path.exists() and os.path.getsize(self._path)):
                # After the return to this version, perhaps in the same outage. An empty file is
                # of a version that had no room on the disk.
                self._inode = 0
                _move(own, self._path)
            _make_private(self._path)
            self._choose_index()
            self._connection = self._connect(uri_of(self._path, "mode=rw"))
            inode = os.stat(self._path).st_ino
            is_created = _prepare(self._connection)
            if self._inode is not None and (is_created or inode != self._inode):
                self.replacements += 1
            self._inode = inode
        return self._connection

    def _choose_index(self) -> None:
        """Keep the index of the log in memory if the disk may have no room for a file.

        SQLite maps that file, and writes one byte in each 4 KiB to reserve room for it. If the disk
        is full, that fails, or, with smaller blocks, the process ends later with SIGBUS.
        """
        index = None
        status = os.statvfs(self._path)
        if status.f_frsize < _PAGE or status.f_bavail * status.f_frsize < _MIN_ROOM:
            # https://sqlite.org/vfs.html#standard_unix_vfses
            index = self._connect(uri_of(self._path, "mode=rw&vfs=unix-excl"))
            try:
                # A connection to a file with a log keeps its lock, which excludes other processes.
                if not os.path.getsize(self._path):
                    _configure(index)
                _version(index)
            except BaseException:
                index.close()
                raise
        self._replace_index(index)

    def _replace_index(self, index: sqlite3.Connection | None) -> None:
        previous, self._index = self._index, index
        if previous is not None:
            with contextlib.suppress(sqlite3.Error):
                previous.close()


def _in_transaction(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[WriteResult]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = [write.execute(connection) for write in writes]
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself for most errors.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return done


def _is_small(writes: Sequence[Write]) -> bool:
    """Return whether there is a single write, and it is not large.

    Changes never count as large: only their last object may exceed :data:`MAX_BATCH_SIZE`.
    """
    sizes = [write.size for write in writes if write.size]
    return len(sizes) <= 1 and sum(sizes) <= 2 * MAX_BATCH_SIZE


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


def _move(path: Path, target: Path) -> None:
    """Rename a file that no connection has open, with its log."""
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{target}{suffix}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{target}{suffix}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")


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
            raise not_a_file(path) from None
        if status.st_mode & 0o077:
            os.chmod(path, 0o600)


def _set_limit(connection: sqlite3.Connection, max_bytes: int) -> None:
    connection.execute(f"PRAGMA max_page_count = {max_bytes // _PAGE}")


def _configure(connection: sqlite3.Connection) -> None:
    for pragma in _PRAGMAS:
        connection.execute(pragma)


def _version(connection: sqlite3.Connection) -> int:
    """Return the version of the file, 0 if it is empty."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _prepare(connection: sqlite3.Connection) -> bool:
    """Prepare a new connection; return whether the file was empty."""
    # First of all, because a file of another version is set aside even if the disk is full.
    version = _version(connection)
    if version not in (0, schema.VERSION):
        raise OtherVersion(version)
    _configure(connection)
    connection.execute(_LISTED)
    if version == 0:
        connection.executescript(
            f"BEGIN IMMEDIATE; {schema.TABLES}"
            f"PRAGMA application_id = {schema.APPLICATION};"
            f"PRAGMA user_version = {schema.VERSION}; COMMIT"
        )
    return version == 0
