"""Which clients go: those that have not asked for long, and some when there is no room for all.

Guests, which are not the node's own components, go before those, and have half of the file at most.
In that half are the documents, too, which all share: anybody can have many of them kept. Guests do
not push them out; where the node's own need the room, they go when no guest is left.
Of guests one of the owner goes who takes most: who has many clients, or says many names, loses by
it nobody's but his own.

What a client sees may be the same for years, so what counts is when it asked. That is counted in
hours in which the API answered: a node may be without the cloud, or switched off, for any time, and
its clock may be wrong when it starts.
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
"""Hours after which a client that has not asked is forgotten."""

KUBELET = "kubelet"
"""The client that is not forgotten: kubelet, with the node's identity."""

GUESTS_SHARE = 0.5
"""Part of the file that all guests may take together, with the documents."""

MOST_COLLECTIONS = 10_000
"""Collections of all guests: each of their writes goes over all of them, which takes 1.5 us for
each, and what the node's own have seen is written in between."""

IsGuest = Callable[[str], bool]
"""Returns whether a client is a guest; called by the thread that writes, too."""

_COLLECTION = 1_000
"""Bytes that a collection takes beside what is in it, about."""

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


class Forget(Write):
    """Forgets the clients whose component is not one that ``keeps``, which the thread calls."""

    def __init__(self, keeps: Callable[[str], bool]) -> None:
        self._keeps = keeps

    def do(self, connection: Connection) -> Done:
        """See :class:`~yurttunnel.hub.cache.writes.Write`."""
        rows = connection.execute("SELECT DISTINCT client FROM collections").fetchall()
        # A client is its component, and who owns its token if that is not the node.
        gone = [client for (client,) in rows if not self._keeps(client.partition(" ")[0])]
        return _forget(connection, gone)


class CountHour(Write):
    """Counts an hour, forgets clients that have not asked for long, and gives room back."""

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


class MakeRoom(Write):
    """Forgets the client that is missed least; for a write of a guest's, none of the node's own.

    Of those that is the one that has not asked for longest, and never kubelet. Before any of them
    go documents, half of what they take at a time. It does so a ``number`` of times, and raises
    :class:`NobodyLeft` when there was nobody from the start.
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
    """Forgets guests until all of them take ``most`` bytes or fewer, with the documents.

    Of these the oldest go beyond ``most_documents``; and guests have :data:`MOST_COLLECTIONS`.
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
    """A client, in which hour it asked last, and the bytes and collections that it takes."""

    client: str
    hour: int
    size: int
    collections: int

    def rank(self) -> tuple[int, int]:
        """Return what is the least for who asked longest ago; of several it is the largest."""
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
    """Yield which of some guests go, so that the others take ``most`` or less."""
    taken = sum(map(takes, guests))
    going = _to_go(guests, takes)
    # They are put into their order only where one has to go, as hardly ever.
    while taken > most and (each := next(going, None)) is not None:
        taken -= takes(each)
        yield each


def _to_go(guests: Sequence[_Taker], takes: Callable[[_Taker], int]) -> Iterator[_Taker]:
    """Yield guests as they go, one after another, of whoever has those that take most then.

    The node has those that have only asked to be kept.
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
