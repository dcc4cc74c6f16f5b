"""A bounded set of connections in which the newest evicts the oldest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class EvictingSet(Generic[T]):
    """At most ``max_size`` connections in a state that should be short, the oldest first.

    When another is added, the oldest is removed and passed to ``evicted``. A legitimate client
    leaves the state within a few round trips, so a flood of stalled connections cannot lock it out.
    """

    def __init__(self, max_size: int, evicted: Callable[[T], object]) -> None:
        self._max_size = max_size
        self._evicted = evicted
        self._connections: OrderedDict[T, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._connections)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the connections, the oldest first."""
        return iter(self._connections)

    def __contains__(self, connection: T) -> bool:
        """Return whether a connection is in the set."""
        return connection in self._connections

    def add(self, connection: T) -> None:
        """Add a connection; if the set is full, evict the oldest."""
        self._connections[connection] = None
        if len(self._connections) > self._max_size:
            oldest, _ = self._connections.popitem(last=False)
            self._evicted(oldest)

    def discard(self, connection: T) -> None:
        """Remove a connection, if it is in the set."""
        self._connections.pop(connection, None)
