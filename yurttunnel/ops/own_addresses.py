"""The addresses of this machine, and the defaults for addresses to listen on."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import pairwise
from pathlib import Path

from yurttunnel.http.authority import Address

_PROC = Path("/proc/net")

DOCUMENTATION_ADDRESSES: dict[int, Address] = {
    4: IPv4Address("192.0.2.1"),
    6: IPv6Address("2001:db8::1"),
}
"""By version of IP, an address for documentation, which no machine has (RFC 5737, RFC 3849)."""

_MAX_LISTED = 6
"""The maximum number of addresses in a message."""

_DISCARD = 9
"""The port of RFC 863."""


def own_addresses(proc: Path = _PROC) -> set[Address]:
    """Return the addresses of all interfaces, without link-local ones.

    They are read from ``fib_trie`` and ``if_inet6`` (proc(5)); an address family that the kernel
    lacks contributes none.
    """
    found: set[Address] = set(_ipv4_addresses(_lines(proc / "fib_trie")))
    for line in _lines(proc / "if_inet6"):
        found.add(IPv6Address(int(line.split()[0], 16)))
    return {address for address in found if not address.is_link_local}


def formatted_addresses(addresses: Iterable[Address]) -> str:
    """Format the first few addresses as a list for a message, loopback ones last."""
    own = sorted(addresses, key=lambda each: (each.is_loopback, each.version, int(each)))
    text = ", ".join(map(str, own[:_MAX_LISTED]))
    return f"{text} ..." if len(own) > _MAX_LISTED else text


def unspecified_address(proc: Path = _PROC) -> str:
    """Return the unspecified address: IPv6 if all addresses but loopback ones are IPv6, else IPv4.

    That of IPv6 also accepts connections over IPv4, if the machine gets such addresses later.
    """
    versions = {address.version for address in own_addresses(proc) if not address.is_loopback}
    return "::" if versions == {6} else "0.0.0.0"


def loopback_address(proc: Path = _PROC) -> str:
    """Return the loopback address to listen on."""
    loopback = {str(address) for address in own_addresses(proc) if address.is_loopback}
    return "::1" if loopback == {"::1"} else "127.0.0.1"


def source_address(destination: Address | None = None) -> Address | None:
    """Return the source address for connections to another machine, or ``None`` without a route.

    The kernel is asked, and nothing is sent. Without ``destination`` the default route counts.
    """
    for other in DOCUMENTATION_ADDRESSES.values() if destination is None else (destination,):
        family = socket.AF_INET if other.version == 4 else socket.AF_INET6
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(other), _DISCARD))
            return ip_address(probe.getsockname()[0])
    return None


def _ipv4_addresses(lines: list[str]) -> list[IPv4Address]:
    """Find each leaf of the trie (``|-- address``) that is followed by ``/32 host LOCAL``."""
    return [
        IPv4Address(leaf.split()[1])
        for leaf, following in pairwise(lines)
        if leaf.lstrip().startswith("|--") and following.strip() == "/32 host LOCAL"
    ]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").splitlines()
    except OSError:
        return []
