"""A cache with expiry in which concurrent lookups of a key share one request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from yurttunnel.ops.bounded_dict import BoundedDict

Result = TypeVar("Result")

MAX_ENTRIES = 4096
"""The maximum number of true results, and of false ones; the least recently used are evicted."""


@dataclass(slots=True)
class LookupCounters:
    """Counts lookups: from the cache, shared with a pending request, or requested."""

    hits: int = 0
    shared: int = 0
    misses: int = 0


@dataclass(slots=True)
class _Entry(Generic[Result]):
    result: Result
    expires: float


class SingleFlightCache(Generic[Result]):
    """Caches results by key, each for the number of seconds returned with it.

    There is room for ``max_entries`` true results, and for as many false ones, so many lookups of
    nonexistent keys evict no true result. Failures are reported to all waiters and not cached.
    """

    def __init__(
        self, clock: IReactorTime, counters: LookupCounters, max_entries: int = MAX_ENTRIES
    ) -> None:
        self._clock = clock
        self._counters = counters
        self._positive = BoundedDict[bytes, _Entry[Result]](max_entries)
        self._negative = BoundedDict[bytes, _Entry[Result]](max_entries)
        self._waiting: dict[bytes, list[Deferred[Result]]] = {}
        self._fetches: dict[bytes, Deferred[None]] = {}

    def get(
        self, key: bytes, fetch: Callable[[], Coroutine[Any, Any, tuple[Result, float]]]
    ) -> Deferred[Result]:
        """Return the result for ``key``; if it is not cached, ``fetch`` returns it and its
        lifetime.

        Cancelling does not cancel the request: the next lookup may need the same result.
        """
        entry = self._cached(key)
        if entry is not None:
            self._counters.hits += 1
            return succeed(entry.result)
        waiting = self._waiting.get(key)
        waiter = Deferred[Result]()
        if waiting is not None:
            self._counters.shared += 1
            waiting.append(waiter)
            return waiter
        self._counters.misses += 1
        self._waiting[key] = [waiter]
        fetches = Deferred.fromCoroutine(self._fetch(key, fetch))
        if key in self._waiting:
            self._fetches[key] = fetches
        return waiter

    def waiting(self, key: bytes) -> int:
        """Return the number of waiters for ``key``."""
        return len(self._waiting.get(key, ()))

    def stop(self) -> Deferred[None]:
        """Cancel pending requests; waiters fail with ``CancelledError``."""
        fetches = list(self._fetches.values())
        for each in fetches:
            each.cancel()
        return gatherResults(fetches).addCallback(lambda _: None)

    async def _fetch(
        self, key: bytes, fetch: Callable[[], Coroutine[Any, Any, tuple[Result, float]]]
    ) -> None:
        try:
            result, seconds = await fetch()
        except Exception:
            # All waiters of a key get its result, including any error.
            self._notify_waiters(key, Failure())
            return
        self._store(key, _Entry(result, self._clock.seconds() + seconds))
        self._notify_waiters(key, result)

    def _cached(self, key: bytes) -> _Entry[Result] | None:
        for entries in (self._positive, self._negative):
            entry = entries.get(key)
            if entry is None:
                continue
            if self._clock.seconds() < entry.expires:
                entries.move_to_end(key)
                return entry
            del entries[key]
        return None

    def _store(self, key: bytes, entry: _Entry[Result]) -> None:
        entries = self._positive if entry.result else self._negative
        entries[key] = entry

    def _notify_waiters(self, key: bytes, result: Result | Failure) -> None:
        self._fetches.pop(key, None)
        for waiter in self._waiting.pop(key):
            if not waiter.called:
                waiter.callback(result)  # a failure starts the errbacks
