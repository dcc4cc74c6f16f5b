"""Leader election: only one of several processes runs a service.

The timeouts are those of ``k8s.io/client-go/tools/leaderelection``;
:mod:`yurttunnel.kube.lease_lock` explains why it is safe.
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
from yurttunnel.ops.timeouts import fired_within

RENEW_SECONDS = 10.0
"""How long the leader may fail to renew the lease before it stops the service."""

RETRY_SECONDS = 2.0
"""The time between two attempts; candidates wait up to 2.2 times as long."""

STOP_SECONDS = 60.0
"""The timeout of stopping the service."""

RELEASE_SECONDS = 2.0
"""The timeout of releasing the lease."""

_JITTER = 1.2
_CONNECTION_ERRORS = (ApiError, ApiUnreachable, DeferredTimeout)
_Result = TypeVar("_Result")


class _Stopped(Exception):
    """The election was stopped."""


class _Stop:
    """Cancels the current wait when the election is stopped; one instance for each start."""

    def __init__(self) -> None:
        self.requested = False
        self._waiting: Deferred[Any] | None = None

    def request(self) -> None:
        """Cancel the current wait, and all later ones."""
        self.requested = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def unless(self, waiting: Deferred[_Result]) -> _Result:
        """Await ``waiting``; raises ``_Stopped`` if the election is stopped."""
        self._waiting = waiting
        try:
            if self.requested:
                waiting.cancel()
            result = await waiting
        except (CancelledError, *_CONNECTION_ERRORS):
            if self.requested:
                raise _Stopped from None
            raise
        finally:
            self._waiting = None
        if self.requested:
            raise _Stopped
        return result


class LeaderElection(Service):
    """Runs ``service`` while it holds the lease ``namespace/name`` as ``identity``.

    ``identity`` has to be unique to the process. ``service`` is started and stopped any number of
    times, and never started before its ``stopService`` has completed or timed out after
    :data:`STOP_SECONDS`. While it stops, the lease is neither renewed nor acquired. Stopping the
    election stops ``service`` and then releases the lease, so that another process can lead at
    once.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        namespace: str,
        name: str,
        identity: str,
        service: IService,
    ) -> None:
        self._clock = clock
        self._lock = LeaseLock(clock, client, namespace, name, identity)
        self._lease = f"lease {namespace}/{name}"
        self._identity = identity
        self._service = service
        self._started = False
        self._service_stopped = True
        self._error: str | None = None
        self._stop = _Stop()
        self._ended: Deferred[None] | None = None
        self._limited = RateLimitedLog(clock, self._log)

    @property
    def leading(self) -> bool:
        """Whether ``service`` runs, and the lease is valid."""
        return self._started and self._clock.seconds() < self._lock.renewed_at + LEASE_SECONDS

    def problem(self) -> str | None:
        """Return why no leader is known; ``None`` while there is one, here or elsewhere."""
        if not self.running or self.leading or self._lock.is_held_by_another():
            return None
        return None if self._error is None else f"{self._lease}: {self._error}"

    def startService(self) -> None:
        """Campaign for the lease, after a stop in progress has completed."""
        super().startService()
        self._stop = _Stop()
        self._ended = Deferred.fromCoroutine(self._run(self._stop, self._ended))

    def stopService(self) -> Deferred[None]:
        """Stop ``service``, then release the lease; fires when both have completed or timed out."""
        super().stopService()
        self._stop.request()
        stopped: Deferred[None] = Deferred()
        if self._ended is None:
            stopped.callback(None)
        else:
            _ = self._ended.addCallback(stopped.callback)
        return stopped

    async def _run(self, stop: _Stop, before: Deferred[None] | None) -> None:
        if before is not None:
            await before
        while not stop.requested:
            try:
                await self._campaign(stop)
                await self._lead(stop)
            except _Stopped:
                break
            except Exception:
                # A defect must not end the campaign, or there may be no leader.
                self._error = "a defect, which is in the log, keeps it from being held"
                self._log.failure("Defect: {lease}: trying again", lease=self._lease)
                await fired_within(self._clock, RETRY_SECONDS, Deferred())
        await self._release()

    # -- while it is not held --------------------------------------------------------------------

    async def _campaign(self, stop: _Stop) -> None:
        """Return when the lease is held."""
        while not await self._acquire(stop):
            pause = random.uniform(RETRY_SECONDS, RETRY_SECONDS * (1 + _JITTER))
            await stop.unless(deferLater(self._clock, pause))

    async def _acquire(self, stop: _Stop) -> bool:
        try:
            held = await stop.unless(self._with_timeout(RENEW_SECONDS, self._lock.acquire()))
        except _CONNECTION_ERRORS as error:
            self._log_error(error)
            return False
        self._error = None
        return held and self._left() > 0

    # -- while it is held ------------------------------------------------------------------------

    async def _lead(self, stop: _Stop) -> None:
        """Run ``service`` until the lease is lost or the election is stopped."""
        self._log.info("{lease}: leading as {who}", lease=self._lease, who=self._identity)
        self._started = True
        failed = False
        try:
            self._service.startService()
            await self._keep(stop)
        except _Stopped:
            # ``service`` is stopped below; the caller checks ``stop.requested``.
            pass
        except Exception:
            # ``service`` may raise anything, and a process that cannot start it must not keep the
            # lease.
            failed = True
            self._error = "what it is for cannot be started, see the log"
            self._log.failure("Defect: {lease}: what it is for fails", lease=self._lease)
        await self._stop_service()
        if failed and not stop.requested:
            # Another process may succeed.
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
                held = await stop.unless(self._with_timeout(left, self._lock.renew()))
            except _CONNECTION_ERRORS as error:
                self._log_error(error)
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

    async def _stop_service(self) -> None:
        self._started = False
        self._log.info("{lease}: leading no longer", lease=self._lease)
        rest = self._lock.renewed_at + LEASE_SECONDS - self._clock.seconds()
        overtime = self._clock.callLater(max(0.0, rest), self._log_overtime)
        stopping = maybeDeferred(self._service.stopService).addErrback(self._stop_failed)
        self._service_stopped = await fired_within(self._clock, STOP_SECONDS, stopping)
        if overtime.active():
            overtime.cancel()
        if not self._service_stopped:
            self._log.error(
                "Defect: {lease}: what it is for has not stopped in {seconds:g} s; going on all the"
                " same, but the lease is not released",
                lease=self._lease,
                seconds=STOP_SECONDS,
            )

    def _log_overtime(self) -> None:
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
        if not self._service_stopped:
            return
        try:
            await self._with_timeout(RELEASE_SECONDS, self._lock.release())
        except _CONNECTION_ERRORS as error:
            self._log.warn(
                "{lease}: not released; others can acquire it in {seconds} s: {error}",
                lease=self._lease,
                seconds=LEASE_SECONDS,
                error=_error_text(error),
            )
        except Exception:
            # The stop continues; the lease expires by itself.
            self._log.failure("Defect: {lease} is not released", lease=self._lease)

    # -- help ------------------------------------------------------------------------------------

    def _left(self) -> float:
        """Return the seconds until ``service`` has to stop unless the lease is renewed."""
        return self._lock.renewed_at + RENEW_SECONDS - self._clock.seconds()

    def _with_timeout(
        self, seconds: float, call: Coroutine[Deferred[Any], Any, _Result]
    ) -> Deferred[_Result]:
        return Deferred.fromCoroutine(call).addTimeout(seconds, self._clock)

    def _log_error(self, error: Exception) -> None:
        self._error = _error_text(error)
        self._limited.warn(
            "{lease}: cannot be acquired or read, retrying: {error}",
            lease=self._lease,
            error=self._error,
        )


def _error_text(error: Exception) -> str:
    if isinstance(error, DeferredTimeout):
        return "the API did not answer in time"
    if isinstance(error, NotAllowed) and error.status == 403:
        return (
            "the Role needs apiGroups [coordination.k8s.io] with resources [leases] verbs"
            f" [get, create, update] in this namespace ({error})"
        )
    return str(error)
