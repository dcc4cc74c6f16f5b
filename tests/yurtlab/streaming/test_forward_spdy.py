"""Port-forward over SPDY/3.1, by itself and inside a WebSocket."""

from __future__ import annotations

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.fakes import MemoryConnection
from tests.tunnel.memory import HalfCloseUser, Producer, User
from tests.yurtlab.streaming.support import (
    Forwarder,
    SPDYCodec,
    WebSocketCodec,
    data,
    forward_node,
    ping,
    reset,
    spdy_head,
    websocket_head,
)
from yurtlab.node.interfaces import IForwardedConnection
from yurtlab.node.streaming import connection as shared
from yurtlab.node.streaming.connection import MAX_BUFFERED
from yurtlab.node.streaming.forward_channels import WebSocketTunnel
from yurttunnel.tunnel.transports import IHalfCloseableTransport


class ForwardCase(SynchronousTestCase):
    """A client that forwards ports over SPDY."""

    def setUp(self):
        """Start a port-forward."""
        self.forwarder = Forwarder()
        self.node = forward_node(self.forwarder)
        self.connection = self.node.connection
        self.codec = SPDYCodec()
        self.begin()

    def begin(self):
        """Request SPDY."""
        self.node.request(spdy_head("portforward.k8s.io"))

    def send(self, *frames):
        """Send frames."""
        self.connection.receive(b"".join(frames))

    def frames(self):
        """Return the frames sent since the last call, after pending calls."""
        self.node.clock.advance(0)
        self.node.clock.advance(0)
        return self.codec.frames(self.node.receive())

    def open(self, request_id="0", port="80", kinds=("error", "data")):
        """Open the streams of a connection, and return the ID of the first."""
        first = self.codec.next_id
        for kind in kinds:
            headers = {"streamtype": kind, "port": port, "requestid": request_id}
            self.send(self.codec.syn_stream(headers))
        return first

    def accepted(self, user=None):
        """Open a connection and accept it; return its user and the IDs of its streams."""
        error = self.open(str(self.codec.next_id))
        user = user or HalfCloseUser()
        self.forwarder.requests[-1][1].accept().attach(user)
        self.frames()
        return user, error, error + 2


class PairTests(ForwardCase):
    """Two streams make a connection."""

    def test_requested(self):
        """A connection is requested once both of its streams are open, in any order."""
        for request_id, kinds in (("0", ("error", "data")), ("1", ("data", "error"))):
            self.open(request_id, "8080", kinds[:1])
            self.assertEqual(int(request_id), len(self.forwarder.requests))
            self.open(request_id, "8080", kinds[1:])
            port, connection = self.forwarder.requests[-1]
            self.assertEqual(8080, port)
            self.assertTrue(verifyObject(IForwardedConnection, connection))
        self.assertEqual([("reply", stream_id) for stream_id in (1, 3, 5, 7)], self.frames())

    def test_interleaved(self):
        """Streams of several connections may come in any order."""
        self.open("a", "1", ["error"])
        self.open("b", "2", ["error"])
        self.open("a", "1", ["data"])
        self.open("b", "2", ["data"])
        self.assertEqual([1, 2], [port for port, _ in self.forwarder.requests])

    def test_without_request_ids(self):
        """Old clients send no request IDs; the data stream follows the error stream."""
        for kind in ("error", "data"):
            self.send(self.codec.syn_stream({"streamtype": kind, "port": "80"}))
        self.assertEqual(1, len(self.forwarder.requests))

    def test_refused_streams(self):
        """Streams with an invalid type, port or request ID, and duplicates, are refused."""
        for headers in (
            {"streamtype": "data", "requestid": "1"},
            {"streamtype": "data", "requestid": "1", "port": "0"},
            {"streamtype": "data", "requestid": "1", "port": "65536"},
            {"streamtype": "data", "requestid": "1", "port": "http"},
            {"streamtype": "data", "requestid": "1", "port": "000080"},
            {"streamtype": "stdin", "requestid": "1", "port": "80"},
            {"requestid": "1", "port": "80"},
            {"streamtype": "data", "requestid": "1" * 65, "port": "80"},
        ):
            self.send(self.codec.syn_stream(headers))
            self.assertEqual([("reset", self.codec.next_id - 2, 3)], self.frames())
        self.open("0", "80", ["error"])
        self.frames()
        self.open("0", "80", ["error"])
        self.open("0", "81", ["data"])
        self.assertEqual(["reset", "reset"], [frame[0] for frame in self.frames()])
        self.assertEqual([], self.forwarder.requests)

    def test_too_late(self):
        """If the second stream is not opened in time, the first gets an error and is ended."""
        self.open("0", "80", ["error"])
        self.open("1", "80", ["data"])
        self.frames()
        self.node.clock.advance(shared.CREATION_TIMEOUT)
        events = [
            ("data", 1, b"timed out waiting for streams", False),
            ("data", 1, b"", True),
            ("data", 3, b"", True),
        ]
        self.assertEqual(events, self.frames())
        self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_numbers_are_free_again(self):
        """A request ID can be used again after the end of its connection."""
        self.open("0")
        self.forwarder.requests[0][1].accept().attach(User())
        self.send(data(3, b"", True))
        self.frames()
        self.open("0")
        self.assertEqual(2, len(self.forwarder.requests))


