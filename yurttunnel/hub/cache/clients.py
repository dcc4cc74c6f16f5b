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
from yurttunnel.hub.cache.errors import NothingToEvict
from yurttunnel.hub.cache.interfaces import Collection
from yurttunnel.hub.cache.versions import version_of
from yurttunnel.hub.cache.writes import Statements, Write, WriteResult, in_all_forms

HOUR = 3600.0
"""Seconds."""

MAX_IDLE_HOURS = 30 * 24
"""The number of hours without a request after which a client is evicted."""

KUBELET = "kubelet"
"""The client that is never evicted: the kubelet, with the node's identity."""

GUESTS_SHARE = 0.5
"""The share of the file for all guests together, including the documents."""

MAX_COLLECTIONS = 10_000
"""Maximum number of collections of all guests. Each write of a guest iterates over all of them, at
1.5 us each, and delays the writes of the node's own clients."""

IsGuest = Callable[[str], bool]
"""Returns whether a client is a guest; it is also called in the writer thread."""

_COLLECTION = 1_000
"""Approximate size of a collection besides its objects, in bytes."""

_SLACK = 2_048
"""The number of free pages that are kept for later writes: 8 MiB."""

_MAX_VACUUMED = 4_096
"""Maximum number of pages that are returned to the file system at once: 16 MiB."""


def record_use(collection: Collection) -> Statements:
    """Return the write that records a request for a collection, if the collection is cached."""
    return Statements(
        (
            "UPDATE collections SET hour = (SELECT hour FROM hours)"
            " WHERE (client, resource, form, view) = (?, ?, ?, ?)"
            " AND hour <> (SELECT hour FROM hours)",
            collection,
        )
    )


