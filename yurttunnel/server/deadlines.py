"""One timer for many things that all have the same time to get done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Calls ``expired(item)`` for each item that is still in ``seconds`` after it was added.

    A delayed call for each connection would cost more than the connection's head. Here adding
    and discarding is one dictionary operation, since all items wait equally long and so expire in
    the order in which they were added.
    """

    def __init__(self, clock: IReactorTime, seconds: float, expired: Callable[[T], object]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._expired = expired
        self._deadlines: dict[T, float] = {}
        self._timer: IDelayedCall | None = None

    def __len__(self) -> int:
        """Count the items that wait."""
        return len(self._deadlines)

    def __contains__(self, item: T) -> bool:
        """Tell whether ``item`` waits."""
        return item in self._deadlines

    def add(self, item: T) -> None:
        """Give ``item``, which must not be in, its time."""
        self._deadlines[item] = self._clock.seconds() + self._seconds
        if self._timer is None:
            self._timer = self._clock.callLater(self._seconds, self._check)

    def discard(self, item: T) -> None:
        """Forget ``item``: it got done, or nobody waits for it."""
        self._deadlines.pop(item, None)

    def stop(self) -> None:
        """Forget all items and stop the timer."""
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        late = []
        for item, deadline in self._deadlines.items():
            if deadline > now:
                break
            late.append(item)
        for item in late:
            self._deadlines.pop(item, None)
        if self._deadlines:
            first = next(iter(self._deadlines.values()))
            self._timer = self._clock.callLater(first - now, self._check)
        for item in late:
            self._expired(item)
