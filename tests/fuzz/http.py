"""Fuzz targets of HTTP: request heads, response heads, chunked bodies, and authorities."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.fuzz.cases import PLAN, Target, cut
from yurttunnel.http.authority import BadAuthority, join_authority, split_authority
from yurttunnel.http.body import BodyError, BodyReader
from yurttunnel.http.fields import Head
from yurttunnel.http.framing import CHUNKED, request_framing, response_framing
from yurttunnel.http.head import (
    HeadError,
    HeadLimits,
    RequestHead,
    RequestHeadReader,
    RequestHeads,
    ResponseHead,
    ResponseHeadReader,
    format_request_head,
    format_response_head,
)

LIMITS = HeadLimits(max_bytes=2000, max_fields=20)

Reader = RequestHeadReader | RequestHeads | ResponseHeadReader
Pieces = Iterable[bytes]


def _read_head(reader: Reader, pieces: Pieces) -> tuple[Head | None, bytes]:
    """Return the head in ``pieces`` and the bytes after it, or no head when it is invalid."""
    head: Head | None = None
    rest = b""
    for piece in pieces:
        if head is not None:
            rest += piece
            continue
        try:
            head = reader.feed(piece)
        except HeadError as error:
            assert error.status in (400, 431, 502), f"refused with {error.status}"
            assert "\n" not in str(error), "the reason has several lines"
            return None, b""
        rest = reader.early
    return head, rest


def _same(one: Head | None, other: Head | None) -> bool:
    """Return whether two heads are equal."""
    if one is None or other is None:
        return one is other
    names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    public = [name for name in names if not name.startswith("_")]
    return all(getattr(one, name) == getattr(other, name) for name in public)


def _fields(data: bytes) -> list[tuple[bytes, bytes]]:
    """Parse the fields of a valid head as RFC 9112 section 5 specifies."""
    _, *lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert not any(set(line) & set(b"\r\n") or line[:1] in b" \t" for line in lines)
    fields = [line.partition(b":") for line in lines]
    assert all(colon for _, colon, _ in fields), "a line without a colon is accepted"
    return [(name, value.strip(b" \t")) for name, _, value in fields]


def check_request(case: bytes) -> bool:
    """However it is split, a request head is parsed the same, and also when it is forwarded."""
    head, rest = _read_head(RequestHeadReader(LIMITS), [case[PLAN:]])
    again, again_rest = _read_head(RequestHeadReader(LIMITS), cut(case))
    assert _same(head, again) and rest == again_rest, "the result depends on the splitting"
    if not isinstance(head, RequestHead):
        return False
    heads = RequestHeads(LIMITS)
    for pieces in ([case[PLAN:]], [case[PLAN:]], cut(case)):
        again, again_rest = _read_head(heads, pieces)
        assert _same(head, again) and rest == again_rest, "the result depends on the request before"
    assert head.fields == _fields(case[PLAN:]), "the fields are not those that were sent"
    try:
        framing = request_framing(head)
    except HeadError as error:
        assert error.status in (400, 501), f"refused with {error.status}"
        return False
    if not head.values(b"host"):
        # HTTP/1.0 does not require the field; the forwarded request is HTTP/1.1.
        return True
    text = format_request_head(head.method, head.target, head.fields)
    forwarded, nothing = _read_head(RequestHeadReader(HeadLimits(4000, 40)), [text])
    assert isinstance(forwarded, RequestHead) and not nothing, "the forwarded head is not one head"
    assert forwarded.fields == head.fields, "the forwarded head has other fields"
    assert (forwarded.method, forwarded.target) == (head.method, head.target)
    if head.version == "1.1":
        assert request_framing(forwarded) == framing, "the forwarded head has another framing"
    return True


def check_response(case: bytes) -> bool:
    """However it is split, a response head is parsed the same, and also when it is forwarded."""
    head, rest = _read_head(ResponseHeadReader(LIMITS), [case[PLAN:]])
    again, again_rest = _read_head(ResponseHeadReader(LIMITS), cut(case))
    assert _same(head, again) and rest == again_rest, "the result depends on the splitting"
    if not isinstance(head, ResponseHead):
        return False
    assert head.fields == _fields(case[PLAN:]), "the fields are not those that were sent"
    try:
        framing = response_framing(b"GET", head)
    except HeadError as error:
        assert error.status == 502, f"refused with {error.status}"
        return False
    text = format_response_head(head.status, head.reason, head.fields)
    forwarded, nothing = _read_head(ResponseHeadReader(HeadLimits(4000, 40)), [text])
    assert isinstance(forwarded, ResponseHead) and not nothing, "the forwarded head is not one head"
    assert (forwarded.status, forwarded.fields) == (head.status, head.fields)
    if head.version == "1.1":
        assert response_framing(b"GET", forwarded) == framing, (
            "the forwarded head has another framing"
        )
    return True


def check_chunks(case: bytes) -> bool:
    """However it is split, a chunked body is decoded as RFC 9112 specifies."""
    whole, pieces = _read_body([case[PLAN:]]), _read_body(cut(case))
    assert whole == pieces, "the result depends on the splitting"
    if whole is None:
        return False
    body, rest = whole
    assert (body, rest) == _dechunk(case[PLAN:]), "the body is not that of its chunks"
    return True


def _read_body(pieces: Pieces) -> tuple[bytes, bytes] | None:
    """Return a chunked body and the bytes after it; ``None`` if it is invalid or incomplete."""
    reader = BodyReader(CHUNKED)
    body: list[bytes] = []
    rest = b""
    for piece in pieces:
        try:
            rest += reader.feed(piece, body.append)
        except BodyError as error:
            assert "\n" not in str(error), "the reason has several lines"
            return None
    return (b"".join(body), rest) if reader.ended else None


def _dechunk(data: bytes) -> tuple[bytes, bytes]:
    """Decode a valid body as RFC 9112 section 7.1.3 specifies."""
    body = b""
    while True:
        line, _, data = data.partition(b"\r\n")
        size = int(re.match(rb"[0-9a-fA-F]+", line)[0], 16)
        if not size:
            break
        body += data[:size]
        assert data[size : size + 2] == b"\r\n", "a chunk does not end where its size says"
        data = data[size + 2 :]
    while not data.startswith(b"\r\n"):
        data = data.partition(b"\r\n")[2]
    return body, data[2:]


def check_authority(case: bytes) -> bool:
    """A destination is the same when it is formatted and parsed again, or it is rejected."""
    text = case[PLAN:].decode("latin-1")
    try:
        host, port = split_authority(text)
    except BadAuthority:
        return False
    assert split_authority(join_authority(host, port)) == (host, port)
    assert not re.search(r"[\s/@\\?#\x00-\x20\x7f-\xff]", host), "an invalid character in a host"
    return True


FIELDS = [
    b"Host: edge-1:10250\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Connection: keep-alive, X-Tunnel-Proxy-Host\r\n",
    b"X-Tunnel-Proxy-Host: edge-2\r\n",
    b"Upgrade: SPDY/3.1\r\nConnection: Upgrade\r\n",
    b"Authorization: Bearer secret\r\n",
    b" folded\r\n",
    b"\r\n",
    b"GET /smuggled HTTP/1.1\r\nHost: other\r\n\r\n",
]

REQUEST = Target(
    "request",
    check_request,
    [
        b"GET / HTTP/1.1\r\nHost: edge-1\r\n",
        b"POST /exec/ns/pod/c?command=ls HTTP/1.1\r\nHost: edge-1:10250\r\n",
        b"CONNECT [2001:db8::1]:10250 HTTP/1.1\r\nHost: x\r\n",
        b"OPTIONS * HTTP/1.0\r\n",
    ],
    FIELDS,
)
RESPONSE = Target(
    "response",
    check_response,
    [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 101 Switching Protocols\r\n", b"HTTP/1.0 404 \r\n"],
    FIELDS,
)
CHUNKS = Target(
    "chunks",
    check_chunks,
    [b"", b"5\r\nhello\r\n", b"1a;name=value\r\n" + b"x" * 26 + b"\r\n"],
    [
        b"5\r\nhello\r\n",
        b"A\r\n0123456789\r\n",
        b'3;quoted=";"\r\nabc\r\n',
        b"0\r\n\r\n",
        b"0\r\nX-Trailer: t\r\n\r\n",
        b"0\r\nContent-Length: 4\r\n\r\n",
        b"00000000000000005\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"5\nhello\n",
        b"GET / HTTP/1.1\r\nHost: other\r\n\r\n",
    ],
)
AUTHORITY = Target(
    "authority",
    check_authority,
    [b"edge-1", b"10.0.0.1", b"[2001:db8::1]", b"a.b.example.", b""],
    [b":10250", b":65536", b".x", b"%eth0", b"@", b"\r\nX-Evil: 1", b"/../..", b"\x00", b"[", b"]"],
)
