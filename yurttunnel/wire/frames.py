"""Frames: a nine-byte header, then a payload (``docs/protocol.md``, "Frames").

====== ======== =======================================================
offset size     field
====== ======== =======================================================
0      4        length of the payload, unsigned, network byte order
4      1        type
5      4        stream, 0 for frames that concern the session
====== ======== =======================================================

Two bits of the type say how a receiver treats a frame that it does not know: with
:data:`CRITICAL` set the session must end, otherwise the frame is skipped by its length. Frames
with :data:`LINK` set belong to the connection that carries them; all others belong to the
session, are counted by the byte, kept until acknowledged, and sent again on the next
connection.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final, NamedTuple

from yurttunnel.wire.codes import Code, CodedError

CRITICAL: Final = 0x80
LINK: Final = 0x40

OPEN: Final = 0x80
OK: Final = 0x81
FAIL: Final = 0x82
DATA: Final = 0x83
FIN: Final = 0x84
RESET: Final = 0x85
CREDIT: Final = 0x86
GOAWAY: Final = 0x87

SERVERS: Final = 0x41
HELLO: Final = 0xC0
ACK: Final = 0xC1
PING: Final = 0xC2
PONG: Final = 0xC3
CLOSE: Final = 0xC4

HEADER: Final = Struct("!IBI")
HEADER_SIZE: Final = HEADER.size

MAX_TEXT: Final = 1024
"""The longest text of a FAIL, RESET, GOAWAY or CLOSE, in bytes of UTF-8."""

CONTROL_LIMIT: Final = 2048
"""The longest payload of a control frame other than HELLO: every field at its maximum fits."""

MAX_STREAM: Final = 0xFFFFFFFF

CONTROL_CHARACTER: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that no text on the wire may contain: they could forge log lines or control a
terminal."""

_OPEN = Struct("!IHBB")
_CODE = Struct("!H")
_OFFSET = Struct("!Q")
_GOAWAY = Struct("!IH")
_SERVERS = Struct("!I")


class Violation(CodedError):
    """The peer violated the protocol; the session ends with ``code``."""


class OpenRequest(NamedTuple):
    """The payload of OPEN: the target, how long the opener waits, and a name for the logs.

    ``timeout`` is in milliseconds, 1 to 2**32 - 1. ``host`` is a name or an address of 1 to
    255 bytes of UTF-8 without brackets, ``request_id`` at most 255 ASCII characters; neither
    contains a :data:`CONTROL_CHARACTER`.
    """

    host: str
    port: int
    timeout: int
    request_id: str


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    """Encode a frame."""
    return HEADER.pack(len(payload), kind, stream) + payload


def open_frame(stream: int, request: OpenRequest) -> bytes:
    """Encode OPEN; raises :class:`ValueError` for fields out of their ranges."""
    host = request.host.encode()
    request_id = request.request_id.encode("ascii")
    if not 1 <= len(host) <= 255 or len(request_id) > 255:
        raise ValueError("host must be 1 to 255 bytes, request id at most 255")
    if not 1 <= request.port <= 0xFFFF:
        raise ValueError(f"port {request.port} is not between 1 and 65535")
    if not 1 <= request.timeout <= 0xFFFFFFFF:
        raise ValueError(f"timeout {request.timeout} ms is not between 1 and 2**32 - 1")
    if CONTROL_CHARACTER.search(request.host + request.request_id):
        raise ValueError("host and request id must not contain control characters")
    head = _OPEN.pack(request.timeout, request.port, len(host), len(request_id))
    return frame(OPEN, stream, head + host + request_id)


def decode_open(payload: bytes) -> OpenRequest:
    """Decode the payload of OPEN."""
    if len(payload) < _OPEN.size:
        raise Violation(Code.PROTOCOL, "OPEN is too short")
    timeout, port, host_size, request_id_size = _OPEN.unpack_from(payload)
    if len(payload) != _OPEN.size + host_size + request_id_size:
        raise Violation(Code.PROTOCOL, "the length of OPEN does not match its fields")
    if not (timeout and port and host_size):
        raise Violation(Code.PROTOCOL, "OPEN has no timeout, no port or no host")
    host_end = _OPEN.size + host_size
    try:
        host = payload[_OPEN.size : host_end].decode()
        request_id = payload[host_end:].decode("ascii")
    except UnicodeDecodeError as error:
        raise Violation(
            Code.PROTOCOL, "OPEN has a host or request id that is not valid text"
        ) from error
    if CONTROL_CHARACTER.search(host + request_id):
        raise Violation(Code.PROTOCOL, "OPEN has control characters in its host or request id")
    return OpenRequest(host, port, timeout, request_id)


def coded_frame(kind: int, stream: int, code: Code, text: str) -> bytes:
    """Encode FAIL, RESET or CLOSE; ``text`` is truncated to :data:`MAX_TEXT` bytes."""
    return frame(kind, stream, _CODE.pack(code) + _cut(text))


def decode_coded(payload: bytes) -> tuple[Code, str]:
    """Decode the payload of FAIL, RESET or CLOSE."""
    if len(payload) < _CODE.size:
        raise Violation(Code.PROTOCOL, "a reason is too short")
    return Code.from_wire(_CODE.unpack_from(payload)[0]), _text(payload, _CODE.size)


def goaway_frame(last_stream: int, code: Code, text: str) -> bytes:
    """Encode GOAWAY: streams above ``last_stream`` were not and will not be served."""
    return frame(GOAWAY, 0, _GOAWAY.pack(last_stream, code) + _cut(text))


def decode_goaway(payload: bytes) -> tuple[int, Code, str]:
    """Decode the payload of GOAWAY."""
    if len(payload) < _GOAWAY.size:
        raise Violation(Code.PROTOCOL, "GOAWAY is too short")
    last_stream, code = _GOAWAY.unpack_from(payload)
    return last_stream, Code.from_wire(code), _text(payload, _GOAWAY.size)


def servers_frame(servers: int) -> bytes:
    """Encode SERVERS: the number of servers, including the sender."""
    return frame(SERVERS, 0, _SERVERS.pack(servers))


def decode_servers(payload: bytes) -> int:
    """Decode the payload of SERVERS."""
    if len(payload) != _SERVERS.size:
        raise Violation(Code.PROTOCOL, "SERVERS does not contain exactly one number")
    servers: int = _SERVERS.unpack(payload)[0]
    if not servers:
        raise Violation(Code.PROTOCOL, "SERVERS is 0, but must count its sender")
    return servers


def offset_frame(kind: int, stream: int, offset: int) -> bytes:
    """Encode CREDIT, ACK, PING or PONG: a position in bytes or a number, 0 to 2**64 - 1."""
    return HEADER.pack(_OFFSET.size, kind, stream) + _OFFSET.pack(offset)


def decode_offset(payload: bytes) -> int:
    """Decode the payload of CREDIT, ACK, PING or PONG."""
    if len(payload) != _OFFSET.size:
        raise Violation(Code.PROTOCOL, "an offset must have eight bytes")
    return int(_OFFSET.unpack(payload)[0])


def _cut(text: str) -> bytes:
    # Truncation may split a character; the partial one must not reach the peer.
    return text.encode()[:MAX_TEXT].decode(errors="ignore").encode()


def _text(payload: bytes, start: int) -> str:
    if len(payload) > start + MAX_TEXT:
        raise Violation(Code.PROTOCOL, "a reason's text is too long")
    return CONTROL_CHARACTER.sub("\ufffd", payload[start:].decode(errors="replace"))
