"""Which connections the kernel carries at the moment, by what their clients have dialled.

Its table is read for that: rules see how connections begin, and not how they end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from pyroute2.netlink import NETLINK_NETFILTER

from yurttunnel.proxy.state.virtual_services import VirtualService
from yurttunnel.steering.netlink.conversation import Conversation
from yurttunnel.steering.netlink.flow_table import FlowTable
from yurttunnel.steering.netlink.refusals import as_steering_failed

MOST_READ = 50_000
"""Entries of the table that are read, which takes a thread about a second."""

Dialled = tuple[int, bytes, int]
"""A protocol by its number, a packed address, and a port."""


class ActiveConnections:
    """How many there are, by the destinations that were ``dialled``."""

    def __init__(self, dialled: Mapping[Dialled, int]) -> None:
        self._dialled = dialled
        self._by_port: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        for (protocol, address, port), count in dialled.items():
            self._by_port[protocol, len(address), port] += count

    def of(self, service: VirtualService) -> int:
        """Return those to the portals of a service; a node port is one at any address."""
        protocol, length = service.key.protocol.number, 4 if service.key.version == 4 else 16
        return sum(
            self._by_port.get((protocol, length, portal.port), 0)
            if portal.address is None
            else self._dialled.get((protocol, portal.address.packed, portal.port), 0)
            for portal in service.portals
        )


def active_connections(
    versions: Collection[int], most: int = MOST_READ
) -> ActiveConnections | None:
    """Return those in the table of the network namespace of the thread that asks.

    A connection by UDP is there for as long as it may be answered. ``None`` where more than
    ``most`` entries would have to be read. Raises
    :class:`~yurttunnel.steering.interfaces.SteeringFailed`.
    """
    dialled: Counter[Dialled] = Counter()
    read = 0
    with (
        as_steering_failed("cannot read the table of connections", {}),
        Conversation(NETLINK_NETFILTER) as kernel,
    ):
        for version in versions:
            for entry in FlowTable(kernel).translated(version):
                read += 1
                if read > most:
                    return None
                if entry.is_translated and not entry.is_over:
                    dialled[entry.protocol, entry.destination, entry.port] += 1
    return ActiveConnections(dialled)
