"""Strict parsing of request and response heads, without I/O.

llhttp (through httptools) parses the fields and rejects what parsers may interpret differently:
bare CR and LF, folded lines, spaces around a name, control characters, repeated or signed
Content-Length, Content-Length together with Transfer-Encoding, unknown methods. This module also
rejects what llhttp accepts: several spaces in the start line, a line feed within the target
(HTTP/0.9, with the rest of the line as a field), empty lines before the start line, HTTP/0.9 and
HTTP/2.0 in it, protocols other than HTTP, control characters in a reason, a missing, repeated or
malformed Host, a form of target that does not fit the method, and heads above a size limit.

Absolute targets (``GET http://host/path``) are rejected: the host in them may differ from Host, and
clients that request something from a node send only the path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import httptools

from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.fields import Fields, Head, check_field, format_fields

T = TypeVar("T")

_REQUEST_LINE = re.compile(rb"([A-Z-]+) ([\x21-\x7e]+) HTTP/(1\.[01])\r\n")
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-5][0-9][0-9])(?: ([\t\x20-\x7e\x80-\xff]*))?\r\n")
_METHOD = re.compile(rb"[A-Z-]+")
_TARGET = re.compile(rb"[\x21-\x7e]+")
# A name or an address with an optional port (RFC 9112 section 3.2), plus the underscore that
# internal names often contain. Only the characters are checked here.
_HOST = re.compile(rb"[A-Za-z0-9._~%:\[\]-]*")
_VERSIONS = {b"1.0": "1.0", b"1.1": "1.1"}

REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
"""The standard reason phrase of each status."""

_STATUS_LINES = {each: b"HTTP/1.1 %d %b\r\n" % each for each in REASONS.items()}

_END = b"\r\n\r\n"
_END_SIZE = len(_END)

LONG_HEAD = 8 * 1024
"""The size in bytes above which a head counts as long; few are, and their total is limited."""

_MAX_CACHED_BYTES = 2048
_MAX_CACHED_FIELDS = 32
"""The largest head that a connection caches. Heads of kubectl and kubelet have 10 fields and, with
the token of a service account, 1.5 KiB. With its parsed form, and what the hub derives from it, the
largest takes 17 KiB."""


class HeadError(RequestFailed):
    """A head that is rejected."""


class HeadLimits(NamedTuple):
    """Limits of a head: its bytes, including the final empty line, and its fields."""

    max_bytes: int = 16 * 1024
    max_fields: int = 100


class RequestHead(Head):
    """The head of one request; ``method`` and ``target`` are as sent.

    Several requests may share one head (:class:`RequestHeads`).
    """

    __slots__ = ("_derived", "method", "target")

    def __init__(
        self, method: bytes, target: bytes, version: str, fields: list[tuple[bytes, bytes]]
    ) -> None:
        super().__init__(version, fields)
        self.method = method
        self.target = target
        self._derived: dict[Callable[[RequestHead], object], Any] = {}

    def derived(self, of: Callable[[RequestHead], T]) -> T:
        """Return ``of(self)`` and cache it, so ``of`` must depend on nothing but the head.

        Exceptions are not cached. ``of`` is the cache key, so it must not be created for the call.
        """
        derived = self._derived
        if of not in derived:
            derived[of] = of(self)
        found: T = derived[of]
        return found


class ResponseHead(Head):
    """The head of one response, interim (100 to 199) or final (200 to 599)."""

    __slots__ = ("reason", "status")

    def __init__(
        self, version: str, status: int, reason: bytes, fields: list[tuple[bytes, bytes]]
    ) -> None:
        super().__init__(version, fields)
        self.status = status
        self.reason = reason


class _Fields(list[tuple[bytes, bytes]]):
    """The fields, with the callback of the parser; they do not refer to the parser."""

    def on_header(self, name: bytes, value: bytes) -> None:
        # The parser strips leading white space from a value, but not trailing white space.
        self.append((name, value.strip(b" \t")))


class _HeadReader:
    """Parses one head, up to the first empty line, with a parser of ``_parser_type``.

    Call ``feed`` with each piece until it returns the head; ``early`` then holds the bytes after
    the head. The reader cannot be used afterwards, nor after it has raised. ``size`` is the number
    of bytes of the head received so far.
    """

    _parser_type: type[httptools.HttpRequestParser | httptools.HttpResponseParser]
    _what: str
    _malformed: int
    """The status for a head that the parser rejects."""
    _oversized: int
    """The status for a head that exceeds the limits."""

    early: bytes = b""
    size = 0

    def __init__(self, limits: HeadLimits) -> None:
        self._fields = _Fields()
        self._parser = self._parser_type(self._fields)
        self._limits = limits
        # For a head that arrives in pieces: its first line, the offset where that ends (0 before
        # it does), and the last bytes, which may be the start of the final empty line. The parser
        # holds the rest.
        self._kept: bytes | bytearray = b""
        self._line_end = 0

    def _take(self, data: bytes) -> bytes | bytearray | None:
        """Parse the next bytes; if the head is complete, return it from the first line on."""
        before = len(self._kept)
        received = self._joined(data) if before else data
        end = received.find(_END, max(0, before - _END_SIZE + 1)) + _END_SIZE
        is_complete = end >= _END_SIZE
        if is_complete and end < len(received):
            self.early = data[end - before :]
            data = data[: end - before]
        limits = self._limits
        self.size = size = self.size + len(data)
        if size > limits.max_bytes:
            raise self._too_large(f"head is longer than {limits.max_bytes} bytes")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # This is how the parser stops after the head of a CONNECT.
        except httptools.HttpParserError as error:
            raise HeadError(
                self._malformed, f"the {self._what} head is malformed: {error}"
            ) from None
        if len(self._fields) > limits.max_fields:
            raise self._too_large(f"has more than {limits.max_fields} header fields")
        if is_complete:
            return received
        self._keep(received, before)
        return None

    def _too_large(self, problem: str) -> HeadError:
        return HeadError(self._oversized, f"the {self._what} {problem}")

    def _joined(self, data: bytes) -> bytes | bytearray:
        """Return the kept bytes followed by ``data``."""
        kept = self._kept
        kept += data
        return kept

    def _keep(self, received: bytes | bytearray, before: int) -> None:
        """Keep the needed parts of ``received``; the first ``before`` bytes of it are not new."""
        kept = bytearray(received) if isinstance(received, bytes) else received
        if not self._line_end:
            self._line_end = kept.find(b"\n", before) + 1
        if self._line_end:
            del kept[self._line_end : 1 - _END_SIZE]
        self._kept = kept


class RequestHeadReader(_HeadReader):
    """Parses one request head from pieces of any size."""

    _parser_type = httptools.HttpRequestParser
    _what, _malformed, _oversized = "request", 400, 431

    def feed(self, data: bytes) -> RequestHead | None:
        """Take the next bytes; return the head when it is complete.

        Raises :class:`HeadError` (400, 431) at the first byte that cannot be part of a valid head.
        """
        received = self._take(data)
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
    """Parses the request heads of one connection, one after the other.

    Most clients send the same head again and again, so the last one is cached by its bytes: equal
    bytes return the same :class:`RequestHead`.

    ``begun`` is true while a head is incomplete. ``size`` is the number of bytes of the last head
    so far, and ``early`` holds the bytes after it.
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

        Raises as :meth:`RequestHeadReader.feed` does; after that no other head can be parsed.
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
            if size <= _MAX_CACHED_BYTES and len(head.fields) <= _MAX_CACHED_FIELDS:
                self._text, self._head = data[:size], head
        return head

    def forget(self) -> None:
        """Release an incomplete head; after that no other head can be parsed."""
        if self.begun:
            del self._reader

    def _read(self, data: bytes) -> RequestHead | None:
        reader = self._reader
        head = reader.feed(data)
        self.size = reader.size
        if head is not None:
            self.begun = False
            self.early = reader.early
            # The reader holds the whole head, which may be long.
            del self._reader
        return head


