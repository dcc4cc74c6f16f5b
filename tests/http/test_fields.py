"""Header fields, and which of them a proxy forwards."""

import re

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.wire.harness import examples
from yurttunnel.http.fields import (
    Head,
    allowed_in_trailers,
    check_field,
    connection_options,
    end_to_end,
    format_fields,
    keeps_alive,
    requested_upgrade,
)

SOUND_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
SOUND_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
NAMES = st.from_regex(SOUND_NAME, fullmatch=True).filter(lambda name: len(name) <= 8)
VALUES = st.from_regex(SOUND_VALUE, fullmatch=True)


def head(*fields, version="1.1"):
    """Build a head with ``fields``."""
    return Head(version, list(fields))


class EndToEndTests(SynchronousTestCase):
    """``end_to_end`` keeps the end-to-end fields."""

    def test_fields_of_one_connection_are_left_out(self):
        """The hop-by-hop fields of RFC 9110 section 7.6.1 are removed, whatever their case."""
        for name in (
            b"Connection",
            b"KEEP-ALIVE",
            b"Proxy-Authenticate",
            b"Proxy-Authorization",
            b"Proxy-Connection",
            b"te",
            b"Trailer",
            b"Transfer-Encoding",
            b"Upgrade",
        ):
            self.assertEqual(end_to_end([(b"A", b"b"), (name, b"x")]), [(b"A", b"b")], name)

    def test_fields_that_connection_names_are_left_out(self):
        """Each option of each Connection field names a field that is removed."""
        fields = [
            (b"X-One", b"1"),
            (b"Connection", b"close, X-ONE ,,\tx-two"),
            (b"x-two", b"2"),
            (b"connection", b""),
            (b"CONNECTION", b"x-three"),
            (b"X-Three", b"3"),
            (b"X-Four", b"4"),
        ]
        self.assertEqual(end_to_end(fields), [(b"X-Four", b"4")])

    def test_fields_that_frame_or_route_stay(self):
        """A Connection field cannot make a proxy drop the length, host or credentials."""
        fields = [
            (b"Connection", b"Host, Content-Length, authorization"),
            (b"Authorization", b"Bearer a"),
            (b"Host", b"a"),
            (b"Content-Length", b"1"),
        ]
        self.assertEqual(end_to_end(fields), fields[1:])

    def test_the_rest_stays_as_it_was(self):
        """Order, repetitions and the case of names are kept."""
        fields = [(b"B", b"1"), (b"a", b"2"), (b"b", b"3"), (b"Via", b"x"), (b"Expect", b"y")]
        self.assertEqual(end_to_end(iter(fields)), fields)


class ConnectionTests(SynchronousTestCase):
    """Persistence and upgrades of a connection."""

    def test_options(self):
        """The members of all Connection fields are returned in lower case."""
        message = head((b"Connection", b"Close, ,X-A"), (b"A", b"b"), (b"connection", b"Upgrade"))
        self.assertEqual(connection_options(message), {b"close", b"x-a", b"upgrade"})
        self.assertEqual(connection_options(head()), set())

    def test_keeping_alive(self):
        """HTTP/1.1 connections persist without ``close``, HTTP/1.0 only with ``keep-alive``."""
        for version, value, expected in (
            ("1.1", None, True),
            ("1.1", b"close", False),
            ("1.1", b"x, CLOSE", False),
            ("1.1", b"closed", True),
            ("1.1", b"keep-alive, close", False),
            ("1.0", None, False),
            ("1.0", b"Keep-Alive", True),
            ("1.0", b"keep-alive, close", False),
        ):
            fields = [] if value is None else [(b"Connection", value)]
            self.assertIs(keeps_alive(head(*fields, version=version)), expected, (version, value))

    def test_upgrades(self):
        """An upgrade is requested by both fields under HTTP/1.1."""
        connection, upgrade = (b"Connection", b"Keep-Alive, Upgrade"), (b"Upgrade", b"SPDY/3.1")
        self.assertEqual(requested_upgrade(head(connection, upgrade)), b"SPDY/3.1")
        two = head(connection, (b"upgrade", b"websocket"), upgrade)
        self.assertEqual(requested_upgrade(two), b"websocket, SPDY/3.1")
        self.assertIsNone(requested_upgrade(head(connection)))
        self.assertIsNone(requested_upgrade(head(upgrade)))
        self.assertIsNone(requested_upgrade(head(connection, (b"Upgrade", b""))))
        self.assertIsNone(requested_upgrade(head(connection, upgrade, version="1.0")))

    def test_an_upgrade_to_http_2_is_ignored(self):
        """The requests after such an upgrade would pass unchecked."""
        connection = (b"Connection", b"Upgrade, HTTP2-Settings")
        for value in (b"h2c", b"H2C", b"websocket, h2c"):
            self.assertIsNone(requested_upgrade(head(connection, (b"Upgrade", value))), value)


