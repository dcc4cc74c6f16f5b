"""A work queue of keys, which handles each key once however often it is added.

The backoff is that of controllers (``k8s.io/client-go/util/workqueue``:
``DefaultTypedControllerRateLimiter``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from yurttunnel.kube.errors import ApiError, ApiUnreachable
from yurttunnel.ops.backoff import exponential
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.timeouts import ended_or_cancelled

MIN_BACKOFF = 0.005
MAX_BACKOFF = 1000.0
"""Seconds before a failed key is retried, doubled with each failure in a row."""

RATE = 10.0
BURST = 100
"""The number of retries per second, and their burst."""

MAX_KEYS = 10_000
"""The maximum number of keys that are queued, in progress, or waiting for a retry."""

STOP_TIMEOUT = 3.0
"""Seconds that handlers in progress have after a stop, before they are cancelled.

Less than what is left of a lease when its leader gives it up (15 s - 10 s).
"""

_CANCEL_TIMEOUT = 1.0
_TRACEBACK_SECONDS = 60.0


class WorkQueue(Service):
    """Awaits ``handle(key)`` for each added key, with ``workers`` concurrent handlers.

    A key that is added while it is handled is handled again afterwards. A handler's exception is
    logged, and the key is retried with backoff until it succeeds. Keys that are added before the
    start are queued. Stopping lets handlers in progress complete, cancels them after
    :data:`STOP_TIMEOUT`, and removes all other keys; the queue can then be started again.
    """

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, handle: Callable[[str], Awaitable[None]], workers: int = 2
    ) -> None:
        self._clock = clock
        self._handle = handle
        self._workers = workers
        # The keys to handle, in order; those that are being handled are to be handled again.
        self._ready: OrderedDict[str, None] = OrderedDict()
        # The handlers in progress; ``None`` during the call that starts one.
        self._under_way: dict[str, Deferred[None] | None] = {}
        self._pauses: dict[str, IDelayedCall] = {}
        self._failures: dict[str, int] = {}
        self._starting = False
        # The number of stops: an attempt that began before a stop is not retried after it.
        self._stops = 0
        self._bucket = _Bucket(clock)
        self._limited = RateLimitedLog(clock, self._log)
        self._traceback_at: float | None = None

    def __len__(self) -> int:
        """Return the number of keys that are queued, in progress, or waiting for a retry.

        A key that was queued again while it is in progress counts twice.
        """
        return len(self._ready) + len(self._under_way) + len(self._pauses)

    def add(self, key: str) -> None:
        """Queue ``key``; it is dropped with a warning if there are :data:`MAX_KEYS` already."""
        is_known = key in self._ready or key in self._under_way or key in self._pauses
        if not is_known and len(self) >= MAX_KEYS:
            self._limited.warn(
                "{key} is not processed: {count} others are already queued; see the messages above",
                key=key,
                count=MAX_KEYS,
            )
            return
        pause = self._pauses.pop(key, None)
        if pause is not None and pause.active():
            pause.cancel()
        self._ready[key] = None
        self._work()

    def startService(self) -> None:
        """Start the handlers, also for keys that were added before."""
        super().startService()
        self._work()

    def stopService(self) -> Deferred[None]:
        """Stop; fires when no handler is in progress, or when a cancelled one does not end."""
        super().stopService()
        self._stops += 1
        for pause in self._pauses.values():
            pause.cancel()
        for waiting in (self._ready, self._pauses, self._failures):
            waiting.clear()
        # A handler in progress keeps its key, so that no other handles it, even after a restart.
        ending = [attempt for attempt in self._under_way.values() if attempt is not None]
        return Deferred.fromCoroutine(self._end(ending))

    async def _end(self, ending: list[Deferred[None]]) -> None:
        if not await ended_or_cancelled(self._clock, STOP_TIMEOUT, _CANCEL_TIMEOUT, ending):
            self._log.error("Defect: what is under way does not end though it is cancelled")

    def _work(self) -> None:
        # Attempts that complete at once call this again, which must not become a recursion.
        if self._starting:
            return
        self._starting = True
        try:
            while self.running and len(self._under_way) < self._workers:
                key = next((each for each in self._ready if each not in self._under_way), None)
                if key is None:
                    break
                self._start(key)
        finally:
            self._starting = False

    def _start(self, key: str) -> None:
        del self._ready[key]
        self._under_way[key] = None
        attempt = Deferred.fromCoroutine(self._attempt(key))
        if not attempt.called:
            self._under_way[key] = attempt

    async def _attempt(self, key: str) -> None:
        stops = self._stops
        try:
            await self._handle(key)
        except Exception as error:
            # Every exception is logged and retried. Attempts that were cancelled or abandoned by a
            # stop are dropped, as queued keys are.
            if stops == self._stops:
                self._log_error(key, error)
                self._retry(key)
        else:
            self._failures.pop(key, None)
        del self._under_way[key]
        self._work()

    def _retry(self, key: str) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if key not in self._ready:
            seconds = max(exponential(failures, MIN_BACKOFF, MAX_BACKOFF), self._bucket.take())
            self._pauses[key] = self._clock.callLater(seconds, self.add, key)

    def _log_error(self, key: str, error: Exception) -> None:
        if isinstance(error, ApiError | ApiUnreachable):
            self._limited.warn("{key}: {error}; retrying", key=key, error=error)
            return
        now = self._clock.seconds()
        if self._traceback_at is None or now - self._traceback_at >= _TRACEBACK_SECONDS:
            self._traceback_at = now
            self._log.failure("Defect: {key} cannot be handled; retrying", key=key)
            return
        self._limited.warn("Defect: {key}: {error}; retrying", key=key, error=repr(error))


class _Bucket:
    """The token bucket of retries."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._full_again = clock.seconds()

    def take(self) -> float:
        """Take a token; return the seconds until it is available."""
        now = self._clock.seconds()
        self._full_again = max(self._full_again, now) + 1 / RATE
        return max(0.0, self._full_again - now - BURST / RATE)
