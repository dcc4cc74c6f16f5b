"""Frames of SPDY/3.1, without input or output: bytes in, frames out, and frames to bytes.

The peer is moby/spdystream, as in kubectl: it opens streams (SYN_STREAM), waits for SYN_REPLY,
sends DATA, ends each direction by FIN or both by RST_STREAM, and sends PING every few seconds. It
neither sends SETTINGS and WINDOW_UPDATE nor obeys them, so that there is no flow control besides
that of the connection. They are read all the same, and checked.

The payload of a DATA frame is passed on as it comes, and so needs no bound; other frames are kept
until complete, and are at most :data:`MAX_CONTROL` bytes.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DICTIONARY: Final = Path(__file__).with_name("spdy_dictionary.bin").read_bytes()
"""The dictionary of section 2.6.10.1: 1423 bytes, Adler-32 0xE3C6A7C2."""

MAX_BLOCK: Final = 16 * 1024
"""The maximum size of a decompressed block, in bytes. kubectl needs about 100; draft 3.1
requires at least 8192."""

MAX_HEADERS: Final = 64
"""The maximum number of names in a block."""

_WORD: Final = struct.Struct("!I")

Headers = Mapping[bytes, bytes]


class SPDYError(Exception):
    """The peer violates the protocol or the limits, which ends the connection."""


def _parse(plain: bytes) -> dict[bytes, bytes]:
    if len(plain) < _WORD.size:
        raise SPDYError("a header block breaks off")
    (count,) = _WORD.unpack_from(plain)
    if count > MAX_HEADERS:
        raise SPDYError(f"a header block has more than {MAX_HEADERS} names")
    headers: dict[bytes, bytes] = {}
    offset = _WORD.size
    for _ in range(count):
        name, offset = _parse_text(plain, offset)
        value, offset = _parse_text(plain, offset)
        if not name or name != name.lower():
            raise SPDYError("a header has no name in lower case")
        if name in headers:
            raise SPDYError("a header block names a header twice")
        headers[name] = value
    if offset != len(plain):
        raise SPDYError("a header block has data after its headers")
    return headers


def _parse_text(plain: bytes, offset: int) -> tuple[bytes, int]:
    start = offset + _WORD.size
    end = start + int.from_bytes(plain[offset:start])
    if end > len(plain):
        raise SPDYError("a header block breaks off")
    return plain[start:end], end


VERSION: Final = 3

MAX_CONTROL: Final = 16 * 1024
"""The maximum size of a control frame in bytes, without its head; draft 3.1 section 2.2.1
requires at least 8192."""

MAX_DATA: Final = 2**24 - 1
"""The maximum payload of a frame: its length has 24 bits."""

MAX_STREAM_ID: Final = 2**31 - 1

FIN: Final = 0x01
_UNIDIRECTIONAL: Final = 0x02
_CONTROL_BIT: Final = 0x80000000

_SYN_STREAM: Final = 1
_SYN_REPLY: Final = 2
_RST_STREAM: Final = 3
_SETTINGS: Final = 4
_PING: Final = 6
_GOAWAY: Final = 7
_HEADERS: Final = 8
_WINDOW_UPDATE: Final = 9

_TWO_WORDS: Final = struct.Struct("!II")


class ResetStatus(enum.IntEnum):
    """The reasons of resets (draft 3.1 section 2.6.3)."""

    REFUSED_STREAM = 3
    CANCEL = 5
    STREAM_ALREADY_CLOSED = 9


PROTOCOL_ERROR: Final = 1
"""The reasons of closing a connection (draft 3.1 section 2.6.6)."""


@dataclass(frozen=True, slots=True)
class SynStream:
    """The peer opens a stream; ``fin`` means that it sends nothing on it."""

    stream_id: int
    headers: Headers
    fin: bool
    unidirectional: bool


@dataclass(frozen=True, slots=True)
class StreamHeaders:
    """Headers of a stream that is open: SYN_REPLY, by which the peer accepts it, or HEADERS."""

    stream_id: int
    headers: Headers
    fin: bool
    is_reply: bool


@dataclass(frozen=True, slots=True)
class RstStream:
    """The peer ends both directions of a stream at once."""

    stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping, which must be echoed if it is the peer's: those of clients have odd numbers."""

    ping_id: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """The peer opens no more streams and accepts none."""

    last_stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of a stream, possibly empty; ``fin`` marks the last one."""

    stream_id: int
    payload: bytes
    fin: bool


Frame = SynStream | StreamHeaders | RstStream | Ping | GoAway | Data


class FrameReader:
    """Parses frames from a peer's bytes, in any chunks."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)
        self._buffered = b""
        # The rest of a DATA frame whose payload is incomplete.
        self._stream_id = 0
        self._missing = 0
        self._fin = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that ``data`` completes, and the pieces of DATA in it.

        It must be exhausted before the next call. Raises :class:`SPDYError` at the first invalid
        frame, after which the parser cannot be used.
        """
        if self._buffered:
            data = self._buffered + data
            self._buffered = b""
        offset = 0
        size = len(data)
        while offset < size:
            if self._missing:
                piece = data[offset : offset + self._missing]
                offset += len(piece)
                self._missing -= len(piece)
                yield Data(self._stream_id, piece, self._fin and not self._missing)
                continue
            start = offset + _TWO_WORDS.size
            if start > size:
                break
            first, second = _TWO_WORDS.unpack_from(data, offset)
            flags, length = second >> 24, second & MAX_DATA
            if not first & _CONTROL_BIT:
                offset = start
                self._begin_data(first, flags, length)
                if not length:
                    yield Data(first, b"", self._fin)
                continue
            if length > MAX_CONTROL:
                raise SPDYError(f"a control frame of {length} bytes is too long")
            end = start + length
            if end > size:
                break
            offset = end
            frame = self._control_frame(first, flags, data[start:end])
            if frame is not None:
                yield frame
        if offset < size:
            self._buffered = data[offset:]

    def _begin_data(self, stream_id: int, flags: int, length: int) -> None:
        if not stream_id:
            raise SPDYError("a DATA frame names no stream")
        if flags & ~FIN:
            raise SPDYError("a DATA frame has unknown flags")
        self._stream_id = stream_id
        self._missing = length
        self._fin = bool(flags & FIN)

    def _control_frame(self, first: int, flags: int, body: bytes) -> Frame | None:
        """Return a frame; ``None`` for SETTINGS and WINDOW_UPDATE, which are ignored."""
        version, kind = first >> 16 & 0x7FFF, first & 0xFFFF
        if version != VERSION:
            raise SPDYError(f"a frame of SPDY version {version}, not {VERSION}")
        if kind == _SYN_STREAM:
            return self._syn_stream(flags, body)
        if kind in (_SYN_REPLY, _HEADERS):
            return self._headers_of_stream(kind, flags, body)
        if kind == _SETTINGS:
            _check_settings(flags, body)
            return None
        if flags:
            raise SPDYError(f"a frame of type {kind} has unknown flags")
        if kind == _PING:
            return Ping(*_words(_WORD, body))
        if kind == _RST_STREAM:
            return _rst_stream(body)
        if kind == _GOAWAY:
            return GoAway(*_words(_TWO_WORDS, body))
        if kind == _WINDOW_UPDATE:
            _words(_TWO_WORDS, body)
            return None
        raise SPDYError(f"a control frame of the unknown type {kind}")

    def _syn_stream(self, flags: int, body: bytes) -> SynStream:
        if len(body) < 10:
            raise SPDYError("a SYN_STREAM frame breaks off")
        if flags & ~(FIN | _UNIDIRECTIONAL):
            raise SPDYError("a SYN_STREAM frame has unknown flags")
        (stream_id,) = _WORD.unpack_from(body)
        headers = self._decompress(body[10:])
        fin, unidirectional = bool(flags & FIN), bool(flags & _UNIDIRECTIONAL)
        return SynStream(_checked(stream_id), headers, fin, unidirectional)

    def _headers_of_stream(self, kind: int, flags: int, body: bytes) -> StreamHeaders:
        if len(body) < 4:
            raise SPDYError("a frame with headers breaks off")
        if flags & ~FIN:
            raise SPDYError("a frame with headers has unknown flags")
        (stream_id,) = _WORD.unpack_from(body)
        headers = self._decompress(body[4:])
        return StreamHeaders(_checked(stream_id), headers, bool(flags & FIN), kind == _SYN_REPLY)

    def _decompress(self, block: bytes) -> Headers:
        """Decode a block of headers; several values of a name stay joined by NUL."""
        try:
            plain = self._zlib.decompress(block, MAX_BLOCK + 1)
        except zlib.error as error:
            raise SPDYError(f"a header block cannot be decompressed: {error}") from None
        if len(plain) > MAX_BLOCK:
            raise SPDYError(f"a header block is longer than {MAX_BLOCK} bytes")
        if self._zlib.eof:
            raise SPDYError("the compression of headers was ended")
        return _parse(plain)


class FrameWriter:
    """Encodes a server's frames; those with headers must be sent in the order of encoding."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(zdict=DICTIONARY)

    def syn_reply(self, stream_id: int, headers: Headers) -> bytes:
        """Accept a stream; names must be in lower case."""
        parts = [_WORD.pack(len(headers))]
        for name, value in headers.items():
            parts += (_WORD.pack(len(name)), name, _WORD.pack(len(value)), value)
        # Flushed so that the peer can read the block without the next one.
        block = self._zlib.compress(b"".join(parts)) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_REPLY, _WORD.pack(stream_id) + block)

    @staticmethod
    def rst_stream(stream_id: int, status: ResetStatus) -> bytes:
        """End both directions of a stream at once."""
        return _control(_RST_STREAM, _TWO_WORDS.pack(stream_id, status))

    @staticmethod
    def ping(ping_id: int) -> bytes:
        """Echo a ping."""
        return _control(_PING, _WORD.pack(ping_id))

    @staticmethod
    def go_away(last_stream_id: int, status: int) -> bytes:
        """Close the connection (GOAWAY)."""
        return _control(_GOAWAY, _TWO_WORDS.pack(last_stream_id, status))

    @staticmethod
    def data(stream_id: int, payload: bytes, fin: bool = False) -> bytes:
        """Send ``payload``, in several frames if it is longer than :data:`MAX_DATA`."""
        whole = b""
        for start in range(0, max(1, len(payload)), MAX_DATA):
            piece = payload[start : start + MAX_DATA]
            last = fin and start + MAX_DATA >= len(payload)
            whole += _TWO_WORDS.pack(stream_id, last << 24 | len(piece)) + piece
        return whole


