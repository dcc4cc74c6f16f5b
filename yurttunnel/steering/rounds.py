"""Doing the same again and again: in time, one at a time, and again after a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall

from yurttunnel.kube.backoff import Backoff
from yurttunnel.kube.waiting import ended_within

SETTLE_SECONDS = 0.05
"""How long a change waits for others that come with it."""

PATIENCE = 5.0
"""Seconds that a round has to come to its end when there are to be no more."""


class Rounds:
    """Awaits ``sync()``, which says whether it went well and raises nothing.

    A round begins every ``period`` seconds, soon after a change, and after a pause that grows when
    the one before has failed. What changes while one is under way leads to another.
    """

    def __init__(
        self, clock: IReactorTime, period: float, sync: Callable[[], Awaitable[bool]]
    ) -> None:
        self._clock = clock
        self._period = period
        self._sync = sync
        self._backoff = Backoff()
        self._running = False
        self._under_way: Deferred[None] | None = None
        self._again = False
        self._failing = False
        self._next: IDelayedCall | None = None
        self._looping = LoopingCall(self._period_is_over)
        self._looping.clock = clock

    @property
    def is_idle(self) -> bool:
        """Whether none is under way, or about to begin before the period is over."""
        return self._under_way is None and self._next is None

    def start(self) -> None:
        """Begin with the first round."""
        self._running = True
        # What it calls does nothing that could fail.
        _ = self._looping.start(self._period)

    def stop(self) -> Deferred[None]:
        """Begin no more; fires when none is under way, which is cancelled if it takes too long."""
        self._running = False
        self._looping.stop()
        if self._next is not None:
            self._next.cancel()
            self._next = None
        return Deferred.fromCoroutine(self._end(self._under_way))

    def ask(self, pause: float = 0.0) -> None:
        """Have a round begin in ``pause`` seconds, unless one is under way or begins before."""
        if self._under_way is not None:
            return
        if self._next is not None:
            if self._next.getTime() <= self._clock.seconds() + pause:
                return
            self._next.cancel()
        self._next = self._clock.callLater(pause, self._begin)

    def changed(self) -> None:
        """Have a round begin that knows of a change of this moment.

        While rounds fail that is the next attempt: changes come as often as others like.
        """
        self._again = True
        if not self._failing:
            self.ask(SETTLE_SECONDS)

    def _period_is_over(self) -> None:
        self.ask()

    def _begin(self) -> None:
        self._next = None
        self._again = False
        self._under_way = Deferred.fromCoroutine(self._round())
        if self._under_way.called:
            self._under_way = None

    async def _round(self) -> None:
        went_well = await self._sync()
        self._under_way = None
        if not self._running:
            return
        self._failing = not went_well
        if self._failing:
            self.ask(self._backoff.next())
            return
        self._backoff.reset()
        if self._again:
            self.ask(SETTLE_SECONDS)

    async def _end(self, under_way: Deferred[None] | None) -> None:
        if under_way is not None and not await ended_within(self._clock, PATIENCE, under_way):
            under_way.cancel()
