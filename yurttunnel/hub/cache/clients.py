"""Which clients have not asked for long, and go, also when the file has no room for all.

What a client sees may be the same for years, so what counts is when it asked. That is counted in
hours in which the API answered: a node may be without the cloud, or switched off, for any time, and
its clock may be wrong when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from sqlite3 import Connection

from yurttunnel.hub.cache import objects
from yurttunnel.hub.cache.interfaces import Collection
from yurttunnel.hub.cache.versions import version_of
from yurttunnel.hub.cache.writes import OVERHEAD, Done, Statements

HOUR = 3600.0
"""Seconds."""

MOST_HOURS = 30 * 24
"""Hours after which a client that has not asked is forgotten."""

KUBELET = "kubelet"
"""The client that is not forgotten: kubelet, with the node's identity."""

_SLACK = 2_048
"""Pages that are free and kept for what comes next: 8 MiB."""

_AT_ONCE = 4_096
"""Pages that are given back to the disk at once: 16 MiB."""


def use(collection: Collection) -> Statements:
    """Return what takes it that a client asks for a collection, if anything of that is there."""
    return Statements(
        (
            "UPDATE collections SET hour = (SELECT hour FROM hours)"
            " WHERE (client, resource, form, view) = (?, ?, ?, ?)"
            " AND hour <> (SELECT hour FROM hours)",
            collection,
        )
    )


def forget_object(
    client: str, resource: str, namespace: str, name: str, version: str
) -> Statements:
    """Return what removes an object from all collections of a resource, if it is older."""
    return Statements(
        (
            "DELETE FROM objects WHERE collection IN"
            " (SELECT id FROM collections WHERE client = ? AND resource = ?)"
            f" AND namespace = ? AND name = ? AND {objects.OLDER}",
            (client, resource, namespace, name, version_of(version)),
        )
    )


class Forget:
    """Forgets the clients whose component is not one that ``keeps``, which the thread calls."""

    size = OVERHEAD

    def __init__(self, keeps: Callable[[str], bool]) -> None:
        self._keeps = keeps

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        rows = connection.execute(
            "SELECT client FROM collections UNION SELECT client FROM documents"
        ).fetchall()
        # A client is its component, and who owns its token if that is not the node.
        gone = [client for (client,) in rows if not self._keeps(client.partition(" ")[0])]
        return _forget(connection, gone)

    def drop(self) -> Iterable[Collection]:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        return ()


class CountHour:
    """Counts an hour, forgets clients that have not asked for long, and gives room back."""

    size = OVERHEAD

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        connection.execute("UPDATE hours SET hour = hour + 1")
        rows = connection.execute(
            "SELECT client FROM collections WHERE client <> ? GROUP BY client"
            " HAVING max(hour) < (SELECT hour FROM hours) - ?",
            (KUBELET, MOST_HOURS),
        )
        done = _forget(connection, [client for (client,) in rows])
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        if free > 2 * _SLACK:
            for _ in range(min(free - _SLACK, _AT_ONCE)):
                # It takes a step for each page, and the module takes no more than the first.
                connection.execute("PRAGMA incremental_vacuum(1)")
        return done

    def drop(self) -> Iterable[Collection]:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        return ()


class MakeRoom:
    """Forgets the client that has not asked for longest; of several the one with most objects."""

    size = OVERHEAD

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        rows = connection.execute(
            "SELECT client FROM collections WHERE client <> ? GROUP BY client ORDER BY max(hour),"
            " sum((SELECT count(*) FROM objects WHERE collection = collections.id)) DESC LIMIT 1",
            (KUBELET,),
        )
        return _forget(connection, [client for (client,) in rows])

    def drop(self) -> Iterable[Collection]:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        return ()


def _forget(connection: Connection, clients: Sequence[str]) -> Done:
    for client in clients:
        for table in ("objects", "scopes"):
            connection.execute(
                f"DELETE FROM {table} WHERE collection IN"
                " (SELECT id FROM collections WHERE client = ?)",
                (client,),
            )
        for table in ("collections", "documents"):
            connection.execute(f"DELETE FROM {table} WHERE client = ?", (client,))
    return Done(forgotten=tuple(clients))
