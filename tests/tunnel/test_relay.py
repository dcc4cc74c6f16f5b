"""Local sockets joined to streams."""

from __future__ import annotations

import hashlib
import random

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.test.iosim import FakeTransport, IOPump
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.fakes import MemoryConnection
from tests.tunnel.memory import HalfCloseUser, SessionPair, User
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.tunnel.relay import LocalConnection, StreamSide
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.stream import FULL_ABOVE

WINDOW = 64 * 1024


class RelayTestCase(SynchronousTestCase):
    """A socket joined to the server's end of a stream, and another to the agent's."""

    def setUp(self):
        """Open the stream and the sockets."""
        self.pair = SessionPair()
        self.addCleanup(self.pair.close)
        self.near_stream, self.far_stream = self.pair.streams()
        self.client = MemoryConnection()
        self.target = MemoryConnection()
        self.near = LocalConnection()
        self.far = LocalConnection()
        self.client.open(self.near)
        self.target.open(self.far)

    def join(self, early=b""):
        """Join the sockets to the stream."""
        self.near.join(self.near_stream, early)
        self.far.join(self.far_stream)
        self.settle()

    def settle(self):
        """Transfer all data, sockets included."""
        before = None
        while before != (before := self.progress()):
            self.pair.pump()
            for socket in (self.client, self.target):
                socket.reactor.advance(0)
                socket.turn()

    def progress(self):
        """Return figures that change when anything moves."""
        return [
            (len(s.segments), s.write_ended, s.closed_with, s.reading, len(s._incoming))
            for s in (self.client, self.target)
        ]


