"""How many connections the kernel has sent to endpoints, and how many are open.

The rule that selects an endpoint has a counter. It sees one packet of each connection, so that
other packets cost nothing. Therefore bytes are not counted, and an attempt that is sent to another
endpoint counts again. Open connections are read from the conntrack table: rules see how
connections begin, but not how they end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.proxy.interfaces import KernelStats
from yurttunnel.proxy.kernel.connections import MEANINGS
from yurttunnel.proxy.kernel.parts import counted_protocol, counter_name
from yurttunnel.proxy.rules.nftables.table import NAME
from yurttunnel.proxy.state.virtual_services import Protocol, VirtualService
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink.conntrack_table import ConntrackTable, own_addresses
from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.netlink_socket import (
    NETLINK_NETFILTER,
    NETLINK_ROUTE,
    NetlinkSocket,
)
from yurttunnel.steering.netlink.nftables import nft_generation, packet_counts
from yurttunnel.steering.netlink.worker import Run

PERIOD_SECONDS = 10.0
"""Seconds between two readings."""

RETRY_SECONDS = 1.0
"""Seconds until the next reading if rules changed during the last one."""

PAUSE_FACTOR = 100
"""The pause after reading the conntrack table, as a multiple of the time that this took."""


MAX_SECONDS = 0.25
"""The timeout for reading the table, enough for some 20,000 entries. Other requests to the kernel
wait meanwhile: entries of attempts at dead endpoints have to be deleted within half a second."""

Destination = tuple[int, bytes, int]
"""A protocol number, a packed address, and a port."""


class ActiveConnections:
    """The numbers of connections by their destination in ``by_destination``.

    ``own`` are the packed addresses of this machine, which have the node ports.
    """

    def __init__(self, by_destination: Mapping[Destination, int], own: Collection[bytes]) -> None:
        self._by_destination = by_destination
        self._by_port: Counter[tuple[int, int, int]] = Counter()
        for (protocol, address, port), count in by_destination.items():
            if address in own:
                self._by_port[protocol, len(address), port] += count

    def of(self, service: VirtualService) -> int:
        """Return the number of connections to the portals of a service, even if a sibling's
        endpoints serve them.
        """
        protocol, length = service.key.protocol.number, 4 if service.key.version == 4 else 16
        return sum(
            self._by_port[protocol, length, portal.port]
            if portal.address is None
            else self._by_destination.get((protocol, portal.address.packed, portal.port), 0)
            for portal in service.portals
        )


class Table(NamedTuple):
    """The result of reading the conntrack table, and how many seconds it took.

    ``active`` is ``None`` if the table is too large, or cannot be read; then ``problem`` says why.
    """

    active: ActiveConnections | None
    seconds: float
    problem: SteeringFailed | None = None


class Reading(NamedTuple):
    """The result of a reading.

    ``counted`` is ``None`` if rules changed during the reading, and ``table`` if it was not read.
    """

    counted: Mapping[str, int] | None
    table: Table | None


class ConnectionCounts(Service):
    """The counts as of the last reading; ``run`` runs blocking calls to the kernel.

    The kernel's counters stay when the process ends, so that the counts of a service continue. The
    totals begin at the start of the process, like all its other metrics, because earlier counts
    would lack removed services.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, run: Run, versions: Collection[int]) -> None:
        self._clock = clock
        self._run = run
        self._versions = tuple(versions)
        self._limited = RateLimitedLog(clock, self._log)
        self._counted: Mapping[str, int] | None = None
        self._totals: Counter[Protocol] = Counter()
        self._active: ActiveConnections | None = None
        self._table_due = 0.0
        self._reading = Reconciler(
            clock, PERIOD_SECONDS, "counting connections", self._read, settle=RETRY_SECONDS
        )

    def startService(self) -> None:
        super().startService()
        self._reading.startService()

    def stopService(self) -> Deferred[bool]:
        super().stopService()
        return self._reading.stopService()

    def of(self, service: VirtualService) -> KernelStats:
        """Return the counts of a service."""
        active = None if self._active is None else self._active.of(service)
        return KernelStats(active, (self._counted or {}).get(counter_name(service.key)))

    def totals(self) -> Mapping[Protocol, int]:
        """Return the totals since the start by protocol, including removed services."""
        return self._totals

    async def _read(self) -> bool:
        is_due = self._clock.seconds() >= self._table_due
        try:
            reading = await self._run(partial(_read, self._versions, is_due))
        except SteeringFailed as error:
            # The table has not been read either, and the open connections would be out of date.
            self._active = None
            self._limited.warn("Connections of kernel mode are not counted: {error}", error=error)
            return False
        if reading.table is not None:
            self._apply_table(reading.table)
        if reading.counted is None:
            self._reading.trigger()
        else:
            self._apply_counts(reading.counted)
        return True

    def _apply_table(self, table: Table) -> None:
        self._active = table.active
        self._table_due = self._clock.seconds() + PAUSE_FACTOR * table.seconds
        if table.problem is not None:
            self._limited.warn("Open connections are not counted: {error}", error=table.problem)

    def _apply_counts(self, counted: Mapping[str, int]) -> None:
        former, self._counted = self._counted, counted
        if former is None:
            return
        for name, count in counted.items():
            before = former.get(name, 0)
            protocol = counted_protocol(name)
            if count != before and protocol is not None:
                # A counter that another program has removed, and that was created again, restarts
                # at 0.
                self._totals[protocol] += count - before if count >= before else count


def _read(versions: Collection[int], reads_table: bool) -> Reading:
    return Reading(_counted(versions), _table(versions) if reads_table else None)


def _table(versions: Collection[int]) -> Table:
    began = time.monotonic()
    active, problem = None, None
    try:
        active = active_connections(versions)
    except SteeringFailed as error:
        # The counters are valid all the same.
        problem = error
    return Table(active, time.monotonic() - began, problem)


def active_connections(versions: Collection[int]) -> ActiveConnections | None:
    """Read the connections from the conntrack table of the current thread's network namespace.

    A UDP connection exists as long as it may be answered. Return ``None`` if the table is so large
    that reading takes longer than :data:`MAX_SECONDS`. Raises
    :class:`~yurttunnel.steering.failures.SteeringFailed`.
    """
    until = time.monotonic() + MAX_SECONDS
    by_destination: Counter[Destination] = Counter()
    own: set[bytes] = set()
    with (
        as_steering_failed("cannot read this machine's addresses", {}),
        NetlinkSocket(NETLINK_ROUTE) as routes,
    ):
        for version in versions:
            own |= own_addresses(routes, version)
    with (
        as_steering_failed("cannot read the table of connections", MEANINGS),
        NetlinkSocket(NETLINK_NETFILTER) as kernel,
    ):
        for version in versions:
            for entry in ConntrackTable(kernel).translated(version):
                if entry.is_translated and not entry.is_closed:
                    by_destination[entry.protocol, entry.destination, entry.port] += 1
                if time.monotonic() > until:
                    return None
    # The kernel may have searched for a long time, and found few.
    return None if time.monotonic() > until else ActiveConnections(by_destination, own)


def _counted(versions: Collection[int]) -> Mapping[str, int] | None:
    """Return the counts by the names of their counters.

    Return ``None`` if rules changed meanwhile: then the kernel may have omitted some.
    """
    generation = nft_generation()
    counted = {
        name: count for version in versions for name, count in packet_counts(version, NAME).items()
    }
    return counted if nft_generation() == generation else None