class ResponseHeadReader(_HeadReader):
    """Parses one response head, as :class:`RequestHeadReader` does for requests."""

    _parser_type = httptools.HttpResponseParser
    _what, _malformed, _oversized = "response", 502, 502

    def feed(self, data: bytes) -> ResponseHead | None:
        """Take the next bytes; return the head when it is complete.

        Raises :class:`HeadError` (502) at the first byte that cannot be part of a valid head.
        """
        received = self._take(data)
        if received is None:
            return None
        line = _STATUS_LINE.match(received)
        if line is None:
            raise HeadError(502, "the status line is not HTTP/1.1 STATUS REASON")
        version, status, reason = line.groups()
        return ResponseHead(_VERSIONS[version], int(status), reason or b"", self._fields)


def format_request_head(method: bytes, target: bytes, fields: Fields) -> bytes:
    """Serialize the head of an HTTP/1.1 request.

    Raises ``ValueError`` for anything that a recipient would parse differently.
    """
    if not _METHOD.fullmatch(method):
        raise ValueError(f"{method!r} is not a method")
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{target!r} is not a request target")
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, format_fields(fields))


def format_response_head(status: int, reason: bytes, fields: Fields) -> bytes:
    """Serialize the head of an HTTP/1.1 response; ``status`` is from 100 to 599.

    Raises ``ValueError`` for anything that a recipient would parse differently.
    """
    line = _STATUS_LINES.get((status, reason))
    if line is None:
        if not 100 <= status <= 599:
            raise ValueError(f"{status} is not the status of a response")
        # A reason phrase may have the same characters as a field value (RFC 9112 section 4).
        check_field(b"Reason", reason)
        line = b"HTTP/1.1 %d %b\r\n" % (status, reason)
    return line + format_fields(fields) + b"\r\n"


def _check_target(method: bytes, target: bytes) -> None:
    """Reject a target other than a path, except ``OPTIONS *`` (RFC 9112 section 3.2)."""
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
