"""The PROXY protocol: a header that gives an endpoint the client's address."""

from __future__ import annotations

import socket
import struct

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_VERSION_2_PROXY = 0x21
_TCP_OVER_IPV4, _TCP_OVER_IPV6 = 0x11, 0x21


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
