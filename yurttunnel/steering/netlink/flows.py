"""Cutting connections that started under previous firewall rules.

For connections of this machine's own programs, it is not sufficient to delete the conntrack entry.
When the next packet arrives from the far end, the kernel treats it as the first one, applies none
of our rules, and the connection continues as it was; for example, a log that is followed.
Destroying the socket resets both ends at once.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterator
from functools import partial

from twisted.internet.defer import Deferred
from zope.interface import implementer

from yurttunnel.steering.interception import Address, Target
from yurttunnel.steering.interfaces import Flow, IFlows
from yurttunnel.steering.netlink.conntrack_table import (
    ConntrackEntry,
    ConntrackTable,
    own_addresses,
)
from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.netlink_socket import (
    NETLINK_NETFILTER,
    NETLINK_ROUTE,
    NetlinkSocket,
)
from yurttunnel.steering.netlink.sock_diag import NETLINK_SOCK_DIAG, destroy
from yurttunnel.steering.netlink.worker import Run

_NO_CONNTRACK = (
    "this kernel does not provide its connection table (module nf_conntrack_netlink); load it, or"
    " connections from before a change continue unchanged"
)
ERROR_TEXTS = {errno.EINVAL: _NO_CONNTRACK}
"""The meanings of the kernel's errors when the table is read."""


@implementer(IFlows)
class Flows:
    """The tracked connections of this network namespace.

    ``run`` runs blocking calls to the kernel, and calls ``is_wrong``, in a thread other than the
    reactor's. So ``is_wrong`` must not use anything that changes.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def cut(
        self, version: int, ports: Collection[int], is_wrong: Callable[[Flow], bool]
    ) -> Deferred[int]:
        """See :class:`IFlows`; connections that end in the meantime are not counted."""
        return self._run(partial(_cut, version, tuple(ports), is_wrong))


def _cut(version: int, ports: Collection[int], is_wrong: Callable[[Flow], bool]) -> int:
    with (
        as_steering_failed("cannot cut connections from before the change", ERROR_TEXTS),
        NetlinkSocket(NETLINK_ROUTE) as routes,
        NetlinkSocket(NETLINK_NETFILTER) as firewall,
        NetlinkSocket(NETLINK_SOCK_DIAG) as sockets,
    ):
        own = own_addresses(routes, version)
        table = ConntrackTable(firewall)
        # Read the list to its end first: a netlink socket handles one request at a time.
        wrong = list(_wrong(table.to_ports(version, socket.IPPROTO_TCP, ports), own, is_wrong))
        # Before the entries with the other ends are deleted.
        for entry in wrong:
            destroy(sockets, version, entry)
        return table.delete(version, wrong)


def _wrong(
    entries: Iterator[ConntrackEntry], own: frozenset[bytes], is_wrong: Callable[[Flow], bool]
) -> Iterator[ConntrackEntry]:
    addresses: dict[bytes, Address] = {}

    def is_own(packed: bytes) -> bool:
        return packed in own or address(packed).is_loopback

    def address(packed: bytes) -> Address:
        # Few addresses have many connections, and creating an object takes as long as everything
        # else.
        if packed not in addresses:
            addresses[packed] = ipaddress.ip_address(packed)
        return addresses[packed]

    for entry in entries:
        flow = Flow(
            destination=address(entry.destination),
            port=entry.port,
            responder=Target(address(entry.reply_source), entry.reply_port),
            local=is_own(entry.source),
            to_self=is_own(entry.destination),
        )
        if is_wrong(flow):
            yield entry
