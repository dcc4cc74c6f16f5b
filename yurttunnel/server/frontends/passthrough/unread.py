"""Connections without a complete ClientHello, limited in time and number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.deadlines import Deadlines

T = TypeVar("T")


class UnreadHellos(Generic[T]):
    """At most ``max_connections`` connections, ``max_per_source`` per source, each for at most
    ``seconds``.

    ``overdue(connection)`` is called after that time. If a new connection exceeds a limit, the
    oldest is evicted, and ``evicted(connection, waiting)`` is called with it and their number:
    connections that stay silent must not lock out callers that send at once.
    """

    def __init__(
        self,
        clock: IReactorTime,
        seconds: float,
        max_connections: int,
        max_per_source: int,
        overdue: Callable[[T], object],
        evicted: Callable[[T, int], object],
    ) -> None:
        self._max_connections = max_connections
        self._max_per_source = max_per_source
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
        of_source = self._by_source.get(source, {})
        if len(of_source) >= self._max_per_source:
            self._evict(next(iter(of_source)), len(of_source))
        elif len(self) >= self._max_connections:
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
        of_source = self._by_source[source]
        del of_source[connection]
        if not of_source:
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
