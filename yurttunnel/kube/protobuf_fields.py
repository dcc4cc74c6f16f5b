"""The fields of protocol buffers, without schemas (protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED_64: Final = 1
BYTES: Final = 2
FIXED_32: Final = 5

MAX_VARINT: Final = 10
"""The maximum size of a varint in bytes."""

_FIXED: Final = {FIXED_64: 8, FIXED_32: 4}


class BadBody(Exception):
    """A body that is not valid for its media type; one line describes why."""


def tag(number: int) -> int:
    """Return the tag of a field of bytes, a string or a message."""
    return number << 3 | BYTES


def varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the varint at an offset, and the offset of its end.

    Raises :class:`IndexError` if the data end within it.
    """
    octet = data[at]
    if octet < 0x80:
        return octet, at + 1
    value = octet & 0x7F
    for position in range(1, MAX_VARINT):
        octet = data[at + position]
        value |= (octet & 0x7F) << 7 * position
        if octet < 0x80:
            return value, at + position + 1
    raise BadBody(f"a number has more than {MAX_VARINT} bytes")


def header(data: bytes | bytearray, at: int) -> tuple[int, int, int]:
    """Return a field's tag, and the offsets of the start and the end of its content.

    Raises :class:`IndexError` if the data end within its header.
    """
    field, begin = varint(data, at)
    if not 0 < field >> 3 < 1 << 29:
        raise BadBody(f"a field has the number {field >> 3}")
    match field & 7:
        case 2:
            length, begin = varint(data, begin)
            return field, begin, begin + length
        case 0:
            return field, begin, varint(data, begin)[1]
        case 1 | 5 as kind:
            return field, begin, begin + _FIXED[kind]
    raise BadBody(f"a field has the wire type {field & 7}")


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the tag of each field of a message, and the offsets of its content."""
    while at < end:
        # Fast path: nearly every header is two bytes, a tag of bytes and their length.
        field = data[at]
        if field & 0x87 == BYTES and field > 7 and at + 1 < end and (length := data[at + 1]) < 0x80:
            begin = at + 2
            at = begin + length
        else:
            try:
                field, begin, at = header(data, at)
            except IndexError:
                raise BadBody("a message ends within a field") from None
        if at > end:
            raise BadBody("a field is longer than its message")
        yield field, begin, at


def text(data: bytes, begin: int, end: int) -> str:
    """Return the string in a field."""
    try:
        return data[begin:end].decode()
    except UnicodeDecodeError:
        raise BadBody("a text is not UTF-8") from None


def encode_varint(value: int) -> bytes:
    """Encode a non-negative number as a varint."""
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def encode_bytes(number: int, content: bytes) -> bytes:
    """Encode a field of bytes, a string or a message."""
    return encode_varint(tag(number)) + encode_varint(len(content)) + content
