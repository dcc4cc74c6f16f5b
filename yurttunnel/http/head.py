"""Heads of requests and responses, read strictly and without input or output.

llhttp (by httptools) finds the fields and refuses what makes two readers disagree: bare CR and
LF, folded lines, spaces around a name, control characters, repeated or signed Content-Length,
Content-Length beside Transfer-Encoding, unknown methods. What it lets pass and this module
refuses: several spaces in the start line, a line feed within the target (HTTP/0.9, with the rest
of the line as a field), empty lines before it, HTTP/0.9 and HTTP/2.0 in it, other protocols than
HTTP, control characters in a reason, a missing, repeated or malformed Host, targets of another
form than the method has, and heads of any size.

Absolute targets (``GET http://host/path``) are refused: what they name and what Host names may
differ, and those who ask for something on a node send the path alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

import httptools

from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.fields import Fields, Head, check_field, format_fields

_REQUEST_LINE = re.compile(rb"([A-Z-]+) ([\x21-\x7e]+) HTTP/(1\.[01])\r\n")
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-5][0-9][0-9])(?: ([\t\x20-\x7e\x80-\xff]*))?\r\n")
_METHOD = re.compile(rb"[A-Z-]+")
_TARGET = re.compile(rb"[\x21-\x7e]+")
# A name or an address with or without a port (RFC 9112 section 3.2), with the underscore that
# internal names often carry. Whether it names something is for others to judge.
_HOST = re.compile(rb"[A-Za-z0-9._~%:\[\]-]*")
_VERSIONS = {b"1.0": "1.0", b"1.1": "1.1"}

REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
"""The usual phrase of each status."""

_END = b"\r\n\r\n"

LONG_HEAD = 8 * 1024
"""Bytes beyond which a head is a long one: few are, and what they take together is bounded."""

_REMEMBERED_BYTES = 2048
_REMEMBERED_FIELDS = 32
"""What a head may have that is remembered for each connection: those of kubectl and kubelet have 10
fields and, with the token of a service account, 1.5 KiB. With what it is read as, and what becomes
of it in the hub, the largest takes 17 KiB."""


class HeadError(RequestFailed):
    """A head that is refused."""


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """How much of a head is taken in: its bytes with the final empty line, and its fields."""

    max_bytes: int = 16 * 1024
    max_fields: int = 100


class RequestHead(Head):
    """The head of one request; ``method`` and ``target`` are as sent."""

    __slots__ = ("method", "target")

    def __init__(
        self, method: bytes, target: bytes, version: str, fields: list[tuple[bytes, bytes]]
    ) -> None:
        super().__init__(version, fields)
        self.method = method
        self.target = target


class ResponseHead(Head):
    """The head of one response, interim (100 to 199) or final (200 to 599)."""

    __slots__ = ("reason", "status")

    def __init__(
        self, version: str, status: int, reason: bytes, fields: list[tuple[bytes, bytes]]
    ) -> None:
        super().__init__(version, fields)
        self.status = status
        self.reason = reason


class _Collector:
    """What the parser calls; an object of its own, which does not refer to the parser."""

    def __init__(self, fields: list[tuple[bytes, bytes]]) -> None:
        self._append = fields.append

    def on_header(self, name: bytes, value: bytes) -> None:
        # The parser removes the white space before a value and leaves that behind it.
        self._append((name, value.strip(b" \t")))


class _HeadReader:
    """Reads one head, up to the first empty line; ``_parser_type`` is the parser's.

    Call ``feed`` with each piece until it returns the head; what follows the head is then in
    ``early``. The reader is of no use afterwards, nor after it has raised. ``size`` is that of the
    head as far as it has come.
    """

    _parser_type: type[httptools.HttpRequestParser | httptools.HttpResponseParser]

    early: bytes = b""
    size = 0

    def __init__(self, limits: HeadLimits) -> None:
        self._fields: list[tuple[bytes, bytes]] = []
        self._parser = self._parser_type(_Collector(self._fields))
        self._limits = limits
        # Of a head that does not come whole: its first line, where that ends once it does, and the
        # last bytes, with which its end may begin. The parser has the rest.
        self._kept: bytes | bytearray = b""
        self._line_end = 0

    def _take(self, data: bytes) -> bytes | bytearray | None:
        """Take the next bytes; return a text that begins with the first line at the head's end."""
        before = len(self._kept)
        received = self._joined(data) if before else data
        end = received.find(_END, max(0, before - len(_END) + 1))
        if end < 0:
            self._parse(data)
            self._keep(received, before)
            return None
        end += len(_END)
        if end < len(received):
            self.early = data[end - before :]
            data = data[: end - before]
        self._parse(data)
        return received

    def _joined(self, data: bytes) -> bytes | bytearray:
        """Return what is kept with what has come behind it, of a head that does not come whole."""
        kept = self._kept
        kept += data
        return kept

    def _keep(self, received: bytes | bytearray, before: int) -> None:
        """Keep of ``received`` what is needed; ``before`` bytes of it are known."""
        kept = bytearray(received) if isinstance(received, bytes) else received
        if not self._line_end:
            self._line_end = kept.find(b"\n", before) + 1
        if self._line_end:
            del kept[self._line_end : 1 - len(_END)]
        self._kept = kept

    def _parse(self, data: bytes) -> None:
        """Let the parser see ``data``, with which the head has ``size`` bytes."""
        limits = self._limits
        self.size += len(data)
        if self.size > limits.max_bytes:
            raise _TooLarge(f"head is longer than {limits.max_bytes} bytes")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # This is how the parser stops behind the head of a CONNECT.
        except httptools.HttpParserError as error:
            raise _Malformed(error) from None
        if len(self._fields) > limits.max_fields:
            raise _TooLarge(f"has more than {limits.max_fields} header fields")


