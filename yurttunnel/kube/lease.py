"""Leader election: of several processes that could do something, one does it.

With the periods of ``k8s.io/client-go/tools/leaderelection``; what makes it safe is told in
:mod:`yurttunnel.kube.lease_lock`.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.application.service import IService, Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotAllowed
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.lease_lock import LEASE_SECONDS, LeaseLock
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.waiting import ended_within

RENEW_SECONDS = 10.0
"""How long the leader may fail to renew the lease before it stops what it leads."""

RETRY_SECONDS = 2.0
"""Between two attempts; those who wait for the lease take up to 2.2 times as long."""

STOP_SECONDS = 60.0
"""How long is waited for what is led to stop."""

RELEASE_SECONDS = 2.0
"""How long giving the lease back may take."""

_JITTER = 1.2
_TROUBLE = (ApiError, ApiUnreachable, DeferredTimeout)
_Result = TypeVar("_Result")


class _Stopped(Exception):
    """The service is stopped."""


class _Stop:
    """Ends what is waited for when the service is stopped; one for each start."""

    def __init__(self) -> None:
        self.asked = False
        self._waiting: Deferred[Any] | None = None

    def ask(self) -> None:
        """End what is waited for, and what will be."""
        self.asked = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def unless(self, waiting: Deferred[_Result]) -> _Result:
        """Await ``waiting``; raises ``_Stopped`` instead when the service is stopped."""
        self._waiting = waiting
        try:
            if self.asked:
                waiting.cancel()
            result = await waiting
        except (CancelledError, *_TROUBLE):
            if self.asked:
                raise _Stopped from None
            raise
        finally:
            self._waiting = None
        if self.asked:
            raise _Stopped
        return result


class LeaderElection(Service):
    """Runs ``led`` while it holds the lease ``namespace/name`` as ``identity``.

    ``identity`` has to be another in each process. ``led`` is started and stopped any number of
    times, and is never started before its ``stopService`` has come to its end or was given up
    after :data:`STOP_SECONDS`. While it stops the lease is neither renewed nor asked for. Stopping
    the election stops ``led`` and then gives the lease back, so that another leads at once.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        namespace: str,
        name: str,
        identity: str,
        led: IService,
    ) -> None:
        self._clock = clock
        self._lock = LeaseLock(clock, client, namespace, name, identity)
        self._lease = f"lease {namespace}/{name}"
        self._identity = identity
        self._led = led
        self._started = False
        self._led_stopped = True
        self._error: str | None = None
        self._stop = _Stop()
        self._ended: Deferred[None] | None = None
        self._limited = RateLimitedLog(clock, self._log)

    @property
    def leading(self) -> bool:
        """Whether ``led`` runs, and the lease says that it may."""
        return self._started and self._clock.seconds() < self._lock.renewed_at + LEASE_SECONDS

    def problem(self) -> str | None:
        """Return why nobody is known to lead; ``None`` while somebody is, here or elsewhere."""
        if not self.running or self.leading or self._lock.is_held_by_another():
            return None
        return None if self._error is None else f"{self._lease}: {self._error}"

    def startService(self) -> None:
        """Campaign for the lease, when an end that is still under way has come."""
        super().startService()
        self._stop = _Stop()
        self._ended = Deferred.fromCoroutine(self._run(self._stop, self._ended))

    def stopService(self) -> Deferred[None]:
        """Stop ``led``, then give the lease back; fires when both is done or was given up."""
        super().stopService()
        self._stop.ask()
        stopped: Deferred[None] = Deferred()
        if self._ended is None:
            stopped.callback(None)
        else:
            _ = self._ended.addCallback(stopped.callback)
        return stopped

    async def _run(self, stop: _Stop, before: Deferred[None] | None) -> None:
        if before is not None:
            await before
        while not stop.asked:
            try:
                await self._campaign(stop)
                await self._lead(stop)
            except _Stopped:
                break
            except Exception:
                # Who stops campaigning because of a defect leaves nobody to lead.
                self._error = "a defect, which is in the log, keeps it from being held"
                self._log.failure("Defect: {lease}: trying again", lease=self._lease)
                await ended_within(self._clock, RETRY_SECONDS, Deferred())
        await self._release()

    # -- while it is not held --------------------------------------------------------------------

    async def _campaign(self, stop: _Stop) -> None:
        """Return when the lease is held."""
        while not await self._acquire(stop):
            pause = random.uniform(RETRY_SECONDS, RETRY_SECONDS * (1 + _JITTER))
            await stop.unless(deferLater(self._clock, pause))

    async def _acquire(self, stop: _Stop) -> bool:
        try:
            held = await stop.unless(self._within(RENEW_SECONDS, self._lock.acquire()))
        except _TROUBLE as error:
            self._tell(error)
            return False
        self._error = None
        return held and self._left() > 0

    # -- while it is held ------------------------------------------------------------------------

    async def _lead(self, stop: _Stop) -> None:
        """Run what is led until the lease is lost or the service is stopped."""
        self._log.info("{lease}: leading as {who}", lease=self._lease, who=self._identity)
        self._started = True
        failed = False
        try:
            self._led.startService()
            await self._keep(stop)
        except _Stopped:
            # What is led stops below; the caller sees that this was asked for.
            pass
        except Exception:
            # It is anybody's code that is led, and the lease must not stay with what cannot start.
            failed = True
            self._error = "what it is for cannot be started, see the log"
            self._log.failure("Defect: {lease}: what it is for fails", lease=self._lease)
        await self._stop_led()
        if failed and not stop.asked:
            # Another may do better.
            await self._release()
            await stop.unless(deferLater(self._clock, LEASE_SECONDS))

    async def _keep(self, stop: _Stop) -> None:
        """Renew the lease until it is lost."""
        while self._left() > 0:
            await stop.unless(deferLater(self._clock, min(RETRY_SECONDS, self._left())))
            left = self._left()
            if left <= 0:
                break
            try:
                held = await stop.unless(self._within(left, self._lock.renew()))
            except _TROUBLE as error:
                self._tell(error)
                continue
            if not held:
                self._log.warn(
                    "{lease}: lost to {holder}",
                    lease=self._lease,
                    holder=self._lock.holder or "nobody",
                )
                return
            self._error = None
        self._log.warn(
            "{lease}: lost, it could not be renewed for {seconds:g} s: {error}",
            lease=self._lease,
            seconds=RENEW_SECONDS,
            error=self._error or "this process was held up",
        )

    async def _stop_led(self) -> None:
        self._started = False
        self._log.info("{lease}: leading no longer", lease=self._lease)
        rest = self._lock.renewed_at + LEASE_SECONDS - self._clock.seconds()
        overtime = self._clock.callLater(max(0.0, rest), self._tell_overtime)
        stopping = maybeDeferred(self._led.stopService).addErrback(self._stop_failed)
        self._led_stopped = await ended_within(self._clock, STOP_SECONDS, stopping)
        if overtime.active():
            overtime.cancel()
        if not self._led_stopped:
            self._log.error(
                "Defect: {lease}: what it is for has not stopped in {seconds:g} s; going on all the"
                " same, but the lease is not given back",
                lease=self._lease,
                seconds=STOP_SECONDS,
            )

    def _tell_overtime(self) -> None:
        self._log.warn(
            "{lease}: its work is still stopping although the lease has ended: another process"
            " may do the same work now",
            lease=self._lease,
        )

    def _stop_failed(self, failure: Failure) -> None:
        self._log.failure(
            "Defect: {lease}: what it is for has not stopped well", failure, lease=self._lease
        )

    async def _release(self) -> None:
        if not self._led_stopped:
            return
        try:
            await self._within(RELEASE_SECONDS, self._lock.release())
        except _TROUBLE as error:
            self._log.warn(
                "{lease}: not released; others can acquire it in {seconds} s: {error}",
                lease=self._lease,
                seconds=LEASE_SECONDS,
                error=_described(error),
            )
        except Exception:
            # Stopping goes on; the lease runs out by itself.
            self._log.failure("Defect: {lease} is not given back", lease=self._lease)

    # -- help ------------------------------------------------------------------------------------

    def _left(self) -> float:
        """Return the seconds until what is led has to stop if the lease is not renewed."""
        return self._lock.renewed_at + RENEW_SECONDS - self._clock.seconds()

    def _within(
        self, seconds: float, asking: Coroutine[Deferred[Any], Any, _Result]
    ) -> Deferred[_Result]:
        return Deferred.fromCoroutine(asking).addTimeout(seconds, self._clock)

    def _tell(self, error: Exception) -> None:
        self._error = _described(error)
        self._limited.warn(
            "{lease}: cannot be acquired or read, retrying: {error}",
            lease=self._lease,
            error=self._error,
        )


def _described(error: Exception) -> str:
    if isinstance(error, DeferredTimeout):
        return "the API did not answer in time"
    if isinstance(error, NotAllowed) and error.status == 403:
        return (
            "the Role needs apiGroups [coordination.k8s.io] with resources [leases] verbs"
            f" [get, create, update] in this namespace ({error})"
        )
    return str(error)
