"""The framing of bodies."""

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.framing import (
    BodyKind,
    Framing,
    request_framing,
    response_framing,
)
from yurttunnel.http.head import HeadError, RequestHead, ResponseHead

NO_BODY = Framing(BodyKind.NONE)
CHUNKED = Framing(BodyKind.CHUNKED)
UNTIL_CLOSE = Framing(BodyKind.UNTIL_CLOSE)
CHUNKED_FIELD = (b"Transfer-Encoding", b"Chunked")


def length(value):
    """Return the framing of ``value`` bytes."""
    return Framing(BodyKind.LENGTH, value)


def length_field(value):
    """Return a Content-Length field."""
    return (b"Content-Length", str(value).encode())


def of_request(*fields, method=b"POST", version="1.1"):
    """Frame a request with ``fields``."""
    return request_framing(RequestHead(method, b"/", version, list(fields)))


def of_response(*fields, method=b"GET", status=200, version="1.1"):
    """Frame a response with ``fields``."""
    return response_framing(method, ResponseHead(version, status, b"", list(fields)))


class RequestTests(SynchronousTestCase):
    """``request_framing`` follows RFC 9112 section 6."""

    def test_no_body(self):
        """Without fields that announce a body there is none, whatever the method."""
        for method in (b"GET", b"POST", b"CONNECT"):
            self.assertEqual(of_request(method=method), NO_BODY)

    def test_a_length(self):
        """Content-Length is the length, including 0, under HTTP/1.0 too."""
        for value in (0, 1, 10**12, 2**63 - 1):
            for version in ("1.0", "1.1"):
                self.assertEqual(of_request(length_field(value), version=version), length(value))

    def test_chunks(self):
        """The name of the coding is case-insensitive."""
        self.assertEqual(of_request(CHUNKED_FIELD), CHUNKED)
        self.assertEqual(of_request(CHUNKED_FIELD, method=b"GET"), CHUNKED)

    def test_a_connect_has_no_body(self):
        """A CONNECT may only announce an empty body."""
        self.assertEqual(of_request(length_field(0), method=b"CONNECT"), NO_BODY)
        for field in (length_field(1), CHUNKED_FIELD):
            error = self.assertRaises(HeadError, of_request, field, method=b"CONNECT")
            self.assertEqual(error.status, 400)

    def test_other_codings_are_not_implemented(self):
        """An unsupported coding is rejected with 501."""
        for value in (b"gzip", b"gzip, chunked", b"identity", b""):
            field = (b"Transfer-Encoding", value)
            self.assertEqual(self.assertRaises(HeadError, of_request, field).status, 501)

    def test_ambiguities_are_refused(self):
        """A request that parsers may interpret differently is rejected with 400."""
        for fields in (
            [length_field(1), length_field(1)],
            [length_field(1), CHUNKED_FIELD],
            [CHUNKED_FIELD, CHUNKED_FIELD],
            [length_field(2**63)],
            [length_field(10**30)],
            *(
                [(b"Content-Length", bad)]
                for bad in (b"", b"+1", b"-1", b"1 1", b"1,1", b"01", b"1_0")
            ),
            *([(b"Content-Length", bad)] for bad in (b"0x1", b"1.", b"\xb2", b"1\n", b"1;")),
            [(b"Content_Length", b"1")],
            [(b"Transfer_Encoding", b"chunked")],
        ):
            error = self.assertRaises(HeadError, of_request, *fields)
            self.assertEqual(error.status, 400, fields)

    def test_http_1_0_has_no_chunks(self):
        """Chunks under HTTP/1.0 are rejected with 400; RFC 9112 section 6.1 calls them faulty."""
        error = self.assertRaises(HeadError, of_request, CHUNKED_FIELD, version="1.0")
        self.assertEqual(error.status, 400)


class ResponseTests(SynchronousTestCase):
    """``response_framing`` follows RFC 9112 section 6."""

    def test_bodies(self):
        """A body has a length, is chunked, or ends with the connection."""
        self.assertEqual(of_response(length_field(5)), length(5))
        self.assertEqual(of_response(length_field(0)), length(0))
        self.assertEqual(of_response(CHUNKED_FIELD), CHUNKED)
        self.assertEqual(of_response(), UNTIL_CLOSE)
        self.assertEqual(of_response(version="1.0"), UNTIL_CLOSE)

    def test_answers_about_a_body_have_none(self):
        """The fields in responses to HEAD and in 304 describe the response to a GET."""
        for fields in ([], [length_field(5)], [CHUNKED_FIELD]):
            self.assertEqual(of_response(*fields, method=b"HEAD"), NO_BODY)
            self.assertEqual(of_response(*fields, status=304), NO_BODY)

    def test_answers_that_never_have_a_body(self):
        """Interim responses and 204 have no body; an announced empty one is accepted."""
        for status in (100, 101, 204):
            for fields in ([], [length_field(0)]):
                self.assertEqual(of_response(*fields, status=status), NO_BODY)
            for field in (length_field(5), CHUNKED_FIELD):
                error = self.assertRaises(HeadError, of_response, field, status=status)
                self.assertEqual(error.status, 502)

    def test_ambiguities_are_refused(self):
        """A response that parsers may interpret differently is 502, even without a body."""
        for fields, version in (
            ([length_field(1), length_field(1)], "1.1"),
            ([length_field(1), CHUNKED_FIELD], "1.1"),
            ([(b"Content-Length", b"+1")], "1.1"),
            ([(b"Transfer-Encoding", b"gzip, chunked")], "1.1"),
            ([(b"Transfer-Encoding", b"identity")], "1.1"),
            ([CHUNKED_FIELD], "1.0"),
        ):
            for method in (b"GET", b"HEAD"):
                error = self.assertRaises(
                    HeadError, of_response, *fields, method=method, version=version
                )
                self.assertEqual(error.status, 502)
