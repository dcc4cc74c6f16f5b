"""Decoding and encoding of message bodies, without I/O.

Pieces of a body are passed on as they arrive. Nothing waits for a complete chunk, and only an
incomplete line (a chunk size or a trailer) is ever buffered.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass

from yurttunnel.http.fields import (
    SENT_IN_TRAILERS,
    Fields,
    allowed_in_trailers,
    check_field,
    format_fields,
)
from yurttunnel.http.framing import NO_BODY, BodyKind, Framing

# Unpacked once: an attribute access to an enum costs as much as a function call.
_NONE, _LENGTH, _CHUNKED, _UNTIL_CLOSE = BodyKind

# RFC 9112 section 7.1, but stricter: at most 15 digits (no real chunk needs more), no white space
# before an extension, and extensions in ASCII. Extensions are ignored.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e]*)?")
_LINE_END = b"\r\n"
_PLAIN_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_LAST_CHUNK = b"0\r\n"
_FREE_LINE_BYTES = 16
"""Bytes of a size line that do not count as overhead: enough for any size without extensions."""


class BodyError(Exception):
    """A body that does not match its framing; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits for everything in a chunked body besides its data.

    ``max_line_bytes`` limits one line with the size and extensions of a chunk; ``max_overhead``
    limits how many bytes of such lines may exceed the data; ``max_trailer_bytes`` and
    ``max_trailers`` limit the trailer fields.
    """

    max_line_bytes: int = 256
    max_overhead: int = 16 * 1024
    max_trailer_bytes: int = 8 * 1024
    max_trailers: int = 64


_DEFAULT_LIMITS = BodyLimits()


class BodyReader:
    """Decodes one body.

    ``ended`` is true once the body is complete, from the start if it is empty. ``trailers`` are
    the trailer fields. The reader cannot be used after it has raised.
    """

    def __init__(self, framing: Framing, limits: BodyLimits = _DEFAULT_LIMITS) -> None:
        self._kind = framing.kind
        self._remaining = framing.length
        self._chunks = _Chunks(limits) if framing.kind is _CHUNKED else None
        self.ended = not framing.announces_body

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """The trailer fields; complete when the body has ended."""
        return self._chunks.trailers if self._chunks is not None else []

    def feed(self, data: bytes, deliver: Callable[[bytes], object]) -> bytes:
        """Decode the next bytes and call ``deliver`` with the part of the body in them, if any.

        Returns the bytes that follow the body once it has ended, ``b""`` before. ``deliver`` is
        called at most once and last, so it may do anything. Raises :class:`BodyError`.
        """
        if self.ended:
            return data
        if self._chunks is not None:
            piece, rest = self._chunks.feed(data)
            self.ended = self._chunks.ended
        elif self._kind is _LENGTH:
            piece, rest = self._counted(data)
        else:
            piece, rest = data, b""
        if piece:
            deliver(piece)
        return rest

    def end_of_input(self) -> None:
        """Handle the end of the connection.

        Raises :class:`BodyError` unless the body ends there too.
        """
        if self._kind is _UNTIL_CLOSE:
            self.ended = True
        elif not self.ended:
            raise BodyError("the body is truncated")

    def _counted(self, data: bytes) -> tuple[bytes, bytes]:
        remaining = self._remaining
        if len(data) < remaining:
            self._remaining = remaining - len(data)
            return data, b""
        self._remaining = 0
        self.ended = True
        return data[:remaining], data[remaining:]


class BodyWriter:
    """Encodes one body. A call that raises has written nothing."""

    def __init__(self, framing: Framing) -> None:
        self._kind = framing.kind
        self._remaining = framing.length
        self._finished = False

    def encode(self, data: bytes) -> bytes:
        """Encode the next piece. Raises :class:`BodyError` if it exceeds the announced length."""
        if not data:
            # An empty chunk would end the body.
            return b""
        kind = self._kind
        if self._finished or kind is _NONE:
            raise BodyError("the body is longer than its head announced")
        if kind is _CHUNKED:
            return b"%x\r\n%b\r\n" % (len(data), data)
        if kind is _LENGTH:
            if len(data) > self._remaining:
                raise BodyError("the body is longer than its head announced")
            self._remaining -= len(data)
        return data

    def finish(self, trailers: Fields = ()) -> bytes:
        """End the body, with those of ``trailers`` that are in :data:`SENT_IN_TRAILERS`.

        Trailers are dropped if the framing does not support them.

        Raises :class:`BodyError` if the body is shorter than announced, and ``ValueError`` for
        trailers that cannot be sent safely.
        """
        if self._kind is _LENGTH and self._remaining:
            raise BodyError(f"{self._remaining} bytes of the body are missing")
        if self._finished or self._kind is not _CHUNKED:
            self._finished = True
            return b""
        for name, value in trailers:
            check_field(name, value)
            if not allowed_in_trailers(name):
                raise ValueError(f"{name!r} cannot follow a body")
        sent = [field for field in trailers if field[0].lower() in SENT_IN_TRAILERS]
        lines = format_fields(sent)
        self._finished = True
        return b"%b%b\r\n" % (_LAST_CHUNK, lines)


NO_BODY_READER = BodyReader(NO_BODY)
NO_BODY_WRITER = BodyWriter(NO_BODY)
"""The reader and writer shared by all messages without a body; they have no state per message."""


class _ChunkState(enum.Enum):
    SIZE = enum.auto()
    """A size line is expected."""
    DATA = enum.auto()
    """The data of a chunk is expected."""
    DATA_END = enum.auto()
    """The line end after a chunk is expected."""
    TRAILERS = enum.auto()
    """A trailer field, or the empty line that ends the body, is expected."""


_SIZE, _DATA, _DATA_END, _TRAILERS = _ChunkState


class _Chunks:
    """A decoder of the chunked transfer coding (RFC 9112 section 7.1)."""

    def __init__(self, limits: BodyLimits) -> None:
        self.ended = False
        self.trailers: list[tuple[bytes, bytes]] = []
        self._limits = limits
        self._state = _SIZE
        self._remaining = 0
        self._overhead = 0
        self._trailer_bytes = 0
        self._cut = b""
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the part of the body in ``data``, and the bytes after the body if it has ended."""
        if self._cut:
            data = self._cut + data
            self._cut = b""
        elif self._state is _SIZE:
            piece = _only_chunk(data)
            if piece:
                self._overhead = max(0, self._overhead - 2 * len(piece))
                return piece, b""
        position: int | None = 0
        while position is not None and not self.ended:
            position = self._step(data, position)
        pieces, self._pieces = self._pieces, []
        # Joined, so that many small chunks in one read cost only one call of the consumer.
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return body, b"" if position is None else data[position:]

    def _step(self, data: bytes, start: int) -> int | None:
        """Parse one element at ``start``; return where it ends, or ``None`` if it is incomplete."""
        state = self._state
        if state is _DATA:
            return self._data(data, start)
        if state is _DATA_END:
            return self._data_end(data, start)
        end = self._line_end(data, start)
        if end is None:
            return None
        if state is _SIZE:
            self._size(data, start, end)
        else:
            self._trailer(data[start:end])
        return end + len(_LINE_END)

    def _line_end(self, data: bytes, start: int) -> int | None:
        trailers = self._state is _TRAILERS
        limit = self._limits.max_trailer_bytes if trailers else self._limits.max_line_bytes
        end = data.find(_LINE_END, start)
        length = (len(data) if end < 0 else end) - start
        if length > limit:
            raise BodyError(f"a line of the chunked body is longer than {limit} bytes")
        if end >= 0:
            return end
        self._cut = data[start:]
        if b"\n" in self._cut or b"\r" in self._cut[:-1]:
            raise BodyError("a line of the chunked body does not end with CR and LF")
        return None

    def _size(self, data: bytes, start: int, end: int) -> None:
        line = _SIZE_LINE.fullmatch(data, start, end)
        if line is None:
            raise BodyError("the size of a chunk is not a plain hexadecimal number")
        size = int(line[1], 16)
        self._remaining = size
        self._state = _DATA if size else _TRAILERS
        # As in Go's net/http since CVE-2023-39326: data offsets the overhead.
        overhead = self._overhead + end - start - _FREE_LINE_BYTES - 2 * size
        self._overhead = max(0, overhead)
        if overhead > self._limits.max_overhead:
            raise BodyError("the chunked body has too many extensions")

    def _data(self, data: bytes, start: int) -> int | None:
        if start == len(data):
            return None
        piece = data[start : start + self._remaining]
        self._pieces.append(piece)
        self._remaining -= len(piece)
        if not self._remaining:
            self._state = _DATA_END
        return start + len(piece)

    def _data_end(self, data: bytes, start: int) -> int | None:
        found = data[start : start + len(_LINE_END)]
        if found == _LINE_END:
            self._state = _SIZE
            return start + len(_LINE_END)
        if not _LINE_END.startswith(found):
            raise BodyError("a chunk is longer than its size says")
        self._cut = found
        return None

    def _trailer(self, line: bytes) -> None:
        if not line:
            self.ended = True
            return
        self._trailer_bytes += len(line) + len(_LINE_END)
        limits = self._limits
        if self._trailer_bytes > limits.max_trailer_bytes:
            raise BodyError(f"the trailers are longer than {limits.max_trailer_bytes} bytes")
        if len(self.trailers) == limits.max_trailers:
            raise BodyError(f"the body has more than {limits.max_trailers} trailers")
        self.trailers.append(_parsed_trailer(line))


def _only_chunk(data: bytes) -> bytes:
    """Return the data of a whole chunk without extensions, empty if ``data`` is anything else.

    Servers write an event of a watch, or the next part of a response, as one chunk.
    """
    line = _PLAIN_SIZE_LINE.match(data)
    if line is None:
        return b""
    start, end = line.end(), len(data) - len(_LINE_END)
    is_whole = end - start == int(line[1], 16) and data.endswith(_LINE_END)
    return data[start:end] if is_whole else b""


def _parsed_trailer(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    try:
        check_field(name, value)
    except ValueError as error:
        raise BodyError(f"a trailer is malformed: {error}") from None
    if not colon:
        raise BodyError("a trailer is malformed: it has no colon")
    if not allowed_in_trailers(name):
        raise BodyError(f"the field {name.decode()} cannot follow a body")
    return name, value
