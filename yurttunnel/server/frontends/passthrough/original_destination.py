"""What a connection was meant for before the kernel led it to this machine, or to this port.

The kernel's table of connections knows (netfilter's conntrack), and tells by a socket option.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from ipaddress import ip_address

from yurttunnel.http.authority import Address, canonical_address, join_authority

SO_ORIGINAL_DST = 80
"""Of linux/netfilter_ipv4.h; ``IP6T_SO_ORIGINAL_DST`` of linux/netfilter_ipv6/ip6_tables.h is the
same."""

_SOCKADDR_IN = struct.Struct("!2xH4s8x")
"""Port and address (ip(7)); the family comes first."""

_SOCKADDR_IN6 = struct.Struct("!2xH4x16s4x")
"""Port and address (ipv6(7)); the family comes first, and flow and scope are around the address."""


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """One end of a TCP connection. IPv4 is IPv4, whatever family the socket has."""

    address: Address
    port: int

    def __str__(self) -> str:
        """Write address and port, for people."""
        return join_authority(str(self.address), self.port)


def original_destination(connection: socket.socket) -> SocketAddress | None:
    """Return the address and port that the peer of an accepted TCP connection asked for.

    A listener on ``::`` accepts IPv4 as well; of such connections it is the IPv4 address.
    ``None`` when the kernel does not track the connection.
    """
    if _own(connection).address.version == 4:
        level, layout = socket.IPPROTO_IP, _SOCKADDR_IN
    else:
        level, layout = socket.IPPROTO_IPV6, _SOCKADDR_IN6
    try:
        port, address = layout.unpack(connection.getsockopt(level, SO_ORIGINAL_DST, layout.size))
    except OSError:
        # ENOENT where this connection is not tracked, ENOPROTOOPT where none is.
        return None
    return SocketAddress(ip_address(address), port)


def led_here_from(connection: socket.socket) -> SocketAddress | None:
    """Return what the peer asked for when the kernel has led it here from there.

    ``None`` when the peer has asked for this very address and port, as far as the kernel knows.
    """
    asked = original_destination(connection)
    return None if asked == _own(connection) else asked


def _own(connection: socket.socket) -> SocketAddress:
    host, port = connection.getsockname()[:2]
    # A zone, as link-local addresses have it, is none of the address.
    address = ip_address(host.partition("%")[0])
    return SocketAddress(canonical_address(address), port)
