"""Connections that are forwarded to kubelets unchanged, in memory."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import ISystemHandle
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.cluster.fakes import EDGE, FakeInformers, internal_service, node
from tests.fakes import FakeSession, MemoryConnection, Recorder
from tests.logged import Logged
from tests.server.hellos import client_hello, fragmented
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.kube.resources import NODES, SERVICES
from yurttunnel.server.frontends.passthrough.listener import PassthroughFactory, Refusal
from yurttunnel.server.frontends.passthrough.nodes import PassthroughNodes
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.request_ids import RequestIds
from yurttunnel.steering.original_destination import SocketAddress
from yurttunnel.wire.codes import Code

ALERT = b"\x15\x03\x01\x00\x02\x02\x70"
"""unrecognized_name, fatal."""

OWN_NAME = "x-tunnel-server-internal-svc.kube-system.svc"

REFUSED = "--passthrough-port: connection test-1 from 127.0.0.1 to "


@implementer(ISystemHandle)
class Accepted(MemoryConnection):
    """A connection with an original destination."""

    def __init__(self, reactor, original, source):
        super().__init__(reactor)
        self.original = original
        self.source = source

    def getPeer(self):
        """Return the address of the peer."""
        return IPv4Address("TCP", self.source, 40000)

    def getHandle(self):
        """Return a stand-in for the socket."""
        return self


class ListenerTestCase(SynchronousTestCase):
    """A listener and the cluster behind it."""

    def setUp(self):
        """Connect edge-1."""
        self.reactor = MemoryReactorClock()
        self.registry = SessionRegistry(self.reactor)
        self.informers = FakeInformers(True)
        self.informers.put(NODES, node("edge-1", "10.0.0.1", port=12345, labels=EDGE))
        self.informers.put(SERVICES, internal_service())
        self.session = FakeSession("edge-1")
        self.registry.add(self.session)
        self.factory = PassthroughFactory(
            self.reactor,
            self.registry,
            PassthroughNodes(
                self.registry,
                Nodes(self.informers, frozenset({OWN_NAME})),
                ClusterAddresses(self.informers, "kube-system"),
                iptables=True,
            ),
            frozenset({10250, 10255}),
            max_unread_hellos=3,
            max_unread_per_source=2,
            max_connections=8,
            redirect_source=lambda handle: handle.original,
        )
        self.factory.pending_dials.maximum = 4
        self.factory.request_ids = RequestIds("test")
        self.warnings = Logged(self, "yurttunnel")

    def tearDown(self):
        """Check that nothing remains after all connections are closed."""
        self.factory.close()
        self.assertEqual((self.factory.connections, self.factory.pending_dials.used), (set(), 0))
        self.assertEqual(
            (len(self.factory.unread_hellos), self.factory.connection_limit.used), (0, 0)
        )
        # Calls of the connections themselves are due at once.
        self.reactor.advance(0)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def open(self, host=None, port=10250, source="127.0.0.1"):
        """Open a connection; the kernel has redirected it here from ``host`` if given."""
        original = None if host is None else SocketAddress(ip_address(host), port)
        return Accepted(self.reactor, original, source).open(self.factory.buildProtocol(None))

    def join(self, source):
        """Open a connection that gets its stream at once, unless it is rejected."""
        before = len(self.session.dials)
        connection = self.open("10.0.0.1", source=source)
        for dial in self.session.dials[before:]:
            dial.succeed()
        return connection

    def assert_dialed(self, host, port):
        """Check the only dial, and return it."""
        (dial,) = self.session.dials
        self.assertEqual((dial.host, dial.port, dial.request_id), (host, port, "test-1"))
        return dial

    def assert_refused(self, refusal, *words):
        """Check that one connection was rejected, how it is counted and what is logged."""
        self.assertEqual(self.factory.stats.refused, {refusal: 1})
        (warning,) = self.warnings
        for word in (REFUSED, *words):
            self.assertIn(word, warning)
        self.assertNotIn("\n", warning)


class RedirectedTests(ListenerTestCase):
    """Connections that the kernel has redirected here from a node's address."""

    def test_dialed_at_once(self):
        """The destination is dialed unchanged, and nothing is read before it is reached."""
        connection = self.open("10.0.0.1", 10255)
        dial = self.assert_dialed("10.0.0.1", 10255)
        self.assertFalse(connection.reading)
        connection.receive(b"GET / HTTP/1.0\r\n\r\n")
        connection.receive_end()
        target = dial.succeed(greeting=b"hello ")
        connection.turns()
        self.assertEqual((target.received, target.read_ended), (b"GET / HTTP/1.0\r\n\r\n", 1))
        dial.far.write(b"answer")
        dial.far.loseWriteConnection()
        connection.turns()
        self.assertEqual(connection.sent, b"hello answer")
        self.assertIsInstance(connection.closed_with, ConnectionDone)
        self.assertEqual(self.warnings, [])
        stats = self.factory.stats
        self.assertEqual((stats.connections, stats.passed, stats.refused), (1, 1, {}))

    def test_other_ports(self):
        """Other ports should not be redirected here, and are rejected."""
        self.assertTrue(self.open("10.0.0.1", 443).aborted)
        self.assertEqual(self.session.dials, [])
        self.assert_refused(Refusal.PORT, "10.0.0.1:443 is refused", "--passthrough-ports")

    def test_a_node_that_is_not_connected(self):
        """The log says that the node is not connected."""
        self.registry.remove(self.session)
        self.reactor.advance(5)
        self.assertTrue(self.open("10.0.0.1").aborted)
        self.assert_refused(
            Refusal.NOT_CONNECTED,
            "edge-1/10.0.0.1:10250 is refused: no agent is connected for edge-1",
            "last seen 5 s ago",
        )

    def test_a_kubelet_that_is_not_reached(self):
        """The reason is logged."""
        connection = self.open("10.0.0.1")
        self.session.dials[0].fail(Code.REFUSED, "10.0.0.1:10250 refused the connection")
        self.assertTrue(connection.aborted)
        self.assert_refused(Refusal.DIAL, "10.0.0.1:10250 refused the connection (REFUSED)")

    def test_too_many_pending_dials(self):
        """Further connections are reset at once; those of one caller leave half to others."""
        connections = [self.open("10.0.0.1") for _ in range(3)]
        self.assertEqual([each.aborted for each in connections], [False, False, True])
        self.assertEqual(self.factory.stats.refused, {Refusal.DIAL: 1})
        self.assertFalse(self.open("10.0.0.1", source="192.0.2.2").aborted)

    def test_a_caller_that_breaks_while_the_dial_is_pending(self):
        """The dial is canceled and nothing is logged."""
        self.open("10.0.0.1").break_off(ConnectionLost())
        self.assertTrue(self.session.dials[0].cancelled)
        self.assertEqual(self.warnings, [])

    def test_a_stream_that_breaks_resets_the_caller(self):
        """The caller must not mistake it for a regular end."""
        connection = self.open("10.0.0.1")
        self.session.dials[0].succeed()
        self.session.dials[0].far.abort(Code.CONNECTION_LOST, "reset by target")
        self.assertTrue(connection.aborted)

    def test_warnings_are_few(self):
        """Rejections for the same reason are logged once a minute."""
        for _ in range(50):
            self.open("10.0.0.1", 443)
        self.assertEqual(len(self.warnings), 1)
        self.reactor.advance(61)
        self.open("10.0.0.1", 443)
        self.assertIn("(49 more like this were not shown)", self.warnings[1])
        self.assertEqual(self.factory.stats.refused, {Refusal.PORT: 51})


