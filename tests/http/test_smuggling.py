"""The known ways to make two parsers of one connection disagree are all rejected.

Published vulnerabilities of other programs are named by their CVE. None of these messages may reach
a kubelet, and accepted ones are forwarded in one form only: the heads are serialized again.
"""

from twisted.trial.unittest import SynchronousTestCase

from tests.http.messages import Message, read_request, read_response
from yurttunnel.http.body import BodyError, BodyWriter
from yurttunnel.http.fields import connection_options, end_to_end, keeps_alive
from yurttunnel.http.framing import BodyKind, Framing
from yurttunnel.http.head import HeadError, format_request_head, format_response_head

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LAST = b"0\r\n\r\n"


class SmugglingTestCase(SynchronousTestCase):
    """The assertions of the cases."""

    def assert_head_refused(self, fields, line=b"POST / HTTP/1.1\r\nHost: a\r\n", status=400):
        """Check that the head is rejected, in one piece and byte by byte, without a body."""
        data = line + fields + b"\r\n" + LAST + SMUGGLED
        for pieces in ([data], [bytes([value]) for value in data]):
            message = Message()
            error = self.assertRaises(HeadError, read_request, pieces, message)
            self.assertEqual(error.status, status, fields)
            self.assertEqual((message.body, message.rest), (b"", b""))

    def assert_body_refused(self, chunks):
        """Check that the chunks are rejected, in one piece and byte by byte, with nothing after."""
        data = POST + CHUNKED + b"\r\n" + chunks + SMUGGLED
        for pieces in ([data], [bytes([value]) for value in data]):
            message = Message()
            self.assertRaises(BodyError, read_request, pieces, message)
            self.assertEqual(message.rest, b"", chunks)
            self.assertNotIn(b"smuggled", message.body, chunks)

    def assert_response_refused(self, fields, line=b"HTTP/1.1 200 OK\r\n", method=b"GET"):
        """Check that the head of the response is rejected with 502."""
        data = line + fields + b"\r\n" + LAST
        for pieces in ([data], [bytes([value]) for value in data]):
            error = self.assertRaises(HeadError, read_response, pieces, method)
            self.assertEqual(error.status, 502, fields)


class ContentLengthTests(SmugglingTestCase):
    """Content-Length that may be parsed in more than one way."""

    def test_repeated(self):
        """Two are rejected, equal or not: Twisted took the first (CVE-2020-10108), Go too."""
        self.assert_head_refused(b"Content-Length: 5\r\nContent-Length: 5\r\n")
        self.assert_head_refused(b"Content-Length: 0\r\ncontent-length: 34\r\n")

    def test_joined(self):
        """A list is rejected, also of equal numbers."""
        self.assert_head_refused(b"Content-Length: 5, 5\r\n")
        self.assert_head_refused(b"Content-Length: 5,34\r\n")

    def test_signed(self):
        """A sign is rejected, which Twisted's ``int`` accepted (CVE-2022-24801)."""
        self.assert_head_refused(b"Content-Length: +5\r\n")
        self.assert_head_refused(b"Content-Length: -5\r\n")
        self.assert_head_refused(b"Content-Length: -0\r\n")

    def test_spaced(self):
        """White space within the number is rejected."""
        self.assert_head_refused(b"Content-Length: 5 5\r\n")
        self.assert_head_refused(b"Content-Length: 5\t5\r\n")
        self.assert_head_refused(b"Content-Length: 5\x0b\r\n")
        self.assert_head_refused(b"Content-Length: \x0c5\r\n")
        self.assert_head_refused(b"Content-Length: 5\xa0\r\n")

    def test_huge(self):
        """A number above 63 bits is rejected, before it wraps around."""
        self.assert_head_refused(b"Content-Length: 9223372036854775808\r\n")
        self.assert_head_refused(b"Content-Length: 18446744073709551621\r\n")
        self.assert_head_refused(b"Content-Length: " + b"9" * 5000 + b"\r\n")

    def test_other_notations(self):
        """Hexadecimal, octal, underscores, fractions, other digits and nothing are rejected."""
        for value in (
            b"0x5",
            b"05",
            b"0o5",
            b"1_0",
            b"5.0",
            b"5e0",
            b"5;",
            b"",
            b"\xd9\xa5",
            b'"5"',
        ):
            self.assert_head_refused(b"Content-Length: " + value + b"\r\n")

    def test_disguised_names(self):
        """Names that some parse as Content-Length are rejected (CVE-2024-27982, CVE-2015-5739)."""
        for name in (
            b"Content-Length ",
            b" Content-Length",
            b"Content Length",
            b"Content-Length\t",
            b"Content-Length\0",
            b"Content_Length",
            b"\0Content-Length",
            b"Content-Length\x0b",
            b"Content\r-Length",
        ):
            self.assert_head_refused(name + b": 34\r\n")

    def test_a_space_before_the_first_field(self):
        """A first field that begins with a space is rejected (CVE-2024-27982)."""
        self.assert_head_refused(b"Host: a\r\n\r\n", b"GET / HTTP/1.1\r\n Content-Length: 34\r\n")

    def test_a_length_named_by_connection(self):
        """Connection cannot remove the length from the forwarded request."""
        fields = [(b"Connection", b"content-length, host"), (b"Content-Length", b"5")]
        self.assertIn((b"Content-Length", b"5"), end_to_end(fields))


