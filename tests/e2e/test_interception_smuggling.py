"""Requests that two parsers may read differently, as raw bytes at both ports.

The cases are those of RFC 9112 section 11 and of published advisories about Twisted, h11, Node's
llhttp, Go's net/http and proxies built on them.
"""

from __future__ import annotations

from tests.e2e.interception import Frontend, InterceptionTestCase
from tests.e2e.kubelets import HELLO, Request, chunk, hello, routes
from tests.e2e.test_interception import together

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: HOST\r\n\r\n"
"""Data after each case, which must never be parsed as a request."""


def post(*lines: bytes, body: bytes = b"hello") -> bytes:
    """Return a POST with these lines in its head."""
    return b"POST /hello HTTP/1.1\r\nHost: HOST\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(*lines: bytes) -> bytes:
    """Return a GET with these lines in its head."""
    return b"GET /hello HTTP/1.1\r\nHost: HOST\r\n" + b"".join(x + b"\r\n" for x in lines) + b"\r\n"


def chunked(body: bytes) -> bytes:
    """Return a POST with this as its chunked body."""
    return post(b"Transfer-Encoding: chunked", body=body)


LENGTHS = {
    f"Content-Length: {value!r}": post(b"Content-Length: " + value)
    for value in (
        b"+5", b"-5", b"5 5", b"5,5", b"5, 5", b"5, 6", b"0x5", b"5_0", b"1e1", b"", b"five",
        b"5;", b"\xd9\xa5", b"\x0b5", b"5\x0c", b"5.0", b"99999999999999999999",
        b"18446744073709551621", b"9" * 400,
    )
} | {
    "twice the same": post(b"Content-Length: 5", b"Content-Length: 5"),
    "twice different": post(b"Content-Length: 5", b"content-length: 0"),
    "misspelled": post(b"Content_Length: 5"),
    "space before the colon": post(b"Content-Length : 5"),
    "tab before the colon": post(b"Content-Length\t: 5"),
}  # fmt: skip

