"""Port-forward: connections to ports of this machine, in memory."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError
from twisted.internet.error import TimeoutError as ConnectTimeout
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.fakes import FakeStream, MemoryConnection, Recorder
from yurtlab.node.interfaces import IForwardedConnection, IPortForwarder
from yurtlab.node.port_forward import MAX_CONNECTIONS, PortForwarder


@implementer(IForwardedConnection)
class Forwarded:
    """A client's connection, whose far end records data."""

    def __init__(self):
        self.refused = None
        self.accepted = False
        self.near, self.far = FakeStream.pair()
        self.client = Recorder()
        self.far.attach(self.client)

    def accept(self):
        """Return the near end."""
        self.accepted = True
        return self.near

    def refuse(self, text):
        """Record the text."""
        self.refused = text


class PortForwardTests(SynchronousTestCase):
    """One forwarder."""

    def setUp(self):
        """Make it."""
        self.reactor = MemoryReactorClock()
        self.forwarder = PortForwarder(self.reactor, "web_default, uid 1")

    def request(self, port=8080):
        """Request a connection."""
        connection = Forwarded()
        self.forwarder.connection_requested(port, connection)
        return connection

    def connected(self):
        """Request a connection that succeeds at once; return the client's side and the socket."""
        connection = self.request()
        factory = self.reactor.tcpClients[-1][2]
        socket = MemoryConnection(self.reactor).open(factory.buildProtocol(None))
        return connection, socket

    def fail(self, reason):
        """Request a connection that fails; return the client's error."""
        connection = self.request()
        self.assertIsNone(connection.refused)
        self.reactor.tcpClients[-1][2].clientConnectionFailed(None, Failure(reason))
        return connection.refused

    def test_is_a_forwarder(self):
        """It provides the interface that the streaming protocols expect."""
        verifyObject(IPortForwarder, self.forwarder)

    def test_where(self):
        """Connections go to the port on this machine."""
        self.request(8080)
        host, port, _, timeout, _ = self.reactor.tcpClients[-1]
        self.assertEqual((host, port), ("127.0.0.1", 8080))
        self.assertLessEqual(timeout, 30)

    def test_both_ways(self):
        """Bytes pass in both directions once connected, also those sent before."""
        connection = self.request()
        connection.far.write(b"early ")
        self.assertFalse(connection.accepted)
        factory = self.reactor.tcpClients[-1][2]
        socket = MemoryConnection(self.reactor).open(factory.buildProtocol(None))
        connection.far.write(b"late")
        socket.turn()
        self.assertEqual(socket.sent, b"early late")
        socket.receive(b"answer")
        self.assertEqual(connection.client.received, b"answer")

    def test_client_ends(self):
        """After the client's end the answer still arrives."""
        connection, socket = self.connected()
        connection.far.write(b"question")
        connection.far.loseWriteConnection()
        socket.turn()
        self.assertEqual((socket.sent, socket.write_ended), (b"question", True))
        socket.receive(b"answer")
        socket.receive_end()
        self.assertEqual(connection.client.received, b"answer")
        self.assertEqual(connection.client.read_ended, 1)

    def test_pod_ends(self):
        """After the pod's end the client may still send."""
        connection, socket = self.connected()
        socket.receive(b"greeting")
        socket.receive_end()
        self.assertEqual(connection.client.read_ended, 1)
        connection.far.write(b"more")
        socket.turn()
        self.assertEqual(socket.sent, b"more")
        self.assertFalse(socket.write_ended)
        connection.far.loseWriteConnection()
        socket.turn()
        self.assertIsInstance(socket.closed_with, ConnectionDone)

    def test_pod_closes(self):
        """A connection closed by the pod is closed for the client."""
        connection, socket = self.connected()
        socket.receive(b"bye")
        socket.receive_end()
        socket.break_off(ConnectionDone())
        connection.far.loseWriteConnection()
        self.assertEqual(connection.client.received, b"bye")
        self.assertEqual(connection.client.read_ended, 1)

    def test_pod_breaks_off(self):
        """A connection reset by the pod does not look complete to the client."""
        connection, socket = self.connected()
        socket.break_off(ConnectionLost())
        self.assertEqual(connection.client.read_ended, 0)
        (reason,) = connection.client.ended_with
        self.assertNotIsInstance(reason, ConnectionDone)

    def test_client_breaks_off(self):
        """A connection aborted by the client is reset in the pod."""
        connection, socket = self.connected()
        connection.far.abortConnection()
        self.assertTrue(socket.aborted)

    def test_slow_pod(self):
        """The client is paused while the pod does not read."""
        connection, socket = self.connected()
        for _ in range(10):
            connection.far.write(bytes(65536))
        self.assertTrue(connection.near._paused)
        while self.reactor.getWriters():
            socket.turn()
            self.reactor.advance(0)
        self.assertEqual(len(socket.sent), 655360)

    def test_slow_client(self):
        """The pod is not read while the client is paused."""
        connection, socket = self.connected()
        connection.far.pauseProducing()
        socket.receive(bytes(100_000))
        self.assertFalse(socket.reading)
        connection.far.resumeProducing()
        self.assertTrue(socket.reading)

    def test_refused(self):
        """A refused connection gives the kubelet's message."""
        self.assertEqual(
            self.fail(ConnectionRefusedError()),
            "error forwarding port 8080 to pod web_default, uid 1: failed to connect to"
            " localhost:8080: dial tcp4 127.0.0.1:8080: connect: connection refused",
        )

    def test_timeout(self):
        """A timeout gives an error."""
        self.assertIn("i/o timeout", self.fail(ConnectTimeout()))

    def test_no_port(self):
        """An invalid port is rejected without an attempt."""
        for port in (0, -1, 65536):
            self.assertIn("no port", self.request(port).refused)
        self.assertEqual(self.reactor.tcpClients, [])

    def test_bound(self):
        """The number of connections is limited, and ended ones do not count."""
        _, socket = self.connected()
        for _ in range(MAX_CONNECTIONS - 1):
            self.request()
        self.assertIn("already", self.request().refused)
        socket.break_off(ConnectionDone())
        self.assertIsNone(self.request().refused)