class RequestHeadReader(_HeadReader):
    """Reads one request head from pieces of any size."""

    _parser_type = httptools.HttpRequestParser

    def feed(self, data: bytes) -> RequestHead | None:
        """Take the next bytes; return the head when it is complete.

        Raises :class:`HeadError` (400, 431) at the first byte that cannot be part of a proper
        head.
        """
        try:
            received = self._take(data)
        except _Malformed as error:
            raise HeadError(400, f"the request head is malformed: {error}") from None
        except _TooLarge as error:
            raise HeadError(431, f"the request {error}") from None
        if received is None:
            return None
        line = _REQUEST_LINE.match(received)
        if line is None:
            raise HeadError(400, "the request line is not METHOD TARGET HTTP/1.1")
        method, target, version = line.groups()
        head = RequestHead(method, target, _VERSIONS[version], self._fields)
        if method != b"CONNECT" and not (target.startswith(b"/") and b"#" not in target):
            _check_target(method, target)
        _check_host(head)
        return head


class RequestHeads:
    """Reads the request heads of one connection, one after the other.

    Most clients send the same head again and again. So the last one is remembered by its bytes: how
    it is read depends on them alone, and the same ones give the same :class:`RequestHead`.

    ``begun`` tells that a part of a head has come, ``size`` how many bytes the last one has so far;
    ``early`` is what followed it.
    """

    early: bytes = b""
    size = 0

    def __init__(self, limits: HeadLimits) -> None:
        self.begun = False
        self._limits = limits
        self._reader: RequestHeadReader
        self._text = b""
        self._head: RequestHead | None = None

    def feed(self, data: bytes) -> RequestHead | None:
        """Take the next bytes; return the head when it is complete.

        Raises as :meth:`RequestHeadReader.feed` does; then no other head can be read.
        """
        if self.begun:
            return self._read(data)
        text = self._text
        if self._head is not None and data.startswith(text):
            self.size = size = len(text)
            self.early = data[size:]
            return self._head
        self.begun = True
        self._reader = RequestHeadReader(self._limits)
        head = self._read(data)
        if head is not None:
            size = self.size
            if size <= _REMEMBERED_BYTES and len(head.fields) <= _REMEMBERED_FIELDS:
                self._text, self._head = data[:size], head
        return head

    def forget(self) -> None:
        """Let go of a head that is not read to its end; no other head can be read then."""
        if self.begun:
            del self._reader

    def _read(self, data: bytes) -> RequestHead | None:
        reader = self._reader
        head = reader.feed(data)
        self.size = reader.size
        if head is not None:
            self.begun = False
            self.early = reader.early
            # It has all of a head that is long.
            del self._reader
        return head


class ResponseHeadReader(_HeadReader):
    """Reads one response head as :class:`RequestHeadReader` reads that of a request."""

    _parser_type = httptools.HttpResponseParser

    def feed(self, data: bytes) -> ResponseHead | None:
        """Take the next bytes; return the head when it is complete.

        Raises :class:`HeadError` (502) at the first byte that cannot be part of a proper head.
        """
        try:
            received = self._take(data)
        except _Malformed as error:
            raise HeadError(502, f"the response head is malformed: {error}") from None
        except _TooLarge as error:
            raise HeadError(502, f"the response {error}") from None
        if received is None:
            return None
        line = _STATUS_LINE.match(received)
        if line is None:
            raise HeadError(502, "the status line is not HTTP/1.1 STATUS REASON")
        version, status, reason = line.groups()
        return ResponseHead(_VERSIONS[version], int(status), reason or b"", self._fields)


def format_request_head(method: bytes, target: bytes, fields: Fields) -> bytes:
    """Write the head of an HTTP/1.1 request.

    Raises ``ValueError`` for anything that would be read as something else.
    """
    if not _METHOD.fullmatch(method):
        raise ValueError(f"{method!r} is not a method")
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{target!r} is not a request target")
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, format_fields(fields))


def format_response_head(status: int, reason: bytes, fields: Fields) -> bytes:
    """Write the head of an HTTP/1.1 response; ``status`` is from 100 to 599.

    Raises ``ValueError`` for anything that would be read as something else.
    """
    if not 100 <= status <= 599:
        raise ValueError(f"{status} is not the status of a response")
    if reason != REASONS.get(status):
        # A reason has the characters of a value (RFC 9112 section 4).
        check_field(b"Reason", reason)
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, format_fields(fields))


def _check_target(method: bytes, target: bytes) -> None:
    """Refuse what is no path, unless the method has such a target (RFC 9112 section 3.2)."""
    if method != b"OPTIONS" or target != b"*":
        raise HeadError(
            400, "the request target must be a path that begins with /, its host goes into Host"
        )


def _check_host(head: RequestHead) -> None:
    hosts = head.by_name.get(b"host", ())
    if len(hosts) > 1 or (not hosts and head.version == "1.1"):
        raise HeadError(400, "the request needs exactly one Host field")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise HeadError(400, "the Host field is not a host with or without a port")


class _Malformed(Exception):
    """What the parser does not take."""


class _TooLarge(Exception):
    """What the limits do not allow."""
