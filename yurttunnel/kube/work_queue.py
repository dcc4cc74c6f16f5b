"""A work queue of keys, which handles each key once however often it is added.

The backoff is that of controllers (``k8s.io/client-go/util/workqueue``:
``DefaultTypedControllerRateLimiter``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from yurttunnel.kube.errors import ApiError, ApiUnreachable
from yurttunnel.ops.backoff import exponential
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.timeouts import fired_within

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


@dataclass(slots=True)
class _Key:
    """The state of a key; a key without pending work is removed."""

    waiting: bool = False
    under_way: bool = False
    again: bool = False
    failures: int = 0
    pause: IDelayedCall | None = None


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
        self._keys: dict[str, _Key] = {}
        self._ready: deque[str] = deque()
        self._attempts: set[Deferred[None]] = set()
        self._under_way = 0
        self._starting = False
        # The number of stops: an attempt that began before a stop is not retried after it.
        self._stops = 0
        self._bucket = _Bucket(clock)
        self._limited = RateLimitedLog(clock, self._log)
        self._traceback_at: float | None = None

    def __len__(self) -> int:
        """Return the number of keys that are queued, in progress, or waiting for a retry."""
        return len(self._keys)

    def add(self, key: str) -> None:
        """Queue ``key``; it is dropped with a warning if there are :data:`MAX_KEYS` already."""
        state = self._keys.get(key)
        if state is None:
            if len(self._keys) >= MAX_KEYS:
                self._limited.warn(
                    "{key} is not processed: {count} others are already queued; see the messages"
                    " above",
                    key=key,
                    count=MAX_KEYS,
                )
                return
            state = self._keys[key] = _Key()
        if state.under_way:
            state.again = True
        elif not state.waiting:
            if state.pause is not None:
                state.pause.cancel()
            self._make_ready(key, state)
            self._work()

    def startService(self) -> None:
        """Start the handlers, also for keys that were added before."""
        super().startService()
        self._work()

    def stopService(self) -> Deferred[None]:
        """Stop; fires when no handler is in progress, or when a cancelled one does not end."""
        super().stopService()
        self._stops += 1
        self._ready.clear()
        for key, state in list(self._keys.items()):
            if state.pause is not None:
                state.pause.cancel()
            # A handler in progress keeps its key, so that no other handles it, even after a
            # restart.
            state.again = False
            state.failures = 0
            if not state.under_way:
                del self._keys[key]
        return Deferred.fromCoroutine(self._end(list(self._attempts)))

    async def _end(self, ending: list[Deferred[None]]) -> None:
        if await self._has_ended(ending, STOP_TIMEOUT):
            return
        for attempt in ending:
            attempt.cancel()
        if not await self._has_ended(ending, _CANCEL_TIMEOUT):
            self._log.error("Defect: what is under way does not end though it is cancelled")

    def _has_ended(self, ending: list[Deferred[None]], seconds: float) -> Deferred[bool]:
        return fired_within(self._clock, seconds, DeferredList(ending))

    def _make_ready(self, key: str, state: _Key) -> None:
        state.pause = None
        state.waiting = True
        self._ready.append(key)

    def _work(self) -> None:
        # Attempts that complete at once call this again, which must not become a recursion.
        if self._starting:
            return
        self._starting = True
        try:
            while self.running and self._ready and self._under_way < self._workers:
                self._start(self._ready.popleft())
        finally:
            self._starting = False

    def _start(self, key: str) -> None:
        state = self._keys[key]
        state.waiting = False
        state.under_way = True
        self._under_way += 1
        attempt = Deferred.fromCoroutine(self._attempt(key, state))
        if not attempt.called:
            self._attempts.add(attempt)
            _ = attempt.addBoth(lambda _: self._attempts.discard(attempt))

    async def _attempt(self, key: str, state: _Key) -> None:
        stops = self._stops
        failed = False
        try:
            await self._handle(key)
        except Exception as error:
            # Every exception is logged and retried. Attempts that were cancelled or abandoned by a
            # stop are dropped, as queued keys are.
            if stops == self._stops:
                failed = True
                self._log_error(key, error)
        state.under_way = False
        self._under_way -= 1
        if failed:
            self._pause(key, state)
        elif state.again:
            state.failures = 0
            state.again = False
            self._make_ready(key, state)
        else:
            del self._keys[key]
        self._work()

    def _pause(self, key: str, state: _Key) -> None:
        pause = exponential(state.failures, MIN_BACKOFF, MAX_BACKOFF)
        state.failures += 1
        if state.again:
            state.again = False
            self._make_ready(key, state)
            return
        seconds = max(pause, self._bucket.take())
        state.pause = self._clock.callLater(seconds, self._pause_is_over, key, state)

    def _pause_is_over(self, key: str, state: _Key) -> None:
        self._make_ready(key, state)
        self._work()

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
