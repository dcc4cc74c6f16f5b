"""A thread for blocking calls to the kernel, so that the reactor does not block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.python.failure import Failure

from yurttunnel.ops.threads import JobThread
from yurttunnel.ops.timeouts import fired_within
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.tunnel.reactor import IReactor

DEADLINE = 20.0
"""The timeout of a job in seconds, including its wait for previous jobs: several times that of one
reply (:data:`yurttunnel.steering.netlink.netlink_socket.SECONDS`)."""

_Result = TypeVar("_Result")


class Run(Protocol):
    """Runs a job, and returns its result or error."""

    def __call__(self, job: Callable[[], _Result], /) -> Deferred[_Result]:
        """Run ``job``."""
        ...


class KernelWorker(Service):
    """Runs jobs in threads, one after the other.

    Each job has its own thread, which starts in the network namespace of the calling thread, and
    ends with the job. Jobs are rare (a few in a minute), and creating a thread is cheap.
    """

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._lock = DeferredLock()

    def run(self, job: Callable[[], _Result]) -> Deferred[_Result]:
        """Run ``job`` in a thread; return its result or error.

        Fails with :class:`SteeringFailed` after :data:`DEADLINE`. The thread then continues,
        because nothing can stop it, and the next jobs wait for its end.
        """
        return Deferred.fromCoroutine(self._run(job)).addTimeout(
            DEADLINE, self._reactor, _timed_out
        )

    async def _run(self, job: Callable[[], _Result]) -> _Result:
        await self._lock.acquire()
        ended: Deferred[_Result] = Deferred()

        def end(result: _Result | Failure) -> None:
            self._lock.release()
            ended.callback(result)

        thread = JobThread(self._reactor, "yurttunnel netlink")
        try:
            _ = thread.run(job).addBoth(end)
        except RuntimeError as problem:
            self._lock.release()
            raise SteeringFailed(
                f"cannot start a thread to query the kernel: {problem}"
            ) from problem
        thread.end()
        return await ended

    def stopService(self) -> Deferred[bool]:
        """Wait for the jobs in progress, but no longer than :data:`DEADLINE`."""
        super().stopService()
        idle = self._lock.run(lambda: None)
        return fired_within(self._reactor, DEADLINE, idle)


def _timed_out(result: _Result | Failure, seconds: float) -> _Result | Failure:
    if isinstance(result, Failure) and result.check(CancelledError):
        raise SteeringFailed(
            f"the kernel did not reply by netlink within {seconds:.0f} s; is the machine"
            " overloaded?"
        )
    return result