class RefusalTests(ForwardCase):
    """Refused connections."""

    def test_refuse(self):
        """The reason is sent on the error stream, and both streams end."""
        self.open()
        self.frames()
        connection = self.forwarder.requests[0][1]
        connection.refuse("connection refused")
        connection.refuse("twice")
        events = [
            ("data", 1, b"connection refused", False),
            ("data", 1, b"", True),
            ("data", 3, b"", True),
        ]
        self.assertEqual(events, self.frames())

    def test_what_was_sent_is_dropped(self):
        """Data sent to a refused connection does not keep the client paused."""
        self.open()
        self.send(data(3, bytes(MAX_BUFFERED + 1)))
        self.assertFalse(self.connection.reading)
        self.forwarder.requests[0][1].refuse("no")
        self.assertTrue(self.connection.reading)

    def test_client_gone(self):
        """Refusing after the client has disconnected has no effect."""
        self.open()
        self.connection.break_off(ConnectionLost())
        self.forwarder.requests[0][1].refuse("no")


class TransportTests(ForwardCase):
    """A connection is a transport, like a socket."""

    def test_interface(self):
        """It provides the transport interfaces that this project uses."""
        user, _, _ = self.accepted()
        self.assertTrue(verifyObject(IHalfCloseableTransport, user.transport))
        self.assertFalse(user.transport.disconnecting)
        self.assertEqual(self.connection.getPeer(), user.transport.getPeer())
        self.assertEqual(self.connection.getPeer(), user.transport.getHost())
        self.assertRaises(TypeError, user.transport.write, "text")

    def test_both_directions(self):
        """Bytes arrive in both directions."""
        user, _, stream = self.accepted()
        self.send(data(stream, b"question"))
        user.transport.write(b"an")
        user.transport.writeSequence([b"sw", b"er"])
        self.assertEqual(b"question", bytes(user.received))
        sent = [("data", stream, b"an", False), ("data", stream, b"swer", False)]
        self.assertEqual(sent, self.frames())

    def test_held_until_attached(self):
        """Input before ``attach`` is buffered, and so is the end."""
        first = self.open()
        self.send(data(first + 2, b"early", True))
        user = HalfCloseUser()
        self.forwarder.requests[0][1].accept().attach(user)
        self.assertEqual(b"early", bytes(user.received))
        self.assertEqual(["made", "read lost"], user.events)

    def test_client_half_closes(self):
        """The client's end is reported, and the other direction continues until its own end."""
        user, error, stream = self.accepted()
        self.send(data(error, b"", True), data(stream, b"question", True))
        self.assertEqual(["made", "read lost"], user.events)
        user.transport.write(b"answer")
        self.assertEqual([("data", stream, b"answer", False)], self.frames())
        user.transport.loseWriteConnection()
        self.assertEqual(["made", "read lost"], user.events)
        ends = [("data", error, b"", True), ("data", stream, b"", True)]
        self.assertEqual(ends, self.frames())
        self.assertEqual(["made", "read lost", "write lost", "lost"], user.events)
        self.assertIsInstance(user.reasons[0].value, ConnectionDone)

    def test_node_half_closes(self):
        """The node's end is sent to the client, whose later data still arrives."""
        user, error, stream = self.accepted()
        user.transport.loseWriteConnection()
        user.transport.write(b"too late")
        ends = [("data", error, b"", True), ("data", stream, b"", True)]
        self.assertEqual(ends, self.frames())
        self.assertEqual(["made", "write lost"], user.events)
        self.send(data(stream, b"more"), data(stream, b"", True))
        self.frames()
        self.assertEqual(b"more", bytes(user.received))
        self.assertEqual(["made", "write lost", "read lost", "lost"], user.events)
        self.assertIsInstance(user.reasons[0].value, ConnectionDone)

    def test_plain_protocol(self):
        """A protocol without half-close support is closed when the client ends."""
        user, error, stream = self.accepted(User())
        self.send(data(stream, b"", True))
        ends = [("data", error, b"", True), ("data", stream, b"", True)]
        self.assertEqual(ends, self.frames())
        self.assertEqual(["made", "lost"], user.events)
        self.assertIsInstance(user.reasons[0].value, ConnectionDone)

    def test_lose_connection(self):
        """Closing sends all written data, then ends, and drops later input."""
        user, error, stream = self.accepted()
        user.transport.write(b"last")
        user.transport.loseConnection()
        user.transport.loseConnection()
        self.assertTrue(user.transport.disconnecting)
        self.assertEqual(["made"], user.events)
        sent = [
            ("data", stream, b"last", False),
            ("data", error, b"", True),
            ("data", stream, b"", True),
        ]
        self.assertEqual(sent, self.frames())
        self.send(data(stream, bytes(MAX_BUFFERED + 1), True))
        self.assertTrue(self.connection.reading)
        self.assertEqual(["made", "lost"], user.events)
        self.assertEqual(b"", bytes(user.received))

    def test_abort(self):
        """Aborting resets the data stream, without an error that would end the whole
        port-forward.
        """
        user, error, stream = self.accepted()
        user.transport.abortConnection()
        user.transport.abortConnection()
        self.assertEqual([("data", error, b"", True), ("reset", stream, 5)], self.frames())
        self.assertEqual(["made", "lost"], user.events)
        self.assertIsInstance(user.reasons[0].value, ConnectionAborted)

    def test_client_resets(self):
        """A connection reset by the client is lost, and all state is removed."""
        user, error, stream = self.accepted()
        self.send(data(stream, b"x"), reset(stream))
        self.assertEqual([("data", error, b"", True)], self.frames())
        self.assertEqual(["made", "lost"], user.events)
        self.assertIsInstance(user.reasons[0].value, ConnectionLost)

    def test_client_resets_before(self):
        """A connection that was reset before it was accepted ends at once."""
        first = self.open()
        self.send(data(first + 2, b"x"), reset(first + 2))
        user = HalfCloseUser()
        self.forwarder.requests[0][1].accept().attach(user)
        self.assertEqual(["made"], user.events)
        self.frames()
        self.assertEqual(["made", "lost"], user.events)
        self.assertEqual(b"", bytes(user.received))

    def test_client_leaves(self):
        """When the client disconnects, all connections are lost, and no timer is left."""
        users = [self.accepted()[0], self.accepted()[0]]
        self.open("incomplete", "80", ["error"])
        self.connection.break_off(ConnectionLost())
        self.node.clock.advance(0)
        for user in users:
            self.assertEqual(["made", "lost"], user.events)
            self.assertIsInstance(user.reasons[0].value, ConnectionLost)
        self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_client_leaves_after_the_end(self):
        """Data before a proper end is still delivered after the client has disconnected."""
        user, _, stream = self.accepted()
        user.transport.loseWriteConnection()
        user.transport.pauseProducing()
        self.send(data(stream, b"last", True))
        self.connection.break_off(ConnectionLost())
        self.node.clock.advance(0)
        user.transport.resumeProducing()
        self.frames()
        self.assertEqual(b"last", bytes(user.received))
        self.assertEqual(["made", "write lost", "read lost", "lost"], user.events)
        self.assertIsInstance(user.reasons[0].value, ConnectionDone)


