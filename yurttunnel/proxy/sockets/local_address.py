"""The address of this machine that a datagram came to, so that the reply leaves from there.

A socket that is bound to the wildcard address lets the kernel choose the source of what it sends,
by the route. Of an interface with several addresses that may be another one than the one that a
REDIRECT rule has put into the datagram (its first), and then conntrack does not know the reply.
"""

from __future__ import annotations

import socket
import struct

# Of linux/in.h and linux/in6.h.
_IP_PKTINFO = 8
_IPV6_RECVPKTINFO, _IPV6_PKTINFO = 49, 50

_INFO_4 = struct.Struct("=I4s4s")
"""Interface, local address, destination in the header: ``struct in_pktinfo``."""
_INFO_6 = struct.Struct("=16sI")
"""Destination, interface: ``struct in6_pktinfo``."""

SPACE = socket.CMSG_SPACE(_INFO_6.size)
"""Bytes to be asked for with each datagram."""

Ancillary = list[tuple[int, int, bytes]]


def ask_for_local_address(receiving: socket.socket) -> None:
    """Have the kernel tell of each datagram where it came to."""
    if receiving.family == socket.AF_INET6:
        receiving.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
    else:
        receiving.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)


def local_address(ancillary: Ancillary) -> bytes:
    """Return the address that a datagram came to, packed."""
    for level, _, content in ancillary:
        return content[:16] if level == socket.IPPROTO_IPV6 else content[4:8]
    return b""


def from_local_address(packed: bytes) -> Ancillary:
    """Return what has a datagram leave from an address; the interface is chosen by the route."""
    if len(packed) == 16:
        return [(socket.IPPROTO_IPV6, _IPV6_PKTINFO, _INFO_6.pack(packed, 0))]
    return [(socket.IPPROTO_IP, _IP_PKTINFO, _INFO_4.pack(0, packed, bytes(4)))]
