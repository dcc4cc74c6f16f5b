"""Parsing and serializing of heads."""

import gc
import itertools
import tracemalloc
import weakref

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.wire.harness import examples
from yurttunnel.http.head import (
    HeadError,
    HeadLimits,
    RequestHeadReader,
    RequestHeads,
    ResponseHeadReader,
    format_request_head,
    format_response_head,
)

LINE = b"CONNECT edge-1:10250 HTTP/1.1\r\n"
CONNECT = LINE + b"Host: 127.0.0.1\r\nX-Thing: one\r\nx-thing: Two\r\n\r\n"


def read(data, limits=None):
    """Parse a head in one piece."""
    reader = RequestHeadReader(limits or HeadLimits())
    return reader.feed(data), reader.early


class HeadTests(SynchronousTestCase):
    """``RequestHeadReader`` accepts valid heads."""

    def test_a_head_is_read(self):
        """Method, target, version and fields are returned as sent."""
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
        """A GET is a valid head as well; its body is not touched."""
        head, early = read(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
        self.assertEqual((head.method, head.target, early), (b"POST", b"/x", b"abc"))

    def test_what_follows_a_request_without_body_is_kept_however_malformed(self):
        """The parser's errors about bytes after the head do not matter."""
        head, early = read(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n\0garbage\n")
        self.assertEqual((head.method, early), (b"GET", b"\0garbage\n"))

    def test_http_1_0_needs_no_host(self):
        """HTTP/1.0, as used by old clients, is accepted."""
        head, _ = read(b"CONNECT a:1 HTTP/1.0\r\n\r\n")
        self.assertEqual(head.version, "1.0")

    def test_values_lose_the_white_space_around_them(self):
        """White space before and after a value is removed, and kept within it."""
        head, _ = read(LINE + b"Host: x\r\nA: \t b \tc\t \r\nE:\r\nF: \t\r\n\r\n")
        self.assertEqual(head.fields[1:], [(b"A", b"b \tc"), (b"E", b""), (b"F", b"")])

    def test_targets_have_the_form_of_their_method(self):
        """The target is a path, ``*`` with OPTIONS, or an authority with CONNECT."""
        for line in (b"GET /a/b?c=%2e&d=[1]", b"GET //a", b"OPTIONS *", b"OPTIONS /"):
            head, _ = read(line + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            self.assertEqual(head.target, line.split()[1])

    def test_hosts(self):
        """Names and addresses with an optional port are valid; an empty Host is accepted."""
        for host in (b"edge-1", b"edge_1.example.:10250", b"[::1]:1", b"[fe80::1%25eth0]", b""):
            head, _ = read(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            self.assertEqual(head.values(b"host"), [host])

    @examples(100)
    @given(st.lists(st.integers(0, len(CONNECT) + 7)), st.just(CONNECT + b"\r\n\r\n\0xy"))
    def test_any_cutting_gives_the_same(self, cuts, data):
        """Head and early bytes do not depend on how the bytes are split."""
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
    """``RequestHeadReader`` rejects heads that parsers may interpret differently."""

    def assert_refused(self, data, status=400):
        """Check that a head is rejected in one piece and byte by byte."""
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
        """Bare CR and LF, folding, spaces around names and control characters are rejected."""
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
        """Only ``METHOD TARGET HTTP/1.x`` with single spaces is a valid request line."""
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
        """The first invalid byte is rejected, without waiting for an empty line."""
        self.assertEqual(self.assertRaises(HeadError, read, b"\x16\x03\x01").status, 400)
        self.assertEqual(self.assertRaises(HeadError, read, LINE + b"A: b\nC").status, 400)

    def test_targets_of_another_form(self):
        """A host in the target could contradict Host; fragments are never sent."""
        for target in (b"http://a/b", b"https://a/b", b"*", b"/a#b", b"a/b", b"?a", b"a:1"):
            self.assert_refused(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n")

    def test_bad_hosts(self):
        """Anything but a host with an optional port is rejected, under HTTP/1.0 too."""
        for host in (b"a,b", b"a b", b"user@a", b"a/b", b"a?b", b"a#b", b"a\\b", b"\xff"):
            for version in (b"1.0", b"1.1"):
                self.assert_refused(b"GET / HTTP/%b\r\nHost: %b\r\n\r\n" % (version, host))

    def test_an_endless_prelude(self):
        """Empty lines before the head are rejected."""
        self.assert_refused(b"\r\n\r\n")

    def test_the_error_reads_as_its_text(self):
        """The text of the exception is the message that the client gets."""
        error = self.assertRaises(HeadError, read, b"GET / HTTP/1.1\r\n\r\n")
        self.assertEqual(str(error), "the request needs exactly one Host field")


class LimitTests(SynchronousTestCase):
    """``HeadLimits`` are exact."""

    def test_bytes(self):
        """A head of ``max_bytes`` is accepted, one more is not, whatever follows."""
        exact = HeadLimits(max_bytes=len(CONNECT))
        head, early = read(CONNECT + b"x" * 100_000, exact)
        self.assertEqual((head.method, len(early)), (b"CONNECT", 100_000))
        tight = HeadLimits(max_bytes=len(CONNECT) - 1)
        self.assertEqual(self.assertRaises(HeadError, read, CONNECT, tight).status, 431)

    def test_an_endless_line(self):
        """An endless head is rejected as soon as it is too long."""
        reader = RequestHeadReader(HeadLimits(max_bytes=1000))
        self.assertIsNone(reader.feed(b"CONNECT " + b"a" * 992))
        self.assertEqual(self.assertRaises(HeadError, reader.feed, b"a").status, 431)

    def test_fields(self):
        """A head with ``max_fields`` fields is accepted, one more is not."""
        self.assertEqual(len(read(CONNECT, HeadLimits(max_fields=3))[0].fields), 3)
        error = self.assertRaises(HeadError, read, CONNECT, HeadLimits(max_fields=2))
        self.assertEqual(error.status, 431)


class MemoryTests(SynchronousTestCase):
    """The memory for a long head that arrives in pieces."""

    SIZE = 400_000
    MUCH = b"a" * SIZE
    HOST = b"Host: a\r\n"
    LONG = (
        b"GET /%b HTTP/1.1\r\n%b\r\n" % (MUCH, HOST),
        b"GET / HTTP/1.1\r\n%bX: %b\r\n\r\n" % (HOST, MUCH),
        b"GET / HTTP/1.1\r\n%b%b: x\r\n\r\n" % (HOST, MUCH),
        b"GET / HTTP/1.1\r\n%b" % HOST + b"X: %b\r\n" % MUCH[:2000] * 150 + b"\r\n",
    )

    def held(self, text, end=b""):
        """Feed ``text`` and then ``end``; return how many bytes are in use then."""
        pieces = [text[start : start + 50_000] for start in range(0, len(text), 50_000)]
        gc.collect()
        tracemalloc.start()
        try:
            heads = RequestHeads(HeadLimits(max_bytes=1 << 20, max_fields=200))
            for piece in pieces:
                self.assertIsNone(heads.feed(piece))
            if end:
                self.assertIsNotNone(heads.feed(end))
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    def test_it_is_stored_once(self):
        """Only the parser holds it; the received bytes are not kept in addition."""
        for text in self.LONG:
            self.assertLess(self.held(text[:-1]), 1.5 * self.SIZE)

    def test_a_complete_head_is_released(self):
        """A complete head is released by the reader."""
        for text in self.LONG:
            self.assertLess(self.held(text[:-1], text[-1:]), 20_000)

    def test_an_evicted_head(self):
        """An incomplete head can be released."""
        heads = RequestHeads(HeadLimits())
        heads.feed(CONNECT[:-1])
        reader = weakref.ref(heads._reader)
        heads.forget()
        self.assertIsNone(reader())
        self.assertTrue(heads.begun)

    @given(st.lists(st.integers(1, 40), max_size=20))
    @examples(60)
    def test_however_it_is_cut(self, cuts):
        """The end, and what follows it, is found even if hardly any bytes are kept."""
        for lines in (self.HOST, self.HOST + b"X: \r\n", self.HOST + b"Y: 1\r\nX: 2\r\n"):
            text = b"GET / HTTP/1.1\r\n%b\r\n" % lines
            reader, rest, head = RequestHeadReader(HeadLimits()), text + b"\r\n\r\n", None
            for size in [*cuts, len(rest)]:
                head, rest = reader.feed(rest[:size]), rest[size:]
                if head is not None:
                    break
            self.assertEqual(events(RequestHeadReader(HeadLimits()).feed(text)), events(head))
            self.assertEqual((b"\r\n\r\n", len(text)), (reader.early + rest, reader.size))


def events(head):
    """Return the parts of a head."""
    return head.method, head.target, head.version, head.fields


class RepeatedHeadTests(SynchronousTestCase):
    """``RequestHeads`` parses the heads of a connection, and caches the last one."""

    def setUp(self):
        """Start a connection."""
        self.heads = RequestHeads(HeadLimits())

    def test_the_same_head_is_read_once(self):
        """The same bytes return the same object, whatever follows them."""
        first = self.heads.feed(CONNECT)
        for early in (b"", b"x", CONNECT):
            self.assertIs(first, self.heads.feed(CONNECT + early))
            self.assertEqual((early, False), (self.heads.early, self.heads.begun))

    def test_a_head_that_differs_in_a_byte_is_parsed(self):
        """Nothing of the previous head is left in a head that differs from it in one byte."""
        first = self.heads.feed(CONNECT)
        second = self.heads.feed(CONNECT.replace(b"one", b"One"))
        for head, value in ((first, b"one"), (second, b"One")):
            self.assertEqual([value, b"Two"], head.values(b"x-thing"))
        self.assertRaises(HeadError, self.heads.feed, CONNECT.replace(b": one", b" : one"))

    def test_a_head_in_pieces_is_read_to_its_end(self):
        """The start of the previous head is not a head, even with another end."""
        first = self.heads.feed(CONNECT)
        self.assertIsNone(self.heads.feed(CONNECT[:-2]))
        self.assertTrue(self.heads.begun)
        second = self.heads.feed(b"X-More: 1\r\n\r\nrest")
        self.assertEqual([b"1"], second.values(b"x-more"))
        self.assertEqual((b"rest", False), (self.heads.early, self.heads.begun))
        self.assertIs(first, self.heads.feed(CONNECT))

    def test_long_heads_are_not_remembered(self):
        """A connection caches a head of at most 2048 bytes and 32 fields."""
        start, end = LINE + b"Host: a\r\n", b"\r\n"
        padding = 2048 - len(start) - len(b"X: \r\n") - len(end)
        for lines, remembered in (
            (b"X: %b\r\n" % (b"x" * padding), True),
            (b"X: %b\r\n" % (b"x" * (padding + 1)), False),
            (b"X: x\r\n" * 31, True),
            (b"X: x\r\n" * 32, False),
        ):
            heads = RequestHeads(HeadLimits())
            text = start + lines + end
            first, second = heads.feed(text), heads.feed(text)
            self.assertEqual((remembered, events(first)), (first is second, events(second)))

    @given(
        st.lists(st.sampled_from([b"GET", b"POST"]), min_size=1, max_size=6),
        st.lists(st.integers(1, 60), max_size=8),
    )
    @examples(60)
    def test_heads_in_a_row_are_read_as_each_by_itself(self, methods, cuts):
        """However the bytes are split, each head is parsed as if it were alone."""
        stream = b"".join(b"%b / HTTP/1.1\r\nHost: a\r\n\r\n" % method for method in methods)
        heads, found, held = RequestHeads(HeadLimits()), [], b""
        for size in [*cuts, len(stream)]:
            data, stream = stream[:size], stream[size:]
            held += data
            while held:
                head = heads.feed(held)
                held = b"" if head is None else heads.early
                if head is not None:
                    found.append(head.method)
        self.assertEqual(methods, found)

    def test_what_is_derived_of_a_head_is_found_once(self):
        """The result is cached; an exception is not."""
        calls = []

        def derive(head):
            calls.append(head)
            return head.target

        def fail(head):
            calls.append(head)
            raise ValueError

        head = self.heads.feed(CONNECT)
        for _ in range(2):
            self.assertEqual(b"edge-1:10250", head.derived(derive))
        for _ in range(2):
            self.assertRaises(ValueError, head.derived, fail)
        self.assertEqual([head] * 3, calls)


RESPONSE = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\nX-A: b \r\n\r\n"


def read_response(data, limits=None):
    """Parse a response head in one piece."""
    reader = ResponseHeadReader(limits or HeadLimits())
    return reader.feed(data), reader.early


class ResponseHeadTests(SynchronousTestCase):
    """``ResponseHeadReader`` accepts valid heads only."""

    def test_a_head_is_read(self):
        """Version, status, reason and fields are returned as sent."""
        head, early = read_response(RESPONSE + b"abc")
        self.assertEqual((head.version, head.status, head.reason), ("1.1", 206, b"Partial Content"))
        self.assertEqual(head.fields, [(b"Content-Length", b"3"), (b"X-A", b"b")])
        self.assertEqual(head.values(b"x-a"), [b"b"])
        self.assertEqual(early, b"abc")

    def test_other_heads_are_read(self):
        """Interim and final responses, with and without a reason, and of HTTP/1.0."""
        for line, expected in (
            (b"HTTP/1.1 100 Continue", ("1.1", 100, b"Continue")),
            (b"HTTP/1.1 101 Switching Protocols", ("1.1", 101, b"Switching Protocols")),
            (b"HTTP/1.0 200 OK", ("1.0", 200, b"OK")),
            (b"HTTP/1.1 200", ("1.1", 200, b"")),
            (b"HTTP/1.1 200 ", ("1.1", 200, b"")),
            (b"HTTP/1.1 599 \xc3\xa9", ("1.1", 599, b"\xc3\xa9")),
        ):
            head, early = read_response(line + b"\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n\0")
            self.assertEqual((head.version, head.status, head.reason), expected)
            self.assertEqual(early, b"\0")

    @examples(100)
    @given(st.lists(st.integers(0, len(RESPONSE) + 3)))
    def test_any_cutting_gives_the_same(self, cuts):
        """Head and early bytes do not depend on how the bytes are split."""
        data = RESPONSE + b"abc"
        reader = ResponseHeadReader(HeadLimits())
        head, rest = None, b""
        for start, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
            if head is None:
                head = reader.feed(data[start:end])
            else:
                rest += data[start:end]
        self.assertEqual(head.fields, read_response(RESPONSE)[0].fields)
        self.assertEqual(reader.early + rest, b"abc")

    def test_bad_status_lines(self):
        """Only ``HTTP/1.x STATUS REASON`` with single spaces is a valid status line."""
        for line in (
            b"HTTP/1.1  200 OK\r\n",
            b" HTTP/1.1 200 OK\r\n",
            b"\r\nHTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 20 OK\r\n",
            b"HTTP/1.1 2000 OK\r\n",
            b"HTTP/1.1 099 OK\r\n",
            b"HTTP/1.1 600 OK\r\n",
            b"HTTP/1.1 +20 OK\r\n",
            b"HTTP/1.1 200 O\0K\r\n",
            b"HTTP/1.1 200 O\x7fK\r\n",
            b"HTTP/1.1 200 O\rK\r\n",
            b"HTTP/1.1 200 OK\n",
            b"HTTP/1.2 200 OK\r\n",
            b"HTTP/2 200 OK\r\n",
            b"HTTP/0.9 200 OK\r\n",
            b"ICY 200 OK\r\n",
            b"200 OK\r\n",
            b"\x15\x03\x03\x00\x02\x02\x28",
        ):
            error = self.assertRaises(HeadError, read_response, line + b"\r\n")
            self.assertEqual(error.status, 502, line)

    def test_a_switch_to_nothing(self):
        """A 101 has to name its protocol (RFC 9110 section 15.2.2)."""
        data = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
        self.assertEqual(self.assertRaises(HeadError, read_response, data).status, 502)

    def test_limits(self):
        """Exceeding the limits is the server's fault: 502."""
        read_response(RESPONSE, HeadLimits(max_bytes=len(RESPONSE), max_fields=2))
        for limits in (HeadLimits(max_bytes=len(RESPONSE) - 1), HeadLimits(max_fields=1)):
            error = self.assertRaises(HeadError, read_response, RESPONSE, limits)
            self.assertEqual(error.status, 502)


class FormatTests(SynchronousTestCase):
    """Heads are serialized so that they are parsed as intended."""

    def test_a_request(self):
        """A reader returns what was serialized."""
        fields = [(b"Host", b"a:1"), (b"X-A", b""), (b"x-a", b"\xe9 \t b")]
        data = format_request_head(b"POST", b"/a?b", fields)
        self.assertEqual(
            data, b"POST /a?b HTTP/1.1\r\nHost: a:1\r\nX-A: \r\nx-a: \xe9 \t b\r\n\r\n"
        )
        head, early = read(data)
        self.assertEqual((head.method, head.target, early), (b"POST", b"/a?b", b""))
        self.assertEqual(head.fields, fields)

    def test_a_response(self):
        """A reader returns what was serialized."""
        data = format_response_head(404, b"Not Found", [(b"A", b"b")])
        self.assertEqual(data, b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\n")
        self.assertEqual(read_response(data)[0].fields, [(b"A", b"b")])

    def test_a_head_without_fields(self):
        """The empty line follows the start line, even without a reason."""
        self.assertEqual(format_response_head(100, b"", []), b"HTTP/1.1 100 \r\n\r\n")
        self.assertEqual(format_request_head(b"GET", b"/", []), b"GET / HTTP/1.1\r\n\r\n")

    def test_bad_start_lines(self):
        """Anything that would end or split a start line is rejected."""
        for method, target in (
            (b"", b"/"),
            (b"GET ", b"/"),
            (b"get", b"/"),
            (b"GET", b""),
            (b"GET", b"/a b"),
            (b"GET", b"/ HTTP/1.1\r\nX: y"),
            (b"GET", b"/\n"),
            (b"GET", b"/\xff"),
        ):
            self.assertRaises(ValueError, format_request_head, method, target, [])
        for status, reason in ((99, b""), (600, b""), (200, b"OK\r\nX: y"), (200, b"O\nK")):
            self.assertRaises(ValueError, format_response_head, status, reason, [])
