"""Which connections the kernel carries at the moment, by what their clients have dialled.

Its table is read for that: rules see how connections begin, and not how they end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping

from pyroute2.netlink import NETLINK_NETFILTER, NETLINK_ROUTE

from yurttunnel.proxy.kernel.connections import MEANINGS
from yurttunnel.proxy.state.virtual_services import VirtualService
from yurttunnel.steering.netlink.conversation import Conversation
from yurttunnel.steering.netlink.flow_table import FlowTable, own_addresses
from yurttunnel.steering.netlink.refusals import as_steering_failed

MOST_SECONDS = 0.25
"""How long the table is read, which is some 20,000 entries. Whatever else waits for the kernel
waits for that, too: attempts at dead endpoints have to be forgotten within half a second."""

Dialled = tuple[int, bytes, int]
"""A protocol by its number, a packed address, and a port."""


class ActiveConnections:
    """How many there are, by the destinations that were ``dialled``.

    ``own`` are the addresses of this machine, packed, at which node ports are.
    """

    def __init__(self, dialled: Mapping[Dialled, int], own: Collection[bytes]) -> None:
        self._dialled = dialled
        self._by_port: Counter[tuple[int, int, int]] = Counter()
        for (protocol, address, port), count in dialled.items():
            if address in own:
                self._by_port[protocol, len(address), port] += count

    def of(self, service: VirtualService) -> int:
        """Return those to the portals of a service, also where a sibling's endpoints serve them."""
        protocol, length = service.key.protocol.number, 4 if service.key.version == 4 else 16
        return sum(
            self._by_port[protocol, length, portal.port]
            if portal.address is None
            else self._dialled.get((protocol, portal.address.packed, portal.port), 0)
            for portal in service.portals
        )


def active_connections(versions: Collection[int]) -> ActiveConnections | None:
    """Return those in the table of the network namespace of the thread that asks.

    A connection by UDP is there for as long as it may be answered. ``None`` where the table is so
    large that reading takes longer than :data:`MOST_SECONDS`. Raises
    :class:`~yurttunnel.steering.failures.SteeringFailed`.
    """
    until = time.monotonic() + MOST_SECONDS
    dialled: Counter[Dialled] = Counter()
    own: set[bytes] = set()
    with (
        as_steering_failed("cannot read this machine's addresses", {}),
        Conversation(NETLINK_ROUTE) as routes,
    ):
        for version in versions:
            own |= own_addresses(routes, version)
    with (
        as_steering_failed("cannot read the table of connections", MEANINGS),
        Conversation(NETLINK_NETFILTER) as kernel,
    ):
        for version in versions:
            for entry in FlowTable(kernel).translated(version):
                if entry.is_translated and not entry.is_over:
                    dialled[entry.protocol, entry.destination, entry.port] += 1
                if time.monotonic() > until:
                    return None
    # The kernel may have been looking for long, and found few.
    return None if time.monotonic() > until else ActiveConnections(dialled, own)
