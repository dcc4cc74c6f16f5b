"""The end of a session's stream, beyond the contract of all streams."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone

from tests.tunnel.memory import HalfCloseUser, Producer, User
from tests.tunnel.sessions import WINDOW, SessionTestCase
from yurttunnel.tunnel.stream import LINGER
from yurttunnel.wire.codes import Code


class EndTests(SessionTestCase):
    """How streams end."""

    def test_not_within_the_call(self):
        """``connectionLost`` is never called from within a method that the user calls."""
        for end in (
            lambda stream: stream.loseConnection(),
            lambda stream: stream.abortConnection(),
            lambda stream: stream.abort(Code.CANCELLED, "enough"),
        ):
            user = HalfCloseUser()
            near, _ = self.pair.joined(user, User())
            self.pair.clock.advance(1)
            end(near)
            self.assertEqual(["made"], user.events)
            self.pair.pump()
            self.assertEqual(["made", "lost"], user.events)

    def test_not_within_a_resumption(self):
        """Nor is it called within ``resumeProducing``, if the peer's FIN was held meanwhile."""
        self.join()
        self.near.pauseProducing()
        self.near.loseWriteConnection()
        self.far.write(b"last words")
        self.far.loseWriteConnection()
        self.pair.pump()
        self.near.resumeProducing()
        self.assertEqual(b"last words", self.near_user.received)
        self.assertEqual(["made", "write lost", "read lost"], self.near_user.events)
        self.pair.pump()
        self.assertEqual(["made", "write lost", "read lost", "lost"], self.near_user.events)

    def test_not_within_an_abort_of_a_close_that_waits(self):
        """Nor is it called within an abort of a close that was delayed by a pull producer."""
        self.join()
        self.near.registerProducer(Producer(), False)
        self.near.loseConnection()
        self.near.abortConnection()
        self.assertEqual(["made"], self.near_user.events)
        self.pair.pump()
        self.assertEqual(["made", "lost"], self.near_user.events)

    def test_close_when_made(self):
        """A protocol may close its stream in ``connectionMade``."""
        for method in ("loseConnection", "abortConnection", "loseWriteConnection"):
            user = HalfCloseUser()
            user.connectionMade = lambda user=user, m=method: getattr(user.transport, m)()
            self.pair.joined(user, User())
            self.pair.pump()
            self.assertEqual(1, user.events.count("lost"), method)

    def test_lose_after_half_close(self):
        """``loseConnection`` after ``loseWriteConnection`` ends the stream for its user."""
        self.join()
        self.near.loseWriteConnection()
        self.pair.pump()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made", "write lost", "lost"], self.near_user.events)
        self.assertIsInstance(self.near_user.reasons[0].value, ConnectionDone)

    def test_lose_at_once_after_half_close(self):
        """A half-close and a close in one iteration end the stream for its user as well."""
        self.join()
        self.near.write(b"last words")
        self.near.loseWriteConnection()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(1, self.near_user.events.count("lost"))
        self.assertEqual(b"last words", self.far_user.received)

    def test_lose_after_peers_end(self):
        """``loseConnection`` after the peer's FIN ends the stream at both ends."""
        self.join()
        self.far.loseWriteConnection()
        self.pair.pump()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made", "read lost", "lost"], self.near_user.events)
        self.assertEqual({}, self.pair.server.wire.streams)
        self.assert_counters({Code.DONE: 1})

    def test_lose_while_detached(self):
        """A stream that is closed while its session has no connection ends for its user."""
        self.join()
        self.pair.cut()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made", "lost"], self.near_user.events)

    def test_ending_in_each_other(self):
        """If a protocol ends another stream in ``connectionLost``, its user is notified too."""
        other_user = HalfCloseUser()
        other, _ = self.pair.joined(other_user, User())
        self.near_user.connectionLost = lambda reason: other.loseConnection()
        self.join()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made", "lost"], other_user.events)

    def test_clean_end_with_short_credit(self):
        """Data written before ``loseConnection`` arrives, however late the peer reads it."""
        self.join()
        data = bytes(range(256)) * 2048
        self.far.pauseProducing()
        self.near.write(data)
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made"], self.near_user.events)
        self.far.resumeProducing()
        self.pair.pump()
        self.assertEqual(data, self.far_user.received)
        self.assertEqual(["made", "read lost"], self.far_user.events)
        self.assertIsInstance(self.near_user.reasons[0].value, ConnectionDone)

    def test_clean_end_while_peer_sends(self):
        """Data from the peer resets a closing stream only after the last byte is sent."""
        self.join()
        self.far.pauseProducing()
        data = bytes(4 * WINDOW)
        self.near.write(data)
        self.near.loseConnection()
        self.far.write(b"unwanted")
        self.pair.pump()
        self.assertFalse(self.near._wire.closed)
        self.far.resumeProducing()
        self.pair.pump()
        self.assertEqual(data, self.far_user.received)
        self.assertEqual(["made", "read lost", "lost"], self.far_user.events)
        self.assertIsInstance(self.near_user.reasons[0].value, ConnectionDone)

    def test_unwanted_data(self):
        """Data after the close resets the stream, as for a closed socket."""
        self.join()
        self.near.loseConnection()
        self.pair.pump()
        self.far.write(b"unwanted")
        self.pair.pump()
        self.assertEqual(b"", self.near_user.received)
        self.assertEqual(Code.CANCELLED, self.far_user.reasons[0].value.code)

    def test_pause_after_close(self):
        """A user that pauses a stream after closing it does not prevent its end."""
        self.near_user.connectionLost = lambda reason: self.near.pauseProducing()
        self.join()
        self.near.loseConnection()
        self.pair.pump()
        self.far.loseWriteConnection()
        self.pair.pump()
        self.assertEqual({}, self.pair.server.wire.streams)
        self.assert_counters({Code.DONE: 1})

    def test_peers_end_after_close(self):
        """The peer's held FIN is not reported to a user that has closed the stream."""
        self.join()
        self.near.pauseProducing()
        self.far.loseWriteConnection()
        self.pair.pump()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made", "lost"], self.near_user.events)
        self.assert_counters({Code.DONE: 1})

    def test_linger(self):
        """A closed stream that the peer never ends is reset after LINGER seconds."""
        self.join()
        self.near.loseConnection()
        self.pair.pass_time(LINGER - 1)
        self.assertEqual(["made", "read lost"], self.far_user.events)
        self.pair.pass_time(2)
        self.assertEqual(Code.CANCELLED, self.far_user.reasons[0].value.code)
        self.assertEqual(1, len(self.near_user.reasons))
        self.assertEqual({}, self.pair.server.wire.streams)

    def test_linger_with_progress(self):
        """A peer that reads slowly gets all data sent before the close."""
        self.join()
        data = bytes(8 * WINDOW)
        self.far.pauseProducing()
        self.near.write(data)
        self.near.loseConnection()
        for _ in range(8):
            self.pair.pass_time(LINGER * 0.8, 1)
            self.far_user.dataReceived = lambda piece: (
                self.far_user.received.extend(piece),
                self.far.pauseProducing() if len(self.far_user.received) % WINDOW == 0 else None,
            )
            self.far.resumeProducing()
            self.pair.pump()
        self.assertEqual(len(data), len(self.far_user.received))

    def test_linger_without_progress(self):
        """A closed stream whose peer reads nothing for LINGER seconds is reset."""
        self.join()
        self.far.pauseProducing()
        self.near.write(bytes(4 * WINDOW))
        self.near.loseConnection()
        self.pair.pass_time(2 * LINGER + 1, 1)
        self.assertEqual({}, self.pair.server.wire.streams)
        self.assertEqual(Code.CANCELLED, self.near_user.reasons[0].value.code)

    def test_linger_without_a_connection(self):
        """A closed stream waits for the connection to be back, and its last data arrives."""
        self.join()
        self.near.write(b"last words")
        self.pair.clock.advance(0)
        self.near.loseConnection()
        self.pair.cut(by_peer=False)
        self.pair.clock.advance(LINGER / 2)
        self.pair.connect()
        # It is lost again before anything is received, and when the reset would be due.
        self.pair.cut(by_peer=False)
        self.pair.clock.advance(LINGER / 2)
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(b"last words", self.far_user.received)
        self.assertEqual(["made", "read lost"], self.far_user.events)
        self.pair.pass_time(LINGER + 1, 1)
        self.assertEqual(Code.CANCELLED, self.far_user.reasons[0].value.code)

    def test_session_ends(self):
        """The end of the session ends its streams with its code, and their timers."""
        self.join()
        other_user = HalfCloseUser()
        other, _ = self.pair.joined(other_user, HalfCloseUser())
        other.loseConnection()
        self.pair.server.close(Code.REPLACED, "newer session")
        self.pair.pump()
        self.assertEqual(Code.REPLACED, self.near_user.reasons[0].value.code)
        self.assertEqual(Code.REPLACED, self.far_user.reasons[0].value.code)
        self.assertEqual(1, len(other_user.reasons))
        self.assertEqual([], self.pair.clock.getDelayedCalls())