class TransferEncodingTests(SmugglingTestCase):
    """Transfer-Encoding that some interpret as chunked and others do not."""

    def test_beside_content_length(self):
        """Both together are rejected in either order: Twisted used the length (CVE-2020-10109)."""
        self.assert_head_refused(b"Content-Length: 5\r\n" + CHUNKED)
        self.assert_head_refused(CHUNKED + b"Content-Length: 5\r\n")
        self.assert_head_refused(b"Content-Length: 0\r\nTransfer-Encoding: identity\r\n")

    def test_repeated(self):
        """Two are rejected: Node used only the first (CVE-2020-8287)."""
        self.assert_head_refused(CHUNKED + CHUNKED)
        self.assert_head_refused(CHUNKED + b"Transfer-Encoding: identity\r\n")
        self.assert_head_refused(b"Transfer-Encoding: identity\r\n" + CHUNKED)
        self.assert_head_refused(b"Transfer-Encoding: chunked-false\r\n" + CHUNKED)

    def test_not_the_last_coding(self):
        """A list that ends with another coding is rejected (CVE-2022-32213)."""
        for value in (b"chunked, identity", b"chunked,gzip", b"chunked, chunked", b"chunked,"):
            self.assert_head_refused(b"Transfer-Encoding: " + value + b"\r\n")

    def test_more_codings(self):
        """Any other coding is rejected, with chunked at its end or not (Go since 1.15)."""
        for value in (b"gzip, chunked", b"identity, chunked", b"identity,chunked", b", chunked"):
            self.assert_head_refused(b"Transfer-Encoding: " + value + b"\r\n", status=501)

    def test_disguised_values(self):
        """Similar values are rejected (CVE-2019-15605, CVE-2022-1705, CVE-2022-24801)."""
        for value in (
            b"xchunked",
            b"chunkedx",
            b"chunked\x0b",
            b"\x0bchunked",
            b"\x0cchunked",
            b"\rchunked",
            b"chunked\0",
            b"chunked\x85",
            b"chunked\xa0",
            b"chunked;q=1",
            b"chunked abc",
            b"chunked \x00",
            b'"chunked"',
            b"'chunked'",
            b"chunKed\xc4\xb1",
            b"identity",
            b"cow",
            b"",
        ):
            self.assert_head_refused(b"Transfer-Encoding: " + value + b"\r\n")

    def test_folded(self):
        """A value on the next line is rejected (CVE-2022-32215)."""
        self.assert_head_refused(b"Transfer-Encoding:\r\n chunked\r\n")
        self.assert_head_refused(b"Transfer-Encoding: chunked\r\n , identity\r\n")
        self.assert_head_refused(b"X: y\r\n" + b" " + CHUNKED)

    def test_disguised_names(self):
        """Names that some parse as this one are rejected (CVE-2019-16276, CVE-2021-22959)."""
        for name in (
            b"Transfer-Encoding ",
            b"Transfer-Encoding\t",
            b" Transfer-Encoding",
            b"Transfer Encoding",
            b"Transfer_Encoding",
            b"Transfer-Encoding\0",
            b"Transfer\0-Encoding",
            b"Transfer-Encoding\x0b",
            b"Transfer-Encoding\xa0",
            b"X: y\nTransfer-Encoding",
            b"X: y\rTransfer-Encoding",
        ):
            self.assert_head_refused(name + b": chunked\r\nContent-Length: 5\r\n")

    def test_under_http_1_0(self):
        """HTTP/1.0 has no chunks, so its parsers would take them for the next request."""
        self.assert_head_refused(CHUNKED, b"POST / HTTP/1.0\r\nHost: a\r\n")
        self.assert_head_refused(
            CHUNKED + b"Connection: keep-alive\r\n", b"POST / HTTP/1.0\r\nHost: a\r\n"
        )

    def test_on_a_get(self):
        """The body of a GET is a body, and does not become the next request."""
        message = read_request([b"GET / HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\n" + LAST + b"x"])
        self.assertEqual((message.body, message.rest, message.ended), (b"", b"x", True))
        data = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED)
        message = read_request([data + SMUGGLED])
        self.assertEqual((message.body, message.rest), (SMUGGLED, b""))

    def test_the_accepted_form_is_one(self):
        """The spelling of the coding is not forwarded: the field is serialized again."""
        data = POST + b"Transfer-Encoding: \t cHuNkEd \r\n\r\n"
        message = read_request([data])
        self.assertEqual(message.framing, Framing(BodyKind.CHUNKED))
        self.assertEqual(end_to_end(message.head.fields), [(b"Host", b"a")])


