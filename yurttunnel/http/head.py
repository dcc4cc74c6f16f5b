"""Request heads, read strictly and without input or output: bytes in, one head out.

llhttp (by httptools) finds the tokens and refuses what makes two readers disagree: bare CR and
LF, folded lines, spaces around a name, control characters, repeated or signed Content-Length,
Content-Length beside Transfer-Encoding, unknown methods. What it lets pass and this module
refuses: several spaces in the request line, empty lines before it, HTTP/0.9 and HTTP/2.0 in it,
other protocols than HTTP, a missing or repeated Host under HTTP/1.1, and heads of any size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import httptools

_REQUEST_LINE = re.compile(rb"[A-Z-]+ [^ ]+ HTTP/1\.[01]\r\n")
_END = b"\r\n\r\n"


class HeadError(Exception):
    """A head that is refused: the HTTP ``status`` to answer and one line that says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """How much of a head is taken in: its bytes with the final empty line, and its fields."""

    max_bytes: int = 16 * 1024
    max_fields: int = 100


@dataclass(slots=True)
class RequestHead:
    """The head of one request.

    ``method`` and ``target`` are as sent, ``version`` is ``"1.0"`` or ``"1.1"``. ``fields`` has
    names and values in the order sent, with the case of the names kept.
    """

    method: bytes = b""
    target: bytes = b""
    version: str = ""
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    _by_name: dict[bytes, list[bytes]] = field(default_factory=dict)

    def values(self, name: bytes) -> list[bytes]:
        """Give all values of the field ``name`` (in lower case), in the order sent."""
        return self._by_name.get(name, [])

    def add(self, name: bytes, value: bytes) -> None:
        """Append a field."""
        self.fields.append((name, value))
        self._by_name.setdefault(name.lower(), []).append(value)


class RequestHeadReader:
    """Reads one request head from pieces of any size.

    Call :meth:`feed` with each piece until it returns the head; what follows the head is then
    in ``early``. The reader is of no use afterwards, nor after it has raised.
    """

    def __init__(self, limits: HeadLimits) -> None:
        self._limits = limits
        # An object of its own: the parser refers to it, and must not refer to its owner.
        self._parsed = _ParsedHead()
        self._parser = httptools.HttpRequestParser(self._parsed)
        self._received: bytes | bytearray = b""
        self.early = b""

    def feed(self, data: bytes) -> RequestHead | None:
        """Take the next bytes; return the head when it is complete.

        Raises :class:`HeadError` at the first byte that cannot be part of a proper head.
        """
        parsed = self._parsed
        self._keep(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # This is how the parser stops behind the head of a CONNECT.
        except httptools.HttpParserError as error:
            # The parser also looks at what follows the head; that is for others to judge.
            if not parsed.complete:
                raise HeadError(400, f"the request head is malformed: {error}") from None
        if parsed.complete:
            return self._finished()
        self._check_limits(len(self._received))
        return None

    def _keep(self, data: bytes) -> None:
        if not self._received:
            self._received = data
        elif isinstance(self._received, bytearray):
            self._received += data
        else:
            self._received = bytearray(self._received)
            self._received += data

    def _check_limits(self, size: int) -> None:
        limits = self._limits
        if size > limits.max_bytes:
            raise HeadError(431, f"the request head is longer than {limits.max_bytes} bytes")
        if len(self._parsed.head.fields) > limits.max_fields:
            raise HeadError(431, f"the request has more than {limits.max_fields} header fields")

    def _finished(self) -> RequestHead:
        received = self._received
        if not _REQUEST_LINE.match(received):
            raise HeadError(400, "the request line is not METHOD TARGET HTTP/1.1")
        end = received.index(_END) + len(_END)
        self._check_limits(end)
        if end < len(received):
            self.early = bytes(received[end:])
        head = self._parsed.head
        head.method = self._parser.get_method()
        head.version = self._parser.get_http_version()
        hosts = len(head.values(b"host"))
        if hosts > 1 or (hosts == 0 and head.version == "1.1"):
            raise HeadError(400, "the request needs exactly one Host field")
        return head


class _ParsedHead:
    """What the parser calls."""

    def __init__(self) -> None:
        self.head = RequestHead()
        self.complete = False
        self.on_header = self.head.add

    def on_url(self, piece: bytes) -> None:
        self.head.target += piece

    def on_headers_complete(self) -> None:
        self.complete = True
