"""Answers that are worth keeping for a while, and are asked for once however many wait."""

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
"""How many answers of either kind are kept; those that were used least recently go first."""


@dataclass(slots=True)
class LookupCounters:
    """How answers were come by: kept from before, shared with one that waits, or asked for."""

    kept: int = 0
    shared: int = 0
    asked: int = 0


@dataclass(slots=True)
class _Entry(Generic[Answer]):
    answer: Answer
    until: float


class SingleFlightCache(Generic[Answer]):
    """Keeps answers by a key, each for the time that came with it, in seconds.

    There is room for ``max_entries`` that are true, and for as many that are false: so whoever
    asks for much that does not exist displaces nobody. Failures are told to all who wait, and
    are not kept.
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
        """Return the answer to ``key``; ``ask`` gives it and its time when it is not known.

        Whoever leaves does not end the asking: the next one may want to know the same.
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
        """Return how many wait for the answer to ``key``."""
        return len(self._waiting.get(key, ()))

    def stop(self) -> Deferred[None]:
        """Give up what is being asked; those who wait are told by ``CancelledError``."""
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
            # All who share the question get what came of it, be it an error of any kind.
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