CODINGS = {
    f"Transfer-Encoding: {value!r}": post(b"Transfer-Encoding: " + value, body=b"0\r\n\r\n")
    for value in (
        b"xchunked", b"chunkedx", b"chunked, identity", b"identity, chunked", b"gzip, chunked",
        b"chunked, chunked", b"chunked,", b",chunked", b"identity", b"gzip", b"\"chunked\"",
        b"chunked;a=b", b"\x0bchunked", b"chunked\x0b", b"\x00chunked", b"chun\xc2\xadked", b"",
    )
} | {
    "Content-Length first": post(
        b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"
    ),
    "Transfer-Encoding first": post(
        b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"
    ),
    "twice": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "twice, once unknown": post(
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", body=b"0\r\n\r\n"
    ),
    "space before the colon": post(
        b"Transfer-Encoding : chunked", b"Content-Length: 5", body=b"0\r\n\r\n"
    ),
    "misspelled": post(b"Transfer_Encoding: chunked", body=b"0\r\n\r\n"),
    "folded": post(b"Transfer-Encoding:", b" chunked", body=b"0\r\n\r\n"),
    "behind a bare LF": post(b"X: y\nTransfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "behind a bare CR": post(b"X: y\rTransfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "in HTTP/1.0": b"POST /hello HTTP/1.0\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"0\r\n\r\n",
}  # fmt: skip

LINES = {
    "bare LFs": b"GET /hello HTTP/1.1\nHost: HOST\n\n",
    "a bare LF behind the request line": b"GET /hello HTTP/1.1\nHost: HOST\r\n\r\n",
    "a bare LF at the end": b"GET /hello HTTP/1.1\r\nHost: HOST\r\n\n",
    "a bare CR in a value": get(b"X: a\rb"),
    "two CRs": get(b"X: a\r"),
    "a folded line": get(b"X: a", b" b"),
    "a folded line with a tab": get(b"X: a", b"\tb"),
    "a folded first line": b"GET /hello HTTP/1.1\r\n X: a\r\nHost: HOST\r\n\r\n",
    "NUL in a value": get(b"X: a\x00b"),
    "NUL in a name": get(b"X\x00: a"),
    "NUL in the target": b"GET /hel\x00lo HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "a control character in a value": get(b"X: a\x01b"),
    "a space in a name": get(b"X Y: a"),
    "no name": get(b": a"),
    "no colon": get(b"just text"),
    "no ASCII in a name": get(b"X\xc3\xa9: a"),
    "a semicolon in a name": get(b"X;: a"),
    "brackets around a name": get(b"[X]: a"),
}

STARTS = {
    "absolute form": b"GET http://HOST/hello HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "absolute form, another host": b"GET http://other:1/hello HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "authority form": b"GET HOST HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "asterisk form": b"GET * HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "no slash": b"GET hello HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "a fragment": b"GET /hello#x HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "a space in the target": b"GET /hel lo HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "two spaces": b"GET  /hello HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "a space at the end": b"GET /hello HTTP/1.1 \r\nHost: HOST\r\n\r\n",
    "tabs": b"GET\t/hello\tHTTP/1.1\r\nHost: HOST\r\n\r\n",
    "a space before": b" GET /hello HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "no version": b"GET /hello\r\n\r\n",
    "HTTP/0.9": b"GET /hello HTTP/0.9\r\nHost: HOST\r\n\r\n",
    "HTTP/1.2": b"GET /hello HTTP/1.2\r\nHost: HOST\r\n\r\n",
    "HTTP/2.0": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.10": b"GET /hello HTTP/1.10\r\nHost: HOST\r\n\r\n",
    "HTTP/+1.1": b"GET /hello HTTP/+1.1\r\nHost: HOST\r\n\r\n",
    "http/1.1": b"GET /hello http/1.1\r\nHost: HOST\r\n\r\n",
    "another protocol": b"GET /hello RTSP/1.0\r\nHost: HOST\r\n\r\n",
    "a method in lower case": b"get /hello HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "no ASCII in the target": b"GET /h\xc3\xa9llo HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "no Host": b"GET /hello HTTP/1.1\r\nX: y\r\n\r\n",
    "two Hosts": get(b"Host: other:1"),
    "two equal Hosts": get(b"Host: HOST"),
    "user and password": b"GET /hello HTTP/1.1\r\nHost: a@HOST\r\n\r\n",
    "two Hosts in one": b"GET /hello HTTP/1.1\r\nHost: HOST, HOST\r\n\r\n",
    "a path in Host": b"GET /hello HTTP/1.1\r\nHost: HOST/x\r\n\r\n",
}

CHUNKS = {
    "0x": chunked(b"0x5\r\nhello\r\n0\r\n\r\n"),
    "signed": chunked(b"+5\r\nhello\r\n0\r\n\r\n"),
    "negative": chunked(b"-5\r\nhello\r\n0\r\n\r\n"),
    "a space before": chunked(b" 5\r\nhello\r\n0\r\n\r\n"),
    "no size": chunked(b"\r\nhello\r\n0\r\n\r\n"),
    "no number": chunked(b"g\r\nhello\r\n0\r\n\r\n"),
    "underscore": chunked(b"0_5\r\nhello\r\n0\r\n\r\n"),
    "overlong": chunked(b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n"),
    "wraps around": chunked(b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    "overlong zeros": chunked(b"0" * 100 + b"5\r\nhello\r\n0\r\n\r\n"),
    "bare LF behind the size": chunked(b"5\nhello\r\n0\r\n\r\n"),
    "bare CR behind the size": chunked(b"5\rhello\r\n0\r\n\r\n"),
    "NUL behind the size": chunked(b"5\x00\r\nhello\r\n0\r\n\r\n"),
    "bare LF in an extension": chunked(b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
    "bare CR in an extension": chunked(b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
    "a huge extension": chunked(b"5;" + b"a" * 100_000 + b"\r\nhello\r\n0\r\n\r\n"),
    "too much data": chunked(b"5\r\nhello!\r\n0\r\n\r\n"),
    "bare LF behind the data": chunked(b"5\r\nhello\n0\r\n\r\n"),
    "no line end behind the data": chunked(b"5\r\nhello0\r\n\r\n"),
    "bare LF behind the last chunk": chunked(b"5\r\nhello\r\n0\n\n"),
    "bare LF at the very end": chunked(b"5\r\nhello\r\n0\r\n\n"),
    "a bad trailer": chunked(b"5\r\nhello\r\n0\r\nX : y\r\n\r\n"),
    "a folded trailer": chunked(b"5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n"),
    "a huge trailer": chunked(b"5\r\nhello\r\n0\r\nX: " + b"y" * 100_000 + b"\r\n\r\n"),
}

UNKNOWN_CODINGS = (400, 501)
"""A transfer coding that is well formed and unknown may be answered with 501 (RFC 9112, 6.1)."""


class SmugglingTests(InterceptionTestCase):
    """Each is rejected with 400 and closed, at both ports; the kubelet receives nothing."""

    async def test_heads_that_can_be_misread_are_refused(self) -> None:
        """No byte of such a request, or after it, reaches the kubelet."""
        tunnel, frontends = await self.start_with_frontends(hello)
        before = self.descriptors_of(tunnel)
        for cases in (LENGTHS, CODINGS, LINES, STARTS):
            allowed = UNKNOWN_CODINGS if cases is CODINGS else (400,)
            if cases is STARTS:
                # RFC 9110 section 15.6.6 has a status of its own for versions.
                allowed = (400, 505)
            await together(
                *(
                    self.refused(door, name, text, allowed)
                    for door in frontends
                    for name, text in cases.items()
                )
            )
        for door in frontends:
            self.assertEqual(door.kubelet.received, 0, door.name)
            self.assertEqual((await door.get("/hello")).body, HELLO)
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def test_bodies_that_can_be_misread_are_refused(self) -> None:
        """The kubelet never receives such a request completely, and nothing after it."""
        tunnel, frontends = await self.start_with_frontends(hello)
        before = self.descriptors_of(tunnel)
        await together(
            *(
                self.refused(door, name, text, (400,))
                for door in frontends
                for name, text in CHUNKS.items()
            )
        )
        for door in frontends:
            for request in door.kubelet.requests:
                self.assertEqual(request.target, b"/hello")
                self.assertFalse(request.complete, f"{door.name}: {request.body!r}")
            self.assertEqual((await door.get("/hello")).body, HELLO)
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def refused(self, door: Frontend, name: str, text: bytes, allowed: tuple) -> None:
        """Require one of the statuses, one answer, and the end of the connection."""
        text = (text + SMUGGLED).replace(b"HOST", door.host.encode())
        named = f"{door.name}: {name}"
        peer = await door.raw(text)
        await self.within(8, peer.when_ended(), f"{named} is closed")
        status = peer.answer.partition(b" ")[2][:3]
        self.assertIn(status, [b"%d" % each for each in allowed], f"{named}: {peer.answer[:300]!r}")
        self.assertEqual(peer.answer.count(b"HTTP/1.1 "), 1, f"{named}: {peer.answer!r}")
        peer.drop()

    async def test_pipelined_requests_keep_their_order(self) -> None:
        """Pipelined requests are answered in order, one at a time."""
        at_once: set[bytes] = set()
        concurrent = 0

        async def slowly(request: Request) -> None:
            nonlocal concurrent
            await request.ended()
            at_once.add(request.target)
            concurrent = max(concurrent, len(at_once))
            number = int(request.target.partition(b"?")[2])
            await self.pause(0.05 * (number % 3))
            at_once.discard(request.target)
            request.answer(200, request.target)

        tunnel, frontends = await self.start_with_frontends(routes(slowly=slowly, hello=hello))
        before = self.descriptors_of(tunnel)
        for door in frontends:
            client = await door.client()
            answers = [
                client.ask(f"/slowly?{number}", *(("PUT", (), b"x" * 1000) if number % 2 else ()))
                for number in range(12)
            ]
            bodies = [(await answer.whole()).body for answer in answers]
            self.assertEqual(bodies, [b"/slowly?%d" % number for number in range(12)])
            self.assertEqual(concurrent, 1, "one at a time")
            client.drop()
            # Invalid data after a valid request is rejected after the response to that.
            host = door.host.encode()
            text = chunked(chunk(b"hello") + chunk(b"")).replace(b"HOST", host)
            peer = await door.raw(text + b"0\r\n\r\n" + SMUGGLED.replace(b"HOST", host))
            await self.within(8, peer.when_ended(), "the connection is closed")
            self.assertTrue(peer.answer.startswith(b"HTTP/1.1 200 "), peer.answer[:60])
            self.assertEqual(peer.answer.count(b"HTTP/1.1 400 "), 1, peer.answer)
            self.assertEqual(door.kubelet.seen(b"/smuggled"), [])
            peer.drop()
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def test_heads_have_a_bound(self) -> None:
        """A head above the limit, in bytes or in fields, gets 431."""
        _, frontends = await self.start_with_frontends(hello)
        cases = {
            "a huge field": get(b"X: " + b"y" * 2_000_000),
            "a huge target": b"GET /" + b"y" * 2_000_000 + b" HTTP/1.1\r\nHost: HOST\r\n\r\n",
            "many fields": get(*(b"X: y" for _ in range(20_000))),
        }
        await together(
            *(
                self.refused(door, name, text, (431,))
                for door in frontends
                for name, text in cases.items()
            )
        )
        for door in frontends:
            self.assertEqual(door.kubelet.received, 0, door.name)
