"""Links that lead somewhere and have no address, as some networks of pods are made (Calico, Canal).

What comes by such a link cannot be redirected, as that takes an address of the link: the kernel
drops it by IPv4, and by IPv6 gives it the link-local one, from which no datagram finds back
(``net/netfilter/nf_nat_redirect.c``).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator

from pyroute2.netlink import NETLINK_ROUTE

from yurttunnel.proxy.host_address import HostAddress
from yurttunnel.proxy.state.virtual_services import Address, NodeFacts
from yurttunnel.steering.firewall.detection import PROC_NET
from yurttunnel.steering.interfaces import VERSIONS
from yurttunnel.steering.netlink.conversation import Conversation
from yurttunnel.steering.netlink.flow_table import numbered_links
from yurttunnel.steering.netlink.refusals import as_steering_failed

_TO_NOBODY = ("lo", "*")
"""The links of routes that lead to this machine, and nowhere."""

_OF_EACH_LINK = (b"fe8", b"ff")
"""What the destinations begin with of the routes of IPv6 that any link has."""


def unnumbered_versions() -> frozenset[int]:
    """Return the versions of IP by which this network namespace has such links.

    Raises :class:`~yurttunnel.steering.failures.SteeringFailed`.
    """
    with (
        as_steering_failed("cannot ask for the addresses of this machine", {}),
        Conversation(NETLINK_ROUTE) as routes,
    ):
        numbered = {
            version: frozenset(_names(numbered_links(routes, version))) for version in VERSIONS
        }
    return frozenset(
        version
        for version in VERSIONS
        if any(link not in numbered[version] for link in _leading(version))
    )


def address_for_all(facts: NodeFacts, host: HostAddress, version: int) -> Address | None:
    """Return the address of this machine to which clients by any link are led, ``host`` or another
    one; ``None`` where each link has its own.
    """
    if version not in facts.unnumbered:
        return None
    # A node that is cut off may have no default route, and so no ``host``.
    its = (
        each
        for each in facts.addresses
        if each.version == version and not (each.is_loopback or each.is_link_local)
    )
    return host(version) or min(its, key=int, default=None)


def _names(links: Iterable[int]) -> Iterator[str]:
    """Yield the names of those that are still there."""
    for link in links:
        # Few links have addresses. Python makes all its threads wait for a list of all links, which
        # takes the kernel 50 ms for a thousand pods, and longer while others come and go.
        with contextlib.suppress(OSError):
            yield socket.if_indextoname(link)


def _leading(version: int) -> Iterator[str]:
    """Yield the links of routes (proc(5))."""
    try:
        lines = (PROC_NET / ("route" if version == 4 else "ipv6_route")).read_bytes().splitlines()
    except FileNotFoundError:
        # The kernel has not this family.
        return
    for line in lines[1:] if version == 4 else lines:
        fields = line.split()
        # A name may have any bytes but white space.
        link = os.fsdecode(fields[0 if version == 4 else -1])
        if link not in _TO_NOBODY and (version == 4 or not fields[0].startswith(_OF_EACH_LINK)):
            yield link
