"""Pausing of streams, and of the producers that write to them."""

from __future__ import annotations

from twisted.internet.interfaces import IPushProducer

from tests.tunnel.memory import Producer
from tests.tunnel.sessions import WINDOW, SessionTestCase
from yurttunnel.wire.codes import Code
from yurttunnel.wire.stream import FULL_ABOVE


class PauseTests(SessionTestCase):
    """Streams as producers of data from the peer."""

    def test_pause_when_made(self):
        """A protocol that pauses its stream in ``connectionMade`` gets no data until it resumes."""
        self.far_user.connectionMade = lambda: self.far_user.transport.pauseProducing()
        near, far = self.pair.streams()
        near.write(b"early")
        self.pair.pump()
        far.attach(self.far_user)
        self.pair.pump()
        self.assertEqual(b"", self.far_user.received)
        far.resumeProducing()
        self.assertEqual(b"early", self.far_user.received)

    def test_resume_before_attach(self):
        """Pausing and resuming before ``attach`` delivers nothing."""
        near, far = self.pair.streams()
        near.write(b"early")
        far.pauseProducing()
        far.resumeProducing()
        self.pair.pump()
        far.attach(self.far_user)
        self.assertEqual(b"early", self.far_user.received)

    def test_resume_in_data_received(self):
        """A protocol may pause and resume with each piece, however many are held."""
        self.join()
        self.far.pauseProducing()
        for number in range(60):
            self.near.write(number.to_bytes(1, "big") * 1024)
            self.pair.pump()
        kept = len(self.far._wire.backlog)
        depth = [0, 0]

        def received(data):
            depth[0] += 1
            depth[1] = max(depth)
            self.far.pauseProducing()
            self.far_user.received += data
            self.far.resumeProducing()
            depth[0] -= 1

        self.far_user.dataReceived = received
        self.far.resumeProducing()
        self.assertGreater(kept, 30)
        self.assertEqual(60 * 1024, len(self.far_user.received))
        self.assertEqual(sorted(self.far_user.received), list(self.far_user.received))
        self.assertEqual(1, depth[1])

    def test_pause_while_kept_data_is_delivered(self):
        """A protocol that pauses during the delivery of held data gets no more of it."""
        self.join()
        self.far.pauseProducing()
        for _ in range(3):
            self.near.write(bytes(2048))
            self.pair.pump()

        def received(data):
            self.far_user.received += data
            self.far.pauseProducing()

        self.far_user.dataReceived = received
        self.far.resumeProducing()
        self.assertEqual(2048, len(self.far_user.received))

    def test_bound(self):
        """The end of a paused stream buffers a window, and no more."""
        self.join()
        self.far.pauseProducing()
        self.near.write(bytes(1024 * 1024))
        self.pair.pump()
        self.assertEqual(WINDOW, sum(map(len, self.far._wire.backlog)))

    def test_stop_producing(self):
        """``stopProducing`` closes the stream, like that of a socket."""
        self.join()
        self.near.stopProducing()
        self.pair.pump()
        self.assertEqual(["made", "lost"], self.near_user.events)


class PushProducerTests(SessionTestCase):
    """Push producers."""

    def setUp(self):
        """Open a stream whose far end does not read, and register a producer."""
        super().setUp()
        self.join()
        self.producer = Producer()

    def test_duck_typed(self):
        """A producer need not declare its interface, as with sockets."""
        self.assertFalse(IPushProducer.providedBy(self.producer))
        self.near.registerProducer(self.producer, True)
        self.near.write(b"x")
        self.assertEqual([], self.producer.events)

    def test_connection_busy(self):
        """A producer is paused while the connection is congested, even with credit."""
        self.pair.server_carrier.capacity = 0
        self.near.registerProducer(self.producer, True)
        self.near.write(bytes(1024))
        self.pair.clock.advance(1)
        self.assertTrue(self.pair.server_carrier.paused)
        self.near.write(bytes(FULL_ABOVE + 1))
        self.near.write(bytes(1))
        self.assertEqual(["pause"], self.producer.events)
        self.pair.pump()
        self.assertEqual(["pause", "resume"], self.producer.events)

    def test_detached(self):
        """A producer is paused while the session has no connection, and resumed with the next."""
        self.near.registerProducer(self.producer, True)
        self.pair.cut()
        self.near.write(bytes(FULL_ABOVE + 1))
        self.assertEqual(["pause"], self.producer.events)
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(["pause", "resume"], self.producer.events)
        self.assertEqual(FULL_ABOVE + 1, len(self.far_user.received))

    def test_stopped_at_clean_end(self):
        """A producer that is still registered when the stream ends cleanly is stopped, once."""
        self.near.registerProducer(self.producer, True)
        self.near.loseConnection()
        self.far.loseConnection()
        self.pair.pump()
        self.assertEqual(["stop"], self.producer.events)

    def test_writes_when_resumed(self):
        """A producer may write within ``resumeProducing``, and be paused again by that."""
        pieces = [bytes([number]) * 8192 for number in range(100)]
        left = list(pieces)

        def resume():
            self.producer.events.append("resume")
            while left and self.producer.events[-1] == "resume":
                self.near.write(left.pop(0))

        self.producer.resumeProducing = resume
        self.near.registerProducer(self.producer, True)
        resume()
        self.pair.pump()
        self.assertEqual(b"".join(pieces), bytes(self.far_user.received))
        self.assertGreater(self.producer.events.count("pause"), 1)
        for first, second in zip(self.producer.events, self.producer.events[1:], strict=False):
            self.assertNotEqual(first, second)


