"""Generated messages that are accepted have the same meaning to h11.

h11 is the oracle. Being stricter than h11 is allowed and intended; being more lenient, or parsing
a message differently, is not. Two kinds of difference are known, both only in form:

- h11 returns the value of Transfer-Encoding in lower case; it is compared so.
- h11 accepts an interim response with the status 101 only if an upgrade was requested, so each
  request here requests one.

There is no kind of message that h11 rejects and that is accepted here. These are rejected here on
purpose, but not by h11: unknown methods and other versions, targets of a form that does not fit the
method, Host that is not an authority, control characters in values and reasons, obs-fold, bare LF,
statuses outside 100 to 599, Content-Length together with Transfer-Encoding, repeated or padded
Content-Length, Transfer-Encoding under HTTP/1.0, bodies announced by 1xx and 204, chunk sizes of
more than 15 digits or followed by white space, control characters in extensions, and trailers that
frame or route.
"""

import itertools

import h11
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.http.messages import Message, read_request, read_response
from tests.wire.harness import examples
from yurttunnel.http.body import BodyError
from yurttunnel.http.framing import BodyKind
from yurttunnel.http.head import HeadError

_LARGE = 1 << 20
_UPGRADE = [("Host", "a"), ("Upgrade", "x"), ("Connection", "upgrade")]


def mostly(usual, *others):
    """Return ``usual``, or occasionally one of ``others``."""
    return st.sampled_from([usual] * (3 * len(others)) + list(others))


