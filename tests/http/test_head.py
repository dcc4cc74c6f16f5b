"""Reading request heads."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.head import HeadError, HeadLimits, RequestHeadReader

LINE = b"CONNECT edge-1:10250 HTTP/1.1\r\n"
CONNECT = LINE + b"Host: 127.0.0.1\r\nX-Thing: one\r\nx-thing: Two\r\n\r\n"


def read(data, limits=None):
    """Read a head that comes in one piece."""
    reader = RequestHeadReader(limits or HeadLimits())
    return reader.feed(data), reader.early


class HeadTests(SynchronousTestCase):
    """``RequestHeadReader`` takes proper heads."""

    def test_a_head_is_read(self):
        """Method, target, version and fields come as they were sent."""
        head, early = read(CONNECT)
        self.assertEqual(head.method, b"CONNECT")
        self.assertEqual(head.target, b"edge-1:10250")
        self.assertEqual(head.version, "1.1")
        self.assertEqual(
            head.fields, [(b"Host", b"127.0.0.1"), (b"X-Thing", b"one"), (b"x-thing", b"Two")]
        )
        self.assertEqual(head.values(b"x-thing"), [b"one", b"Two"])
        self.assertEqual(head.values(b"absent"), [])
        self.assertEqual(early, b"")

    def test_other_methods_are_read(self):
        """A GET is a proper head as well, with its body left alone."""
        head, early = read(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
        self.assertEqual((head.method, head.target, early), (b"POST", b"/x", b"abc"))

    def test_what_follows_a_request_without_body_is_kept_however_malformed(self):
        """The parser's opinion of bytes behind the head does not matter."""
        head, early = read(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n\0garbage\n")
        self.assertEqual((head.method, early), (b"GET", b"\0garbage\n"))

    def test_http_1_0_needs_no_host(self):
        """HTTP/1.0, as old clients speak it, is read."""
        head, _ = read(b"CONNECT a:1 HTTP/1.0\r\n\r\n")
        self.assertEqual(head.version, "1.0")

    @given(st.lists(st.integers(0, len(CONNECT) + 7)), st.just(CONNECT + b"\r\n\r\n\0xy"))
    def test_any_cutting_gives_the_same(self, cuts, data):
        """Head and early bytes do not depend on how the bytes were cut into pieces."""
        reader = RequestHeadReader(HeadLimits())
        edges = [0, *sorted(cuts), len(data)]
        pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
        head, rest = None, b""
        for piece in pieces:
            if head is None:
                head = reader.feed(piece)
            else:
                rest += piece
        self.assertEqual(head.fields, read(CONNECT)[0].fields)
        self.assertEqual(reader.early + rest, b"\r\n\r\n\0xy")


class RefusalTests(SynchronousTestCase):
    """``RequestHeadReader`` refuses what two readers may understand differently."""

    def assert_refused(self, data, status=400):
        """Refused whether it comes at once or byte by byte."""
        error = self.assertRaises(HeadError, read, data)
        self.assertEqual(error.status, status, data)
        reader = RequestHeadReader(HeadLimits())

        def feed_bytes():
            for value in data:
                if reader.feed(bytes([value])) is not None:
                    return

        error = self.assertRaises(HeadError, feed_bytes)
        self.assertEqual(error.status, status, data)

    def test_bad_lines_and_fields(self):
        """Bare CR and LF, folding, spaces around names, control characters and the like."""
        host = b"Host: x\r\n"
        for fields in (
            b"Host: x\nA: b\r\n\r\n",
            b"Host: x\rA: b\r\n\r\n",
            b"Host: x\r\n folded\r\n\r\n",
            b"Host : x\r\n\r\n",
            b"Ho st: x\r\n\r\n",
            b" Host: x\r\n\r\n",
            b"Host: x\0y\r\n\r\n",
            b"Host: x\x01y\r\n\r\n",
            b"Ho\0st: x\r\n\r\n",
            b"H\xffst: x\r\n\r\n",
            b": x\r\n\r\n",
            b"Host\r\n\r\n",
            host + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
            host + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            host + b"Content-Length: +1\r\n\r\n",
            host + b"Content-Length: -1\r\n\r\n",
            host + b"Content-Length: 1, 1\r\n\r\n",
            host + host + b"\r\n",
            b"\r\n",
        ):
            self.assert_refused(LINE + fields)

    def test_bad_request_lines(self):
        """Only ``METHOD TARGET HTTP/1.x`` with single spaces is a request line."""
        for line in (
            b"CONNECT a:1 HTTP/1.1\n",
            b"CONNECT  a:1 HTTP/1.1\r\n",
            b"CONNECT a:1  HTTP/1.1\r\n",
            b"CONNECT\ta:1 HTTP/1.1\r\n",
            b"CONNECT a:1 HTTP/1.1 \r\n",
            b" CONNECT a:1 HTTP/1.1\r\n",
            b"\r\nCONNECT a:1 HTTP/1.1\r\n",
            b"connect a:1 HTTP/1.1\r\n",
            b"FROB a:1 HTTP/1.1\r\n",
            b"CONNECT a:1\r\n",
            b"CONNECT a:1 HTTP/0.9\r\n",
            b"CONNECT a:1 HTTP/1.2\r\n",
            b"CONNECT a:1 HTTP/2.0\r\n",
            b"CONNECT a\xff:1 HTTP/1.1\r\n",
            b"CONNECT a\0:1 HTTP/1.1\r\n",
            b"GET / RTSP/1.0\r\n",
            b"PRI * HTTP/2.0\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\r\n",
        ):
            self.assert_refused(line + b"Host: x\r\n\r\n")

    def test_garbage_is_refused_before_the_head_ends(self):
        """The first impossible byte is enough: nothing waits for an empty line."""
        self.assertEqual(self.assertRaises(HeadError, read, b"\x16\x03\x01").status, 400)
        self.assertEqual(self.assertRaises(HeadError, read, LINE + b"A: b\nC").status, 400)


class LimitTests(SynchronousTestCase):
    """``HeadLimits`` bound a head exactly."""

    def test_bytes(self):
        """A head of ``max_bytes`` passes, one more does not, whatever follows it."""
        exact = HeadLimits(max_bytes=len(CONNECT))
        head, early = read(CONNECT + b"x" * 100_000, exact)
        self.assertEqual((head.method, len(early)), (b"CONNECT", 100_000))
        tight = HeadLimits(max_bytes=len(CONNECT) - 1)
        self.assertEqual(self.assertRaises(HeadError, read, CONNECT, tight).status, 431)

    def test_an_endless_line(self):
        """A head that never ends is refused as soon as it is too long."""
        reader = RequestHeadReader(HeadLimits(max_bytes=1000))
        self.assertIsNone(reader.feed(b"CONNECT " + b"a" * 992))
        self.assertEqual(self.assertRaises(HeadError, reader.feed, b"a").status, 431)

    def test_fields(self):
        """A head of ``max_fields`` fields passes, one more does not."""
        self.assertEqual(len(read(CONNECT, HeadLimits(max_fields=3))[0].fields), 3)
        error = self.assertRaises(HeadError, read, CONNECT, HeadLimits(max_fields=2))
        self.assertEqual(error.status, 431)
