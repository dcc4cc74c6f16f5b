"""The loop that reconciles a state: with a deadline, one run at a time, and stoppable.

It reads no clock, and has one timer for the next run: a clock that jumps does not change a delay
that has begun.
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
from yurttunnel.ops.timeouts import ended_or_cancelled

CANCEL_SECONDS = 3.0
"""The seconds that a run has to end after it was cancelled by a stop.

Less than what remains of a lease when its leader gives it up (15 s - 10 s).
"""


class Phase(enum.Enum):
    """The phase of a reconciler."""

    STOPPED = "stopped"
    RUNNING = "running"
    RESTING = "resting"
    """Runs have succeeded so recently that the next one waits, whatever happens."""
    IDLE = "idle"
    """Nothing is known that needs a run; the next one comes at the end of the period."""
    SETTLING = "settling"
    """A run was triggered, and waits for further triggers to combine with."""
    BACKING_OFF = "backing off"
    """The last run failed; the next one comes after the backoff, whatever happens."""


class Reconciler(Service):
    """Awaits ``reconcile()`` at the start, after :meth:`trigger`, and every ``period``; never twice
    at once.

    A run fails when it returns ``False``, raises, or exceeds ``deadline``, when it is cancelled.
    The next run then comes after a delay of ``backoff``, or without one after ``period``, but never
    later than ``period``. An exception is logged as a defect of ``what``, with a traceback unless
    it is one of the ``expected`` errors, whose messages suffice.

    All times are in seconds. After a successful run the next one comes after at least ``spacing``
    and at most ``period``. A run after a trigger waits ``settle`` for further triggers. After a
    quiet time ``burst`` runs may come without that spacing; it then holds on average. A stop lets a
    run go on for ``finish``, then cancels it. The service may be started again; if a run from
    before has not ended, the next one waits for it.
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
        # The number of successful runs, reduced by one for each spacing since.
        self._recent = 0
        self._forgetting: IDelayedCall | None = None
        self._backoff = backoff
        self._deadline = deadline
        self._finish = finish
        self._expected = expected
        # The shortest settle time of the triggers since the last run began; without any, None.
        self._wait: float | None = None
        self._timer: IDelayedCall | None = None
        self._under_way: Deferred[None] | None = None
        # Counts starts and triggers: a run from before the last one does not decide what is next.
        self._starts = 0
        self.phase = Phase.STOPPED
        """The current phase."""

    def startService(self) -> None:
        super().startService()
        self._starts += 1
        if self._backoff is not None:
            self._backoff.reset()
        if self._under_way is None:
            self._begin_run()

    def stopService(self) -> Deferred[bool]:
        """Start no more runs; fires soon, with whether none is still running."""
        super().stopService()
        self._set_timer(None)
        self._forget_all()
        self.phase = Phase.STOPPED
        stopped: Deferred[bool] = Deferred.fromCoroutine(self._end(self._under_way))
        return stopped

    def trigger(self, settle: float | None = None) -> None:
        """Schedule a run that sees the current state, as soon as delays allow.

        ``settle`` replaces that of the constructor; of several triggers the shortest one counts.
        """
        settle = self._settle if settle is None else settle
        is_sooner = self._wait is None or settle < self._wait
        if is_sooner:
            self._wait = settle
        if self.phase is Phase.IDLE or (is_sooner and self.phase is Phase.SETTLING):
            self._pause(Phase.SETTLING, settle)

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
        if self._wait is not None:
            self._pause(Phase.SETTLING, self._wait)
        else:
            self._pause(Phase.IDLE, max(0.0, self._period - self._spacing))

    def _begin_run(self) -> None:
        self.phase = Phase.RUNNING
        self._wait = None
        under_way = Deferred.fromCoroutine(self._run(self._starts))
        if not under_way.called:
            self._under_way = under_way

    async def _run(self, starts: int) -> None:
        went_well = await self._goes_well(starts)
        self._under_way = None
        if not self.running:
            return
        if starts != self._starts:
            # The service was restarted, and its next run has waited for this one.
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
            # An expected error is no defect; its message has all there is to know.
            self._log.error("{what} failed: {error}", what=self._what, error=error)
        except Exception:
            # A defect must not end the loop, which would leave the state as it is. A run that a
            # stop has cancelled is not logged.
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
        # Logged now, because the run may not end when it is cancelled.
        self._log.error(
            "{what} took more than {seconds} s and is cancelled; it is retried once it has ended",
            what=self._what,
            seconds=self._deadline,
        )
        run.cancel()

    async def _end(self, under_way: Deferred[None] | None) -> bool:
        if under_way is None:
            return True
        ended = await ended_or_cancelled(self._timers, self._finish, CANCEL_SECONDS, [under_way])
        if not ended:
            self._log.error("Defect: {what} does not end though it is cancelled", what=self._what)
        return ended


def _ended(result: bool | Failure | None, timer: IDelayedCall) -> bool | Failure | None:
    """Return the result of a run; one that exceeded its deadline failed, whatever it returns."""
    if timer.active():
        timer.cancel()
    elif not isinstance(result, Failure) or result.check(CancelledError):
        return False
    return result


async def _awaited(awaitable: Awaitable[bool | None]) -> bool | None:
    return await awaitable
