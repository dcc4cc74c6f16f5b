"""Errors of the cache file, and their fixes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from yurttunnel.hub.cache.interfaces import CacheFailed

_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full: make room on it",
    sqlite3.SQLITE_IOERR: "the disk has failed ({error}): see the kernel's log (dmesg)",
    sqlite3.SQLITE_READONLY: "it cannot be written to ({error}): see how its disk is mounted",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: see what its directory and its disk allow",
    sqlite3.SQLITE_PERM: "it cannot be opened: see what its directory and its disk allow",
    sqlite3.SQLITE_BUSY: "another process has locked it: find it with fuser",
    sqlite3.SQLITE_LOCKED: "another process has locked it: find it with fuser",
    sqlite3.SQLITE_PROTOCOL: "another process has locked it: find it with fuser",
    sqlite3.SQLITE_NOMEM: "there is no memory left: give the process more",
}

_DAMAGED = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    # All statements are valid for the tables that were created.
    sqlite3.SQLITE_ERROR,
)


class CacheDamaged(CacheFailed):
    """The file is not a database, or a damaged one."""


class BodyDamaged(CacheDamaged):
    """An object or another row has changed on the disk; all others can still be served."""

    @classmethod
    def of_row(cls, name: str) -> BodyDamaged:
        """Return the error for a row that is not what was written."""
        return cls(f"the cache is damaged (the checksum of {name!r} does not match)")


class OtherVersion(CacheDamaged):
    """The file is of another version of the hub, which can use it again."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the cache is of another version of yurthub ({version})")
        self.version = version


class NothingToEvict(CacheFailed):
    """No client is left that could be evicted."""


class LimitReached(CacheFailed):
    """The data does not fit into the limit."""

    def __init__(self, path: Path, max_bytes: int, clients: Iterable[str]) -> None:
        super().__init__(
            f"the cache {path} has reached its limit of {max_bytes // 1_000_000} MB with the data"
            f" of {', '.join(sorted(clients))}: raise the limit"
        )
        self._path = path
        self.max_bytes = max_bytes

    def needed_by(self, clients: Iterable[str]) -> LimitReached:
        """Return the same error for these clients."""
        return LimitReached(self._path, self.max_bytes, clients)


def not_a_file(path: Path) -> CacheFailed:
    """Return the error for a path that is a link, a pipe or something else."""
    return CacheFailed(f"the cache {path} is not a plain file: remove it")


def is_of_full_disk(error: Exception) -> bool:
    """Return whether SQLite found no room for pages, or for the index of the log."""
    # Errors of the sqlite3 module itself do not have this attribute.
    code = getattr(error, "sqlite_errorcode", 0)
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


def cache_error(error: Exception, path: Path) -> CacheFailed | None:
    """Return the error of the file at ``path``; ``None`` if the statement is at fault."""
    if isinstance(error, CacheFailed):
        return error
    if isinstance(error, OSError):
        return CacheFailed(f"the cache {path}: {error.strerror}")
    if isinstance(error, sqlite3.OperationalError) and not hasattr(error, "sqlite_errorcode"):
        # The sqlite3 module cannot decode a text. It quotes the text, which may be a token.
        return BodyDamaged(f"the cache {path} is damaged (a text is not UTF-8)")
    full = is_of_full_disk(error)
    code = sqlite3.SQLITE_FULL if full else getattr(error, "sqlite_errorcode", 0) & 0xFF
    # The module cannot decode an error of SQLite that quotes the definition of a table.
    if code in _DAMAGED or isinstance(error, UnicodeDecodeError):
        return CacheDamaged(f"the cache {path} is damaged ({error})")
    if code not in _ADVICE:
        return None
    return CacheFailed(f"the cache {path}: {_ADVICE[code].format(error=error)}")
