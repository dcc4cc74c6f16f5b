"""One timer for many items that share the same timeout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

T = TypeVar("T")

log = Logger()


class Deadlines(Generic[T]):
    """Calls ``expired(item)`` for each item that has not been discarded after ``seconds``.

    A delayed call for each connection would cost more than parsing a request head. Here adding
    and discarding is one dictionary operation: all items have the same timeout, so they expire in
    the order in which they were added. An exception from ``expired`` is logged, and the other
    items expire all the same.
    """

    def __init__(self, clock: IReactorTime, seconds: float, expired: Callable[[T], object]) -> None:
        self._clock = clock
        # Looked up once, because it is called for each item.
        self._now = clock.seconds
        self._seconds = seconds
        self._expired = expired
        self._deadlines: dict[T, float] = {}
        self._timer: IDelayedCall | None = None
        self._stopped = False

    def __len__(self) -> int:
        """Return the number of pending items."""
        return len(self._deadlines)

    def __contains__(self, item: T) -> bool:
        """Return whether ``item`` is pending."""
        return item in self._deadlines

    def items(self) -> list[T]:
        """Return the pending items, the oldest first."""
        return list(self._deadlines)

    def oldest(self, eligible: Callable[[T], bool]) -> tuple[float, T] | None:
        """Return the oldest ``eligible`` item, with the time at which it was added before it."""
        for item, deadline in self._deadlines.items():
            if eligible(item):
                return deadline - self._seconds, item
        return None

    def add(self, item: T) -> None:
        """Start the timeout of ``item``, which must not be pending; ignored after :meth:`stop`."""
        if self._stopped:
            return
        self._deadlines[item] = self._now() + self._seconds
        if self._timer is None:
            self._timer = self._clock.callLater(self._seconds, self._check)

    def discard(self, item: T) -> None:
        """Cancel the timeout of ``item``, if it is pending."""
        self._deadlines.pop(item, None)

    def stop(self) -> None:
        """Discard all items and stop the timer, also for items that are added later.

        Connections may outlive their owner.
        """
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
            # The callback of an earlier item may have discarded this one and added it again.
            if self._deadlines.get(item, math.inf) <= now:
                del self._deadlines[item]
                self._expire(item)

    def _expire(self, item: T) -> None:
        try:
            self._expired(item)
        except Exception:
            # The other items have to expire all the same.
            log.failure("Defect: handling a timeout failed")
