"""The framing of message bodies (RFC 9112 section 6), without ambiguity.

The RFC tells recipients how to interpret contradictory fields. Here such messages are rejected,
because a proxy and the server behind it must never disagree about where one message ends and the
next begins. A message may have either one ``Content-Length``, in plain decimal, or one
``Transfer-Encoding: chunked``.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from functools import lru_cache

from yurttunnel.http.fields import Head
from yurttunnel.http.head import HeadError, RequestHead, ResponseHead

# The plain form only: no sign, no spaces, no leading zeros (some parsers read them as octal), and
# at most a signed 64-bit number.
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,18}")
_MAX_LENGTH = 2**63 - 1
_MISSPELLED = (b"content_length", b"transfer_encoding")


class BodyKind(enum.Enum):
    """How the end of a body is determined."""

    NONE = enum.auto()
    """There is no body, not even an empty one."""
    LENGTH = enum.auto()
    """``Content-Length`` announces its length."""
    CHUNKED = enum.auto()
    """It is sent in chunks, the last of which is empty."""
    UNTIL_CLOSE = enum.auto()
    """It ends with the connection; only for responses."""


@dataclass(frozen=True, slots=True)
class Framing:
    """The framing of one body; ``length``, in bytes, is used for ``LENGTH`` only."""

    kind: BodyKind
    length: int = 0
    announces_body: bool = field(init=False, compare=False, repr=False)
    """Whether anything follows the head."""

    def __post_init__(self) -> None:
        """Compute ``announces_body`` once, because it is read for each message."""
        announces = self.length > 0 or self.kind not in (BodyKind.NONE, BodyKind.LENGTH)
        object.__setattr__(self, "announces_body", announces)


@lru_cache(256)
def of_length(length: int) -> Framing:
    """Return the framing of a body of that length; cached, since lengths recur."""
    return Framing(BodyKind.LENGTH, length)


NO_BODY = Framing(BodyKind.NONE)
CHUNKED = Framing(BodyKind.CHUNKED)
UNTIL_CLOSE = Framing(BodyKind.UNTIL_CLOSE)


def request_framing(head: RequestHead) -> Framing:
    """Return the framing of the body of a request.

    Raises :class:`HeadError`: 501 for a transfer coding other than ``chunked``, 400 otherwise.
    """
    try:
        framing = _declared(head)
    except _UnknownCoding as error:
        raise HeadError(501, f"the request {error}") from None
    except _Ambiguous as error:
        raise HeadError(400, f"the request {error}") from None
    if framing is None:
        return NO_BODY
    if head.method == b"CONNECT":
        if framing != Framing(BodyKind.LENGTH, 0):
            raise HeadError(400, "a CONNECT request has no body")
        return NO_BODY
    return framing


def response_framing(request_method: bytes, head: ResponseHead) -> Framing:
    """Return the framing of the response body to a ``request_method`` other than CONNECT.

    Raises :class:`HeadError` (502).
    """
    try:
        framing = _declared(head)
    except _Ambiguous as error:
        raise HeadError(502, f"the response {error}") from None
    if head.status < 200 or head.status == 204:
        # These must not even announce a body (RFC 9110 section 8.6). An announced length of 0 is
        # accepted, because many servers send it and no reader can misinterpret it.
        if framing not in (None, Framing(BodyKind.LENGTH, 0)):
            raise HeadError(502, f"a response with the status {head.status} announces a body")
        return NO_BODY
    if request_method == b"HEAD" or head.status == 304:
        return NO_BODY
    return framing or UNTIL_CLOSE


class _Ambiguous(Exception):
    """Fields that two parsers may interpret differently."""


class _UnknownCoding(_Ambiguous):
    """A transfer coding that is not supported."""


def _declared(head: Head) -> Framing | None:
    """Return the framing that the fields declare, or ``None`` if they declare none."""
    by_name = head.by_name
    for name in _MISSPELLED:
        # Some servers treat these as the fields with hyphens, since CGI names both alike.
        if name in by_name:
            raise _Ambiguous(f"has a field {name.decode()}, with an underscore")
    lengths = by_name.get(b"content-length")
    codings = by_name.get(b"transfer-encoding")
    if codings:
        if lengths:
            raise _Ambiguous("has both Content-Length and Transfer-Encoding")
        return _coded(head.version, codings)
    if not lengths:
        return None
    if len(lengths) > 1:
        raise _Ambiguous("has more than one Content-Length")
    return _counted(lengths[0])


@lru_cache(256)
def _counted(value: bytes) -> Framing:
    """Return the framing for a ``Content-Length``; cached, since lengths recur."""
    if not _LENGTH.fullmatch(value) or (length := int(value)) > _MAX_LENGTH:
        raise _Ambiguous("has a Content-Length that is not a plain decimal number below 2^63")
    return of_length(length)


def _coded(version: str, codings: list[bytes]) -> Framing:
    if version != "1.1":
        raise _Ambiguous("has Transfer-Encoding, which HTTP/1.0 does not have")
    if len(codings) > 1:
        raise _Ambiguous("has more than one Transfer-Encoding")
    if codings[0].lower() != b"chunked":
        raise _UnknownCoding("has a Transfer-Encoding other than chunked")
    return CHUNKED
