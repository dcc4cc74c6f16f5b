"""Plain TCP port forwards."""

from __future__ import annotations

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import FakeSession, MemoryConnection
from tests.logged import Logged
from yurttunnel.ops.failures import Failures
from yurttunnel.server.frontends.forward import Forward, ForwardFactory, parse_forward
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.request_ids import RequestIds
from yurttunnel.tunnel.shares import Kind
from yurttunnel.wire.codes import Code

FORWARD = "127.0.0.1:9000=edge-1/127.0.0.1:80"


class ParseTests(SynchronousTestCase):
    """``parse_forward`` parses the value of ``--forward``."""

    def test_forwards(self):
        """LISTEN, NODE and the target, with IPv6 in brackets on every side."""
        for text, expected in {
            FORWARD: ("127.0.0.1", 9000, "edge-1", "127.0.0.1", 80),
            "[::1]:9000=edge-1/[2001:db8::1]:80": ("::1", 9000, "edge-1", "2001:db8::1", 80),
            "0.0.0.0:1=192.0.2.1/db.local:5432": ("0.0.0.0", 1, "192.0.2.1", "db.local", 5432),
            "localhost:1=2001:db8::7/a:2": ("localhost", 1, "2001:db8::7", "a", 2),
            "localhost:1=[2001:db8::7]/a:2": ("localhost", 1, "2001:db8::7", "a", 2),
        }.items():
            self.assertEqual(parse_forward(text), Forward(text, *expected))

    def test_a_port_alone_is_one_of_the_loopback_address(self):
        """A port is exposed to other machines only if an address says so."""
        for listen in ("9000", ":9000"):
            forward = parse_forward(f"{listen}=edge-1/a:80")
            self.assertEqual((forward.listen_host, forward.listen_port), ("127.0.0.1", 9000))

    def test_anything_else_is_refused_in_one_line(self):
        """The message quotes the text and shows the syntax."""
        for text in (
            "",
            "9000",
            "9000=edge-1",
            "9000=edge-1/80",
            "9000=edge-1/a:0",
            "9000=/a:80",
            "=edge-1/a:80",
            "0=edge-1/a:80",
            "65536=edge-1/a:80",
            "a b:1=edge-1/a:80",
            "9000=edge 1/a:80",
            "9000=edge_1/a:80",
            "9000=localhost/a:80",
            "9000=edge-1/a:80/x",
            "9000=edge-1/::1:80",
            "127.0.0.1=edge-1/a:80",
            "server.example:9000=edge-1/a:80",
        ):
            error = self.assertRaises(ValueError, parse_forward, text)
            self.assertIn("write LISTEN=NODE/HOST:PORT", str(error))
            self.assertIn(repr(text), str(error))
            self.assertNotIn("\n", str(error))

    def test_the_target_for_people(self):
        """As in the flag."""
        self.assertEqual(parse_forward(FORWARD).target, "edge-1/127.0.0.1:80")
        forward = parse_forward("1=edge-1/[::1]:80")
        self.assertEqual(forward.target, "edge-1/[::1]:80")


class HolderTests(SynchronousTestCase):
    """The shares of connections in the streams."""

    def test_each_entry_and_each_caller(self):
        """Connections from one address through one flag have one share, all others other shares."""
        reactor = MemoryReactorClock()
        registry, session = SessionRegistry(reactor), FakeSession("edge-1")
        registry.add(session)
        for flag in ("--forward a", "--forward b"):
            factory = ForwardFactory(registry, parse_forward(FORWARD))
            factory.flag = flag
            for host in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
                protocol = factory.buildProtocol(None)
                transport = MemoryConnection()
                transport.getPeer = lambda host=host: IPv4Address("TCP", host, 40000)
                protocol.makeConnection(transport)
        holders = [dial.holder for dial in session.dials]
        self.assertEqual({Kind.FORWARD}, {holder.kind for holder in holders})
        self.assertEqual(holders[0], holders[1])
        self.assertEqual(4, len(set(holders)))


