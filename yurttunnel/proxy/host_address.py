"""The address of this machine to which its own packets for Services are redirected."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address

from yurttunnel.proxy.state.virtual_services import Address

HostAddress = Callable[[int], Address | None]
"""Returns this address for a version of IP; ``None`` if there is none."""

_DISTANT = {4: (socket.AF_INET, "192.0.2.1"), 6: (socket.AF_INET6, "2001:db8::1")}
"""Addresses that no machine has (RFC 5737, RFC 3849), so the default route leads to them."""

_DISCARD = 9


def no_address(version: int) -> None:
    """Return ``None``, for a proxy that uses loopback addresses only."""


def host_address(version: int) -> Address | None:
    """Return the source address of the default route's interface.

    It asks the kernel by connecting a UDP socket, which sends nothing and does not block. Return
    ``None`` if there is no default route, or if its address is not reachable by others.
    """
    family, distant = _DISTANT[version]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((distant, _DISCARD))
            found: Address = ip_address(probe.getsockname()[0].partition("%")[0])
    except OSError:
        return None
    return None if found.is_loopback or found.is_link_local or found.is_unspecified else found
