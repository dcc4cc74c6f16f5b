"""The PROXY protocol: a header that gives an endpoint the client's address."""

from __future__ import annotations

import socket
import struct

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_VERSION_2_PROXY = 0x21
_TCP_OVER_IPV4, _TCP_OVER_IPV6 = 0x11, 0x21

_ORIGINAL_DESTINATION = 80
"""``SO_ORIGINAL_DST`` and ``IP6T_SO_ORIGINAL_DST`` of Linux, with which netfilter reports the
destination of a connection before a rule redirected it."""

_SOCKADDR_IN = struct.Struct("!2xH4s8x")
_SOCKADDR_IN6 = struct.Struct("!2xH4x16s4x")


def header(
    version: int, family: int, source: tuple[str, int], destination: tuple[str, int]
) -> bytes:
    """Return the header of ``version`` (1 or 2) for a TCP connection; addresses are text."""
    if version == 1:
        name = "TCP6" if family == socket.AF_INET6 else "TCP4"
        return (
            f"PROXY {name} {source[0]} {destination[0]} {source[1]} {destination[1]}\r\n".encode()
        )
    kind = _TCP_OVER_IPV6 if family == socket.AF_INET6 else _TCP_OVER_IPV4
    addresses = b"".join(socket.inet_pton(family, end[0]) for end in (source, destination))
    addresses += struct.pack("!HH", source[1], destination[1])
    return _SIGNATURE + struct.pack("!BBH", _VERSION_2_PROXY, kind, len(addresses)) + addresses


def original_destination(client: socket.socket) -> tuple[str, int]:
    """Return the portal that ``client`` has connected to; raises ``OSError``.

    If no rule has redirected it, this is the socket's own address.
    """
    is_ipv6 = client.family == socket.AF_INET6
    level, sockaddr = (
        (socket.IPPROTO_IPV6, _SOCKADDR_IN6) if is_ipv6 else (socket.IPPROTO_IP, _SOCKADDR_IN)
    )
    try:
        packed = client.getsockopt(level, _ORIGINAL_DESTINATION, sockaddr.size)
    except OSError:
        own = client.getsockname()
        return own[0], own[1]
    port, address = sockaddr.unpack(packed)
    return socket.inet_ntop(client.family, address), port
