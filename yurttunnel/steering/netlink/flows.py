"""Cutting connections that were begun under other firewall rules than those of now.

To forget a connection (conntrack) is not enough for those of this machine's own programs. When the
next packet comes from the far end, the kernel takes that for the first one, asks no rule that is
ours, and the connection goes on as it was: so it is with a log that is followed. A socket that is
destroyed resets both ends at once.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from pyroute2.netlink import NETLINK_NETFILTER, NETLINK_ROUTE
from twisted.internet.defer import Deferred
from zope.interface import implementer

from yurttunnel.steering.interception import Address, Target
from yurttunnel.steering.interfaces import Flow, IFlows
from yurttunnel.steering.marks import MARK, MASK
from yurttunnel.steering.netlink.conversation import CHANGE, GET, Conversation, KernelRefused
from yurttunnel.steering.netlink.flow_table import Entry, FlowTable, own_addresses
from yurttunnel.steering.netlink.messages import attributes, raw_request
from yurttunnel.steering.netlink.refusals import as_steering_failed
from yurttunnel.steering.netlink.worker import Run

NETLINK_SOCK_DIAG = 4
"""Of ``linux/netlink.h``."""

_BY_FAMILY, _DESTROY = 20, 21
"""Of ``linux/sock_diag.h``."""

_MARK = 15
"""``INET_DIAG_MARK`` of ``linux/inet_diag.h``; told to those with CAP_NET_ADMIN."""

_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_NO_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ANSWER_SIZE = 72
"""Of ``struct inet_diag_msg``; attributes follow it."""

_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of a connection, its beginning first; addresses are as packets have them."""

    source: bytes
    source_port: int
    destination: bytes
    port: int


def destroy(conversation: Conversation, version: int, ends: Ends) -> None:
    """End the socket that a connection was begun with, unless it is marked as the server's own.

    There is none for a connection that only passes through this machine. A kernel that destroys
    no sockets (CONFIG_INET_DIAG_DESTROY) leaves it: then forgetting has to do.
    """
    desired = _REQUEST.pack(_FAMILIES[version], socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    desired += _PORTS.pack(ends.source_port, ends.port)
    desired += ends.source.ljust(16, b"\0") + ends.destination.ljust(16, b"\0")
    desired += _NO_INTERFACE_NO_COOKIE
    try:
        found = conversation.get(raw_request(desired, _BY_FAMILY, GET))
    except KernelRefused:
        return
    mark = dict(attributes(found, _ANSWER_SIZE)).get(_MARK, b"")
    if int.from_bytes(mark, sys.byteorder) & MASK != MARK:
        conversation.change_all([raw_request(desired, _DESTROY, CHANGE)])


_LACKING = (
    "this kernel does not give its table of connections (module nf_conntrack_netlink); load it, "
    "else connections from before a change go on as they were"
)
MEANINGS = {errno.EINVAL: _LACKING}
"""What the kernel's refusals mean where its table is asked for."""


@implementer(IFlows)
class Flows:
    """The connections that the kernel tracks in this network namespace.

    ``run`` is where the kernel is waited for, and where ``is_wrong`` is called: in another thread
    than the reactor's. So that must look at nothing that changes.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def cut(
        self, version: int, ports: Collection[int], is_wrong: Callable[[Flow], bool]
    ) -> Deferred[int]:
        """See :class:`IFlows`; a connection that ends meanwhile is not counted."""
        return self._run(partial(_cut, version, tuple(ports), is_wrong))


def _cut(version: int, ports: Collection[int], is_wrong: Callable[[Flow], bool]) -> int:
    with (
        as_steering_failed("cannot cut connections from before the change", MEANINGS),
        Conversation(NETLINK_ROUTE) as routes,
        Conversation(NETLINK_NETFILTER) as firewall,
        Conversation(NETLINK_SOCK_DIAG) as sockets,
    ):
        own = own_addresses(routes, version)
        table = FlowTable(firewall)
        # The list is read to its end first: a conversation is about one thing at a time.
        wrong = list(_wrong(table.to_ports(version, socket.IPPROTO_TCP, ports), own, is_wrong))
        # While it is known which are the other ends.
        for entry in wrong:
            ends = Ends(entry.source, entry.source_port, entry.destination, entry.port)
            destroy(sockets, version, ends)
        return table.delete(version, wrong)


def _wrong(
    entries: Iterator[Entry], own: frozenset[bytes], is_wrong: Callable[[Flow], bool]
) -> Iterator[Entry]:
    addresses: dict[bytes, Address] = {}

    def is_own(packed: bytes) -> bool:
        return packed in own or address(packed).is_loopback

    def address(packed: bytes) -> Address:
        # Few addresses have many connections, and making one takes as long as all else.
        if packed not in addresses:
            addresses[packed] = ipaddress.ip_address(packed)
        return addresses[packed]

    for entry in entries:
        flow = Flow(
            destination=address(entry.destination),
            port=entry.port,
            answers=Target(address(entry.answering), entry.answering_port),
            local=is_own(entry.source),
            to_self=is_own(entry.destination),
        )
        if is_wrong(flow):
            yield entry
