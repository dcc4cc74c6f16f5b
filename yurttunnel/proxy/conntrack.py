"""Having the kernel forget where it leads flows.

Its table of connections keeps the translation of a flow's first packet for as long as more of them
come, whatever becomes of the rules; or that there was none.
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
"""The first byte of the addresses that are this machine's without being those of an interface."""


@implementer(IConntrack)
class Conntrack:
    """The table of this network namespace; ``run`` is where the kernel is waited for."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def forget(self, version: int, stale: Collection[StaleFlows]) -> Deferred[int]:
        """See :class:`IConntrack`; a flow that ends meanwhile is not counted."""
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
            # The list is read to its end first: a conversation is about one thing at a time.
            found = [entry for entry in entries if is_stale(entry)]
            forgotten += table.delete(version, found)
        return forgotten


def _judge(stale: Collection[StaleFlows], own: Collection[bytes]) -> Callable[[Entry], bool]:
    """Return what tells of an entry whether it is one of those that are ``stale``."""
    # By where they are meant for; the answering end is ``None`` for whichever.
    answers: dict[tuple[bytes | None, int], set[tuple[bytes, int] | None]] = defaultdict(set)
    for each in stale:
        packed = None if each.address is None else ip_address(each.address).packed
        answers[packed, each.port].add(_end(each.endpoint))

    def matches(meant: bytes | None, entry: Entry) -> bool:
        ends = answers.get((meant, entry.port), ())
        return None in ends or (entry.answering, entry.answering_port) in ends

    def is_stale(entry: Entry) -> bool:
        if entry.is_begun and entry.is_translated:
            # An endpoint is about to answer that.
            return False
        if matches(entry.destination, entry):
            return True
        # A node port is one of this machine's: who goes on to the same port elsewhere is not led.
        there = entry.destination
        here = there in own or (len(there) == 4 and there[0] == _LOOPBACK_4)
        return here and matches(None, entry)

    return is_stale


def _end(endpoint: Endpoint | None) -> tuple[bytes, int] | None:
    return None if endpoint is None else (endpoint.address.packed, endpoint.port)
