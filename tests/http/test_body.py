"""Decoding and encoding of bodies."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.wire.harness import examples
from yurttunnel.http.body import BodyError, BodyLimits, BodyReader, BodyWriter
from yurttunnel.http.framing import BodyKind, Framing

NO_BODY = Framing(BodyKind.NONE)
CHUNKED = Framing(BodyKind.CHUNKED)
UNTIL_CLOSE = Framing(BodyKind.UNTIL_CLOSE)
HELLO = b"5\r\nhello\r\n"
END = b"0\r\n\r\n"


def length(value):
    """Return the framing of ``value`` bytes."""
    return Framing(BodyKind.LENGTH, value)


def read(framing, *pieces, limits=None):
    """Feed ``pieces``; return the body, what follows it, and the reader."""
    reader = BodyReader(framing, limits or BodyLimits())
    body = []
    rest = b"".join([reader.feed(piece, body.append) for piece in pieces])
    return b"".join(body), rest, reader


class CountedTests(SynchronousTestCase):
    """Empty bodies, and bodies of known and of unknown length."""

    def test_no_body(self):
        """An absent body has ended from the start."""
        for framing in (NO_BODY, length(0)):
            body, rest, reader = read(framing, b"next")
            self.assertEqual((body, rest, reader.ended), (b"", b"next", True))
            reader.end_of_input()

    def test_a_length(self):
        """The announced number of bytes is the body, and the rest is returned."""
        body, rest, reader = read(length(5), b"he", b"", b"lo!next")
        self.assertEqual((body, rest, reader.ended), (b"helo!", b"next", True))
        self.assertEqual(reader.trailers, [])

    def test_whole_pieces_are_not_copied(self):
        """A piece that belongs to the body entirely is passed on as the same object."""
        piece = b"x" * 100
        for framing in (length(200), length(100), UNTIL_CLOSE):
            got = []
            BodyReader(framing).feed(piece, got.append)
            self.assertIs(got[0], piece)

    def test_until_close(self):
        """Everything is the body until the connection ends."""
        body, rest, reader = read(UNTIL_CLOSE, b"a", b"b")
        self.assertEqual((body, rest, reader.ended), (b"ab", b"", False))
        reader.end_of_input()
        self.assertTrue(reader.ended)

    def test_bodies_that_break_off(self):
        """A connection that ends before the body is an error."""
        for framing, data in (
            (length(2), b"a"),
            (CHUNKED, b""),
            (CHUNKED, b"5\r\nhel"),
            (CHUNKED, HELLO),
            (CHUNKED, b"0\r\n"),
        ):
            _, _, reader = read(framing, data)
            error = self.assertRaises(BodyError, reader.end_of_input)
            self.assertIn("truncated", str(error))
            self.assertFalse(reader.ended)


class ChunkedTests(SynchronousTestCase):
    """The chunked transfer coding."""

    def test_chunks(self):
        """The data of any number of chunks is joined, and the rest is returned."""
        body, rest, reader = read(CHUNKED, HELLO + b"00C\r\n, wide world\r\n" + END + b"next")
        self.assertEqual((body, rest, reader.ended), (b"hello, wide world", b"next", True))
        self.assertEqual(reader.trailers, [])

    def test_an_empty_body(self):
        """The last chunk may be the only one."""
        self.assertEqual(read(CHUNKED, END + b"n")[:2], (b"", b"n"))
        self.assertEqual(read(CHUNKED, b"000\r\n\r\n")[:2], (b"", b""))

    def test_a_chunk_need_not_be_complete(self):
        """The part of a large chunk that has arrived is passed on."""
        body, rest, reader = read(CHUNKED, b"ffffffff\r\nabc", b"def")
        self.assertEqual((body, rest, reader.ended), (b"abcdef", b"", False))

    def test_one_delivery_for_each_read(self):
        """Many chunks in one piece are delivered in one call, no chunk in none."""
        got = []
        reader = BodyReader(CHUNKED)
        reader.feed(HELLO * 3 + b"5\r", got.append)
        reader.feed(b"\n", got.append)
        self.assertEqual(got, [b"hello" * 3])

    def test_the_end_is_known_when_the_last_piece_is_delivered(self):
        """``deliver`` may do anything, so the state is complete when it is called."""
        seen = []
        reader = BodyReader(CHUNKED)
        reader.feed(HELLO + END, lambda piece: seen.append((piece, reader.ended)))
        self.assertEqual(seen, [(b"hello", True)])

    def test_extensions_are_ignored(self):
        """Extensions may have names, values and quoted strings."""
        body, _, _ = read(CHUNKED, b'5;a;b=c; d="e;f" \r\nhello\r\n0;x\r\n\r\n')
        self.assertEqual(body, b"hello")

    def test_trailers(self):
        """Trailer fields are kept in order, without the white space around them."""
        _, rest, reader = read(CHUNKED, b"0\r\nX-Sum: a b \r\nx-sum:\r\n\r\nnext")
        self.assertEqual(reader.trailers, [(b"X-Sum", b"a b"), (b"x-sum", b"")])
        self.assertEqual(rest, b"next")

    @examples(200)
    @given(st.lists(st.integers(0, 90), max_size=90))
    def test_any_cutting_gives_the_same(self, cuts):
        """Body, trailers and rest do not depend on how the bytes are split."""
        data = HELLO + b"A;ext=1\r\n0123456789\r\n" + HELLO + b"0\r\nA: b\r\nC: d\r\n\r\n5\r\nnext"
        edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
        body, rest, reader = read(CHUNKED, *pieces)
        self.assertEqual(body, b"hello0123456789hello")
        self.assertEqual(rest, b"5\r\nnext")
        self.assertEqual(reader.trailers, [(b"A", b"b"), (b"C", b"d")])


class LimitTests(SynchronousTestCase):
    """Everything besides the data has a limit."""

    def assert_refused(self, data, text, **limits):
        """Check that it is rejected in one piece and byte by byte."""
        for pieces in ([data], [bytes([value]) for value in data]):
            error = self.assertRaises(
                BodyError, read, CHUNKED, *pieces, limits=BodyLimits(**limits)
            )
            self.assertIn(text, str(error))

    def test_size_lines(self):
        """The size line of a chunk has at most ``max_line_bytes`` bytes."""
        limits = BodyLimits(max_line_bytes=9)
        self.assertEqual(read(CHUNKED, b"5;1234567\r\nhello", limits=limits)[0], b"hello")
        self.assert_refused(b"5;12345678\r\nhello", "longer than 9 bytes", max_line_bytes=9)
        self.assert_refused(b"5;123456789", "longer than 9 bytes", max_line_bytes=9)

    def test_extensions(self):
        """Many chunks with little but extensions are rejected, those with data are not."""
        small = b"1;" + b"x" * 98 + b"\r\na\r\n"
        self.assert_refused(small * 20, "too many extensions", max_overhead=1000)
        # Sixteen bytes of a line are free, and two for each byte of data: one of these exceeds it.
        seldom = b"1;" + b"x" * 17 + b"\r\na\r\n"
        limits = BodyLimits(max_overhead=10)
        self.assertEqual(len(read(CHUNKED, seldom * 10, limits=limits)[0]), 10)
        self.assert_refused(seldom * 11, "too many extensions", max_overhead=10)
        large = b"40;" + b"x" * 97 + b"\r\n" + b"a" * 64 + b"\r\n"
        self.assertEqual(len(read(CHUNKED, large * 1000)[0]), 64_000)
        self.assertEqual(len(read(CHUNKED, b"1\r\na\r\n" * 20_000)[0]), 20_000)

    def test_trailers(self):
        """Trailers are limited in number, individual size and total size."""
        data = b"0\r\n" + b"A: b\r\n" * 3
        self.assertEqual(len(read(CHUNKED, data, limits=BodyLimits(max_trailers=3))[2].trailers), 3)
        self.assert_refused(data, "more than 2 trailers", max_trailers=2)
        self.assert_refused(data, "longer than 17 bytes", max_trailer_bytes=17)
        self.assert_refused(b"0\r\nA: bcdefgh", "longer than 9 bytes", max_trailer_bytes=9)


class WriterTests(SynchronousTestCase):
    """``BodyWriter`` encodes according to its framing."""

    def test_a_length(self):
        """Pieces are sent unchanged; fewer or more bytes than announced are an error."""
        writer = BodyWriter(length(5))
        self.assertEqual([writer.encode(b"he"), writer.encode(b"")], [b"he", b""])
        self.assertIn("3 bytes", str(self.assertRaises(BodyError, writer.finish)))
        self.assertRaises(BodyError, writer.encode, b"lo!?")
        self.assertEqual(writer.encode(b"lo!"), b"lo!")
        self.assertEqual(writer.finish([(b"A", b"b")]), b"")
        self.assertRaises(BodyError, writer.encode, b"x")

    def test_chunks(self):
        """Each piece becomes a chunk; an empty one becomes nothing, as it would end the body."""
        writer = BodyWriter(CHUNKED)
        self.assertEqual(writer.encode(b"x" * 26), b"1a\r\n" + b"x" * 26 + b"\r\n")
        self.assertEqual(writer.encode(b""), b"")
        self.assertEqual(writer.finish(), END)
        self.assertEqual(writer.finish(), b"")
        self.assertRaises(BodyError, writer.encode, b"x")

    def test_trailers(self):
        """Permitted trailers follow the last chunk, whatever their case."""
        lines = BodyWriter(CHUNKED).finish([(b"ETAG", b"b"), (b"Repr-Digest", b"")])
        self.assertEqual(lines, b"0\r\nETAG: b\r\nRepr-Digest: \r\n\r\n")

    def test_trailers_that_are_not_sent(self):
        """Trailers that recipients could merge into the head and act on are dropped."""
        for name in (
            *(b"Authorization", b"X-Tunnel-Proxy-Dest", b"x-tunnel-proxy-host", b"Cookie"),
            *(b"Impersonate-User", b"X-Remote-User", b"X-Forwarded-For", b"Content-Type"),
            *(b"Content-Encoding", b"Set-Cookie", b"Location", b"X-Checksum", b"A"),
        ):
            lines = BodyWriter(CHUNKED).finish([(name, b"v"), (b"ETag", b"t"), (name, b"v")])
            self.assertEqual(lines, b"0\r\nETag: t\r\n\r\n", name)

    def test_trailers_that_cannot_be_sent(self):
        """Invalid fields and fields that frame a message are rejected."""
        for field in ((b"A", b"b\r\nC: d"), (b"A b", b"c"), (b"Content-Length", b"1")):
            self.assertRaises(ValueError, BodyWriter(CHUNKED).finish, [field])

    def test_no_body(self):
        """A message without a body accepts no byte."""
        writer = BodyWriter(NO_BODY)
        self.assertEqual((writer.encode(b""), writer.finish()), (b"", b""))
        self.assertRaises(BodyError, BodyWriter(NO_BODY).encode, b"x")

    def test_until_close(self):
        """Data is sent unchanged; the connection has to be closed after it."""
        writer = BodyWriter(UNTIL_CLOSE)
        self.assertEqual((writer.encode(b"x"), writer.finish([(b"A", b"b")])), (b"x", b""))

    @examples(100)
    @given(st.lists(st.binary(max_size=40)))
    def test_what_is_written_is_read(self, pieces):
        """A reader decodes what the writer has encoded."""
        writer = BodyWriter(CHUNKED)
        data = b"".join([*map(writer.encode, pieces), writer.finish([(b"ETag", b"b")])])
        body, rest, reader = read(CHUNKED, data, b"next")
        self.assertEqual((body, rest), (b"".join(pieces), b"next"))
        self.assertEqual(reader.trailers, [(b"ETag", b"b")])
