"""The one loop that keeps something as it should be: in time, one run at a time, and stopped.

It reads no clock, and has one timer for the next run: whatever a clock says between, the pause
before that is the one that was chosen when it began.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.backoff import Backoff
from yurttunnel.ops.waiting import ended_within

CANCEL_SECONDS = 3.0
"""Seconds a run has for its end after it was cancelled at a stop.

Less than what is left of a lease when its leader gives it up (15 s - 10 s).
"""


class Phase(enum.Enum):
    """What a reconciler is at."""

    STOPPED = "stopped"
    RUNNING = "running"
    RESTING = "resting"
    """Runs have gone well, so recently that the next one waits whatever happens."""
    IDLE = "idle"
    """Nothing is known that has to be done; the next run comes when the period is over."""
    SETTLING = "settling"
    """Something has happened, and what comes with it may follow."""
    BACKING_OFF = "backing off"
    """The last run has failed; the next one comes after a pause, whatever happens."""


class Reconciler(Service):
    """Awaits ``reconcile()`` at the start, after :meth:`trigger`, and each ``period``; one at once.

    A run fails when it returns ``False``, raises, or takes more than ``deadline`` seconds, when it
    is cancelled. The next one then comes after a pause of ``backoff``, or after ``period``
    without one, never later. What is raised is logged as a defect of ``what``, but for
    ``expected`` errors, whose sentences are enough.

    Seconds all: from the end of a run that went well to the next one it is at least ``spacing``
    and at most ``period``; the run for a trigger waits ``settle`` for others. After a quiet time
    ``burst`` runs need no such spacing: it is as long as that on average. A stop lets a run
    go on for ``finish``, then cancels it. It may be started again; if a run of before has still
    not ended, the next one waits for it.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        period: float,
        what: str,
        reconcile: Callable[[], Awaitable[bool | None]],
        *,
        settle: float = 0.0,
        spacing: float = 0.0,
        burst: int = 1,
        backoff: Backoff | None = None,
        deadline: float | None = None,
        finish: float = 0.0,
        expected: tuple[type[Exception], ...] = (),
    ) -> None:
        self._timers = clock
        self._period = period
        self._what = what
        self._reconcile = reconcile
        self._settle = settle
        self._spacing = spacing
        self._burst = burst
        # Runs that have gone well, less one for each spacing since.
        self._recent = 0
        self._forgetting: IDelayedCall | None = None
        self._backoff = backoff
        self._deadline = deadline
        self._finish = finish
        self._expected = expected
        self._triggered = False
        self._timer: IDelayedCall | None = None
        self._under_way: Deferred[None] | None = None
        # Counts them: a run that began before the last one says nothing about what comes next.
        self._starts = 0
        self.phase = Phase.STOPPED
        """What it is at."""

    def startService(self) -> None:
        super().startService()
        self._starts += 1
        if self._backoff is not None:
            self._backoff.reset()
        if self._under_way is None:
            self._begin_run()

    def stopService(self) -> Deferred[bool]:
        """Begin no more runs; fires with whether none is under way, soon in any case."""
        super().stopService()
        self._set_timer(None)
        self._forget_all()
        self.phase = Phase.STOPPED
        stopped: Deferred[bool] = Deferred.fromCoroutine(self._end(self._under_way))
        return stopped

    def trigger(self, at_once: bool = False) -> None:
        """Have a run that knows of what is so now, as soon as pauses allow; ``settle`` passes
        before, unless it is to be ``at_once``.
        """
        self._triggered = True
        if self.phase is Phase.IDLE or (at_once and self.phase is Phase.SETTLING):
            self._pause(Phase.SETTLING, 0.0 if at_once else self._settle)

    def _pause(self, phase: Phase, seconds: float) -> None:
        self.phase = phase
        self._set_timer(self._timers.callLater(seconds, self._pause_is_over))

    def _set_timer(self, timer: IDelayedCall | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _pause_is_over(self) -> None:
        self._timer = None
        self._begin_run()

    def _rest(self) -> None:
        if self._spacing:
            self._recent += 1
            if self._forgetting is None:
                self._forgetting = self._timers.callLater(self._spacing, self._forget_one)
        if self._recent and self._recent >= self._burst:
            self.phase = Phase.RESTING
        else:
            self._rested()

    def _forget_one(self) -> None:
        self._recent -= 1
        self._forgetting = None
        if self._recent:
            self._forgetting = self._timers.callLater(self._spacing, self._forget_one)
        if self.phase is Phase.RESTING:
            self._rested()

    def _forget_all(self) -> None:
        self._recent = 0
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None

    def _rested(self) -> None:
        if self._triggered:
            self._pause(Phase.SETTLING, self._settle)
        else:
            self._pause(Phase.IDLE, max(0.0, self._period - self._spacing))

    def _begin_run(self) -> None:
        self.phase = Phase.RUNNING
        self._triggered = False
        under_way = Deferred.fromCoroutine(self._run(self._starts))
        if not under_way.called:
            self._under_way = under_way

    async def _run(self, starts: int) -> None:
        went_well = await self._goes_well(starts)
        self._under_way = None
        if not self.running:
            return
        if starts != self._starts:
            # What was started anew has waited for it.
            self._begin_run()
        elif not went_well:
            pause = self._period if self._backoff is None else self._backoff.next()
            self._pause(Phase.BACKING_OFF, min(pause, self._period))
        else:
            if self._backoff is not None:
                self._backoff.reset()
            self._rest()

    async def _goes_well(self, starts: int) -> bool:
        try:
            return await self._in_time() is not False
        except self._expected as error:
            # No defect: the sentence has all that there is to know.
            self._log.error("{what} failed: {error}", what=self._what, error=error)
        except Exception:
            # Who ends because of a defect would leave everything as it happens to be. What a stop
            # has cancelled is no news.
            if self.running and starts == self._starts:
                self._log.failure("Defect: {what} failed; retrying", what=self._what)
        return False

    def _in_time(self) -> Deferred[bool | None]:
        run = Deferred.fromCoroutine(_awaited(self._reconcile()))
        if self._deadline is not None:
            timer = self._timers.callLater(self._deadline, self._overdue, run)
            _ = run.addBoth(_ended, timer)
        return run

    def _overdue(self, run: Deferred[bool | None]) -> None:
        # Told now: it may not end though it is cancelled.
        self._log.error(
            "{what} took more than {seconds} s and is cancelled; it is retried once it has ended",
            what=self._what,
            seconds=self._deadline,
        )
        run.cancel()

    async def _end(self, under_way: Deferred[None] | None) -> bool:
        if under_way is None:
            return True
        if self._finish and await ended_within(self._timers, self._finish, under_way):
            return True
        under_way.cancel()
        ended = await ended_within(self._timers, CANCEL_SECONDS, under_way)
        if not ended:
            self._log.error("Defect: {what} does not end though it is cancelled", what=self._what)
        return ended


def _ended(result: bool | Failure | None, timer: IDelayedCall) -> bool | Failure | None:
    """Return how a run has ended; one that took too long has failed, whatever it returns."""
    if timer.active():
        timer.cancel()
    elif not isinstance(result, Failure) or result.check(CancelledError):
        return False
    return result


async def _awaited(awaitable: Awaitable[bool | None]) -> bool | None:
    return await awaitable
