"""The address of this machine to which its own packets to services are led."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address

from yurttunnel.proxy.state.virtual_services import Address

HostAddress = Callable[[int], Address | None]
"""Returns it by the version of IP; ``None`` where there is none."""

_FAR = {4: (socket.AF_INET, "192.0.2.1"), 6: (socket.AF_INET6, "2001:db8::1")}
"""Addresses of nobody (RFC 5737, RFC 3849), to which the default route leads."""

_DISCARD = 9


def no_address(version: int) -> None:
    """Return ``None``: for a proxy that has nothing but loopback addresses."""


def host_address(version: int) -> Address | None:
    """Return the address that the default route's interface sends from.

    The kernel is asked by connecting a UDP socket, which sends nothing and waits for nothing.
    ``None`` where there is no default route, or no address there that others could reach.
    """
    family, far = _FAR[version]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, _DISCARD))
            found: Address = ip_address(probe.getsockname()[0].partition("%")[0])
    except OSError:
        return None
    return None if found.is_loopback or found.is_link_local or found.is_unspecified else found
