"""The local address that a datagram was sent to, so that the reply has it as its source.

For a socket that is bound to the wildcard address, the kernel selects the source address by the
route. On an interface with several addresses, this may not be the one that a REDIRECT rule has
written into the datagram (the first), and then conntrack does not recognize the reply.
"""

from __future__ import annotations

import socket
import struct

# From linux/in.h and linux/in6.h.
_IP_PKTINFO = 8
_IPV6_RECVPKTINFO, _IPV6_PKTINFO = 49, 50

_INFO_4 = struct.Struct("=I4s4s")
"""Interface, local address, destination in the header: ``struct in_pktinfo``."""
_INFO_6 = struct.Struct("=16sI")
"""Destination, interface: ``struct in6_pktinfo``."""

SPACE = socket.CMSG_SPACE(_INFO_6.size)
"""The size of the ancillary data to request with each datagram."""

Ancillary = list[tuple[int, int, bytes]]


def enable_local_address(receiving: socket.socket) -> None:
    """Have the kernel report the local address of each datagram."""
    if receiving.family == socket.AF_INET6:
        receiving.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
    else:
        receiving.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)


def local_address(ancillary: Ancillary) -> bytes:
    """Return the local address of a datagram, packed."""
    for level, _, content in ancillary:
        return content[:16] if level == socket.IPPROTO_IPV6 else content[4:8]
    return b""


def from_local_address(packed: bytes) -> Ancillary:
    """Return the ancillary data that sets the source address; the route selects the interface."""
    if len(packed) == 16:
        return [(socket.IPPROTO_IPV6, _IPV6_PKTINFO, _INFO_6.pack(packed, 0))]
    return [(socket.IPPROTO_IP, _IP_PKTINFO, _INFO_4.pack(0, packed, bytes(4)))]
