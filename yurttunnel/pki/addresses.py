"""The addresses of this machine, as the kernel lists them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise
from pathlib import Path


def local_addresses(proc: Path = Path("/proc/net")) -> set[IPv4Address | IPv6Address]:
    """List the addresses of all interfaces, without link-local ones.

    They are read from ``fib_trie`` and ``if_inet6`` (proc(5)); a family that the kernel does
    not have contributes none.
    """
    found: set[IPv4Address | IPv6Address] = set(_ipv4_addresses(_lines(proc / "fib_trie")))
    for line in _lines(proc / "if_inet6"):
        found.add(IPv6Address(int(line.split()[0], 16)))
    return {address for address in found if not address.is_link_local}


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
