"""Connections without a complete ClientHello, limited in time and number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.deadlines import Deadlines

T = TypeVar("T")


class UnreadHellos(Generic[T]):
    """At most ``most`` connections, ``most_of_one`` per source, each for at most ``seconds``.

    ``overdue(connection)`` is called after that time. If a new connection exceeds a limit, the
    oldest is evicted, and ``evicted(connection, waiting)`` is called with it and their number:
    connections that stay silent must not lock out callers that send at once.
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
        # All connections with their sources, and the connections of each source, the oldest first.
        self._sources: dict[T, str] = {}
        self._by_source: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._sources)

    def add(self, connection: T, source: str) -> None:
        """Start the timeout of ``connection``, which must not be present."""
        of_one = self._by_source.get(source, {})
        if len(of_one) >= self._most_of_one:
            self._evict(next(iter(of_one)), len(of_one))
        elif len(self) >= self._most:
            self._evict(next(iter(self._sources)), len(self))
        self._sources[connection] = source
        self._by_source.setdefault(source, {})[connection] = None
        self._deadlines.add(connection)

    def discard(self, connection: T) -> None:
        """Remove ``connection``: its ClientHello is complete, or it has ended."""
        self._deadlines.discard(connection)
        source = self._sources.pop(connection, None)
        if source is None:
            return
        of_one = self._by_source[source]
        del of_one[connection]
        if not of_one:
            del self._by_source[source]

    def stop(self) -> None:
        """Remove all connections and stop the timer."""
        self._deadlines.stop()
        self._sources.clear()
        self._by_source.clear()

    def _evict(self, connection: T, waiting: int) -> None:
        self.discard(connection)
        self._evicted(connection, waiting)

    def _late(self, connection: T) -> None:
        self.discard(connection)
        self._overdue(connection)
