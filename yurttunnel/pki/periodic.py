"""A service that does one thing again and again, and goes on after a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.pki.directory import StateError


class PeriodicService(Service):
    """Awaits ``job()`` when the service starts and then every ``interval`` seconds.

    A job that takes longer than the interval is not started twice, one that raises is logged
    and tried again in its turn. Stopping the service cancels a job that is under way.
    """

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, interval: float, what: str, job: Callable[[], Awaitable[None]]
    ) -> None:
        self._interval = interval
        self._what = what
        self._job = job
        self._current: Deferred[None] | None = None
        self._looping = LoopingCall(self._run)
        self._looping.clock = clock

    def startService(self) -> None:
        """Run the job for the first time, and start the timer."""
        super().startService()
        self._ended = self._looping.start(self._interval).addErrback(self._report)

    def stopService(self) -> Deferred[None] | None:
        """Stop the timer, and the job; give what fires when that has ended."""
        super().stopService()
        if self._looping.running:
            self._looping.stop()
        if self._current is None:
            return None
        self._current.cancel()
        return self._current

    def _run(self) -> Deferred[None]:
        self._current = Deferred.fromCoroutine(self._once())
        return self._current

    async def _once(self) -> None:
        try:
            await self._job()
        except StateError as error:
            # No defect: the sentence has all that there is to know.
            self._log.error("{what} failed: {error}", what=self._what, error=error)
        except Exception:
            # A cancelled job of a service that has stopped is no news.
            if self.running:
                self._report(Failure())

    def _report(self, failure: Failure) -> None:
        self._log.failure("{what} failed", failure, what=self._what)
