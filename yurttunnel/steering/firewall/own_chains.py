"""The chains of one program, among all those of the kernel, and the spelling of their rules."""

from __future__ import annotations

import socket
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from yurttunnel.ops.slices import at_once

_BLOCK_BYTES = 16 * 1024
"""The size of the blocks of lines that are searched for the names of our chains; searching a block
is much faster than searching each of its lines."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Our chains in one table, each with its rules in order, and the jumps to them.

    ``jumps`` are rules of the kernel's chains that precede all others there, and ``last_jumps``
    those that follow them. A rule is what follows the name of the chain in the output of
    ``iptables-save``.
    """

    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    jumps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    last_jumps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChainOwner:
    """Which chains are ours, and how to fix errors.

    They have the ``names``, or begin with one of these and ``-``, in any of ``tables``, which are
    changed in this order. There are fixes for three errors: the programs are not installed, they
    cannot show a table because another program owns it, or they lack permissions.
    """

    names: tuple[str, ...]
    tables: tuple[str, ...]
    install_advice: str
    unreadable_advice: str
    permission_advice: str

    def owns(self, chain: str) -> bool:
        """Return whether this program, or an earlier version, may have created a chain."""
        return any(chain == name or chain.startswith(f"{name}-") for name in self.names)

    def lines(self, text: bytes) -> list[bytes]:
        """Return the lines of ``iptables-save`` that may be about our chains.

        This is fast, because there may be 100,000 others.
        """
        return at_once(self.find_lines(text))

    def find_lines(self, text: bytes) -> Generator[str, None, list[bytes]]:
        """Return :meth:`lines`; it yields between slices of work
        (:func:`yurttunnel.ops.slices.visit`).
        """
        marks = [name.encode() for name in self.names]
        found: list[bytes] = []
        start = 0
        while start < len(text):
            end = text.find(b"\n", start + _BLOCK_BYTES)
            block = text[start : end if end >= 0 else len(text)]
            start += len(block) + 1
            if any(mark in block for mark in marks):
                found += (
                    line for line in block.split(b"\n") if any(mark in line for mark in marks)
                )
            yield ""
        return found


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
