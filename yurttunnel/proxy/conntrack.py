"""Deleting conntrack entries, so that flows follow the current rules.

The conntrack table keeps the translation of a flow's first packet, or that there was none, as long
as more packets of the flow come, even when the rules change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial
from ipaddress import ip_address

from pyroute2.netlink import NETLINK_NETFILTER, NETLINK_ROUTE
from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from yurttunnel.proxy.interfaces import IConntrack, StaleFlows
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol
from yurttunnel.steering.netlink.conversation import Conversation
from yurttunnel.steering.netlink.flow_table import Entry, FlowTable, own_addresses
from yurttunnel.steering.netlink.flows import MEANINGS
from yurttunnel.steering.netlink.refusals import as_steering_failed
from yurttunnel.steering.netlink.worker import Run

_LOOPBACK_4 = 127
"""The first byte of this machine's addresses that belong to no interface."""

_Meant = tuple[bytes | None, int]
"""A portal: its packed address and its port."""

_End = tuple[bytes, int]
"""An endpoint in the same form."""


@implementer(IConntrack)
class Conntrack:
    """The conntrack table of this network namespace; ``run`` runs blocking calls to the kernel."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def forget(self, version: int, stale: Collection[StaleFlows]) -> Deferred[int]:
        """See :class:`IConntrack`; flows that end in the meantime are not counted."""
        if not stale:
            return succeed(0)
        return self._run(partial(_forget, version, frozenset(stale)))


def _forget(version: int, stale: Collection[StaleFlows]) -> int:
    with (
        as_steering_failed("cannot have flows of before the change forgotten", MEANINGS),
        Conversation(NETLINK_ROUTE) as routes,
        Conversation(NETLINK_NETFILTER) as firewall,
    ):
        own = own_addresses(routes, version)
        table = FlowTable(firewall)
        forgotten = 0
        for protocol in {each.protocol for each in stale}:
            its = [each for each in stale if each.protocol is protocol]
            is_stale = _judge(its, own)
            ports = {each.port for each in its}
            entries = (
                table.begun(version, ports)
                if protocol is Protocol.TCP
                else table.to_ports(version, protocol.number, ports)
            )
            # Read the list to its end first: a netlink conversation handles one request at a time.
            found = [entry for entry in entries if is_stale(entry)]
            forgotten += table.delete(version, found)
        return forgotten


def _judge(stale: Collection[StaleFlows], own: Collection[bytes]) -> Callable[[Entry], bool]:
    """Return a predicate for entries that belong to one of the ``stale`` flows."""
    # By portal. The endpoint is ``None`` for all endpoints. ``but`` has the endpoints whose flows
    # continue.
    answers: dict[_Meant, set[_End | None]] = defaultdict(set)
    but: dict[_Meant, list[frozenset[_End]]] = defaultdict(list)
    for each in stale:
        meant = None if each.address is None else ip_address(each.address).packed, each.port
        if each.kept:
            but[meant].append(frozenset(map(_end, each.kept)))
        else:
            answers[meant].add(None if each.endpoint is None else _end(each.endpoint))

    def matches(address: bytes | None, entry: Entry) -> bool:
        meant, end = (address, entry.port), (entry.answering, entry.answering_port)
        ends = answers.get(meant, ())
        return None in ends or end in ends or any(end not in kept for kept in but.get(meant, ()))

    def is_stale(entry: Entry) -> bool:
        if entry.is_begun and entry.is_translated:
            # An endpoint is about to answer this attempt.
            return False
        if matches(entry.destination, entry):
            return True
        # Node ports are at addresses of this machine: flows to the same port elsewhere are not
        # redirected.
        there = entry.destination
        here = there in own or (len(there) == 4 and there[0] == _LOOPBACK_4)
        return here and matches(None, entry)

    return is_stale


def _end(endpoint: Endpoint) -> _End:
    return endpoint.address.packed, endpoint.port
