"""HELLO: the first frame of each connection, in both directions (``docs/protocol.md``).

It contains the versions and limits of its sender, and the session that the connection carries: the
agent requests to resume a session or to start a new one, and the server answers which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code, Refused
from yurttunnel.wire.frames import Violation

VERSION: Final = 1
"""The protocol version of this package; the only one so far."""

HELLO_LIMIT: Final = 16 * 1024
"""The maximum payload of a HELLO in bytes; fixed, since nothing is negotiated before."""

NO_SESSION: Final = bytes(16)
"""The session id in the HELLO of an agent that requests a new session."""

HELD: Final = "held"
"""The property of an agent that lists the server processes with which it already has sessions."""

KEPT: Final = "kept"
"""The property of an agent that lists its other sessions, connected or to be resumed."""

SERVERS: Final = "servers"
"""The property of a server with the number of servers that it knows, including itself."""

MIN_FRAME_LIMIT: Final = 4 * 1024
MAX_FRAME_LIMIT: Final = 1024 * 1024
"""The range of :attr:`Limits.max_frame`."""

MAX_PING_INTERVAL: Final = 60_000
"""The maximum of :attr:`Limits.ping_interval` in milliseconds; it limits how late a peer can make
the detection of its death."""

MAX_OFFSET: Final = 2**63

_FIXED = Struct("!BBHIIQIII16sQ16s")
_FIELD = Struct("!BH")
_ID_SIZE = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that the sender of a HELLO sets for its peer.

    - ``max_frame``: the maximum payload of a frame in bytes, 4 KiB to 1 MiB;
    - ``max_streams``: the maximum number of open streams that the peer has opened;
    - ``session_window``: the maximum unconsumed payload of all streams in bytes;
    - ``stream_window``: the initial maximum of unconsumed payload of each stream in bytes, which
      may be used before OK;
    - ``ping_interval``: the milliseconds between two PINGs when idle, 1 to 60,000; the larger value
      of both ends applies;
    - ``resume_window``: the milliseconds for which a session without a connection is kept.
    """

    max_frame: int = 256 * 1024
    max_streams: int = 1000
    session_window: int = 96 * 1024 * 1024
    stream_window: int = 64 * 1024
    ping_interval: int = 10_000
    resume_window: int = 30_000


