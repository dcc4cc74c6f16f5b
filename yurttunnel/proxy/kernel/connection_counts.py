"""How many connections the kernel has led to endpoints, by its own counters.

The rule that chooses an endpoint counts, which sees one packet of each connection: no other packet
costs anything. So there is neither a number of bytes nor one of connections that have not ended,
and an attempt that is led to another endpoint counts once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.proxy.kernel.parts import counter_name
from yurttunnel.proxy.rules.nftables.table import NAME
from yurttunnel.proxy.state.virtual_services import Key, Protocol
from yurttunnel.steering.interfaces import SteeringFailed
from yurttunnel.steering.netlink.generation import nft_generation
from yurttunnel.steering.netlink.named_counters import counted_packets
from yurttunnel.steering.netlink.worker import Run

PERIOD = 10.0
"""Seconds between two readings."""


class ConnectionCounts(Service):
    """The counts as of the last reading; ``run`` waits for the kernel.

    The kernel's counters stay when the process ends, and so its successor's counts go on from
    there.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, run: Run, versions: Collection[int]) -> None:
        self._run = run
        self._versions = tuple(versions)
        self._limited = RateLimitedLog(clock, self._log)
        self._counted: Mapping[str, int] = {}
        self._totals: Counter[Protocol] = Counter()
        self._reading = Reconciler(clock, PERIOD, "counting connections", self._read)

    def startService(self) -> None:
        super().startService()
        self._reading.startService()

    def stopService(self) -> Deferred[bool]:
        """Read no more."""
        super().stopService()
        return self._reading.stopService()

    def of(self, key: Key) -> int | None:
        """Return those of a service; ``None`` before there are any rules for it."""
        return self._counted.get(counter_name(key))

    def totals(self) -> Mapping[Protocol, int]:
        """Return those of all services, also of those that are gone."""
        return self._totals

    async def _read(self) -> bool:
        try:
            counted = await self._run(partial(_counted, self._versions))
        except SteeringFailed as error:
            self._limited.warn("Connections of kernel mode are not counted: {error}", error=error)
            return False
        if counted is not None:
            self._take(counted)
        return True

    def _take(self, counted: Mapping[str, int]) -> None:
        for name, count in counted.items():
            before = self._counted.get(name, 0)
            # A service that was gone meanwhile has another counter, which has begun at 0.
            self._totals[_protocol(name)] += count - before if count >= before else count
        self._counted = counted


def _counted(versions: Collection[int]) -> Mapping[str, int] | None:
    """Return the counts by the names of counters.

    ``None`` where somebody has changed rules meanwhile: then the kernel may have left some out.
    """
    generation = nft_generation()
    counted = {
        name: count
        for version in versions
        for name, count in counted_packets(version, NAME).items()
    }
    return counted if nft_generation() == generation else None


def _protocol(name: str) -> Protocol:
    return Protocol(name.partition("-")[0].upper())
