"""The server name in the first bytes of a TLS client."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.server.hellos import (
    GREASE,
    VERSIONS,
    client_hello,
    extension,
    fragmented,
    message,
    records,
    server_name,
    vector,
)
from yurttunnel.server.frontends.passthrough.client_hello import (
    MAX_FLIGHT,
    MAX_HELLO,
    BadClientHello,
    ClientHelloReader,
)

NAME = "edge-1.example.org"
ECH = extension(0xFE0D, b"\x00" + bytes(200))


def outcome(*pieces):
    """Return a reader's result for ``pieces``: a server name, ``more`` or an error's text."""
    reader = ClientHelloReader()
    for piece in pieces:
        try:
            hello = reader.feed(piece)
        except BadClientHello as error:
            return "bad", str(error)
        if hello is not None:
            return "hello", hello.server_name
    return "more", None


def cut(data, positions):
    """Split ``data`` at ``positions``."""
    edges = [0, *sorted(position % (len(data) + 1) for position in positions), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


class RealTests(SynchronousTestCase):
    """ClientHellos of OpenSSL."""

    def test_name(self):
        """Every version of TLS has the name in the same place."""
        for version in (None, *VERSIONS):
            self.assertEqual(outcome(client_hello(NAME, version)), ("hello", NAME))

    def test_no_name(self):
        """A client that connects to an address sends none."""
        for version in (None, *VERSIONS):
            self.assertEqual(outcome(client_hello(None, version)), ("hello", None))
        self.assertEqual(outcome(client_hello("192.0.2.1")), ("hello", None))
        # A client that sends an address nevertheless has sent no name, and no address of a node.
        named = client_hello("node.test")
        self.assertEqual(outcome(named.replace(b"node.test", b"192.0.2.1")), ("hello", None))

    def test_over_several_records(self):
        """The message may be fragmented into the smallest records."""
        for name in (NAME, None):
            for size in (1, 2, 3, 7, 100, 512):
                flight = fragmented(client_hello(name), size)
                self.assertEqual(outcome(flight), ("hello", name))

    def test_large(self):
        """Much data may precede and follow the name."""
        alpn = [f"{number:0250}" for number in range(50)]
        flight = client_hello(NAME, alpn=alpn)
        self.assertGreater(len(flight), 12_000)
        self.assertEqual(outcome(flight), ("hello", NAME))

    def test_byte_by_byte(self):
        """A ClientHello is complete with its last byte, and not before."""
        flight = client_hello(NAME)
        reader = ClientHelloReader()
        found = [reader.feed(flight[position : position + 1]) for position in range(len(flight))]
        self.assertEqual(found[:-1], [None] * (len(flight) - 1))
        self.assertEqual(found[-1].server_name, NAME)

    def test_received(self):
        """``received`` is everything that was fed, including what follows the ClientHello."""
        flight = client_hello(NAME)
        reader = ClientHelloReader()
        reader.feed(flight[:100])
        reader.feed(flight[100:] + b"early data")
        self.assertEqual(reader.received, flight + b"early data")


class CraftedTests(SynchronousTestCase):
    """ClientHellos that other clients send, or could send."""

    def assert_name(self, name, *extensions):
        """Check the parsed name."""
        self.assertEqual(outcome(records(message(*extensions))), ("hello", name))

    def assert_bad(self, words, data):
        """Check that the data is rejected with ``words``, in one line."""
        kind, text = outcome(data)
        self.assertEqual(kind, "bad", data)
        self.assertIn(words, text)
        self.assertNotIn("\n", text)

    def test_spelling(self):
        """Names are in lower case and without a final dot; underscores are allowed."""
        self.assert_name("edge-1", server_name(b"Edge-1"))
        self.assert_name("edge-1.example.org", server_name(b"EDGE-1.example.org."))
        self.assert_name("edge_1", server_name(b"edge_1"))

    def test_unknown_things(self):
        """Reserved values (GREASE) are ignored, and inner names (ECH) are not used."""
        grease = int.from_bytes(GREASE)
        self.assert_name("outer", extension(grease, b""), ECH, server_name(b"outer"), ECH)
        self.assert_name(None, extension(grease, b"\x00"), ECH)

    def test_no_extensions(self):
        """Old clients send none."""
        self.assert_name(None)
        self.assert_name(None, b"")

    def test_record_version(self):
        """The version of the record does not matter (RFC 8446 section 5.1)."""
        for version in (0x0300, 0x0301, 0x0303, 0x03FF):
            flight = records(message(server_name(b"edge-1")), version=version)
            self.assertEqual(outcome(flight), ("hello", "edge-1"))

    def test_no_tls(self):
        """Other protocols are detected by their first byte, without waiting for more."""
        for data in (b"GET / HTTP/1.1\r\n", b"SSH-2.0-OpenSSH\r\n", b"\x00", b"\x80\x2e\x01"):
            self.assert_bad("does not begin with a TLS handshake", data)
            self.assertEqual(outcome(data[:1]), outcome(data))
        self.assert_bad("unknown version 2", b"\x16\x02")

    def test_other_messages(self):
        """A ServerHello, or an empty or oversized record, is rejected."""
        self.assert_bad("message of type 2", records(b"\x02" + vector(3, bytes(40))))
        self.assert_bad("record of 0 bytes", b"\x16\x03\x01\x00\x00")
        self.assert_bad("record of 16385 bytes", b"\x16\x03\x01\x40\x01")

    def test_too_long(self):
        """An announced length is rejected at once, and so are too many records."""
        announced = b"\x01" + (MAX_HELLO + 1).to_bytes(3)
        self.assert_bad(f"{MAX_HELLO + 1} bytes", records(announced))
        room = 4 + MAX_HELLO - len(message(server_name(b"edge-1"), extension(21, b"")))
        largest = message(server_name(b"edge-1"), extension(21, bytes(room)))
        self.assertEqual(len(largest), 4 + MAX_HELLO)
        self.assertEqual(outcome(records(largest)), ("hello", "edge-1"))
        self.assert_bad(f"after {MAX_FLIGHT} bytes", records(largest, size=4))

    def test_buffer_limit(self):
        """However it is sent, a flood is rejected at the limit."""
        reader = ClientHelloReader()
        flood = records(message(extension(21, bytes(MAX_HELLO - 200))), size=1)
        fed = 0
        with self.assertRaises(BadClientHello):
            for begin in range(0, len(flood), 1000):
                fed += 1000
                reader.feed(flood[begin : begin + 1000])
        self.assertLess(fed, MAX_FLIGHT + 2000)

    def test_wrong_lengths(self):
        """Every length that exceeds its container is detected."""
        good = message(server_name(b"edge-1"))
        for position in (38, 38 + 33, 38 + 33 + 6):
            broken = good[:position] + b"\xff" + good[position + 1 :]
            self.assert_bad("ends within a field", records(broken))
        self.assert_bad("ends within a field", records(message(b"\x00")))
        self.assert_bad("ends within a field", records(message(extension(0, b""))))
        self.assert_bad("ends within a field", records(b"\x01" + vector(3, b"\x03\x03")))

    def test_no_single_host_name(self):
        """There is one host name or none, as clients send it."""
        self.assert_bad("more than one server_name", records(message(*[server_name(b"a")] * 2)))
        for bad in (server_name(b"a", b"b"), server_name(b"a", kind=1)):
            self.assert_bad("another server_name than one host name", records(message(bad)))
        self.assert_bad("ends within a field", records(message(server_name())))

    def test_no_host_names(self):
        """An invalid host name is quoted, truncated."""
        for name in (b"", b"edge 1", b"a..b", b"\xff", b"a\nb", b"-a", b"a" * 64, b"fe80::1%lo"):
            self.assert_bad("names no host name", records(message(server_name(name))))
        _, text = outcome(records(message(server_name(b"-" * 10_000))))
        self.assertLess(len(text), 200)


FLIGHTS = st.sampled_from(
    [
        client_hello(NAME),
        client_hello(None),
        client_hello(NAME, VERSIONS[0]),
        fragmented(client_hello(NAME), 60),
        fragmented(client_hello(None), 1),
        records(message(ECH, server_name(b"Edge."))),
        records(message(server_name(b"a", b"b"))),
        records(message(extension(21, bytes(MAX_HELLO - 200))), size=1),
    ]
)


class CuttingTests(SynchronousTestCase):
    """The fragmentation does not matter."""

    @settings(deadline=None)
    @given(FLIGHTS, st.lists(st.integers(0, 1 << 17), max_size=20))
    def test_whole_flights(self, flight, positions):
        """The result is that of the whole."""
        self.assertEqual(outcome(*cut(flight, positions)), outcome(flight))

    @settings(deadline=None)
    @given(
        FLIGHTS,
        st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=5),
        st.lists(st.integers(0, 700), max_size=10),
    )
    def test_damaged_flights(self, flight, damages, positions):
        """The result for damaged flights does not depend on the fragmentation either."""
        damaged = bytearray(flight)
        for position, value in damages:
            damaged[position % len(damaged)] = value
        data = bytes(damaged)
        self.assertEqual(outcome(*cut(data, positions)), outcome(data))

    @settings(deadline=None)
    @given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
    def test_garbage(self, data, positions):
        """No data causes any other exception."""
        for begin in (b"", b"\x16\x03\x01", records(b"\x01" + vector(3, data))[:9]):
            self.assertEqual(outcome(*cut(begin + data, positions)), outcome(begin + data))
        self.assertIn(outcome(records(b"\x01" + vector(3, data)))[0], ("hello", "bad"))
