"""Port-forward in a WebSocket, with two channels for each port, as in the Python client."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.trial.unittest import SynchronousTestCase

from tests.tunnel.memory import HalfCloseUser
from tests.yurtlab.streaming.support import (
    Forwarder,
    WebSocketCodec,
    forward_node,
    websocket_head,
)
from yurtlab.node.streaming import connection as shared


class WebSocketForwardTests(SynchronousTestCase):
    """Each port is one connection, which is made at once."""

    def start(self, query="port=80", protocols="v5.channel.k8s.io,v4.channel.k8s.io"):
        """Request a port-forward."""
        self.forwarder = Forwarder()
        self.node = forward_node(self.forwarder)
        self.connection = self.node.connection
        self.codec = WebSocketCodec()
        return self.node.request(websocket_head(protocols, f"/portforward?{query}"))

    def send(self, *payloads):
        """Send messages."""
        self.connection.receive(b"".join(map(self.codec.message, payloads)))

    def messages(self):
        """Return the messages sent since the last call, after pending calls."""
        self.node.clock.advance(0)
        self.node.clock.advance(0)
        return self.codec.messages(self.node.receive())

    def accepted(self, *args):
        """Start, and accept all connections."""
        self.start(*args)
        users = []
        for _, connection in self.forwarder.requests:
            users.append(HalfCloseUser())
            connection.accept().attach(users[-1])
        self.messages()
        return users

    def test_ports(self):
        """The first message on each channel is its port, in little-endian order."""
        for query in ("port=80,8080", "port=80&port=8080", "ports=80,8080"):
            answer = self.start(query)
            self.assertIn("Sec-WebSocket-Protocol: v4.channel.k8s.io", answer)
            ports = [b"\0\x50\0", b"\1\x50\0", b"\2\x90\x1f", b"\3\x90\x1f"]
            self.assertEqual(ports, self.messages())
            self.assertEqual([80, 8080], [port for port, _ in self.forwarder.requests])

    def test_no_protocol(self):
        """The client need not name a subprotocol."""
        self.start(protocols="")
        self.assertEqual(2, len(self.messages()))

    def test_both_directions(self):
        """Data goes to the connection of its channel; input on error channels is ignored."""
        first, second = self.accepted("port=1,2")
        self.send(b"\0one", b"\2two", b"\1x", b"\3x", b"\4x", b"\xffx")
        self.assertEqual((b"one", b"two"), (bytes(first.received), bytes(second.received)))
        first.transport.write(b"1")
        second.transport.write(b"2")
        self.assertEqual([b"\0001", b"\0022"], self.messages())

    def test_held_until_attached(self):
        """Data before a connection is accepted is buffered."""
        self.start()
        self.send(b"\0early")
        user = HalfCloseUser()
        self.forwarder.requests[0][1].accept().attach(user)
        self.assertEqual(b"early", bytes(user.received))

    def test_refuse(self):
        """The reason of a refusal is sent on the error channel; the last one closes the
        WebSocket.
        """
        self.start("port=1,2")
        self.messages()
        (_, first), (_, second) = self.forwarder.requests
        first.refuse("connection refused")
        self.assertEqual([b"\1connection refused"], self.messages())
        second.refuse("no")
        self.assertEqual([b"\3no", ("close", 1000)], self.messages())

    def test_node_ends(self):
        """The WebSocket is closed when no connection has anything left to send."""
        first, second = self.accepted("port=1,2")
        first.transport.loseWriteConnection()
        self.assertEqual([], self.messages())
        self.send(b"\0still arrives")
        self.assertEqual(b"still arrives", bytes(first.received))
        second.transport.write(b"last")
        second.transport.loseConnection()
        self.assertEqual([b"\2last", ("close", 1000)], self.messages())
        self.connection.receive(self.codec.close())
        self.connection.turn()
        self.messages()
        self.assertEqual(["made", "write lost", "read lost", "lost"], first.events)
        self.assertEqual(["made", "lost"], second.events)
        for user in (first, second):
            self.assertIsInstance(user.reasons[0].value, ConnectionDone)
        self.assertFalse(self.connection.connected)
        self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_client_never_answers(self):
        """A client that does not answer the close is aborted."""
        (user,) = self.accepted()
        user.transport.loseConnection()
        self.messages()
        self.node.clock.advance(shared.LINGER)
        self.assertTrue(self.connection.aborted)

    def test_node_aborts(self):
        """An aborted connection sends an error, because its end alone would look proper."""
        (user,) = self.accepted()
        user.transport.abortConnection()
        expected = [b"\1the connection in the pod broke off", ("close", 1000)]
        self.assertEqual(expected, self.messages())
        self.assertEqual(["made", "lost"], user.events)

    def test_client_closes(self):
        """A client's normal close ends its connections, after all data that it sent."""
        (user,) = self.accepted()
        user.transport.pauseProducing()
        self.send(b"\0last")
        self.connection.receive(self.codec.close())
        self.assertEqual([("close", 1000)], self.messages())
        self.connection.turn()
        self.assertEqual(["made"], user.events)
        user.transport.resumeProducing()
        self.messages()
        self.assertEqual(b"last", bytes(user.received))
        self.assertEqual(["made", "read lost", "lost"], user.events)
        self.assertIsInstance(user.reasons[0].value, ConnectionDone)

    def test_client_closes_in_trouble(self):
        """A client's close with an error code aborts its connections."""
        (user,) = self.accepted()
        self.connection.receive(self.codec.close(1011))
        self.messages()
        self.connection.turn()
        self.messages()
        self.assertEqual(["made", "lost"], user.events)
        self.assertIsInstance(user.reasons[0].value, ConnectionLost)

    def test_client_leaves(self):
        """When the client disconnects, all connections are lost."""
        users = self.accepted("port=1,2")
        self.connection.break_off(ConnectionLost())
        self.node.clock.advance(0)
        for user in users:
            self.assertEqual(["made", "lost"], user.events)
            self.assertIsInstance(user.reasons[0].value, ConnectionLost)
        self.assertEqual([], self.node.clock.getDelayedCalls())
