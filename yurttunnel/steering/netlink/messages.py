"""The format of netlink messages: a header, and attributes that may be nested (RFC 3549).

Messages are encoded and parsed here: importing pyroute2 would take 10 MiB and 0.2 s, and its
classes a quarter of a millisecond for each connection, with the interpreter's lock held.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

HEADER = struct.Struct("=IHHII")
"""``struct nlmsghdr``: length including the header, kind, flags, sequence number, port."""

_ATTRIBUTE = struct.Struct("=HH")
"""``struct nlattr``: length including this header, kind."""

_KIND_MASK = 0x3FFF
"""The other two bits mean that an attribute is nested, and the byte order of its content."""

NESTED = 0x8000
"""``NLA_F_NESTED``."""

FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
"""The address families by the version of IP."""

_NETFILTER_HEADER = struct.Struct("!BBH")
"""``struct nfgenmsg``, which precedes the attributes: family, version, resource."""


def raw_request(body: bytes, kind: int, flags: int) -> bytes:
    """Prepend a header to a message's body."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, 0, 0) + body


def netfilter_request(
    subsystem: int,
    command: int,
    flags: int,
    content: bytes = b"",
    family: int = socket.AF_UNSPEC,
    resource: int = 0,
) -> bytes:
    """Encode a message to a subsystem of netfilter; ``content`` are its attributes."""
    body = _NETFILTER_HEADER.pack(family, 0, resource) + content
    return raw_request(body, subsystem << 8 | command, flags)


def netfilter_attributes(body: bytes) -> dict[int, bytes]:
    """Return the attributes of a message from netfilter, by kind."""
    return dict(attributes(body, _NETFILTER_HEADER.size))


def text(of: str) -> bytes:
    """Return a text in the format of attributes."""
    return of.encode() + b"\0"


def number(of: int) -> bytes:
    """Return a number in the format of attributes of netfilter."""
    return struct.pack("!I", of)


def attribute(kind: int, content: bytes) -> bytes:
    """Encode an attribute; the next one starts at a multiple of four bytes."""
    return (
        _ATTRIBUTE.pack(_ATTRIBUTE.size + len(content), kind)
        + content
        + b"\0" * (-len(content) % 4)
    )


def attributes(content: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the content of each attribute in ``content``, from ``start`` on."""
    end = len(content)
    while start + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(content, start)
        if length < _ATTRIBUTE.size:
            raise ValueError(f"a netlink attribute says that it is {length} bytes long")
        yield kind & _KIND_MASK, content[start + _ATTRIBUTE.size : start + length]
        start += (length + 3) & ~3
