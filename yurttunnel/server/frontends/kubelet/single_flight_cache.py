"""A cache with expiry in which concurrent lookups of a key share one request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

Answer = TypeVar("Answer")

MAX_ENTRIES = 4096
"""The maximum number of true results, and of false ones; the least recently used are evicted."""


@dataclass(slots=True)
class LookupCounters:
    """Counts lookups: from the cache, shared with a pending request, or requested."""

    kept: int = 0
    shared: int = 0
    asked: int = 0


@dataclass(slots=True)
class _Entry(Generic[Answer]):
    answer: Answer
    until: float


class SingleFlightCache(Generic[Answer]):
    """Caches results by key, each for the number of seconds returned with it.

    There is room for ``max_entries`` true results, and for as many false ones, so many lookups of
    nonexistent keys evict no true result. Failures are reported to all waiters and not cached.
    """

    def __init__(
        self, clock: IReactorTime, counters: LookupCounters, max_entries: int = MAX_ENTRIES
    ) -> None:
        self._clock = clock
        self._counters = counters
        self._max_entries = max_entries
        self._yes: OrderedDict[bytes, _Entry[Answer]] = OrderedDict()
        self._no: OrderedDict[bytes, _Entry[Answer]] = OrderedDict()
        self._waiting: dict[bytes, list[Deferred[Answer]]] = {}
        self._asking: dict[bytes, Deferred[None]] = {}

    def get(
        self, key: bytes, ask: Callable[[], Coroutine[Any, Any, tuple[Answer, float]]]
    ) -> Deferred[Answer]:
        """Return the result for ``key``; if it is not cached, ``ask`` returns it and its lifetime.

        Cancelling does not cancel the request: the next lookup may need the same result.
        """
        entry = self._kept(key)
        if entry is not None:
            self._counters.kept += 1
            return succeed(entry.answer)
        waiting = self._waiting.get(key)
        waiter = Deferred[Answer]()
        if waiting is not None:
            self._counters.shared += 1
            waiting.append(waiter)
            return waiter
        self._counters.asked += 1
        self._waiting[key] = [waiter]
        asking = Deferred.fromCoroutine(self._ask(key, ask))
        if key in self._waiting:
            self._asking[key] = asking
        return waiter

    def waiting(self, key: bytes) -> int:
        """Return the number of waiters for ``key``."""
        return len(self._waiting.get(key, ()))

    def stop(self) -> Deferred[None]:
        """Cancel pending requests; waiters fail with ``CancelledError``."""
        asking = list(self._asking.values())
        for each in asking:
            each.cancel()
        return gatherResults(asking).addCallback(lambda _: None)

    async def _ask(
        self, key: bytes, ask: Callable[[], Coroutine[Any, Any, tuple[Answer, float]]]
    ) -> None:
        try:
            answer, seconds = await ask()
        except Exception:
            # All waiters of a key get its result, including any error.
            self._tell(key, Failure())
            return
        self._keep(key, _Entry(answer, self._clock.seconds() + seconds))
        self._tell(key, answer)

    def _kept(self, key: bytes) -> _Entry[Answer] | None:
        for entries in (self._yes, self._no):
            entry = entries.get(key)
            if entry is None:
                continue
            if self._clock.seconds() < entry.until:
                entries.move_to_end(key)
                return entry
            del entries[key]
        return None

    def _keep(self, key: bytes, entry: _Entry[Answer]) -> None:
        entries = self._yes if entry.answer else self._no
        entries[key] = entry
        while len(entries) > self._max_entries:
            entries.popitem(last=False)

    def _tell(self, key: bytes, result: Answer | Failure) -> None:
        self._asking.pop(key, None)
        for waiter in self._waiting.pop(key):
            if not waiter.called:
                waiter.callback(result)  # a failure starts the errbacks
