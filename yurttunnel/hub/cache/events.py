"""Events that could not be sent, in the file of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from yurttunnel.hub.cache.interfaces import KeptEvent
from yurttunnel.hub.cache.writes import OVERHEAD, Done, Write

MOST = 5_000
"""Events; the oldest go first."""

MOST_BYTES = 16 * 1024 * 1024
"""Bytes of their bodies and tokens."""

COUNTS_AS = MOST_BYTES // MOST
"""Bytes that a shorter one counts as, so that one bound is for both."""

SHARE = MOST_BYTES // 8
"""Bytes that those of one service account may take, so that a pod cannot push out those of
kubelet."""

_BEYOND = (
    "DELETE FROM events WHERE id IN (SELECT id FROM (SELECT id, owner,"
    " sum(max(length(body) + length(token), ?)) OVER ({of} ORDER BY id DESC) AS bytes FROM events)"
    " WHERE bytes > ? {of_whom})"
)
_OF_ACCOUNTS = _BEYOND.format(of="PARTITION BY owner", of_whom="AND owner <> ''")
_OF_ALL = _BEYOND.format(of="", of_whom="")


class Keep(Write):
    """Takes an event; a :class:`Bound` has to follow."""

    def __init__(self, path: str, content_type: str, body: bytes, token: str, owner: str) -> None:
        self.size = OVERHEAD + len(body) + len(token)
        self._row = (path, content_type, body, token, owner)

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        connection.execute(
            "INSERT INTO events (path, content_type, body, token, owner) VALUES (?, ?, ?, ?, ?)",
            self._row,
        )
        return Done(events=1)


class Bound(Write):
    """Forgets the oldest events beyond the bound, and before that of each account, which is any
    owner but the node, those beyond its share. It reads all, so once for all that are taken.
    """

    size = 0

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        lost = sum(
            connection.execute(beyond, (COUNTS_AS, most)).rowcount
            for beyond, most in ((_OF_ACCOUNTS, SHARE), (_OF_ALL, MOST_BYTES))
        )
        return Done(events=-lost, events_lost=lost)


def bounded(writes: Sequence[Write]) -> Sequence[Write]:
    """Return some writes, with a :class:`Bound` if any of them takes an event."""
    return [*writes, Bound()] if any(isinstance(write, Keep) for write in writes) else writes


class Drop(Write):
    """Forgets an event."""

    def __init__(self, id: int) -> None:
        self._id = id

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        gone = connection.execute("DELETE FROM events WHERE id = ?", (self._id,))
        return Done(events=-gone.rowcount)


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
