"""The addresses of this machine, and where to listen when nobody has said."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise
from pathlib import Path

from yurttunnel.http.authority import Address

_PROC = Path("/proc/net")


def own_addresses(proc: Path = _PROC) -> set[Address]:
    """List the addresses of all interfaces, without link-local ones.

    They are read from ``fib_trie`` and ``if_inet6`` (proc(5)); a family that the kernel does
    not have contributes none.
    """
    found: set[Address] = set(_ipv4_addresses(_lines(proc / "fib_trie")))
    for line in _lines(proc / "if_inet6"):
        found.add(IPv6Address(int(line.split()[0], 16)))
    return {address for address in found if not address.is_link_local}


def every_address(proc: Path = _PROC) -> str:
    """Return the address to listen on for everybody: of IPv6 where others have no IPv4 here.

    The one of IPv6 takes in connections by IPv4, too, when addresses of that come later.
    """
    versions = {address.version for address in own_addresses(proc) if not address.is_loopback}
    return "::" if versions == {6} else "0.0.0.0"


def loopback_address(proc: Path = _PROC) -> str:
    """Return the address to listen on for this machine alone."""
    loopback = {str(address) for address in own_addresses(proc) if address.is_loopback}
    return "::1" if loopback == {"::1"} else "127.0.0.1"


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