@dataclass(frozen=True, slots=True)
class Hello:
    """One HELLO.

    ``session`` is the session id: an agent sends :data:`NO_SESSION` or the session to resume, the
    server the session that it grants. ``received`` is the number of bytes of session frames that
    the sender has received in that session; the peer continues there. ``process`` is random for
    each process, so that a restart is detected. ``properties`` are short texts without control
    characters; unknown ones are ignored.
    """

    limits: Limits
    session: bytes
    process: bytes
    received: int = 0
    versions: tuple[int, int] = (VERSION, VERSION)
    capabilities: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode the frame; raises :class:`ValueError` for properties that a peer would reject."""
        limits = self.limits
        parts = [
            _FIXED.pack(
                *self.versions,
                self.capabilities,
                limits.max_frame,
                limits.max_streams,
                limits.session_window,
                limits.stream_window,
                limits.ping_interval,
                limits.resume_window,
                self.session,
                self.received,
                self.process,
            )
        ]
        for name, value in self.properties.items():
            if frames.CONTROL_CHARACTER.search(name + value):
                raise ValueError(f"property {name!r} contains control characters")
            encoded_name, encoded_value = name.encode(), value.encode()
            if len(encoded_name) > 0xFF or len(encoded_value) > 0xFFFF:
                raise ValueError(f"property {name!r} is too long for a HELLO")
            parts += (_FIELD.pack(len(encoded_name), len(encoded_value)), encoded_name)
            parts.append(encoded_value)
        payload = b"".join(parts)
        if len(payload) > HELLO_LIMIT:
            raise ValueError(f"a HELLO of {len(payload)} bytes exceeds {HELLO_LIMIT}")
        return frames.frame(frames.HELLO, 0, payload)


def decode_hello(payload: bytes) -> Hello:
    """Decode the payload of HELLO, and check its versions and limits."""
    if len(payload) < 2:
        raise Violation(Code.PROTOCOL, "HELLO is too short")
    lowest, highest = payload[0], payload[1]
    if not lowest <= VERSION <= highest:
        raise Violation(
            Code.VERSION, f"the peer supports versions {lowest} to {highest}, this end {VERSION}"
        )
    if len(payload) < _FIXED.size:
        raise Violation(Code.PROTOCOL, "HELLO is too short")
    (_, _, capabilities, *limits, session, received, process) = _FIXED.unpack_from(payload)
    if received > MAX_OFFSET:
        raise Violation(Code.PROTOCOL, "HELLO has an offset out of range")
    return Hello(
        limits=_checked(Limits(*limits)),
        session=session,
        process=process,
        received=received,
        versions=(lowest, highest),
        capabilities=capabilities,
        properties=_decode_properties(payload),
    )


def held_processes(hello: Hello) -> frozenset[bytes]:
    """Return the server processes with which an agent already has sessions, from its HELLO."""
    return _listed(hello, HELD, "processes")


def kept_sessions(hello: Hello) -> frozenset[bytes]:
    """Return the sessions of an agent other than the one that it requests, from its HELLO."""
    return _listed(hello, KEPT, "sessions")


def _listed(hello: Hello, name: str, what: str) -> frozenset[bytes]:
    text = hello.properties.get(name)
    if not text:
        return frozenset()
    try:
        listed = frozenset(bytes.fromhex(digits) for digits in text.split(","))
    except ValueError:
        listed = frozenset({b""})
    if any(len(each) != _ID_SIZE for each in listed):
        raise Violation(Code.PROTOCOL, f"HELLO has a property {name} that is not a list of {what}")
    return listed


def _checked(limits: Limits) -> Limits:
    usable = (
        MIN_FRAME_LIMIT <= limits.max_frame <= MAX_FRAME_LIMIT
        and limits.max_streams
        and limits.session_window
        and limits.stream_window
        and 1 <= limits.ping_interval <= MAX_PING_INTERVAL
    )
    if not usable:
        raise Violation(Code.PROTOCOL, f"HELLO has unusable limits: {limits}")
    return limits


def _decode_properties(payload: bytes) -> dict[str, str]:
    properties: dict[str, str] = {}
    position = _FIXED.size
    while position < len(payload):
        if position + _FIELD.size > len(payload):
            raise Violation(Code.PROTOCOL, "HELLO ends in the middle of a property")
        name_size, value_size = _FIELD.unpack_from(payload, position)
        name_start = position + _FIELD.size
        value_start = name_start + name_size
        position = value_start + value_size
        if position > len(payload):
            raise Violation(Code.PROTOCOL, "HELLO ends in the middle of a property")
        try:
            name = payload[name_start:value_start].decode()
            value = payload[value_start:position].decode()
        except UnicodeDecodeError as error:
            raise Violation(Code.PROTOCOL, "HELLO has a property that is not valid text") from error
        if frames.CONTROL_CHARACTER.search(name + value):
            raise Violation(Code.PROTOCOL, "HELLO has a property with control characters")
        properties[name] = value
    return properties


class HelloReader:
    """Collects the bytes of a connection until its HELLO is complete.

    The size of the buffer is limited, because the length in the header is checked first.
    """

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> tuple[Hello | None, bytes]:
        """Add ``data``; return the HELLO once it is complete, with the bytes that follow it.

        Raises :class:`Refused` if the peer starts with CLOSE, :class:`Violation` if it starts with
        anything else.
        """
        self._buffer += data
        if len(self._buffer) < frames.HEADER_SIZE:
            return None, b""
        length, kind, stream = frames.HEADER.unpack_from(self._buffer)
        if kind == frames.CLOSE and stream == 0:
            self._check_refused(length)
            return None, b""
        if kind != frames.HELLO or stream != 0:
            raise Violation(Code.PROTOCOL, "the first frame of a connection must be HELLO")
        if length > HELLO_LIMIT:
            raise Violation(Code.FRAME_TOO_LARGE, f"a HELLO of {length} bytes is too long")
        end = frames.HEADER_SIZE + length
        if len(self._buffer) < end:
            return None, b""
        buffer, self._buffer = self._buffer, b""
        return decode_hello(buffer[frames.HEADER_SIZE : end]), buffer[end:]

    def _check_refused(self, length: int) -> None:
        if length > frames.CONTROL_LIMIT:
            raise Violation(Code.FRAME_TOO_LARGE, f"a CLOSE of {length} bytes is too long")
        end = frames.HEADER_SIZE + length
        if len(self._buffer) >= end:
            raise Refused(*frames.decode_coded(self._buffer[frames.HEADER_SIZE : end]))