class NamedTests(ListenerTestCase):
    """Connections whose ClientHello determines the node."""

    def test_nothing_is_dialed_before_the_name_is_known(self):
        """The dial starts with the last byte of the ClientHello, and not before."""
        flight = client_hello("edge-1")
        connection = self.open()
        connection.receive(flight[:-1])
        self.assertEqual(self.session.dials, [])
        self.assertTrue(connection.reading)
        connection.receive(flight[-1:])
        self.assert_dialed("10.0.0.1", 12345)
        self.assertFalse(connection.reading)

    def test_bytes_go_through_untouched(self):
        """The ClientHello is sent first; further data and both half-closes follow."""
        flight = fragmented(client_hello("edge-1"), 50)
        connection = self.open()
        connection.receive(flight[:100])
        connection.receive(flight[100:] + b"early ")
        connection.receive(b"data")
        connection.receive_end()
        dial = self.assert_dialed("10.0.0.1", 12345)
        target = dial.succeed()
        connection.turns()
        self.assertEqual((target.received, target.read_ended), (flight + b"early data", 1))
        dial.far.write(b"answer")
        dial.far.loseWriteConnection()
        connection.turns()
        self.assertEqual(connection.sent, b"answer")
        self.assertIsInstance(connection.closed_with, ConnectionDone)
        self.assertEqual(self.warnings, [])

    def test_an_address_of_no_node(self):
        """For an address such as a Service's, from kube-proxy, the original port counts."""
        connection = self.open("10.96.0.7", 10250)
        connection.receive(client_hello("edge-1"))
        self.assert_dialed("10.0.0.1", 10250)

    def test_a_node_that_claims_the_address_of_a_service(self):
        """A node that claims a Service's address receives no connections to that Service."""
        claimed = ("10.96.0.7", "192.0.2.200", "192.0.2.77")
        evil = FakeSession("evil", addresses=claimed)
        self.registry.add(evil)
        self.informers.put(NODES, node("evil", "10.0.0.9", *claimed, labels=EDGE))
        for host, port in zip(claimed, (10250, 10250, 31250), strict=True):
            self.open(host, port, source=host).receive(client_hello("edge-1"))
        self.assertEqual(
            [(dial.host, dial.port) for dial in self.session.dials], [("10.0.0.1", 10250)] * 3
        )
        self.assertEqual(evil.dials, [])

    def test_a_node_that_claims_a_name_of_the_server(self):
        """A caller of the server gets an alert, and that node receives nothing."""
        evil = FakeSession("evil", hosts=[OWN_NAME])
        self.registry.add(evil)
        self.informers.put(NODES, node("evil", "10.0.0.9", ("Hostname", OWN_NAME), labels=EDGE))
        connection = self.open("10.96.0.7")
        connection.receive(client_hello(OWN_NAME))
        connection.turns()
        self.assertEqual((connection.sent, evil.dials), (ALERT, []))
        self.assert_refused(Refusal.UNKNOWN_NAME, OWN_NAME)

    def test_other_ports_of_a_service(self):
        """Ports other than --passthrough-ports are rejected, also behind a node port."""
        self.assertTrue(self.open("192.0.2.77", 31910).aborted)
        self.assert_refused(Refusal.PORT, "192.0.2.77:31910 is refused: 9100 is not in")

    def test_an_address_of_several_nodes(self):
        """The name selects the node."""
        self.informers.put(NODES, node("edge-2", "10.0.0.1", labels=EDGE))
        self.open("10.0.0.1").receive(client_hello("edge-1"))
        self.assert_dialed("10.0.0.1", 10250)

    def test_no_name(self):
        """TLS ends here, for a client that does not verify; one warning has the remedy."""
        no_sni_factory = self.factory.no_sni_factory = Factory.forProtocol(Recorder)
        hello = client_hello(None)
        for host in (None, "10.96.0.7", "10.0.0.77"):
            connection = self.open(host)
            connection.receive(hello[:50])
            connection.receive(hello[50:] + b"more")
            self.assertIsInstance(connection.protocol, Recorder)
            self.assertEqual(connection.protocol.received, hello + b"more")
            self.assertIs(connection.protocol.transport, connection)
        self.assertEqual((self.session.dials, self.factory.connections), ([], set()))
        self.assertEqual(self.factory.stats.refused, {})
        (warning,) = self.warnings
        self.assertIn("--kubelet-certificate-authority", warning)

        no_sni_factory.buildProtocol = lambda address: None
        connection = self.open()
        connection.receive(hello)
        self.assertEqual((connection.aborted, self.factory.connections), (True, set()))

    def test_unknown_names(self):
        """A connection with an unknown name gets the same alert; the warning has the name."""
        connection = self.open("10.96.0.7")
        connection.receive(client_hello("metrics-server.kube-system.svc"))
        connection.turns()
        self.assertEqual(connection.sent, ALERT)
        self.assert_refused(
            Refusal.UNKNOWN_NAME, "10.96.0.7:10250 is refused", "metrics-server.kube-system.svc"
        )

    def test_no_tls(self):
        """A connection without TLS is reset: no TLS client would read an alert."""
        connection = self.open()
        connection.receive(b"GET / HTTP/1.1\r\n")
        self.assertTrue(connection.aborted)
        self.assertEqual(connection.sent, b"")
        self.assert_refused(
            Refusal.NOT_TLS, "it does not begin with a TLS handshake", "--insecure-port"
        )

    def test_time(self):
        """A ClientHello must be complete ten seconds after the connection."""
        connection = self.open()
        self.reactor.advance(9)
        connection.receive(client_hello("edge-1")[:-1])
        self.assertFalse(connection.aborted)
        self.reactor.advance(1)
        self.assertTrue(connection.aborted)
        self.assert_refused(Refusal.TIMEOUT, "not complete within 10 s")

    def test_the_dial_has_its_own_time(self):
        """The dial's timeout starts once the name is known."""
        connection = self.open()
        connection.receive(client_hello("edge-1"))
        self.reactor.advance(11)
        self.assertFalse(connection.aborted)

    def test_too_many_waiting(self):
        """The oldest is evicted; completed ones no longer count."""
        sources = [f"192.0.2.{number}" for number in range(5)]
        first, second, third, fourth = (self.open(source=source) for source in sources[:4])
        self.assertEqual(
            [each.aborted for each in (first, second, third, fourth)], [True, False, False, False]
        )
        self.assertEqual(self.factory.stats.refused, {Refusal.OVERLOADED: 1})
        (warning,) = self.warnings
        self.assertIn("from 192.0.2.0 to an unknown node is refused: 3", warning)
        fourth.receive(client_hello("edge-1"))
        self.assertEqual(len(self.session.dials), 1)
        first.turns()
        self.open(source=sources[4])
        self.assertFalse(second.aborted)

    def test_too_many_waiting_from_one_address(self):
        """The oldest from that address is evicted."""
        other = self.open(source="192.0.2.1")
        first, second, third = (self.open(source="192.0.2.2") for _ in range(3))
        self.assertEqual(
            [each.aborted for each in (other, first, second, third)], [False, True, False, False]
        )
        third.receive(client_hello("edge-1"))
        self.assertEqual(len(self.session.dials), 1)

    def test_too_many_in_all(self):
        """Further ones are reset: the others may carry streams."""
        streams = [self.join(f"192.0.2.{number}") for number in range(8)]
        self.assertTrue(self.join("192.0.2.8").aborted)
        self.assertFalse(any(each.aborted for each in streams))
        self.assertEqual(self.factory.stats.refused, {Refusal.OVERLOADED: 1})
        self.assertIn("there are already 8 others", self.warnings[0])

    def test_too_many_of_one_caller(self):
        """One caller has at most half of the connections, however often it reconnects."""
        streams = [self.join("192.0.2.1") for _ in range(24)]
        self.assertEqual([each.aborted for each in streams], [False] * 4 + [True] * 20)
        self.assertIn("already 4 others, too many in total or from that address", self.warnings[0])
        self.assertFalse(self.join("192.0.2.2").aborted)
        self.assertTrue(self.join("192.0.2.1").aborted)
        for stream in streams[:2]:
            stream.break_off(ConnectionLost())
        self.assertFalse(self.join("192.0.2.1").aborted)

    def test_callers_that_leave(self):
        """Health checks connect and leave; nothing is logged."""
        ends, breaks = self.open(), self.open()
        ends.receive_end()
        ends.turns()
        self.assertIsInstance(ends.closed_with, ConnectionDone)
        breaks.break_off(ConnectionLost())
        self.assertFalse(self.open().aborted)
        self.assertEqual(self.warnings, [])
        self.assertEqual(self.factory.stats.refused, {})

    def test_a_node_that_is_not_connected(self):
        """A known node without an agent is not enough."""
        self.registry.remove(self.session)
        connection = self.open()
        connection.receive(client_hello("edge-1"))
        self.assertTrue(connection.aborted)
        self.assert_refused(Refusal.NOT_CONNECTED, "no agent is connected for edge-1")

    def test_a_caller_that_breaks_while_the_dial_is_pending(self):
        """The dial is canceled."""
        connection = self.open()
        connection.receive(client_hello("edge-1"))
        connection.break_off(ConnectionLost())
        self.assertTrue(self.session.dials[0].cancelled)
        self.assertEqual(self.warnings, [])
