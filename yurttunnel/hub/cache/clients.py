"""Eviction of clients: those without recent requests, and others if there is no room.

Guests, which are not the node's own components, are evicted first, and may use half of the file.
That includes the documents, which all clients share, because any client can have many of them
cached. Guests do not displace documents; if the node's own clients need the room, documents are
evicted once no guest is left.

Among guests, the owner that uses most loses a client. So an owner with many clients, or with many
User-Agents, displaces only its own data.

The data of a client may stay unchanged for years, so eviction is by the time of its last request,
counted in hours in which the API responded: a node may be offline or switched off for any time, and
its clock may be wrong at startup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from sqlite3 import Connection
from typing import NamedTuple

from yurttunnel.hub.cache import documents, objects
from yurttunnel.hub.cache.interfaces import Collection
from yurttunnel.hub.cache.trouble import NobodyLeft
from yurttunnel.hub.cache.versions import version_of
from yurttunnel.hub.cache.writes import Done, Statements, Write

HOUR = 3600.0
"""Seconds."""

MOST_HOURS = 30 * 24
"""The number of hours without a request after which a client is evicted."""

KUBELET = "kubelet"
"""The client that is never evicted: the kubelet, with the node's identity."""

GUESTS_SHARE = 0.5
"""The share of the file for all guests together, including the documents."""

MOST_COLLECTIONS = 10_000
"""Maximum number of collections of all guests. Each write of a guest iterates over all of them, at
1.5 us each, and delays the writes of the node's own clients."""

IsGuest = Callable[[str], bool]
"""Returns whether a client is a guest; it is also called in the writer thread."""

_COLLECTION = 1_000
"""Approximate size of a collection besides its objects, in bytes."""

_SLACK = 2_048
"""The number of free pages that are kept for later writes: 8 MiB."""

_AT_ONCE = 4_096
"""Maximum number of pages that are returned to the file system at once: 16 MiB."""


def use(collection: Collection) -> Statements:
    """Return the write that records a request for a collection, if the collection is cached."""
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
    """Return the write that removes an object, if older, from all collections of a resource."""
    return Statements(
        (
            "DELETE FROM objects WHERE collection IN"
            " (SELECT id FROM collections WHERE client = ? AND resource = ?)"
            f" AND namespace = ? AND name = ? AND {objects.OLDER}",
            (client, resource, namespace, name, version_of(version)),
        )
    )


class Forget(Write):
    """Evicts the clients for whose component ``keeps`` is false; the writer thread calls it."""

    def __init__(self, keeps: Callable[[str], bool]) -> None:
        self._keeps = keeps

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        rows = connection.execute("SELECT DISTINCT client FROM collections").fetchall()
        # A client is a component, followed by the owner of its token unless that is the node.
        gone = [client for (client,) in rows if not self._keeps(client.partition(" ")[0])]
        return _forget(connection, gone)


class CountHour(Write):
    """Counts an hour, evicts clients without a request for a long time, and shrinks the file."""

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
                # The pragma takes one step per page, and the sqlite3 module executes only one.
                connection.execute("PRAGMA incremental_vacuum(1)")
        return done