class BackPressureTests(ForwardCase):
    """Connections share one client, and one connection to it."""

    def test_paused(self):
        """A paused connection delivers nothing until it is resumed."""
        user, _, stream = self.accepted()
        user.transport.pauseProducing()
        self.send(data(stream, b"x", True))
        self.assertEqual(["made"], user.events)
        user.transport.resumeProducing()
        self.assertEqual(["made", "read lost"], user.events)

    def test_paused_before(self):
        """A connection can be paused by its user while it is connected."""
        first = self.open()
        self.send(data(first + 2, b"x"))

        class Paused(User):
            def connectionMade(self):
                self.transport.pauseProducing()

        user = Paused()
        self.forwarder.requests[0][1].accept().attach(user)
        self.assertEqual(b"", bytes(user.received))
        user.transport.resumeProducing()
        self.assertEqual(b"x", bytes(user.received))

    def test_one_stalls(self):
        """If one connection stalls the others continue until the budget is used up; then all
        wait.
        """
        stalled, _, first = self.accepted()
        other, _, second = self.accepted()
        stalled.transport.pauseProducing()
        self.send(data(first, bytes(MAX_BUFFERED)), data(second, b"goes on"))
        self.assertEqual(b"goes on", bytes(other.received))
        self.send(data(first, b"x"))
        self.assertFalse(self.connection.reading)
        stalled.transport.resumeProducing()
        self.assertTrue(self.connection.reading)
        self.assertEqual(MAX_BUFFERED + 1, len(stalled.received))

    def test_stalled_one_ends(self):
        """When a stalled connection is closed, the others continue."""
        stalled, _, first = self.accepted()
        stalled.transport.pauseProducing()
        self.send(data(first, bytes(MAX_BUFFERED + 1)))
        self.assertFalse(self.connection.reading)
        stalled.transport.stopProducing()
        self.assertTrue(self.connection.reading)

    def test_producers(self):
        """All producers are paused while the client does not read, and resumed afterwards."""
        users = [self.accepted()[0], self.accepted()[0]]
        producers = [Producer(), Producer()]
        for user, producer in zip(users, producers, strict=True):
            user.transport.registerProducer(producer, True)
        users[0].transport.write(bytes(100_000))
        self.assertEqual([["pause"]] * 2, [producer.events for producer in producers])
        users[1].transport.unregisterProducer()
        self.frames()
        self.connection.turn()
        events = [["pause", "resume"], ["pause"]]
        self.assertEqual(events, [producer.events for producer in producers])

    def test_producer_rules(self):
        """One push producer can be registered at a time, and is stopped at the end."""
        user, _, stream = self.accepted()
        producer = Producer()
        self.assertRaises(ValueError, user.transport.registerProducer, producer, False)
        user.transport.registerProducer(producer, True)
        self.assertRaises(RuntimeError, user.transport.registerProducer, producer, True)
        self.send(reset(stream))
        self.frames()
        self.assertEqual(["stop"], producer.events)
        late = Producer()
        user.transport.registerProducer(late, True)
        self.assertEqual(["stop"], late.events)

    def test_ping(self):
        """Pings are answered."""
        self.send(ping(5))
        self.assertEqual([("ping", 5)], self.frames())


