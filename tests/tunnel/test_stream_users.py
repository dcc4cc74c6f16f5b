"""Protocols that raise, or call back into their stream."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from tests.tunnel.memory import HalfCloseUser, Producer, User
from tests.tunnel.sessions import SessionTestCase
from yurttunnel.wire.codes import Code


class FailingUserTests(SessionTestCase):
    """A protocol that raises affects no other stream."""

    def setUp(self):
        """Open the stream of a failing user, and another one."""
        super().setUp()
        self.join()
        self.other_near, self.other_far = HalfCloseUser(), HalfCloseUser()
        self.other, _ = self.pair.joined(self.other_near, self.other_far)

    def fail(self, *args):
        """Raise."""
        raise ZeroDivisionError

    def assert_contained(self):
        """Check that the failure was logged once, and the other stream continues."""
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.other.write(b"still here")
        self.pair.pump()
        self.assertEqual(b"still here", self.other_far.received)
        self.assertTrue(self.pair.agent.connected)

    def test_data_received(self):
        """A protocol that raises in ``dataReceived`` loses its stream, and is notified once."""
        self.far_user.dataReceived = self.fail
        self.near.write(b"x")
        self.pair.pump()
        self.assert_contained()
        for user in (self.near_user, self.far_user):
            self.assertEqual([Code.INTERNAL], [reason.value.code for reason in user.reasons])

    def test_data_received_of_kept_data(self):
        """A protocol that raises on held data when it resumes loses its stream, too."""
        self.far.pauseProducing()
        self.near.write(b"x")
        self.pair.pump()
        self.far_user.dataReceived = self.fail
        self.far.resumeProducing()
        self.pair.pump()
        self.assert_contained()
        self.assertEqual(Code.INTERNAL, self.near_user.reasons[0].value.code)

    def test_read_connection_lost(self):
        """A protocol that raises in ``readConnectionLost`` loses its stream, too."""
        self.far_user.readConnectionLost = self.fail
        self.near.loseWriteConnection()
        self.pair.pump()
        self.assert_contained()
        self.assertEqual(Code.INTERNAL, self.near_user.reasons[0].value.code)

    def test_write_connection_lost(self):
        """A protocol that raises in ``writeConnectionLost`` loses its stream, too."""
        self.near_user.writeConnectionLost = self.fail
        self.near.loseWriteConnection()
        self.pair.pump()
        self.assert_contained()
        self.assertEqual(Code.INTERNAL, self.far_user.reasons[0].value.code)

    def test_connection_lost(self):
        """A protocol that raises in ``connectionLost`` is logged, and its stream has ended."""
        self.far_user.connectionLost = self.fail
        self.near.abortConnection()
        self.pair.pump()
        self.assert_contained()

    def test_connection_lost_after_close(self):
        """A protocol that raises in ``connectionLost`` after it has closed the stream is logged."""
        self.near_user.connectionLost = self.fail
        self.near.loseConnection()
        self.pair.pump()
        self.assert_contained()

    def test_producer(self):
        """A producer that raises when it is resumed resets its stream."""
        producer = Producer()
        producer.resumeProducing = self.fail
        self.near.registerProducer(producer, True)
        self.far.pauseProducing()
        self.near.write(bytes(1024 * 1024))
        self.pair.pump()
        self.far.resumeProducing()
        self.pair.pump()
        self.assert_contained()
        self.assertEqual(Code.INTERNAL, self.near_user.reasons[0].value.code)

    def test_opening_callback(self):
        """An exception in a callback of the opening stays in its Deferred."""
        opening: Deferred = self.pair.dial()
        opening.addCallback(self.fail)
        self.pair.pump()
        self.pair.acceptor.requests[-1].accept()
        self.pair.pump()
        self.failureResultOf(opening, ZeroDivisionError)
        self.other.write(b"x")
        self.pair.pump()
        self.assertEqual(b"x", self.other_far.received)


class ReentranceTests(SessionTestCase):
    """Protocols that call back into their stream."""

    def test_answer_from_data_received(self):
        """A protocol may write, half-close and close within ``dataReceived``."""
        for method in ("loseConnection", "loseWriteConnection"):
            near_user, far_user = HalfCloseUser(), User()

            def received(data, far_user=far_user, method=method):
                far_user.transport.write(b"answer")
                getattr(far_user.transport, method)()

            far_user.dataReceived = received
            near, _ = self.pair.joined(near_user, far_user)
            near.write(b"question")
            self.pair.pump()
            self.assertEqual(b"answer", near_user.received)
            self.assertIn("read lost", near_user.events)

    def test_abort_from_data_received(self):
        """A protocol that aborts within ``dataReceived`` gets no more data."""
        self.join()

        def received(data):
            self.far_user.received += data
            self.far.abortConnection()

        self.far_user.dataReceived = received
        self.near.write(bytes(1000))
        self.pair.turn()
        self.near.write(bytes(1000))
        self.pair.pump()
        self.assertEqual(1000, len(self.far_user.received))
        self.assertEqual(1, len(self.far_user.reasons))

    def test_close_from_read_connection_lost(self):
        """A protocol may close its stream when the peer has ended."""
        self.join()
        self.far_user.readConnectionLost = lambda: self.far.loseConnection()
        self.near.loseWriteConnection()
        self.pair.pump()
        for user in (self.near_user, self.far_user):
            self.assertEqual(1, user.events.count("lost"))
        self.assert_counters({Code.DONE: 1})

    def test_write_from_read_connection_lost(self):
        """Data that a plain protocol writes in ``connectionLost`` is dropped without an error."""
        user = User()
        user.connectionLost = lambda reason: user.transport.write(b"x")
        near, _ = self.pair.joined(self.near_user, user)
        near.loseConnection()
        self.pair.pump()
        self.assertEqual(b"", self.near_user.received)
