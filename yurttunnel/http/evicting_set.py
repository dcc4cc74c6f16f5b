"""Connections that strangers can hold, of which the oldest makes room for the next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class EvictingSet(Generic[T]):
    """Connections in a state that should soon be over, the oldest first; at most ``most`` of them.

    Beyond that the oldest is given to ``evicted``, and counts no more. Who means it is through
    in a few round trips, so a flood of connections that never get on keeps nobody out.
    """

    def __init__(self, most: int, evicted: Callable[[T], object]) -> None:
        self._most = most
        self._evicted = evicted
        self._connections: OrderedDict[T, None] = OrderedDict()

    def __len__(self) -> int:
        """Count them."""
        return len(self._connections)

    def __iter__(self) -> Iterator[T]:
        """Yield them, the oldest first."""
        return iter(self._connections)

    def __contains__(self, connection: T) -> bool:
        """Return whether a connection counts."""
        return connection in self._connections

    def begin(self, connection: T) -> None:
        """Count one more."""
        self._connections[connection] = None
        if len(self._connections) > self._most:
            oldest, _ = self._connections.popitem(last=False)
            self._evicted(oldest)

    def end(self, connection: T) -> None:
        """Count it no more, if it did."""
        self._connections.pop(connection, None)
