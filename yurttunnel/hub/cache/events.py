"""Events that could not be sent, in the cache file."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from yurttunnel.hub.cache.interfaces import StoredEvent
from yurttunnel.hub.cache.writes import OVERHEAD, Write, WriteResult

MAX_EVENTS = 5_000
"""Maximum number of events; the oldest are evicted first."""

MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of their bodies and tokens in bytes."""

MIN_EVENT_SIZE = MAX_BYTES // MAX_EVENTS
"""Minimum size that each event counts as, in bytes, so that one limit covers both."""

OWNER_SHARE = MAX_BYTES // 8
"""Maximum size of the events of one service account in bytes, so that a pod cannot evict the events
of the kubelet."""

_BEYOND = (
    "DELETE FROM events WHERE id IN (SELECT id FROM (SELECT id, owner,"
    " sum(max(length(body) + length(token), ?)) OVER ({of} ORDER BY id DESC) AS bytes FROM events)"
    " WHERE bytes > ? {of_whom})"
)
_OF_ACCOUNTS = _BEYOND.format(of="PARTITION BY owner", of_whom="AND owner <> ''")
_OF_ALL = _BEYOND.format(of="", of_whom="")


class StoreEvent(Write):
    """Adds an event; a :class:`EvictEvents` must follow."""

    def __init__(self, path: str, content_type: str, body: bytes, token: str, owner: str) -> None:
        self.size = OVERHEAD + len(body) + len(token)
        self._row = (path, content_type, body, token, owner)

    def execute(self, connection: Connection) -> WriteResult:
        connection.execute(
            "INSERT INTO events (path, content_type, body, token, owner) VALUES (?, ?, ?, ?, ?)",
            self._row,
        )
        return WriteResult(events=1)


class EvictEvents(Write):
    """Evicts the oldest events over the limits: first of each account, then of all.

    An account is any owner except the node. Each run reads all events, so there is one for all that
    are added together.
    """

    size = 0

    def execute(self, connection: Connection) -> WriteResult:
        lost = sum(
            connection.execute(beyond, (MIN_EVENT_SIZE, most)).rowcount
            for beyond, most in ((_OF_ACCOUNTS, OWNER_SHARE), (_OF_ALL, MAX_BYTES))
        )
        return WriteResult(events=-lost, events_lost=lost)


def with_eviction(writes: Sequence[Write]) -> Sequence[Write]:
    """Return the writes, followed by a :class:`EvictEvents` if any of them adds an event."""
    return (
        [*writes, EvictEvents()]
        if any(isinstance(write, StoreEvent) for write in writes)
        else writes
    )


class DeleteEvent(Write):
    """Deletes an event."""

    def __init__(self, id: int) -> None:
        self._id = id

    def execute(self, connection: Connection) -> WriteResult:
        deleted = connection.execute("DELETE FROM events WHERE id = ?", (self._id,))
        return WriteResult(events=-deleted.rowcount)


def count(connection: Connection) -> int:
    """Return the number of events."""
    (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
    return int(events)


def oldest(connection: Connection, most: int) -> Sequence[StoredEvent]:
    """Return the oldest events."""
    rows = connection.execute(
        "SELECT id, path, content_type, body, token, owner FROM events ORDER BY id LIMIT ?", (most,)
    )
    return [StoredEvent(*row) for row in rows]