_ends = mostly(b"\r\n", b"\n", b"\r", b"\r\n ", b"\r\r\n", b"\n\r\n")
_colons = mostly(b": ", b":", b" :", b":\t", b": \t ", b"", b" ")
_paddings = mostly(b"", b" ", b"\t", b"\x0b", b"\0", b"\x85", b"\r")
_numbers = st.sampled_from(
    [
        b"0",
        b"5",
        b"5",
        b"5",
        b"12",
        b"05",
        b"+5",
        b"-5",
        b"5, 5",
        b"5,12",
        b"0x5",
        b"5 5",
        b"1_0",
        b"",
        b"9223372036854775807",
        b"9223372036854775808",
        b"18446744073709551621",
        b"\xb2",
    ]
)
_codings = st.sampled_from(
    [b"chunked"] * 6
    + [b"Chunked", b"identity", b"gzip, chunked", b"chunked, identity", b"xchunked", b"chunked;x"]
)
_names = st.sampled_from(
    [
        b"X",
        b"Accept",
        b"X-A_b.c",
        b"Connection",
        b"Upgrade",
        b"Expect",
        b"Trailer",
        b"TE",
        b"X ",
        b"",
        b"X\0",
        b"\xe9",
        b"X(",
        b"Content_Length",
        b"Host",
        b" X",
    ]
)
_values = st.sampled_from(
    [
        b"",
        b"y",
        b"y z",
        b"close",
        b"keep-alive",
        b"upgrade",
        b"content-length",
        b"y\tz",
        b"\xc3\xa9",
        b"y\x01",
        b"y\x7f",
        b"y\nz",
        b"y\rz",
        b"100-continue",
        b"a:b",
        b"x" * 300,
    ]
)
_hosts = mostly(b"a", b"a:1", b"[::1]:1", b"", b"a,b", b"a b", b"a@b")
_fields = st.one_of(
    st.tuples(st.just(b"Content-Length"), _colons, _numbers, _paddings, _ends),
    st.tuples(
        mostly(b"Transfer-Encoding", b"transfer-encoding"), _colons, _codings, _paddings, _ends
    ),
    st.tuples(_names, _colons, _values, _paddings, _ends),
).map(b"".join)
_host_fields = st.one_of(
    _hosts.map(lambda host: b"Host: " + host + b"\r\n"), mostly(b"Host: a\r\n", b"")
)
_request_lines = st.tuples(
    mostly(b"GET", b"POST", b"POST", b"CONNECT", b"OPTIONS", b"HEAD", b"get", b"FROB", b""),
    mostly(b" ", b"  ", b"\t", b""),
    mostly(b"/", b"/a?b", b"*", b"http://a/", b"a:1", b"//a", b"/\xff", b"/a#b", b"", b"/\0"),
    mostly(b" ", b"  ", b""),
    mostly(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 ", b""),
    _ends,
).map(b"".join)
_status_lines = st.tuples(
    mostly(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"ICY"),
    mostly(b" ", b"  "),
    st.sampled_from(
        [b"200"] * 9
        + [b"100", b"101", b"103", b"204", b"205", b"304", b"404", b"99", b"600", b"20"]
    ),
    mostly(b" OK", b"", b" ", b" \xc3\xa9", b" O\x01K", b"\tOK"),
    _ends,
).map(b"".join)
_sizes = mostly(
    *[
        b"5",
        b"5",
        b"005",
        b"5;x",
        b'5;x="y"',
        b"5 ",
        b" 5",
        b"+5",
        b"0x5",
        b"5;\n",
        b"4",
        b"6",
        b"A",
    ],
    b"0" * 14 + b"5",
    b"0" * 15 + b"5",
    b"0" * 19 + b"5",
    b"1" + b"0" * 15 + b"5",
    b"",
    b"5;\0",
)
_chunks = st.tuples(_sizes, _ends, st.just(b"hello"), _ends).map(b"".join)
_trailers = st.tuples(_names, _colons, _values, _ends).map(b"".join)
_chunked_bodies = st.tuples(
    st.lists(_chunks, max_size=3).map(b"".join),
    mostly(b"0", b"000", b"0;x", b"0 ", b"0x0", b""),
    _ends,
    st.lists(_trailers, max_size=1).map(b"".join),
    _ends,
).map(b"".join)
_tails = st.sampled_from(
    [b"", b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n", b"\0\xff", b"hello", b"\r\n"]
)
_bodies = st.one_of(_chunked_bodies, st.just(b"hello"), st.just(b"he"), st.just(b""))
_framings = st.sampled_from([b"", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"])


def messages(first_lines, host_fields):
    """Generate messages that are valid, or nearly so."""
    return st.tuples(
        first_lines,
        host_fields,
        st.lists(_fields, max_size=2).map(b"".join),
        _framings,
        mostly(b"\r\n", b"\n", b"\r", b"\r\n"),
        _bodies,
        _tails,
    ).map(b"".join)


def cut(data, places):
    """Split ``data`` into pieces."""
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


_cuts = st.lists(st.integers(0, 400), max_size=4)


def mutate(data, place, octet):
    """Replace one byte."""
    place %= len(data)
    return data[:place] + octet + data[place + 1 :]


_octets = st.sampled_from(
    [
        b"\0",
        b"\t",
        b"\n",
        b"\r",
        b" ",
        b";",
        b":",
        b",",
        b"0",
        b"5",
        b"x",
        b"_",
        b"\x7f",
        b"\x80",
        b"",
    ]
)


def comparable(fields):
    """Return ``fields`` with the value that h11 normalizes in its form."""
    return [
        (name, value.lower() if name.lower() == b"transfer-encoding" else value)
        for name, value in fields
    ]


class Understood:
    """A message as h11 parses it."""

    def __init__(self, connection, data, at_end):
        self.head = None
        self.body = b""
        self.trailers = []
        self.ended = False
        self.refused = None
        connection.receive_data(data)
        try:
            self._read(connection)
            if at_end and not self.ended and self.head is not None:
                connection.receive_data(b"")
                self._read(connection)
        except h11.RemoteProtocolError as error:
            self.refused = error
        self.rest = connection.trailing_data[0]

    def _read(self, connection):
        while not self.ended:
            event = connection.next_event()
            if event in (h11.NEED_DATA, h11.PAUSED):
                return
            if isinstance(event, h11.Data):
                self.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self.trailers = event.headers.raw_items()
                self.ended = True
            else:
                self.head = event
                interim = isinstance(event, h11.InformationalResponse)
                self.ended = interim or connection.their_state is h11.SWITCHED_PROTOCOL


def understood_request(data):
    """Parse a request with h11."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGE)
    return Understood(connection, data, at_end=False)


def understood_response(method, data):
    """Parse the response to a ``method`` with h11."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGE)
    connection.send(h11.Request(method=method, target="/", headers=_UPGRADE))
    connection.send(h11.EndOfMessage())
    return Understood(connection, data, at_end=True)


class DifferentialTestCase(SynchronousTestCase):
    """The comparison with h11."""

    def compare_request(self, data, cuts=()):
        """Compare an accepted request with h11; return whether all of it was accepted."""
        ours = self.read(read_request, cut(data, cuts))
        if ours.head is None or ours.framing is None:
            return False
        theirs = understood_request(data)
        self.assertIsNotNone(theirs.head, data)
        self.assertEqual(theirs.head.method, ours.head.method)
        self.assertEqual(theirs.head.target, ours.head.target)
        return self.compare(ours, theirs, data)

    def compare_response(self, method, data, cuts=()):
        """Compare an accepted response with h11; return whether all of it was accepted."""

        def read(pieces, message):
            return read_response(pieces, method, message)

        ours = self.read(read, cut(data, cuts))
        if ours.head is None or ours.framing is None:
            return False
        if ours.framing.kind is BodyKind.UNTIL_CLOSE:
            ours.reader.end_of_input()
        theirs = understood_response(method, data)
        self.assertIsNotNone(theirs.head, data)
        self.assertEqual(theirs.head.status_code, ours.head.status)
        self.assertEqual(theirs.head.reason, ours.head.reason)
        return self.compare(ours, theirs, data)

    def read(self, read, pieces):
        """Parse as far as possible."""
        message = Message()
        try:
            read(pieces, message=message)
        except (HeadError, BodyError):
            pass  # Being stricter is allowed; the part accepted before is compared.
        return message

    def compare(self, ours, theirs, data):
        """Compare heads of both kinds, and what follows."""
        self.assertEqual(theirs.head.http_version.decode(), ours.head.version)
        self.assertEqual(
            comparable(theirs.head.headers.raw_items()), comparable(ours.head.fields), data
        )
        if not ours.ended:
            # The piece in which something is rejected is not delivered.
            self.assertEqual(theirs.body[: len(ours.body)], ours.body, data)
            return False
        self.assertIsNone(theirs.refused, data)
        self.assertTrue(theirs.ended, data)
        self.assertEqual(theirs.body, ours.body, data)
        self.assertEqual(theirs.trailers, ours.trailers, data)
        self.assertEqual(theirs.rest, ours.rest, data)
        return True


class RequestTests(DifferentialTestCase):
    """Requests."""

    @examples(400)
    @given(messages(_request_lines, _host_fields), _cuts)
    def test_generated_requests(self, data, cuts):
        """Heads, bodies, trailers and the rest are the same, however the bytes are split."""
        self.compare_request(data, cuts)

    @examples(400)
    @given(
        st.tuples(
            st.just(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"),
            _chunked_bodies,
            _tails,
        ).map(b"".join),
        _cuts,
    )
    def test_generated_chunks(self, data, cuts):
        """Chunked bodies are the same; few of the messages above reach them."""
        self.compare_request(data, cuts)

    @examples(400)
    @given(st.integers(0, 400), _octets, _cuts)
    def test_one_byte_of_a_request_is_another(self, place, octet, cuts):
        """With any single byte changed, both still agree."""
        data = (
            b"POST /a HTTP/1.1\r\nHost: a:1\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"5;x=y\r\nhello\r\nA\r\n0123456789\r\n0\r\nX-B: c\r\n\r\n" + b"GET /n HTTP/1.1\r\n"
        )
        self.compare_request(mutate(data, place, octet), cuts)

    def test_proper_requests_are_accepted_by_both(self):
        """The comparison is not vacuous: valid requests are accepted completely."""
        chunked = b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        for data in (
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET",
            b"GET / HTTP/1.0\r\n\r\n",
            b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\nearly",
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhellonext",
            b"POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\nnext",
            b"POST / HTTP/1.1\r\n" + chunked + b"5\r\nhello\r\n0\r\n\r\nnext",
            b"POST / HTTP/1.1\r\n" + chunked + b"005;x=y\r\nhello\r\n0;z\r\nA:  b \r\n\r\nnext",
        ):
            for cuts in ((), range(len(data))):
                self.assertTrue(self.compare_request(data, cuts), data)


class ResponseTests(DifferentialTestCase):
    """Responses."""

    methods = st.sampled_from([b"GET", b"GET", b"HEAD"])

    @examples(400)
    @given(methods, messages(_status_lines, st.just(b"")), _cuts)
    def test_generated_responses(self, method, data, cuts):
        """Heads, bodies, trailers and the rest are the same, however the bytes are split."""
        self.compare_response(method, data, cuts)

    @examples(400)
    @given(methods, st.integers(0, 400), _octets, _cuts)
    def test_one_byte_of_a_response_is_another(self, method, place, octet, cuts):
        """With any single byte changed, both still agree."""
        data = (
            b"HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"5;x=y\r\nhello\r\nA\r\n0123456789\r\n0\r\nX-B: c\r\n\r\n" + b"HTTP/1.1 200 OK\r\n"
        )
        self.compare_response(method, mutate(data, place, octet), cuts)

    def test_proper_responses_are_accepted_by_both(self):
        """The comparison is not vacuous: valid responses are accepted completely."""
        for method, data in (
            (b"GET", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellonext"),
            (b"GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\nnext"),
            (b"GET", b"HTTP/1.1 200 OK\r\n\r\nall of it"),
            (b"GET", b"HTTP/1.0 200\r\n\r\nall of it"),
            (b"GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\nnext"),
            (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nnext"),
            (b"GET", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"),
            (b"GET", b"HTTP/1.1 101 \r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nearly"),
            (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnext"),
        ):
            for cuts in ((), range(len(data))):
                self.assertTrue(self.compare_response(method, data, cuts), data)