class MakeRoom(Write):
    """Evicts the client that is needed least; for a guest's write, only guests.

    Among the node's own clients this is the one with the oldest last request, and never the
    kubelet. Before any of these, documents are evicted, half of their size each time. This is done
    ``number`` times. Raises :class:`NobodyLeft` if nothing could be evicted the first time.
    """

    def __init__(self, is_guest: IsGuest, for_guest: bool, number: int = 1) -> None:
        self._is_guest = is_guest
        self._for_guest = for_guest
        self._number = number

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        done = self._forget_one(connection)
        if done == Done():
            raise NobodyLeft
        for _ in range(1, self._number):
            more = self._forget_one(connection)
            forgotten = done.forgotten + more.forgotten
            done = Done(forgotten=forgotten, documents=done.documents + more.documents)
        return done

    def _forget_one(self, connection: Connection) -> Done:
        takers = _takers(connection)
        guests = [each for each in takers if self._is_guest(each.client)]
        if guests:
            return _forget(connection, [next(_to_go(guests, _size)).client])
        if self._for_guest:
            return Done()
        gone = documents.bound(connection, documents.size(connection) // 2)
        if gone:
            return Done(documents=gone)
        own = [each for each in takers if each.client != KUBELET]
        if not own:
            return Done()
        return _forget(connection, [min(own, key=_Taker.rank).client])


class BoundGuests(Write):
    """Evicts guests until all of them, with the documents, use at most ``most`` bytes.

    The oldest documents over ``most_documents`` are evicted, and guests over
    :data:`MOST_COLLECTIONS`.
    """

    def __init__(self, is_guest: IsGuest, most: int, most_documents: int) -> None:
        self._is_guest = is_guest
        self._most = most
        self._most_documents = most_documents

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        gone_documents = documents.bound(connection, self._most_documents)
        most = self._most - documents.size(connection)
        guests = [each for each in _takers(connection) if self._is_guest(each.client)]
        gone = {each.client: None for each in _beyond(guests, _size, most)}
        others = [each for each in guests if each.client not in gone]
        gone |= {each.client: None for each in _beyond(others, _collections, MOST_COLLECTIONS)}
        return _forget(connection, [*gone])._replace(documents=gone_documents)


class _Taker(NamedTuple):
    """A client with the hour of its last request, and its size in bytes and in collections."""

    client: str
    hour: int
    size: int
    collections: int

    def rank(self) -> tuple[int, int]:
        """Return the sort key: the oldest last request first, then the largest size."""
        return self.hour, -self.size


_size: Callable[[_Taker], int] = attrgetter("size")
_collections: Callable[[_Taker], int] = attrgetter("collections")


def _takers(connection: Connection) -> list[_Taker]:
    rows = connection.execute(
        "SELECT client, max(hour), sum(bytes + 2 * length(CAST(view AS BLOB)) + ?), count(*)"
        " FROM collections GROUP BY client",
        (_COLLECTION,),
    )
    return [_Taker(*row) for row in rows]


def _beyond(
    guests: Sequence[_Taker], takes: Callable[[_Taker], int], most: int
) -> Iterator[_Taker]:
    """Yield the guests to evict, so that the others use at most ``most``."""
    taken = sum(map(takes, guests))
    going = _to_go(guests, takes)
    # Their order is computed only if one has to be evicted, which is rare.
    while taken > most and (each := next(going, None)) is not None:
        taken -= takes(each)
        yield each


def _to_go(guests: Sequence[_Taker], takes: Callable[[_Taker], int]) -> Iterator[_Taker]:
    """Yield guests in the order of eviction, each of the owner that uses most at that time.

    Guests without a token, cached on request, count as the node's.
    """
    by_owner: dict[str, list[_Taker]] = {_owner(each): [] for each in guests}
    for each in sorted(guests, key=_Taker.rank)[::-1]:
        by_owner[_owner(each)].append(each)
    taken = {owner: sum(map(takes, each)) for owner, each in by_owner.items()}
    while taken:
        owner = max(taken, key=taken.__getitem__)
        first = by_owner[owner].pop()
        taken[owner] -= takes(first)
        if not by_owner[owner]:
            del taken[owner]
        yield first


def _owner(taker: _Taker) -> str:
    return taker.client.partition(" ")[2]


def _forget(connection: Connection, clients: Sequence[str]) -> Done:
    for client in clients:
        for table in ("objects", "scopes"):
            connection.execute(
                f"DELETE FROM {table} WHERE collection IN"
                " (SELECT id FROM collections WHERE client = ?)",
                (client,),
            )
        connection.execute("DELETE FROM collections WHERE client = ?", (client,))
    return Done(forgotten=tuple(clients))
