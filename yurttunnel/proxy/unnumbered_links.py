"""Links with routes but without an address, as some pod networks have them (Calico, Canal).

Packets from such a link cannot be redirected, because that requires an address of the link: the
kernel drops them with IPv4; with IPv6 it uses the link-local address, from which no reply reaches
the client (``net/netfilter/nf_nat_redirect.c``).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator

from yurttunnel.proxy.host_address import HostAddress
from yurttunnel.proxy.state.virtual_services import Address, NodeFacts
from yurttunnel.steering.firewall.detection import PROC_NET
from yurttunnel.steering.interfaces import VERSIONS
from yurttunnel.steering.netlink.conntrack_table import links_with_addresses
from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.netlink_socket import NETLINK_ROUTE, NetlinkSocket

_IGNORED_LINKS = ("lo", "*")
"""The links of routes that lead to this machine, and nowhere."""

_PER_LINK_PREFIXES = (b"fe8", b"ff")
"""The first digits of the destinations of IPv6 routes that every link has."""


def unnumbered_versions() -> frozenset[int]:
    """Return the versions of IP for which this network namespace has such links.

    Raises :class:`~yurttunnel.steering.failures.SteeringFailed`.
    """
    with (
        as_steering_failed("cannot read the addresses of this machine", {}),
        NetlinkSocket(NETLINK_ROUTE) as routes,
    ):
        numbered = {
            version: frozenset(_names(links_with_addresses(routes, version)))
            for version in VERSIONS
        }
        return frozenset(
            version
            for version in VERSIONS
            if any(link not in numbered[version] for link in _routed_links(version))
        )


def address_for_all(facts: NodeFacts, host: HostAddress, version: int) -> Address | None:
    """Return the address of this machine to which clients from all links are redirected, ``host``
    or another one; ``None`` if each link uses its own.
    """
    if version not in facts.unnumbered:
        return None
    # A node without connectivity may have no default route, and so no ``host``.
    usable = (
        each
        for each in facts.addresses
        if each.version == version and not (each.is_loopback or each.is_link_local)
    )
    return host(version) or min(usable, key=int, default=None)


def _names(links: Iterable[int]) -> Iterator[str]:
    """Yield the names of the links that still exist."""
    for link in links:
        # Few links have addresses. A list of all links blocks all Python threads while the kernel
        # makes it, 50 ms for a thousand pods, and longer while others are added and removed.
        with contextlib.suppress(OSError):
            yield socket.if_indextoname(link)


def _routed_links(version: int) -> Iterator[str]:
    """Yield the links of routes (proc(5))."""
    try:
        lines = (PROC_NET / ("route" if version == 4 else "ipv6_route")).read_bytes().splitlines()
    except FileNotFoundError:
        # The kernel does not support this family.
        return
    for line in lines[1:] if version == 4 else lines:
        fields = line.split()
        # A name may contain any bytes except white space.
        link = os.fsdecode(fields[0 if version == 4 else -1])
        if link not in _IGNORED_LINKS and (
            version == 4 or not fields[0].startswith(_PER_LINK_PREFIXES)
        ):
            yield link
