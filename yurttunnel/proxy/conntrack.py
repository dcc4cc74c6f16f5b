"""Deleting conntrack entries, so that flows follow the current rules.

The conntrack table keeps the translation of a flow's first packet, or that there was none, as long
as more packets of the flow come, even when the rules change.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial
from itertools import chain

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from yurttunnel.proxy.interfaces import IConntrack, StaleFlows
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol
from yurttunnel.steering.netlink.conntrack_table import (
    ConntrackEntry,
    ConntrackTable,
    own_addresses,
)
from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.flows import ERROR_TEXTS
from yurttunnel.steering.netlink.netlink_socket import (
    NETLINK_NETFILTER,
    NETLINK_ROUTE,
    NetlinkSocket,
)
from yurttunnel.steering.netlink.worker import Run

_LOOPBACK_4 = 127
"""The first byte of this machine's addresses that belong to no interface."""

_PortalAddress = tuple[bytes | None, int]
"""A portal: its packed address and its port."""

_EndpointAddress = tuple[bytes, int]
"""An endpoint in the same form."""


@implementer(IConntrack)
class Conntrack:
    """The conntrack table of this network namespace; ``run`` runs blocking calls to the kernel."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def delete_entries(self, version: int, stale: Collection[StaleFlows]) -> Deferred[int]:
        """See :class:`IConntrack`; flows that end in the meantime are not counted."""
        if not stale:
            return succeed(0)
        return self._run(partial(_delete_entries, version, frozenset(stale)))


def _delete_entries(version: int, stale: Collection[StaleFlows]) -> int:
    with (
        as_steering_failed("cannot delete the conntrack entries of previous flows", ERROR_TEXTS),
        NetlinkSocket(NETLINK_ROUTE) as routes,
        NetlinkSocket(NETLINK_NETFILTER) as firewall,
    ):
        own = own_addresses(routes, version)
        table = ConntrackTable(firewall)
        deleted = 0
        for protocol in {each.protocol for each in stale}:
            flows = [each for each in stale if each.protocol is protocol]
            is_stale = _stale_predicate(flows, own)
            ports = {each.port for each in flows}
            entries = (
                chain(table.syn_sent(version, ports), table.reset(version, ports))
                if protocol is Protocol.TCP
                else table.to_ports(version, protocol.number, ports, _destinations(flows))
            )
            # Read the list to its end first: a netlink socket handles one request at a time.
            found = [entry for entry in entries if is_stale(entry)]
            deleted += table.delete(version, found)
        return deleted


def _destinations(flows: Collection[StaleFlows]) -> set[bytes]:
    """Return the addresses of all portals, none if one of them is a node port."""
    found: set[bytes] = set()
    for each in flows:
        if each.address is None:
            # A node port is at many addresses.
            return set()
        found.add(_packed_text(each.address))
    return found


def _stale_predicate(
    stale: Collection[StaleFlows], own: Collection[bytes]
) -> Callable[[ConntrackEntry], bool]:
    """Return a predicate for entries that belong to one of the ``stale`` flows."""
    # By portal. The endpoint is ``None`` for all endpoints. ``excluded`` has the endpoints whose
    # flows continue.
    stale_endpoints: dict[_PortalAddress, set[_EndpointAddress | None]] = defaultdict(set)
    excluded: dict[_PortalAddress, list[frozenset[_EndpointAddress]]] = defaultdict(list)
    for each in stale:
        portal = None if each.address is None else _packed_text(each.address), each.port
        if each.excluded:
            excluded[portal].append(frozenset(map(_packed, each.excluded)))
        else:
            stale_endpoints[portal].add(None if each.endpoint is None else _packed(each.endpoint))

    def matches(address: bytes | None, entry: ConntrackEntry) -> bool:
        portal, endpoint = (address, entry.port), (entry.reply_source, entry.reply_port)
        stale_ends = stale_endpoints.get(portal, ())
        return (
            None in stale_ends
            or endpoint in stale_ends
            or any(endpoint not in remaining for remaining in excluded.get(portal, ()))
        )

    def is_stale(entry: ConntrackEntry) -> bool:
        if entry.is_syn_sent and entry.is_translated:
            # An endpoint is about to answer this attempt.
            return False
        if matches(entry.destination, entry):
            return True
        # Node ports are at addresses of this machine: flows to the same port elsewhere are not
        # redirected.
        destination = entry.destination
        is_local = destination in own or (len(destination) == 4 and destination[0] == _LOOPBACK_4)
        return is_local and matches(None, entry)

    return is_stale


def _packed_text(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def _packed(endpoint: Endpoint) -> _EndpointAddress:
    return endpoint.address.packed, endpoint.port
