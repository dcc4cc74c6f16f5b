"""A connection to the cache file, opened at its first use and closed after errors."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from yurttunnel.hub.cache.errors import cache_error
from yurttunnel.hub.cache.interfaces import CacheFailed

Connect = Callable[[str], sqlite3.Connection]
"""Opens the database that an SQLite URI names."""

BUSY_SECONDS = 2.0
"""How long to wait for another process that locks the file, in seconds; dumps do not lock it."""


def connect(uri: str) -> sqlite3.Connection:
    """Open a database for one thread at a time, with explicit transactions."""
    return sqlite3.connect(
        uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )


def uri_of(path: Path, query: str) -> str:
    """Return the URI of a file (https://sqlite.org/uri.html)."""
    return f"file:{quote(str(path))}?{query}"


class Connection:
    """The base class of objects with one connection. All calls are made by one thread at a time."""

    _convertible: tuple[type[Exception], ...] = (
        sqlite3.Error,
        UnicodeDecodeError,
        CacheFailed,
    )
    """Errors that may be caused by the file."""

    def __init__(self, path: Path, connect: Connect) -> None:
        self._path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the file."""
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def _converting_errors(self) -> Iterator[None]:
        """Raise :class:`CacheFailed` for errors of the file; close the connection after these."""
        try:
            yield
        except self._convertible as error:
            # A new connection gives the most precise diagnosis.
            self._disconnect()
            converted = cache_error(error, self._path)
            if converted is None:
                raise
            raise converted from error
