"""Events that could not be sent, in the file of the cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sqlite3 import Connection

from yurttunnel.hub.cache.interfaces import Collection, KeptEvent
from yurttunnel.hub.cache.writes import OVERHEAD, Done

MOST = 5_000
"""Events; the oldest go first."""

MOST_BYTES = 16 * 1024 * 1024
"""Bytes of their bodies."""

_SHARE = -(-MOST_BYTES // MOST)
"""Bytes that a shorter body counts as, so that one bound is for both."""


class Keep:
    """Takes an event. Its id says how many bytes were taken with it since the file is there."""

    def __init__(self, path: str, content_type: str, body: bytes, token: str, owner: str) -> None:
        self.size = OVERHEAD + len(body)
        self._row = (path, content_type, body, token, owner)
        self._counts_as = max(len(body), _SHARE)

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        connection.execute(
            "INSERT INTO events SELECT ? + coalesce(max(seq), 0), ?, ?, ?, ?, ?"
            " FROM sqlite_sequence WHERE name = 'events'",
            (self._counts_as, *self._row),
        )
        oldest = connection.execute(
            "DELETE FROM events WHERE id <="
            " (SELECT seq FROM sqlite_sequence WHERE name = 'events') - ?",
            (MOST_BYTES,),
        )
        return Done(events=1 - oldest.rowcount, events_lost=oldest.rowcount)

    def drop(self) -> Iterable[Collection]:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        return ()


class Drop:
    """Forgets an event."""

    size = OVERHEAD

    def __init__(self, id: int) -> None:
        self._id = id

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        gone = connection.execute("DELETE FROM events WHERE id = ?", (self._id,))
        return Done(events=-gone.rowcount)

    def drop(self) -> Iterable[Collection]:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        return ()


def count(connection: Connection) -> int:
    """Return how many there are."""
    (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
    return int(events)


def oldest(connection: Connection, most: int) -> Sequence[KeptEvent]:
    """Return the oldest events."""
    rows = connection.execute(
        "SELECT id, path, content_type, body, token, owner FROM events ORDER BY id LIMIT ?", (most,)
    )
    return [KeptEvent(*row) for row in rows]
