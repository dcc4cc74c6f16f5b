"""A connection to the file of the cache, which is opened when it is used and closed by trouble."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from yurttunnel.hub.cache.interfaces import CacheFailed
from yurttunnel.hub.cache.trouble import trouble_of

Connect = Callable[[str], sqlite3.Connection]
"""Opens what a URI of SQLite names."""

BUSY_SECONDS = 2.0
"""Seconds for which another process may hold the file: a command that looks at it does not."""


def connect(uri: str) -> sqlite3.Connection:
    """Open a database for one thread at a time, with transactions as they are asked for."""
    return sqlite3.connect(
        uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )


def uri_of(path: Path, query: str) -> str:
    """Return the URI of a file (https://sqlite.org/uri.html)."""
    return f"file:{quote(str(path))}?{query}"


class Connection:
    """What has one connection, or none. All is called by one thread, after another."""

    _troubles: tuple[type[Exception], ...] = (sqlite3.Error, CacheFailed)
    """What may be wrong with the file."""

    def __init__(self, path: Path, connect: Connect) -> None:
        self._path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise :class:`CacheFailed` for what fails by the file, and close it whatever fails."""
        try:
            yield
        except self._troubles as error:
            # Whatever it is, a new connection knows most about it.
            self.close()
            trouble = trouble_of(error, self._path)
            if trouble is None:
                raise
            raise trouble from error
