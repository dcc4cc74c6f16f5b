"""Connections whose ClientHello is not complete: how long each may take, and how many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.deadlines import Deadlines

T = TypeVar("T")


class UnreadHellos(Generic[T]):
    """At most ``most`` connections, ``most_of_one`` of one source, for ``seconds`` each.

    ``overdue(connection)`` is called after that time. Where another one is too many, it is the
    oldest that has to go, and ``crowded_out(connection, waiting)`` is called for it, with how many
    there are: strangers that hold connections must not keep out those who send at once.
    """

    def __init__(
        self,
        clock: IReactorTime,
        seconds: float,
        most: int,
        most_of_one: int,
        overdue: Callable[[T], object],
        evicted: Callable[[T, int], object],
    ) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._overdue = overdue
        self._evicted = evicted
        self._deadlines: Deadlines[T] = Deadlines(clock, seconds, self._late)
        # All with their sources, and those of each source; the oldest first.
        self._sources: dict[T, str] = {}
        self._by_source: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        """Count the connections."""
        return len(self._sources)

    def add(self, connection: T, source: str) -> None:
        """Give ``connection``, which must not be in, its time."""
        of_one = self._by_source.get(source, {})
        if len(of_one) >= self._most_of_one:
            self._evict(next(iter(of_one)), len(of_one))
        elif len(self) >= self._most:
            self._evict(next(iter(self._sources)), len(self))
        self._sources[connection] = source
        self._by_source.setdefault(source, {})[connection] = None
        self._deadlines.add(connection)

    def discard(self, connection: T) -> None:
        """Forget ``connection``: its ClientHello is complete, or it is no more."""
        self._deadlines.discard(connection)
        source = self._sources.pop(connection, None)
        if source is None:
            return
        of_one = self._by_source[source]
        del of_one[connection]
        if not of_one:
            del self._by_source[source]

    def stop(self) -> None:
        """Forget all and stop the timer."""
        self._deadlines.stop()
        self._sources.clear()
        self._by_source.clear()

    def _evict(self, connection: T, waiting: int) -> None:
        self.discard(connection)
        self._evicted(connection, waiting)

    def _late(self, connection: T) -> None:
        self.discard(connection)
        self._overdue(connection)