class RelayTests(RelayTestCase):
    """Data, half-closes and aborts."""

    def test_interfaces(self):
        """The protocols of a relay support half-close."""
        self.assertTrue(verifyObject(IHalfCloseableProtocol, self.near))
        self.assertTrue(verifyObject(IHalfCloseableProtocol, StreamSide(self.near)))
        self.join()
        self.assertTrue(verifyObject(IPushProducer, self.client.producer))

    def test_bytes(self):
        """Data from one socket arrives at the other, in both directions."""
        self.join()
        self.client.receive(b"question")
        self.target.receive(b"answer")
        self.settle()
        self.assertEqual(b"question", self.target.sent)
        self.assertEqual(b"answer", self.client.sent)

    def test_early_bytes(self):
        """Early data of the socket precedes what it sends afterwards."""
        self.near.join(self.near_stream, b"early ")
        self.client.receive(b"and late")
        self.far.join(self.far_stream)
        self.settle()
        self.assertEqual(b"early and late", self.target.sent)

    def test_early_bytes_beyond_the_bound(self):
        """A socket whose early data fills the stream is not read until it is sent."""
        self.client.pauseProducing()
        self.near.join(self.near_stream, bytes(WINDOW + FULL_ABOVE + 1))
        self.pair.pump()
        self.assertFalse(self.client.reading)
        self.far.join(self.far_stream)
        self.settle()
        self.assertTrue(self.client.reading)
        self.assertEqual(WINDOW + FULL_ABOVE + 1, len(self.target.sent))

    def test_paused_socket_is_resumed(self):
        """A socket that was paused while the stream was opened is resumed when it is joined."""
        self.client.pauseProducing()
        self.client.receive(b"waited")
        self.join()
        self.assertEqual(b"waited", self.target.sent)

    def test_greeting(self):
        """Data that the target sends first reaches a client that is joined later."""
        self.far.join(self.far_stream)
        self.target.receive(b"220 ready")
        self.pair.pump()
        self.near.join(self.near_stream)
        self.settle()
        self.assertEqual(b"220 ready", self.client.sent)

    def test_half_close_of_client(self):
        """A client that ends its direction still gets its response."""
        self.join()
        self.client.receive(b"x")
        self.client.receive_end()
        self.settle()
        self.assertTrue(self.target.write_ended)
        self.assertIsNone(self.client.closed_with)
        self.target.receive(b"answer")
        self.target.receive_end()
        self.settle()
        self.assertEqual(b"answer", self.client.sent)
        for socket in (self.client, self.target):
            self.assertIsInstance(socket.closed_with, ConnectionDone)
            self.assertFalse(socket.aborted)
        self.assertEqual({}, self.pair.server.wire.streams)

    def test_half_close_of_target(self):
        """A target that ends its direction still gets the client's data."""
        self.join()
        self.target.receive(b"bye")
        self.target.receive_end()
        self.settle()
        self.assertEqual((b"bye", True), (self.client.sent, self.client.write_ended))
        self.client.receive(b"more")
        self.client.receive_end()
        self.settle()
        self.assertEqual(b"more", self.target.sent)
        self.assertIsInstance(self.target.closed_with, ConnectionDone)

    def test_end_before_join(self):
        """A half-close before the client was joined is forwarded when it is."""
        self.far.join(self.far_stream)
        self.target.receive(b"short")
        self.target.receive_end()
        self.pair.pump()
        self.near.join(self.near_stream)
        self.settle()
        self.assertEqual((b"short", True), (self.client.sent, self.client.write_ended))

    def test_socket_breaks(self):
        """A socket that breaks resets the stream, which aborts the other socket."""
        self.join()
        self.client.break_off(ConnectionLost("reset by peer"))
        self.settle()
        self.assertTrue(self.target.aborted)
        self.assertEqual(
            {Code.CONNECTION_LOST: 1}, dict(self.pair.agent_context.counters.stream_ends)
        )

    def test_a_socket_that_broke_is_left_alone(self):
        """A broken socket is not aborted: Twisted's TLS cannot be aborted after its end."""
        self.join()
        aborts = []
        self.client.abortConnection = lambda: aborts.append(self.client)
        self.client.break_off(ConnectionLost("reset by peer"))
        self.settle()
        self.assertEqual([], aborts)

    def test_broken_upload_does_not_look_complete(self):
        """A socket that breaks never ends the other one's direction as if it were complete."""
        self.join()
        self.client.receive(b"half of the fi")
        self.settle()
        self.pair.piece = frames.HEADER_SIZE
        self.client.break_off(ConnectionLost("reset by peer"))
        while not self.target.aborted:
            self.pair.turn()
            self.target.turn()
        self.assertFalse(self.target.write_ended)

    def test_broken_download_does_not_look_complete(self):
        """A stream that is reset aborts the socket instead of closing it."""
        self.join()
        self.far_stream.abort(Code.CONNECTION_LOST, "broken")
        self.settle()
        self.assertTrue(self.client.aborted)
        self.assertFalse(self.client.write_ended)
        # TLS would have reported a complete end.
        self.assertFalse(self.client.disconnecting)

    def test_session_is_lost(self):
        """The end of the session aborts the sockets at both ends."""
        self.join()
        self.pair.server.close(Code.SESSION_LOST, "lost")
        self.settle()
        self.assertTrue(self.client.aborted)
        self.assertTrue(self.target.aborted)

    def test_socket_gone_before_join(self):
        """A stream that is opened for a closed socket is reset."""
        self.client.break_off(ConnectionLost("reset by peer"))
        self.near.join(self.near_stream)
        user = HalfCloseUser()
        self.far_stream.attach(user)
        self.pair.pump()
        self.assertEqual(Code.CANCELLED, user.reasons[0].value.code)

    def test_socket_ends_before_join(self):
        """A socket that ends before it is joined is closed, since it expects no response."""
        self.client.receive_end()
        self.settle()
        self.assertIsInstance(self.client.closed_with, ConnectionDone)
        self.assertTrue(self.near.lost)

    def test_stream_gone_before_join(self):
        """A socket that is joined to a reset stream is aborted."""
        self.far_stream.abort(Code.CONNECTION_LOST, "broken")
        self.pair.pump()
        self.near.join(self.near_stream, b"early")
        self.settle()
        self.assertTrue(self.client.aborted)

    def test_clean_end_with_short_credit(self):
        """Data that a socket sent before a clean close arrives, even if credit is short then."""
        self.near.join(self.near_stream)
        data = random.Random(1).randbytes(WINDOW + FULL_ABOVE)
        self.client.receive(data)
        self.pair.pump()
        self.assertGreater(self.near_stream._wire.pending_size, 0)
        # TLS sockets have no half-close: only the end of both directions is reported.
        self.client.break_off(ConnectionDone())
        self.pair.pump()
        self.far.join(self.far_stream)
        self.settle()
        self.assertEqual(data, self.target.sent)
        self.assertTrue(self.target.write_ended)
        self.assertFalse(self.target.aborted)