def _control(kind: int, body: bytes) -> bytes:
    return _TWO_WORDS.pack(_CONTROL_BIT | VERSION << 16 | kind, len(body)) + body


def _words(shape: struct.Struct, body: bytes) -> tuple[int, ...]:
    if len(body) != shape.size:
        raise SPDYError(f"a control frame has {len(body)} bytes instead of {shape.size}")
    return shape.unpack(body)


def _checked(stream_id: int) -> int:
    if not 0 < stream_id <= MAX_STREAM_ID:
        raise SPDYError(f"{stream_id} is no number of a stream")
    return stream_id


def _rst_stream(body: bytes) -> RstStream:
    stream_id, status = _words(_TWO_WORDS, body)
    if not status:
        raise SPDYError("a RST_STREAM frame has no status")
    return RstStream(_checked(stream_id), status)


def _check_settings(flags: int, body: bytes) -> None:
    if flags & ~FIN:
        # The same bit means here that settings kept from earlier are to be forgotten.
        raise SPDYError("a SETTINGS frame has unknown flags")
    if len(body) < _WORD.size:
        raise SPDYError("a SETTINGS frame breaks off")
    (count,) = _WORD.unpack_from(body)
    if len(body) != _WORD.size + count * _TWO_WORDS.size:
        raise SPDYError("a SETTINGS frame does not have the length of its settings")