class LineTests(SmugglingTestCase):
    """Line ends that only some parsers accept."""

    def test_bare_line_feeds(self):
        """Only CR LF ends a line (CVE-2022-32214, CVE-2022-35256)."""
        self.assert_head_refused(b"X: y\nContent-Length: 34\r\n")
        self.assert_head_refused(b"X: y\n\r\n")
        self.assert_head_refused(b"", b"GET / HTTP/1.1\nHost: a\r\n")
        self.assert_head_refused(b"", b"GET / HTTP/1.1\nHost: a\n\n")

    def test_bare_carriage_returns(self):
        """A CR alone does not end a line and is not part of a value (CVE-2023-30589)."""
        self.assert_head_refused(b"X: y\rContent-Length: 34\r\n")
        self.assert_head_refused(b"X: y\r\r\n")
        self.assert_head_refused(b"X: \ry\r\n")
        self.assert_head_refused(b"", b"GET / HTTP/1.1\rHost: a\r\n")

    def test_a_bare_carriage_return_at_the_end(self):
        """The empty line is CR LF, not CR and any byte (CVE-2025-23167)."""
        self.assert_head_refused(b"X: y\r\n\rX" + SMUGGLED)

    def test_folding(self):
        """Folded lines are rejected: one parser joins them, another sees a new field."""
        self.assert_head_refused(b"X: y\r\n z\r\n")
        self.assert_head_refused(b"X: y\r\n\tContent-Length: 34\r\n")
        self.assert_head_refused(b"X: y\r\n \r\n")

    def test_control_characters(self):
        """NUL and other control characters are rejected in names, values and targets."""
        for character in (b"\0", b"\x01", b"\x08", b"\x0b", b"\x1b", b"\x1f", b"\x7f"):
            self.assert_head_refused(b"X%b: y\r\n" % character)
            self.assert_head_refused(b"X: y%bz\r\n" % character)
            self.assert_head_refused(b"", b"GET /%b HTTP/1.1\r\nHost: a\r\n" % character)

    def test_bad_names(self):
        """A name is a token, followed directly by the colon."""
        for name in (
            b"X ",
            b"X\t",
            b"X y",
            b"",
            b"X(",
            b"X,",
            b"X/",
            b"X@",
            b'"X"',
            b"\xc3\xa9",
            b"X{",
        ):
            self.assert_head_refused(name + b": y\r\n")
        self.assert_head_refused(b"X\r\n")