class TunnelMixin:
    """The same tests inside a WebSocket."""

    def begin(self):
        """Request a WebSocket with SPDY in it."""
        self.outer = WebSocketCodec()
        answer = self.node.request(websocket_head("SPDY/3.1+portforward.k8s.io"))
        assert "Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io" in answer

    def send(self, *frames):
        """Send frames in messages with other boundaries."""
        stream = b"".join(frames)
        pieces = [stream[:5], stream[5:11], stream[11:]]
        self.connection.receive(b"".join(map(self.outer.message, pieces)))

    def frames(self):
        """Return the frames in the messages."""
        self.node.clock.advance(0)
        self.node.clock.advance(0)
        messages = self.outer.messages(self.node.receive())
        return self.codec.frames(b"".join(messages))


class TunnelPairTests(TunnelMixin, PairTests):
    """Stream pairs inside a WebSocket."""


class TunnelRefusalTests(TunnelMixin, RefusalTests):
    """Refusals inside a WebSocket."""


class TunnelTransportTests(TunnelMixin, TransportTests):
    """Transports inside a WebSocket."""


class TunnelBackPressureTests(TunnelMixin, BackPressureTests):
    """Back-pressure inside a WebSocket."""


class TunnelEndTests(TunnelMixin, ForwardCase):
    """The end of a WebSocket with SPDY in it."""

    def test_client_closes(self):
        """The client's close is answered, and all connections are lost."""
        user, _, _ = self.accepted()
        self.connection.receive(self.outer.close())
        self.assertEqual([("close", 1000)], self.outer.messages(self.node.receive()))
        self.connection.turn()
        self.node.clock.advance(0)
        self.assertEqual(["made", "lost"], user.events)
        self.assertFalse(self.connection.connected)
        self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_given_up(self):
        """After a SPDY error the client gets GOAWAY, then the WebSocket is closed, with a
        timeout.
        """
        user, _, _ = self.accepted()
        self.send(data(99, b"x"))
        *messages, close = self.outer.messages(self.node.receive())
        self.assertEqual([("goaway", 3, 1)], self.codec.frames(b"".join(messages)))
        self.assertEqual(("close", 1000), close)
        self.node.clock.advance(shared.CLOSE_TIMEOUT)
        self.assertTrue(self.connection.aborted)
        self.node.clock.advance(0)
        self.assertEqual(["made", "lost"], user.events)

    def test_given_up_and_answers(self):
        """When the client answers that close, it is closed at once."""
        self.send(data(99, b"x"))
        self.outer.messages(self.node.receive())
        self.connection.receive(self.outer.close())
        self.connection.turn()
        self.assertFalse(self.connection.connected)
        self.assertEqual([], self.node.clock.getDelayedCalls())