class BackPressureTests(RelayTestCase):
    """A side that does not read pauses the sender, and all buffers are limited."""

    PIECE = 16 * 1024

    def fill(self, socket):
        """Send into a socket while it is read; return how much was accepted."""
        total = 0
        while socket.reading and total < 16 * 1024 * 1024:
            socket.receive(bytes(self.PIECE))
            total += self.PIECE
            self.pair.pump()
        return total

    def test_stalled_client(self):
        """A client that does not read pauses the target, within the limits of the buffers."""
        self.join()
        total = self.fill(self.target)
        # Twisted's buffer of the client's socket, the window, and the stream's send buffer.
        self.assertLessEqual(total, WINDOW + WINDOW + FULL_ABOVE + 3 * self.PIECE)
        self.settle()
        self.assertEqual(total, len(self.client.sent))
        self.assertTrue(self.target.reading)

    def test_stalled_target(self):
        """A target that does not read pauses the client within the same limits."""
        self.join()
        total = self.fill(self.client)
        self.assertLessEqual(total, WINDOW + WINDOW + FULL_ABOVE + 3 * self.PIECE)
        self.settle()
        self.assertEqual(total, len(self.target.sent))

    def test_end_while_stalled(self):
        """A half-close while the other side is stalled arrives after all data."""
        self.join()
        ends = []
        passed_on = self.near.readConnectionLost
        self.near.readConnectionLost = lambda: (ends.append(True), passed_on())
        total = self.fill(self.client)
        self.client.startReading()
        self.client.receive_end()
        self.settle()
        self.assertEqual([True], ends, "the socket was read again after its end")
        self.assertEqual(total, len(self.target.sent))
        self.assertTrue(self.target.write_ended)

    def test_abort_while_stalled(self):
        """A reset ends a stalled relay at once and leaves nothing behind."""
        self.join()
        self.fill(self.client)
        self.target.break_off(ConnectionLost("reset by peer"))
        self.pair.pump()
        self.client.reactor.advance(0)
        self.assertTrue(self.client.aborted)
        self.assertEqual({}, self.pair.server.wire.streams)
        # Only the last frames are left, until the peers have acknowledged them.
        for context, end in (
            (self.pair.server_context, self.pair.server),
            (self.pair.agent_context, self.pair.agent),
        ):
            self.assertEqual(end.wire.unacknowledged, context.budget.used)

    def test_much_data_both_ways(self):
        """Megabytes arrive completely in both directions, with half-closes at the end."""
        self.join()
        data = random.Random(2).randbytes(1024 * 1024)
        ways = ((self.client, self.target, data), (self.target, self.client, data[::-1]))
        for socket, _, sent in ways:
            for position in range(0, len(sent), 50_000):
                socket._incoming.append(sent[position : position + 50_000])
            socket._incoming.append(None)
            socket._deliver()
        self.settle()
        for _, socket, sent in ways:
            self.assertEqual(hashlib.sha256(sent).digest(), hashlib.sha256(socket.sent).digest())
            self.assertIsInstance(socket.closed_with, ConnectionDone)


class HalfCloseableString(StringTransport):
    """Twisted's string transport with the half-close of sockets."""

    write_ended = False

    def loseWriteConnection(self):
        """Record the call."""
        self.write_ended = True

    def unregisterProducer(self):
        """Forget the producer; as for a socket, this may be called again."""
        self.producer = None


class OtherTransportTests(SynchronousTestCase):
    """Relays on the test transports of Twisted."""

    def setUp(self):
        """Open a stream whose far end has a plain user."""
        self.pair = SessionPair()
        self.addCleanup(self.pair.close)
        self.near_stream, self.far_stream = self.pair.streams()
        self.user = HalfCloseUser()
        self.local = LocalConnection()

    def test_string_transport(self):
        """Back-pressure pauses and resumes a string transport, and ends are forwarded."""
        transport = HalfCloseableString()
        self.local.makeConnection(transport)
        self.local.join(self.near_stream)
        self.local.dataReceived(bytes(WINDOW + FULL_ABOVE + 1))
        self.assertEqual("paused", transport.producerState)
        self.far_stream.attach(self.user)
        self.pair.pump()
        self.assertEqual("producing", transport.producerState)
        self.assertEqual(WINDOW + FULL_ABOVE + 1, len(self.user.received))
        self.far_stream.write(b"answer")
        self.far_stream.loseWriteConnection()
        self.pair.pump()
        self.assertEqual((b"answer", True), (transport.value(), transport.write_ended))
        self.assertIsNone(transport.producer)
        self.local.readConnectionLost()
        self.pair.pump()
        self.assertTrue(transport.disconnecting)

    def test_simulated_connection(self):
        """A client at the other end of a simulated connection communicates with the far end."""
        client = User()
        server_io = FakeTransport(self.local, isServer=True)
        client_io = FakeTransport(client, isServer=False)
        pump = IOPump(client, self.local, client_io, server_io, False)
        self.local.makeConnection(server_io)
        client.makeConnection(client_io)
        self.local.join(self.near_stream)
        self.far_stream.attach(self.user)
        client.transport.write(b"question")
        pump.flush()
        self.pair.pump()
        self.far_stream.write(b"answer")
        self.pair.pump()
        pump.flush()
        self.assertEqual((b"question", b"answer"), (self.user.received, client.received))
        client.transport.loseConnection()
        pump.flush()
        self.pair.pump()
        self.assertEqual(["made", "read lost"], self.user.events)

    def test_failed_stream_names_reason(self):
        """The reset after a broken socket contains the reason."""
        transport = HalfCloseableString()
        self.local.makeConnection(transport)
        self.local.join(self.near_stream)
        self.far_stream.attach(self.user)
        self.local.connectionLost(Failure(ConnectionLost("reset by peer")))
        self.pair.pump()
        error = self.user.reasons[0].value
        self.assertIsInstance(error, StreamFailed)
        self.assertIn("the local connection broke", error.text)