class RoutingTests(SmugglingTestCase):
    """Requests that different parsers route to different hosts."""

    def test_several_hosts(self):
        """Exactly one Host is accepted, for HTTP/1.0 at most one."""
        self.assert_head_refused(b"Host: b\r\n")
        self.assert_head_refused(b"hOST: b\r\n")
        self.assert_head_refused(b"Host: a\r\n", b"GET / HTTP/1.0\r\nHost: b\r\n")
        self.assert_head_refused(b"X: y\r\n", b"GET / HTTP/1.1\r\n")

    def test_malformed_hosts(self):
        """A Host that is not an authority is rejected (CVE-2023-29406 is on the sending side)."""
        for host in (
            b"a, b",
            b"a b",
            b"a@b",
            b"a/../b",
            b"a?b",
            b"a\\b",
            b"a;b",
            b"a'b",
            b"\xe2\x84\xa1",
        ):
            self.assert_head_refused(b"", b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n")

    def test_absolute_targets(self):
        """A host in the target is rejected, even if it is equal to Host."""
        for target in (b"http://a/", b"http://b/", b"https://a/", b"HTTP://a/", b"a/b", b"@a/"):
            self.assert_head_refused(b"", b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n")

    def test_malformed_request_lines(self):
        """Extra spaces and other versions are rejected (CVE-2019-12387 is on the sending side)."""
        for line in (
            b"GET  / HTTP/1.1",
            b"GET /  HTTP/1.1",
            b"GET / HTTP/1.1 ",
            b"GET\t/ HTTP/1.1",
            b"GET / x HTTP/1.1",
            b"GET / HTTP/1.1 x",
            b" GET / HTTP/1.1",
            b"GET / HTTP/1.2",
            b"GET / HTTP/2.0",
            b"GET / HTTP/01.1",
            b"GET / HTTP/1.10",
            b"GET / http/1.1",
            b"GET /",
            b"GET",
            b"",
        ):
            self.assert_head_refused(b"", line + b"\r\nHost: a\r\n")

    def test_a_body_of_a_connect(self):
        """Data after a CONNECT belongs to the tunnel, so a body is rejected."""
        for field in (b"Content-Length: 5\r\n", CHUNKED):
            self.assert_head_refused(field, b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n")

    def test_an_empty_connection_field(self):
        """An empty Connection field names nothing, and the others still count (CVE-2021-33197)."""
        fields = [(b"Connection", b""), (b"X-A", b"1"), (b"Connection", b"x-b"), (b"X-B", b"2")]
        self.assertEqual(end_to_end(fields), [(b"X-A", b"1")])

    def test_closing_is_not_overlooked(self):
        """``close`` is found in the second Connection field and in any case."""
        message = read_request([POST + b"Connection: x\r\nconnection: y, CLOSE\r\n\r\n"])
        self.assertEqual(connection_options(message.head), {b"x", b"y", b"close"})
        self.assertFalse(keeps_alive(message.head))


class ChunkTests(SmugglingTestCase):
    """Chunk boundaries that only some parsers accept."""

    def test_signed_sizes(self):
        """A sign is rejected."""
        for size in (b"+5", b"-5", b"-0", b"+0"):
            self.assert_body_refused(size + b"\r\nhello\r\n" + LAST)

    def test_prefixed_sizes(self):
        """0x is rejected, which Python's ``int`` accepts (CVE-2022-24801)."""
        for size in (b"0x5", b"0X5", b"0x0", b"\\x5", b"x5", b"5h"):
            self.assert_body_refused(size + b"\r\nhello\r\n" + LAST)

    def test_spaced_sizes(self):
        """White space and underscores around or within the number are rejected."""
        for size in (
            b"5 ",
            b" 5",
            b"5\t",
            b"\t5",
            b"5 ;x",
            b"0_5",
            b"5_",
            b"5\x0b",
            b"\x0c5",
            b"5\0",
        ):
            self.assert_body_refused(size + b"\r\nhello\r\n" + LAST)

    def test_overlong_sizes(self):
        """Sizes that overflow 64 bits are rejected, also after zeros."""
        for size in (
            b"1" + b"0" * 15,
            b"f" * 16,
            b"1" + b"0" * 15 + b"5",
            b"0" * 15 + b"5",
            b"f" * 200,
        ):
            self.assert_body_refused(size + b"\r\nhello\r\n" + LAST)

    def test_missing_sizes(self):
        """A size line without a number is rejected, also an empty one."""
        for size in (b"", b";x", b"x", b"\xd9\xa5", b"5,5", b"5.0"):
            self.assert_body_refused(size + b"\r\nhello\r\n" + LAST)

    def test_bare_line_feeds(self):
        """Only CR LF ends a size line (CVE-2025-22871)."""
        self.assert_body_refused(b"5\nhello\r\n" + LAST)
        self.assert_body_refused(b"5\r\nhello\r\n0\n\r\n")
        self.assert_body_refused(b"5\r\nhello\r\n0\r\n\n")
        self.assert_body_refused(b"5\rhello\r\n" + LAST)

    def test_line_ends_in_extensions(self):
        """LF and CR in an extension are rejected (CVE-2025-55315, CVE-2025-58056)."""
        for extension in (b";\n", b";x\ny", b";\r", b";\rx", b";x=\ny", b';x="\n"', b';x="\r"'):
            self.assert_body_refused(b"5" + extension + b"\r\nhello\r\n" + LAST)
            self.assert_body_refused(b"0" + extension + b"\r\n\r\n")

    def test_control_characters_in_extensions(self):
        """Control characters in an extension are rejected (CVE-2022-24801, CVE-2021-22960)."""
        for character in (b"\0", b"\x01", b"\x0b", b"\x7f", b"\x80", b"\xff"):
            self.assert_body_refused(b"5;x" + character + b"\r\nhello\r\n" + LAST)

    def test_endless_extensions(self):
        """Extensions are limited individually and in total (CVE-2023-39326, CVE-2024-22019)."""
        self.assert_body_refused(b"5;" + b"x" * 300 + b"\r\nhello\r\n" + LAST)
        self.assert_body_refused((b"1;" + b"x" * 200 + b"\r\na\r\n") * 200 + LAST)

    def test_data_that_spills(self):
        """Exactly CR LF follows a chunk's data: h11 accepted any two bytes (CVE-2025-43859)."""
        for end in (b"xx", b"\n\r", b"\n", b"\r", b"\rX", b"X\n", b"", b"\r\r\n", b" \r\n"):
            self.assert_body_refused(b"5\r\nhello" + end + b"0\r\n\r\n")

    def test_trailers_that_frame(self):
        """Trailers do not affect the framing or routing of this or the next message."""
        for field in (
            b"Content-Length: 5",
            b"transfer-encoding: chunked",
            b"Host: b",
            b"Connection: close",
            b"Upgrade: x",
            b"TE: x",
            b"Trailer: x",
        ):
            self.assert_body_refused(b"0\r\n" + field + b"\r\n\r\n")

    def test_malformed_trailers(self):
        """Trailers are parsed as strictly as fields."""
        for field in (
            b"X : y",
            b" X: y",
            b"X y: z",
            b"X",
            b": y",
            b"X\0: y",
            b"X: y\0",
            b"X: y\nZ: z",
            b"X: y\rZ: z",
            b"X: y\r\n z",
            b"GET /smuggled HTTP/1.1",
        ):
            self.assert_body_refused(b"0\r\n" + field + b"\r\n\r\n")

    def test_the_last_chunk_does_not_hide_a_request(self):
        """The bytes after the empty line are the next request, unchanged."""
        message = read_request([POST + CHUNKED + b"\r\n" + LAST + SMUGGLED])
        self.assertEqual((message.body, message.rest), (b"", SMUGGLED))

    def test_an_empty_piece_does_not_end_a_body(self):
        """Writing an empty piece does not write a last chunk."""
        writer = BodyWriter(Framing(BodyKind.CHUNKED))
        self.assertEqual(writer.encode(b""), b"")


class ResponseTests(SmugglingTestCase):
    """Responses whose end parsers interpret differently."""

    def test_both_lengths(self):
        """A length together with chunks is rejected."""
        self.assert_response_refused(b"Content-Length: 5\r\n" + CHUNKED)
        self.assert_response_refused(CHUNKED + b"Content-Length: 5\r\n")

    def test_bad_lengths(self):
        """Content-Length is parsed as strictly as in requests."""
        self.assert_response_refused(b"Content-Length: 5\r\nContent-Length: 5\r\n")
        for value in (b"5, 5", b"+5", b"-1", b"0x5", b"5 5", b"", b"05", b"9" * 30):
            self.assert_response_refused(b"Content-Length: " + value + b"\r\n")

    def test_bad_codings(self):
        """Transfer-Encoding is parsed as strictly as in requests (CVE-2022-1705: Go's client)."""
        for value in (
            b"\rchunked",
            b"chunked\x0b",
            b"gzip, chunked",
            b"chunked, identity",
            b"",
            b"x",
        ):
            self.assert_response_refused(b"Transfer-Encoding: " + value + b"\r\n")
        self.assert_response_refused(CHUNKED + CHUNKED)
        self.assert_response_refused(CHUNKED, b"HTTP/1.0 200 OK\r\n")

    def test_bodies_where_none_belongs(self):
        """204 and interim responses must not announce a body."""
        for field in (b"Content-Length: 5\r\n", CHUNKED):
            self.assert_response_refused(field, b"HTTP/1.1 204 No Content\r\n")
            self.assert_response_refused(field, b"HTTP/1.1 100 Continue\r\n")
            self.assert_response_refused(field, b"HTTP/1.1 101 Switching Protocols\r\n")

    def test_lengths_of_another_response(self):
        """No body is read for a 304 or the response to a HEAD."""
        for line, method in ((b"HTTP/1.1 304 \r\n", b"GET"), (b"HTTP/1.1 200 OK\r\n", b"HEAD")):
            for field in (b"Content-Length: 5\r\n", CHUNKED):
                message = read_response([line + field + b"\r\nHTTP/"], method)
                self.assertEqual((message.body, message.rest), (b"", b"HTTP/"))

    def test_malformed_heads(self):
        """Lines are parsed as strictly as in requests."""
        for field in (
            b"X : y",
            b" X: y",
            b"X: y\r\n z",
            b"X: y\nZ: z",
            b"X: y\rZ: z",
            b"X: \0",
            b"X\0: y",
            b"X",
            b"Content_Length: 5",
        ):
            self.assert_response_refused(field + b"\r\n")

    def test_splitting(self):
        """A value cannot add a line to a serialized head."""
        for name, value in (
            (b"X", b"y\r\nSet-Cookie: z"),
            (b"X", b"y\r\n\r\nHTTP/1.1 200 OK"),
            (b"X", b"y\nZ: z"),
            (b"X", b"y\rZ: z"),
            (b"X", b"y\0"),
            (b"X: y\r\nZ", b"z"),
            (b"X: y", b"z"),
            (b"X\n", b"y"),
            (b"X ", b"y"),
            (b"", b"y"),
        ):
            fields = [(b"A", b"b"), (name, value)]
            self.assertRaises(ValueError, format_response_head, 200, b"OK", fields)
            self.assertRaises(ValueError, format_request_head, b"GET", b"/", fields)
            writer = BodyWriter(Framing(BodyKind.CHUNKED))
            self.assertRaises(ValueError, writer.finish, fields)

    def test_splitting_of_start_lines(self):
        """A reason, a method or a target cannot add a line either (CVE-2019-12387)."""
        self.assertRaises(ValueError, format_response_head, 200, b"OK\r\nX: y", [])
        self.assertRaises(ValueError, format_request_head, b"GET / HTTP/1.1\r\nX: y\r\n", b"/", [])
        for target in (b"/ HTTP/1.1\r\nX: y", b"/\n", b"/\r", b"/ x", b"/\0", b"/\t"):
            self.assertRaises(ValueError, format_request_head, b"GET", target, [])
