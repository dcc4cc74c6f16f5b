"""JSON as text: white space, and what is not JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from yurttunnel.kube.protobuf_fields import BadBody

SPACE: Final = b" \t\r\n"
"""What may stand between tokens (RFC 8259 section 2)."""

STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*"'
"""A pattern for a string, with ``re.DOTALL``.

Groups are repeated greedily, here and in other patterns: before 3.11.5 (Debian 12 has 3.11.2)
Python takes a wrong end for a possessive repeat of a group, ``(...)*+``, whose last try matches in
part (https://github.com/python/cpython/issues/100061)."""

NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoders raise for what is no JSON, is nested too deeply, or has values of other types."""

Decoded = TypeVar("Decoded")


def spaced(pattern: bytes) -> bytes:
    """Return a regular expression in which each ``_`` is white space."""
    return pattern.replace(b"_", b"[ \t\r\n]*+")


def checked(decode: Callable[[bytes], Decoded], text: bytes) -> Decoded:
    """Decode ``text``; raises :class:`BadBody`."""
    try:
        return decode(text)
    except NOT_JSON as error:
        raise BadBody(" ".join(str(error).split())[:200]) from None


def text_form(text: str) -> bytes:
    """Return a text in JSON."""
    return msgspec.json.encode(text)
