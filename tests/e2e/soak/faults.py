"""Random faults of kinds that streams must survive."""

from __future__ import annotations

from collections import Counter
from random import Random

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from tests.e2e.faults import FaultProxy

CUTS = {"reset": 20, "forget": 10, "black_hole": 1, "swallow": 1}
"""How the connection is cut, with weights: silence is detected only after 7.5 s."""

PAUSE = (0.05, 0.5)
"""The minimum and maximum seconds between two faults."""


class RandomFaults:
    """Cuts the connections of a proxy, and limits their speed and chunk size, while it runs."""

    def __init__(self, reactor, proxy: FaultProxy, random: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._reactor = reactor
        self._proxy = proxy
        self._random = random
        self._running: Deferred[None] | None = None

    def start(self) -> None:
        """Start."""
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(lambda failure: failure.trap(CancelledError))

    def stop(self) -> None:
        """Stop, and remove all faults."""
        if self._running is not None:
            self._running.cancel()
        self._be_good()

    async def _run(self) -> None:
        while True:
            await deferLater(self._reactor, self._random.uniform(*PAUSE))
            self._be_good()
            fault = self._random.choice((self._cut, self._slow, self._small, self._far))
            self.counts[fault()] += 1

    def _be_good(self) -> None:
        for direction in (self._proxy.up, self._proxy.down):
            direction.latency = 0.0
            direction.bandwidth = direction.slice_size = None

    def _cut(self) -> str:
        [kind] = self._random.choices(list(CUTS), list(CUTS.values()))
        return kind if self._proxy.for_all(kind) else "nothing to cut"

    def _slow(self) -> str:
        for direction in (self._proxy.up, self._proxy.down):
            direction.bandwidth = self._random.uniform(2e6, 2e7)
        return "bandwidth"

    def _small(self) -> str:
        for direction in (self._proxy.up, self._proxy.down):
            direction.slice_size = self._random.randint(1000, 5000)
        return "slices"

    def _far(self) -> str:
        for direction in (self._proxy.up, self._proxy.down):
            direction.latency = self._random.uniform(0.005, 0.1)
        return "latency"
