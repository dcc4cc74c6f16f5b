"""How the programs of iptables spell what rules are made of."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network


def address(packed: bytes) -> str:
    """Spell an address as the C library does; for thousands it is quicker than Python, too."""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def network(of: IPv4Network | IPv6Network) -> str:
    """Spell a network."""
    return f"{address(of.network_address.packed)}/{of.prefixlen}"


def comment(text: str) -> str:
    """Spell the comment of a rule; ``text`` has no quotes."""
    return f'-m comment --comment "{text}"'


def lead(to: IPv4Address | IPv6Address | None, port: int) -> str:
    """Spell the target that leads to ``port``: of ``to``, or of the interface that it came by."""
    if to is None:
        return f"-j REDIRECT --to-ports {port}"
    host = address(to.packed)
    if to.version == 6:
        host = f"[{host}]"
    return f"-j DNAT --to-destination {host}:{port}"
