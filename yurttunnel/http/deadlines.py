"""One timer for many things that all have the same time to get done."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

T = TypeVar("T")

log = Logger()


class Deadlines(Generic[T]):
    """Calls ``expired(item)`` for each item that is still in ``seconds`` after it was added.

    A delayed call for each connection would cost more than the connection's head. Here adding
    and discarding is one dictionary operation, since all items wait equally long and so expire in
    the order in which they were added. One that ``expired`` raises for is logged, and does not
    keep the others from expiring.
    """

    def __init__(self, clock: IReactorTime, seconds: float, expired: Callable[[T], object]) -> None:
        self._clock = clock
        # Found once, as it is called for each item.
        self._now = clock.seconds
        self._seconds = seconds
        self._expired = expired
        self._deadlines: dict[T, float] = {}
        self._timer: IDelayedCall | None = None
        self._stopped = False

    def __len__(self) -> int:
        """Count the items that wait."""
        return len(self._deadlines)

    def __contains__(self, item: T) -> bool:
        """Return whether ``item`` waits."""
        return item in self._deadlines

    def items(self) -> list[T]:
        """Return the items that wait, the oldest first."""
        return list(self._deadlines)

    def oldest(self, eligible: Callable[[T], bool]) -> tuple[float, T] | None:
        """Return since when the first item that is ``eligible`` waits, and the item."""
        for item, deadline in self._deadlines.items():
            if eligible(item):
                return deadline - self._seconds, item
        return None

    def add(self, item: T) -> None:
        """Give ``item``, which must not be in, its time; after :meth:`stop` it has no end."""
        if self._stopped:
            return
        self._deadlines[item] = self._now() + self._seconds
        if self._timer is None:
            self._timer = self._clock.callLater(self._seconds, self._check)

    def discard(self, item: T) -> None:
        """Forget ``item``: it got done, or nobody waits for it."""
        self._deadlines.pop(item, None)

    def stop(self) -> None:
        """Forget all items and stop the timer, for good: connections may end after their owner."""
        self._stopped = True
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        now = self._now()
        late = []
        for item, deadline in self._deadlines.items():
            if deadline > now:
                self._timer = self._clock.callLater(deadline - now, self._check)
                break
            late.append(item)
        for item in late:
            # One before it may have discarded it, and added it again.
            if self._deadlines.get(item, math.inf) <= now:
                del self._deadlines[item]
                self._expire(item)

    def _expire(self, item: T) -> None:
        try:
            self._expired(item)
        except Exception:
            # The deadlines of others have to be kept all the same.
            log.failure("Defect: ending what has taken too long failed")
