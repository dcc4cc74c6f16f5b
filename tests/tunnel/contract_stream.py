"""The contract of every :class:`~yurttunnel.tunnel.interfaces.IStream`, tested with each one."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from zope.interface.verify import verifyObject

from tests.tunnel.memory import HalfCloseUser, Producer, User
from yurttunnel.tunnel.interfaces import IStream, StreamFailed
from yurttunnel.tunnel.transports import IHalfCloseableTransport
from yurttunnel.wire.codes import Code


class StreamContract:
    """A mixin for test cases that provide the two ends of a stream.

    ``make_pair()`` returns them, not yet attached; ``settle()`` delivers everything in flight.
    """

    def make_pair(self):
        """Return both ends of a new stream."""
        raise NotImplementedError

    def settle(self):
        """Deliver everything in flight."""
        raise NotImplementedError

    def attached(self, near_user=None, far_user=None):
        """Return a stream's ends and their users."""
        near, far = self.make_pair()
        near_user = near_user or HalfCloseUser()
        far_user = far_user or HalfCloseUser()
        near.attach(near_user)
        far.attach(far_user)
        self.settle()
        return near, far, near_user, far_user

    def test_interfaces(self):
        """A stream provides the interfaces of a half-closeable transport."""
        for stream in self.make_pair():
            self.assertTrue(verifyObject(IStream, stream))
            self.assertTrue(verifyObject(IHalfCloseableTransport, stream))

    def test_attach_connects(self):
        """The attached protocol is connected to the stream, once."""
        near, _, user, _ = self.attached()
        self.assertIs(near, user.transport)
        self.assertEqual(["made"], user.events)

    def test_both_directions(self):
        """Data arrives in order in both directions, and is counted at both ends."""
        near, far, near_user, far_user = self.attached()
        near.write(b"to ")
        near.writeSequence([b"the ", b"agent"])
        far.write(b"to the server")
        self.settle()
        self.assertEqual(b"to the agent", bytes(far_user.received))
        self.assertEqual(b"to the server", bytes(near_user.received))
        self.assertEqual((12, 13), (near.bytes_sent, near.bytes_received))
        self.assertEqual((13, 12), (far.bytes_sent, far.bytes_received))

    def test_held_until_attached(self):
        """Data and the FIN that arrive before ``attach`` are held for the user."""
        near, far = self.make_pair()
        near.attach(HalfCloseUser())
        near.write(b"early")
        near.loseWriteConnection()
        self.settle()
        user = HalfCloseUser()
        far.attach(user)
        self.settle()
        self.assertEqual(b"early", bytes(user.received))
        self.assertEqual(["made", "read lost"], user.events)

    def test_attach_after_reset(self):
        """The user of a stream that was reset before is connected, and gets the reason."""
        near, far = self.make_pair()
        near.abort(Code.CONNECTION_LOST, "broken")
        self.settle()
        user = HalfCloseUser()
        far.attach(user)
        self.settle()
        self.assertEqual(["made", "lost"], user.events)
        self.assertEqual(Code.CONNECTION_LOST, user.reasons[0].value.code)

    def test_half_close(self):
        """A half-close is reported at both ends, and the other direction continues."""
        near, far, near_user, far_user = self.attached()
        near.write(b"question")
        near.loseWriteConnection()
        self.settle()
        self.assertEqual(["made", "read lost"], far_user.events)
        self.assertEqual(["made", "write lost"], near_user.events)
        far.write(b"answer")
        self.settle()
        self.assertEqual(b"answer", bytes(near_user.received))

    def test_both_half_closes(self):
        """A stream with both directions ended is closed, without an error."""
        near, far, near_user, far_user = self.attached()
        near.loseWriteConnection()
        self.settle()
        far.loseWriteConnection()
        self.settle()
        for user in (near_user, far_user):
            self.assertEqual(1, user.events.count("lost"))
            self.assertIsInstance(user.reasons[0].value, ConnectionDone)

    def test_write_after_half_close(self):
        """Data written after the half-close is dropped."""
        near, _, _, far_user = self.attached()
        near.loseWriteConnection()
        near.write(b"too late")
        self.settle()
        self.assertEqual(b"", bytes(far_user.received))

    def test_lose_connection(self):
        """``loseConnection`` flushes written data, then ends both directions cleanly."""
        near, _, near_user, far_user = self.attached(far_user=User())
        near.write(b"last words")
        near.loseConnection()
        self.assertTrue(near.disconnecting)
        self.settle()
        self.assertEqual(b"last words", bytes(far_user.received))
        for user in (near_user, far_user):
            self.assertEqual(1, len(user.reasons))
            self.assertIsInstance(user.reasons[0].value, ConnectionDone)

    def test_lose_connection_twice(self):
        """A second ``loseConnection`` changes nothing."""
        near, _, near_user, _ = self.attached(far_user=User())
        near.loseConnection()
        near.loseConnection()
        self.settle()
        near.loseConnection()
        self.assertEqual(1, len(near_user.reasons))

    def test_plain_protocol(self):
        """A protocol without half-close support is closed when the peer has ended."""
        near, _, near_user, far_user = self.attached(far_user=User())
        near.loseWriteConnection()
        self.settle()
        self.assertEqual(["made", "lost"], far_user.events)
        self.assertIsInstance(far_user.reasons[0].value, ConnectionDone)
        self.assertIn("read lost", near_user.events)

    def test_abort(self):
        """An abort ends both ends, and each gets the code and the text."""
        near, _, near_user, far_user = self.attached()
        near.abort(Code.CONNECTION_LOST, "the socket broke")
        self.settle()
        for user in (near_user, far_user):
            self.assertEqual(["made", "lost"], user.events)
            error = user.reasons[0].value
            self.assertIsInstance(error, StreamFailed)
            self.assertEqual((Code.CONNECTION_LOST, "the socket broke"), (error.code, error.text))

    def test_abort_connection(self):
        """``abortConnection`` aborts, also after ``loseConnection``."""
        near, far, near_user, far_user = self.attached()
        far.pauseProducing()
        near.loseWriteConnection()
        near.abortConnection()
        self.settle()
        self.assertEqual(1, len(near_user.reasons))
        self.assertEqual(Code.CANCELLED, far_user.reasons[0].value.code)

    def test_pause(self):
        """A paused stream delivers neither data nor FIN until it is resumed."""
        near, far, _, far_user = self.attached()
        far.pauseProducing()
        near.write(b"waits")
        near.loseWriteConnection()
        self.settle()
        self.assertEqual((b"", ["made"]), (bytes(far_user.received), far_user.events))
        far.resumeProducing()
        self.settle()
        self.assertEqual((b"waits", ["made", "read lost"]), (far_user.received, far_user.events))

    def test_push_producer(self):
        """A producer is paused while the far end does not read, once, and resumed, once."""
        near, far, _, far_user = self.attached()
        producer = Producer()
        near.registerProducer(producer, True)
        far.pauseProducing()
        total = 0
        while "pause" not in producer.events and total < 1000:
            near.write(bytes(4096))
            total += 1
            self.settle()
        near.write(b"more")
        self.assertEqual(["pause"], producer.events)
        far.resumeProducing()
        self.settle()
        self.assertEqual(["pause", "resume"], producer.events)
        self.assertEqual(total * 4096 + 4, len(far_user.received))

    def test_register_while_full(self):
        """A producer that is registered while the buffer is full is paused at once."""
        near, far, _, _ = self.attached()
        far.pauseProducing()
        near.write(bytes(1024 * 1024))
        self.settle()
        producer = Producer()
        near.registerProducer(producer, True)
        self.assertEqual(["pause"], producer.events)

    def test_two_producers(self):
        """A second producer is rejected until the first one is unregistered."""
        near, _, _, _ = self.attached()
        near.registerProducer(Producer(), True)
        self.assertRaises(RuntimeError, near.registerProducer, Producer(), True)
        near.unregisterProducer()
        near.registerProducer(Producer(), True)

    def test_unregistered_producer(self):
        """A producer that was unregistered while paused is not called any more."""
        near, far, _, _ = self.attached()
        producer = Producer()
        near.registerProducer(producer, True)
        far.pauseProducing()
        near.write(bytes(1024 * 1024))
        self.settle()
        near.unregisterProducer()
        far.resumeProducing()
        self.settle()
        self.assertEqual(["pause"], producer.events)

    def test_producer_of_reset_stream(self):
        """The producer of a stream that is reset is stopped, once."""
        near, far, _, _ = self.attached()
        producer = Producer()
        near.registerProducer(producer, True)
        far.abort(Code.CONNECTION_LOST, "broken")
        self.settle()
        self.assertEqual(["stop"], producer.events)

    def test_producer_of_closed_stream(self):
        """A producer that is registered with a closed stream is stopped at once."""
        near, far, _, _ = self.attached()
        far.abort(Code.CONNECTION_LOST, "broken")
        self.settle()
        producer = Producer()
        near.registerProducer(producer, True)
        self.assertEqual(["stop"], producer.events)

    def test_after_the_end(self):
        """Calls after the end of a stream have no effect, and do not raise."""
        near, far, near_user, _ = self.attached()
        far.abort(Code.CONNECTION_LOST, "broken")
        self.settle()
        near.write(b"x")
        near.loseWriteConnection()
        near.loseConnection()
        near.abortConnection()
        near.pauseProducing()
        near.resumeProducing()
        near.unregisterProducer()
        self.settle()
        self.assertEqual(["made", "lost"], near_user.events)
