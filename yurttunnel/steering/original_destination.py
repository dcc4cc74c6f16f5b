"""The destination of a connection before the kernel redirected it to this machine or port.

The kernel's connection table (netfilter's conntrack) has it, and a socket option returns it.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from ipaddress import ip_address

from yurttunnel.http.authority import Address, canonical_address, join_authority

SO_ORIGINAL_DST = 80
"""From linux/netfilter_ipv4.h; ``IP6T_SO_ORIGINAL_DST`` of linux/netfilter_ipv6/ip6_tables.h has
the same value."""

_SOCKADDR_IN = struct.Struct("!2xH4s8x")
"""Port and address (ip(7)), after the family."""

_SOCKADDR_IN6 = struct.Struct("!2xH4x16s4x")
"""Port and address (ipv6(7)), after the family; flow and scope surround the address."""


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """One end of a TCP connection; an IPv4 address is IPv4 whatever family the socket has."""

    address: Address
    port: int

    def __str__(self) -> str:
        """Return address and port in readable form."""
        return join_authority(str(self.address), self.port)


def original_destination(connection: socket.socket) -> SocketAddress | None:
    """Return the address and port to which the peer of an accepted TCP connection connected.

    A listener on ``::`` also accepts IPv4; for such connections this is the IPv4 address. ``None``
    if the kernel does not track the connection.
    """
    if own_address(connection).address.version == 4:
        level, layout = socket.IPPROTO_IP, _SOCKADDR_IN
    else:
        level, layout = socket.IPPROTO_IPV6, _SOCKADDR_IN6
    try:
        port, address = layout.unpack(connection.getsockopt(level, SO_ORIGINAL_DST, layout.size))
    except OSError:
        # ENOENT if this connection is not tracked, ENOPROTOOPT if the kernel tracks none.
        return None
    return SocketAddress(ip_address(address), port)


def redirect_source(connection: socket.socket) -> SocketAddress | None:
    """Return the original destination if the kernel has redirected the connection here.

    ``None`` if the peer connected to this address and port itself, as far as the kernel knows.
    """
    original = original_destination(connection)
    return None if original == own_address(connection) else original


def own_address(connection: socket.socket) -> SocketAddress:
    """Return the address and port of this end of a connection."""
    host, port = connection.getsockname()[:2]
    # The zone of a link-local address is not part of the address.
    address = ip_address(host.partition("%")[0])
    return SocketAddress(canonical_address(address), port)