def remove_object(
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


def mark_changed(
    client: str, resource: str, namespace: str, version: str, name: str = ""
) -> Statements:
    """Return the write for :meth:`ICache.mark_changed`."""
    of_client = "collection IN (SELECT id FROM collections WHERE client = ? AND resource = ?)"
    unlisted = (
        f"DELETE FROM objects WHERE {of_client} AND namespace = ? AND name = ? AND NOT EXISTS"
        " (SELECT 1 FROM scopes WHERE scopes.collection = objects.collection"
        " AND scopes.namespace IN ('', objects.namespace))",
        (client, resource, namespace, name),
    )
    within = f"{of_client} AND (? = '' OR namespace IN ('', ?))"
    values = client, resource, namespace, namespace
    incomplete = [in_all_forms(client, resource)]
    known = version_of(version)
    if isinstance(known, int):
        change = f"UPDATE scopes SET whole_from = ? WHERE whole_from < ? AND {within}"
        # Version 0 makes no list incomplete.
        return Statements(
            unlisted, (change, (known, known, *values)), incomplete=incomplete if known else ()
        )
    later = "UPDATE scopes SET whole_from = max(whole_from, version + 1)"
    return Statements(
        unlisted,
        (f"{later} WHERE typeof(version) <> 'text' AND {within}", values),
        (f"DELETE FROM scopes WHERE typeof(version) = 'text' AND {within}", values),
        incomplete=incomplete,
    )


class EvictClients(Write):
    """Evicts the clients for whose component ``caches`` is false; the writer thread calls it."""

    def __init__(self, caches: Callable[[str], bool]) -> None:
        self._caches = caches

    def execute(self, connection: Connection) -> WriteResult:
        rows = connection.execute("SELECT DISTINCT client FROM collections").fetchall()
        # A client is a component, followed by the owner of its token unless that is the node.
        gone = [client for (client,) in rows if not self._caches(client.partition(" ")[0])]
        return _evict(connection, gone)


class CountHour(Write):
    """Counts an hour, evicts clients without a request for a long time, and shrinks the file."""

    def execute(self, connection: Connection) -> WriteResult:
        connection.execute("UPDATE hours SET hour = hour + 1")
        rows = connection.execute(
            "SELECT client FROM collections WHERE client <> ? GROUP BY client"
            " HAVING max(hour) < (SELECT hour FROM hours) - ?",
            (KUBELET, MAX_IDLE_HOURS),
        )
        done = _evict(connection, [client for (client,) in rows])
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        if free > 2 * _SLACK:
            for _ in range(min(free - _SLACK, _MAX_VACUUMED)):
                # The pragma takes one step per page, and the sqlite3 module executes only one.
                connection.execute("PRAGMA incremental_vacuum(1)")
        return done


class MakeRoom(Write):
    """Evicts the client that is needed least; for a guest's write, only guests.

    Among the node's own clients this is the one with the oldest last request, and never the
    kubelet. Before any of these, documents are evicted, half of their size each time. This is done
    ``number`` times. Raises :class:`NothingToEvict` if nothing could be evicted the first time.
    """

    def __init__(self, is_guest: IsGuest, for_guest: bool, number: int = 1) -> None:
        self._is_guest = is_guest
        self._for_guest = for_guest
        self._number = number

    def execute(self, connection: Connection) -> WriteResult:
        done = self._evict_one(connection)
        if done == WriteResult():
            raise NothingToEvict
        for _ in range(1, self._number):
            more = self._evict_one(connection)
            evicted = done.evicted + more.evicted
            done = WriteResult(evicted=evicted, documents=done.documents + more.documents)
        return done

    def _evict_one(self, connection: Connection) -> WriteResult:
        usages = _usages(connection)
        guests = [each for each in usages if self._is_guest(each.client)]
        if guests:
            return _evict(connection, [next(_eviction_order(guests, _size)).client])
        if self._for_guest:
            return WriteResult()
        gone = documents.evict_over(connection, documents.size(connection) // 2)
        if gone:
            return WriteResult(documents=gone)
        own = [each for each in usages if each.client != KUBELET]
        if not own:
            return WriteResult()
        return _evict(connection, [min(own, key=_Usage.rank).client])


class LimitGuests(Write):
    """Evicts guests until all of them, with the documents, use at most ``max_size`` bytes.

    The oldest documents over ``max_documents`` are evicted, and guests over
    :data:`MAX_COLLECTIONS`.
    """

    def __init__(self, is_guest: IsGuest, max_size: int, max_documents: int) -> None:
        self._is_guest = is_guest
        self._max_size = max_size
        self._max_documents = max_documents

    def execute(self, connection: Connection) -> WriteResult:
        gone_documents = documents.evict_over(connection, self._max_documents)
        max_size = self._max_size - documents.size(connection)
        guests = [each for each in _usages(connection) if self._is_guest(each.client)]
        gone = {each.client: None for each in _over_limit(guests, _size, max_size)}
        others = [each for each in guests if each.client not in gone]
        gone |= {each.client: None for each in _over_limit(others, _collections, MAX_COLLECTIONS)}
        return _evict(connection, [*gone])._replace(documents=gone_documents)


class _Usage(NamedTuple):
    """A client with the hour of its last request, and its size in bytes and in collections."""

    client: str
    hour: int
    size: int
    collections: int

    def rank(self) -> tuple[int, int]:
        """Return the sort key: the oldest last request first, then the largest size."""
        return self.hour, -self.size


_size: Callable[[_Usage], int] = attrgetter("size")
_collections: Callable[[_Usage], int] = attrgetter("collections")


def _usages(connection: Connection) -> list[_Usage]:
    rows = connection.execute(
        "SELECT client, max(hour), sum(bytes + 2 * length(CAST(view AS BLOB)) + ?), count(*)"
        " FROM collections GROUP BY client",
        (_COLLECTION,),
    )
    return [_Usage(*row) for row in rows]


def _over_limit(
    guests: Sequence[_Usage], amount: Callable[[_Usage], int], max_size: int
) -> Iterator[_Usage]:
    """Yield the guests to evict, so that the others use at most ``max_size``."""
    taken = sum(map(amount, guests))
    order = _eviction_order(guests, amount)
    # Their order is computed only if one has to be evicted, which is rare.
    while taken > max_size and (each := next(order, None)) is not None:
        taken -= amount(each)
        yield each


def _eviction_order(guests: Sequence[_Usage], amount: Callable[[_Usage], int]) -> Iterator[_Usage]:
    """Yield guests in the order of eviction, each of the owner that uses most at that time.

    Guests without a token, cached on request, count as the node's.
    """
    by_owner: dict[str, list[_Usage]] = {owner_of(each.client): [] for each in guests}
    for each in sorted(guests, key=_Usage.rank)[::-1]:
        by_owner[owner_of(each.client)].append(each)
    taken = {owner: sum(map(amount, each)) for owner, each in by_owner.items()}
    while taken:
        owner = max(taken, key=taken.__getitem__)
        first = by_owner[owner].pop()
        taken[owner] -= amount(first)
        if not by_owner[owner]:
            del taken[owner]
        yield first


def owner_of(client: str) -> str:
    """Return the owner of a client's token, empty for the node."""
    return client.partition(" ")[2]


def _evict(connection: Connection, clients: Sequence[str]) -> WriteResult:
    for client in clients:
        for table in ("objects", "scopes"):
            connection.execute(
                f"DELETE FROM {table} WHERE collection IN"
                " (SELECT id FROM collections WHERE client = ?)",
                (client,),
            )
        connection.execute("DELETE FROM collections WHERE client = ?", (client,))
    return WriteResult(evicted=tuple(clients))
