"""Work that is done as a whole whenever something has changed, and not as often as that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.kube.backoff import Backoff
from yurttunnel.kube.waiting import ended_within

PAUSE = 1.0
"""Seconds from one round to the next, at least: many changes make few rounds."""

SETTLE = 0.1
"""Seconds from the first change to the round for it: the API tells of many at once."""

LONGEST_PAUSE = 30.0
"""Seconds to the next round after many that failed, at most."""

STOP_PATIENCE = 3.0
"""Seconds a round has for its end after it was cancelled.

Less than what is left of a lease when its leader gives it up (15 s - 10 s).
"""


class Worker(Service):
    """Awaits ``work()`` at its start, ``SETTLE`` seconds after :meth:`wake`, and each ``period``.

    One round at a time. ``work()`` says whether it went well; otherwise, or when it raises, the
    next round comes after a pause, which grows, without being asked for. Stopping cancels the
    round that is under way; then it can be started again.
    """

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, work: Callable[[], Awaitable[bool]], period: float
    ) -> None:
        self._clock = clock
        self._work = work
        self._period = period
        self._backoff = Backoff(PAUSE, LONGEST_PAUSE)
        self._is_due = False
        self._sleeping: Deferred[None] | None = None
        self._rounds: Deferred[None] | None = None
        # Counts the stops: no round follows one that was under way at a stop.
        self._stops = 0

    def wake(self) -> None:
        """Have a round soon; until then, more calls change nothing."""
        self._is_due = True
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None:
            sleeping.callback(None)

    def startService(self) -> None:
        """Begin with a round."""
        super().startService()
        self._backoff.reset()
        self._rounds = Deferred.fromCoroutine(self._run()).addErrback(_ignore_cancellation)

    def stopService(self) -> Deferred[bool]:
        """End; fires when nothing is under way, or when that does not end though cancelled."""
        super().stopService()
        self._stops += 1
        rounds, self._rounds = self._rounds, None
        ending: Deferred[bool] = Deferred.fromCoroutine(self._end(rounds))
        return ending

    async def _end(self, rounds: Deferred[None] | None) -> bool:
        if rounds is None:
            return True
        rounds.cancel()
        ended = await ended_within(self._clock, STOP_PATIENCE, rounds)
        if not ended:
            self._log.error("Defect: what is under way does not end though it is cancelled")
        return ended

    async def _run(self) -> None:
        stops = self._stops
        while stops == self._stops:
            self._is_due = False
            went_well = await self._round()
            if stops != self._stops:
                return
            if went_well:
                self._backoff.reset()
                await deferLater(self._clock, PAUSE - SETTLE)
                await self._until_due()
                await deferLater(self._clock, SETTLE)
            else:
                await deferLater(self._clock, self._backoff.next())

    async def _round(self) -> bool:
        try:
            return await self._work()
        except CancelledError:
            raise
        except Exception:
            # Who stops because of a defect would leave everything as it happens to be.
            self._log.failure("Defect: a round has failed; it is tried again")
            return False

    async def _until_due(self) -> None:
        if self._is_due:
            return
        sleeping = self._sleeping = Deferred()
        timer = self._clock.callLater(self._period, self.wake)
        try:
            await sleeping
        finally:
            self._sleeping = None
            if timer.active():
                timer.cancel()


def _ignore_cancellation(failure: Failure) -> None:
    failure.trap(CancelledError)
