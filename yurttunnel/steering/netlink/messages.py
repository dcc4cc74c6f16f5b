"""The format of netlink messages: a header, and attributes that may be nested (RFC 3549)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

HEADER = struct.Struct("=IHHII")
"""``struct nlmsghdr``: length including the header, kind, flags, sequence number, port."""

_ATTRIBUTE = struct.Struct("=HH")
"""``struct nlattr``: length including this header, kind."""

_KIND_MASK = 0x3FFF
"""The other two bits mean that an attribute is nested, and the byte order of its content."""

NESTED = 0x8000
"""``NLA_F_NESTED``."""


def request(message: Any, kind: int, flags: int, more: bytes = b"") -> bytes:
    """Encode a message of pyroute2, and append ``more`` attributes, which are already encoded."""
    message["header"]["type"] = kind
    message["header"]["flags"] = flags
    message.encode()
    return raw_request(bytes(message.data[HEADER.size :]) + more, kind, flags)


def raw_request(body: bytes, kind: int, flags: int) -> bytes:
    """Prepend a header to a message's body."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, 0, 0) + body


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