class TunnelTransportMethodsTests(SynchronousTestCase):
    """The protocol inside a WebSocket has a transport."""

    def setUp(self):
        """Connect a protocol inside a WebSocket."""
        self.clock = MemoryReactorClock()
        self.user = HalfCloseUser()
        self.connection = MemoryConnection(self.clock).open(WebSocketTunnel(self.clock, self.user))
        self.transport = self.user.transport
        self.codec = WebSocketCodec()

    def messages(self):
        """Return the sent messages."""
        self.connection.turn()
        return self.codec.messages(self.connection.sent)

    def test_interface(self):
        """It provides the transport interfaces that this project uses."""
        self.assertTrue(verifyObject(IHalfCloseableTransport, self.transport))
        self.assertEqual(self.connection.getPeer(), self.transport.getPeer())
        self.assertEqual(self.connection.getHost(), self.transport.getHost())

    def test_write(self):
        """Each write is a message."""
        self.transport.write(b"one")
        self.transport.writeSequence([b"t", b"wo"])
        self.assertEqual([b"one", b"two"], self.messages())

    def test_producer(self):
        """A push producer is paused with the WebSocket, until it is unregistered."""
        producer = Producer()
        self.assertRaises(ValueError, self.transport.registerProducer, producer, False)
        self.transport.registerProducer(producer, True)
        self.transport.write(bytes(100_000))
        self.assertEqual(["pause"], producer.events)
        self.transport.unregisterProducer()
        self.messages()
        self.connection.turn()
        self.assertEqual(["pause"], producer.events)

    def test_pause(self):
        """While the protocol is paused, the WebSocket is not read."""
        self.transport.pauseProducing()
        self.assertFalse(self.connection.reading)
        self.transport.resumeProducing()
        self.assertTrue(self.connection.reading)

    def test_close(self):
        """Every method to close it closes the WebSocket, and the client's answer ends it."""
        for end in ("loseConnection", "loseWriteConnection", "stopProducing"):
            self.setUp()
            getattr(self.transport, end)()
            self.assertTrue(self.transport.disconnecting)
            self.transport.write(b"too late")
            self.assertEqual([("close", 1000)], self.messages())
            self.connection.receive(self.codec.close())
            self.connection.turn()
            self.assertEqual(["made", "lost"], self.user.events)

    def test_abort(self):
        """An abort aborts the connection."""
        self.transport.abortConnection()
        self.assertTrue(self.connection.aborted)
        self.assertEqual(["made", "lost"], self.user.events)
