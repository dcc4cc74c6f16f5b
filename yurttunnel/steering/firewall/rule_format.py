"""The spelling of rules in the iptables programs."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network


def address(packed: bytes) -> str:
    """Format an address as the C library does; for thousands this is faster than Python's, too."""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def network(of: IPv4Network | IPv6Network) -> str:
    """Format a network."""
    return f"{address(of.network_address.packed)}/{of.prefixlen}"


def comment(text: str) -> str:
    """Format the comment of a rule; ``text`` contains no quotes."""
    return f'-m comment --comment "{text}"'


def redirect_target(to: IPv4Address | IPv6Address | None, port: int) -> str:
    """Format the target that redirects to ``port``, at ``to`` or at the incoming interface."""
    if to is None:
        return f"-j REDIRECT --to-ports {port}"
    host = address(to.packed)
    if to.version == 6:
        host = f"[{host}]"
    return f"-j DNAT --to-destination {host}:{port}"