class WritingTests(SynchronousTestCase):
    """Only fields that are parsed as the same fields are serialized."""

    def test_good_fields(self):
        """Names are tokens; values may be empty, and are not limited to ASCII."""
        check_field(b"X-a_b.c!#$%&'*+^`|~1", b"")
        check_field(b"a", b'\tb \x80\xff:;,"')
        self.assertEqual(format_fields([(b"A", b"b"), (b"C", b"")]), b"A: b\r\nC: \r\n")
        self.assertEqual(format_fields([]), b"")

    def test_bad_fields(self):
        """Names that are not tokens, and control characters except the tab, are rejected."""
        names = [
            b"",
            b" ",
            b"a ",
            b"a:",
            b"a: b",
            b"a\r\nb",
            b"a\nb",
            b"a\0",
            b"\xe9",
            b"a(",
            b"a,b",
        ]
        values = [b"a\rb", b"a\nb", b"a\r\nB: c", b"\0", b"\x0b", b"\x7f", b"\x1b[0m"]
        for bad in [*((name, b"v") for name in names), *((b"N", value) for value in values)]:
            self.assertRaises(ValueError, check_field, *bad)
            self.assertRaises(ValueError, format_fields, [(b"A", b"b"), bad, (b"C", b"d")])

    def test_errors_keep_secrets(self):
        """Errors do not contain the value: it may be a token, and errors are logged."""
        error = self.assertRaises(ValueError, check_field, b"Authorization", b"secret\n")
        self.assertEqual(str(error), "the value of Authorization has control characters")

    @examples(200)
    @given(st.lists(st.tuples(NAMES, VALUES), max_size=4))
    def test_lines_are_fields(self, fields):
        """There are never more lines than fields, nor other names."""
        lines = format_fields(fields).split(b"\r\n")
        self.assertEqual(lines.pop(), b"")
        self.assertEqual([tuple(line.split(b": ", 1)) for line in lines], fields)
        self.assertNotIn(b"\n", b"".join(lines))

    @examples(200)
    @given(
        st.lists(st.tuples(NAMES, VALUES), max_size=3),
        st.tuples(st.binary(max_size=4), VALUES) | st.tuples(NAMES, st.binary(max_size=4)),
    )
    def test_any_field_is_written_or_refused(self, fields, other):
        """Any field that is valid by RFC 9110 section 5 is serialized, with any others."""
        name, value = other
        sound = SOUND_NAME.fullmatch(name) and SOUND_VALUE.fullmatch(value)
        if sound:
            self.assertTrue(format_fields([*fields, other]).endswith(b"%s: %s\r\n" % other))
        else:
            self.assertRaises(ValueError, format_fields, [*fields, other])

    def test_trailers(self):
        """No field that frames or routes the message, or is hop-by-hop, may be a trailer."""
        self.assertTrue(allowed_in_trailers(b"X-Checksum"))
        for name in (b"Content-Length", b"transfer-encoding", b"Host", b"Connection", b"Trailer"):
            self.assertFalse(allowed_in_trailers(name), name)