class ForwardTests(SynchronousTestCase):
    """``ForwardFactory`` carries connections to its target."""

    def setUp(self):
        """Connect edge-1."""
        self.reactor = MemoryReactorClock()
        self.registry = SessionRegistry(self.reactor)
        self.session = FakeSession("edge-1")
        self.registry.add(self.session)
        self.factory = ForwardFactory(self.registry, parse_forward(FORWARD))
        self.factory.dial_timeout = 7.0
        self.factory.pending_dials.maximum = 4
        self.factory.request_ids = RequestIds("test")
        self.warnings = Logged(self, "yurttunnel")

    def tearDown(self):
        """Check that nothing remains after all connections are closed."""
        self.factory.close()
        self.assertEqual((self.factory.connections, self.factory.pending_dials.used), (set(), 0))

    def open(self, host=""):
        """Open a connection, from an address."""
        connection = MemoryConnection(self.reactor)
        if host:
            connection.getPeer = lambda: IPv4Address("TCP", host, 40000)
        return connection.open(self.factory.buildProtocol(None))

    def test_a_stream_is_requested_at_once(self):
        """The stream's target is the forward's, and the connection is not read during the dial."""
        connection = self.open()
        (dial,) = self.session.dials
        self.assertEqual((dial.host, dial.port, dial.timeout), ("127.0.0.1", 80, 7.0))
        self.assertEqual(dial.request_id, "test-1")
        self.assertFalse(connection.reading)

    def test_data_and_half_closes_in_both_directions(self):
        """A caller that sends and half-closes at once, like ``nc -N``, gets its response."""
        connection = self.open()
        connection.receive(b"x")
        connection.receive_end()
        target = self.session.dials[0].succeed(greeting=b"hello ")
        connection.turns()
        self.assertEqual((target.received, target.read_ended), (b"x", 1))
        far = self.session.dials[0].far
        far.write(b"answer")
        far.loseWriteConnection()
        connection.turns()
        self.assertEqual(connection.sent, b"hello answer")
        self.assertIsInstance(connection.closed_with, ConnectionDone)
        self.assertEqual(self.warnings, [])

    def test_a_drain_waits_for_a_caller_that_reads_slowly(self):
        """The stream has ended when the caller's transport has its last data."""
        connection = self.open()
        connection.receive_end()
        self.session.dials[0].succeed()
        connection.turns()
        far = self.session.dials[0].far
        far.write(b"x" * 60_000)
        far.loseWriteConnection()
        drained = self.factory.drain()
        self.assertIsNone(connection.protocol.stream)
        self.assertNoResult(drained)
        connection.turns()
        self.assertEqual(connection.sent, b"x" * 60_000)
        self.successResultOf(drained)

    def test_a_failed_dial_is_on_the_page(self):
        """The status page has caller, target and reason, unless the caller left before."""
        failures = self.factory.failures = Failures(self.reactor)
        self.open("192.0.2.9")
        self.session.dials[0].fail(Code.REFUSED, "127.0.0.1:80 refused the connection")
        left = self.open("192.0.2.9")
        left.protocol.connectionLost()
        [failure] = failures.newest_first()
        self.assertEqual(
            ("forward", "192.0.2.9", "edge-1", "test-1", None),
            (failure.kind, failure.who, failure.node, failure.request_id, failure.status),
        )
        self.assertIn("refused the connection", failure.text)

    def test_a_failed_dial_resets_the_caller(self):
        """One log line has the forward, the connection and the reason."""
        connection = self.open()
        self.session.dials[0].fail(Code.REFUSED, "127.0.0.1:80 refused the connection")
        self.assertTrue(connection.aborted)
        self.assertEqual(
            self.warnings,
            [
                f"--forward {FORWARD}: connection test-1 to edge-1/127.0.0.1:80 was reset: "
                "127.0.0.1:80 refused the connection (REFUSED)"
            ],
        )

    def test_a_node_that_is_not_connected(self):
        """The log line of a node that is not connected has when it was last seen."""
        self.registry.remove(self.session)
        self.reactor.advance(5)
        self.assertTrue(self.open().aborted)
        (warning,) = self.warnings
        self.assertIn("last seen 5 s ago", warning)

    def test_too_many_pending_dials(self):
        """Further connections are reset at once; those of one caller leave half to others."""
        connections = [self.open() for _ in range(3)]
        self.assertEqual([each.aborted for each in connections], [False, False, True])
        self.assertEqual(len(self.session.dials), 2)
        others = [self.open(f"192.0.2.{number}") for number in range(3)]
        self.assertEqual([each.aborted for each in others], [False, False, True])
        self.assertIn("4 dials are pending already", self.warnings[-1])

    def test_a_caller_that_breaks_while_the_dial_is_pending(self):
        """The dial is canceled and nothing is logged."""
        self.open().break_off(ConnectionLost())
        self.assertTrue(self.session.dials[0].cancelled)
        self.assertEqual(self.warnings, [])

    def test_a_stream_that_breaks_resets_the_caller(self):
        """The caller must not mistake it for a regular end."""
        connection = self.open()
        self.session.dials[0].succeed()
        self.session.dials[0].far.abort(Code.CONNECTION_LOST, "reset by target")
        self.assertTrue(connection.aborted)
