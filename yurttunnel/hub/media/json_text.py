"""JSON text: white space, strings, and decoding errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from yurttunnel.kube.protobuf_fields import BadBody

SPACE: Final = b" \t\r\n"
"""The white space between tokens (RFC 8259 section 2)."""

STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*"'
"""A pattern for a string, with ``re.DOTALL``.

Groups are repeated greedily, here and in other patterns: before 3.11.5 (Debian 12 has 3.11.2)
Python finds a wrong end for a possessive repeat of a group, ``(...)*+``, whose last attempt matches
in part (https://github.com/python/cpython/issues/100061).
"""

NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of decoders for invalid JSON, excessive nesting, or values of other types."""

Decoded = TypeVar("Decoded")


def spaced(pattern: bytes) -> bytes:
    """Return a pattern in which each ``_`` is replaced with optional white space."""
    return pattern.replace(b"_", b"[ \t\r\n]*+")


def checked(decode: Callable[[bytes], Decoded], text: bytes) -> Decoded:
    """Decode ``text``; raise :class:`BadBody`."""
    try:
        return decode(text)
    except NOT_JSON as error:
        raise BadBody(" ".join(str(error).split())[:200]) from None


def text_form(text: str) -> bytes:
    """Return a string in JSON."""
    return msgspec.json.encode(text)