class PullProducer:
    """A pull producer of ``pieces``, which unregisters itself after the last."""

    def __init__(self, stream, pieces):
        self.stream = stream
        self.pieces = list(pieces)
        self.asked = 0
        self.stopped = 0

    def resumeProducing(self):
        """Write a piece."""
        self.asked += 1
        if self.pieces:
            self.stream.write(self.pieces.pop(0))
        else:
            self.stream.unregisterProducer()

    def stopProducing(self):
        """Record the call."""
        self.stopped += 1


class PullProducerTests(SessionTestCase):
    """Pull producers."""

    def setUp(self):
        """Open a stream."""
        super().setUp()
        self.join()

    def test_pulled(self):
        """A pull producer is called until it unregisters itself."""
        producer = PullProducer(self.near, [b"a" * 1000] * 100)
        self.near.registerProducer(producer, False)
        self.assertEqual(0, producer.asked)
        self.pair.pump()
        self.assertEqual(101, producer.asked)
        self.assertEqual(100_000, len(self.far_user.received))

    def test_not_pulled_while_full(self):
        """A pull producer is not called while the buffer is full, but again afterwards."""
        producer = PullProducer(self.near, [bytes(16384)] * 32)
        self.far.pauseProducing()
        self.near.registerProducer(producer, False)
        self.pair.pump()
        self.assertLess(producer.asked, 16)
        self.far.resumeProducing()
        self.pair.pump()
        self.assertEqual(32 * 16384, len(self.far_user.received))

    def test_registered_while_full(self):
        """A pull producer that is registered while the buffer is full is not called."""
        self.far.pauseProducing()
        self.near.write(bytes(1024 * 1024))
        self.pair.pump()
        producer = PullProducer(self.near, [b"x"])
        self.near.registerProducer(producer, False)
        self.pair.pump()
        self.assertEqual(0, producer.asked)

    def test_lose_connection(self):
        """``loseConnection`` waits until a pull producer has sent all data, as for sockets."""
        producer = PullProducer(self.near, [bytes(16384)] * 32)
        self.near.registerProducer(producer, False)
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(32 * 16384, len(self.far_user.received))
        self.assertEqual(["made", "read lost"], self.far_user.events)
        self.assertEqual(["made", "lost"], self.near_user.events)

    def test_reset(self):
        """A pull producer of a stream that is reset is stopped, and not called any more."""
        producer = PullProducer(self.near, [bytes(1024)] * 1000)
        self.near.registerProducer(producer, False)
        self.pair.turn()
        self.far.abort(Code.CONNECTION_LOST, "broken")
        self.pair.pump()
        asked = producer.asked
        self.pair.pump()
        self.assertEqual((asked, 1), (producer.asked, producer.stopped))

    def test_failure(self):
        """A pull producer that raises resets its stream, and is logged once."""
        producer = PullProducer(self.near, [])
        producer.resumeProducing = lambda: 1 / 0
        self.near.registerProducer(producer, False)
        self.pair.pump()
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertEqual(Code.INTERNAL, self.near_user.reasons[0].value.code)
        self.assertEqual(Code.INTERNAL, self.far_user.reasons[0].value.code)
