"""By which address this machine speaks to its own proxy sockets."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from yurttunnel.proxy.state.virtual_services import Address

_ELSEWHERE = {4: (socket.AF_INET, "192.0.2.1"), 6: (socket.AF_INET6, "2001:db8::1")}
"""Addresses of nobody (RFC 5737 and 3849), which the default route leads to."""


def host_address(version: int) -> Address | None:
    """Return the address from which this machine speaks by its default route.

    Loopback addresses serve no other machine's answers, so clients on this node are led there.
    ``None`` where there is no such route. Nothing is sent, and nothing is waited for.
    """
    family, elsewhere = _ELSEWHERE[version]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            found = ip_address(probe.getsockname()[0])
    except OSError:
        return None
    return None if found.is_unspecified or found.is_link_local else found
