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

COUNTS_AS = MOST_BYTES // MOST
"""Bytes that a shorter body counts as, so that one bound is for both."""

SHARE = MOST_BYTES // 8
"""Bytes that those of one service account may take, so that a pod cannot push out those of
kubelet."""


_BEYOND = (
    "DELETE FROM events WHERE id IN (SELECT id FROM (SELECT id,"
    " sum(max(length(body), ?)) OVER (ORDER BY id DESC) AS bytes FROM events {where})"
    " WHERE bytes > ?)"
)


class Keep:
    """Takes an event. Beyond the bound the oldest go, and beyond the share of an account, which is
    any ``owner`` but the node, the oldest of that account.
    """

    def __init__(self, path: str, content_type: str, body: bytes, token: str, owner: str) -> None:
        self.size = OVERHEAD + len(body)
        self._row = (path, content_type, body, token, owner)
        self._owner = owner

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        connection.execute(
            "INSERT INTO events (path, content_type, body, token, owner) VALUES (?, ?, ?, ?, ?)",
            self._row,
        )
        lost = 0
        if self._owner:
            of_owner = _BEYOND.format(where="WHERE owner = ?")
            lost += connection.execute(of_owner, (COUNTS_AS, self._owner, SHARE)).rowcount
        lost += connection.execute(_BEYOND.format(where=""), (COUNTS_AS, MOST_BYTES)).rowcount
        return Done(events=1 - lost, events_lost=lost)

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
