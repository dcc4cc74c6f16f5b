"""A session that sends GOAWAY."""

from __future__ import annotations

from tests.tunnel.memory import HalfCloseUser
from tests.tunnel.sessions import SessionTestCase
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.tunnel.session import GOAWAY_STEP, REPLACEMENT_TIME
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code


class GoawayTests(SessionTestCase):
    """Draining."""

    def test_two_steps(self):
        """While a stream is open new ones are served, for as long as it takes."""
        self.join()
        self.pair.agent.drain("the agent stops")
        self.pair.pass_time(5)
        self.assertTrue(self.pair.server.draining)
        opening = self.pair.dial()
        self.pair.pump()
        late, user = self.pair.acceptor.requests[-1].accept(), HalfCloseUser()
        late.attach(user)
        self.pair.pump()
        self.successResultOf(opening).attach(HalfCloseUser())
        self.near.abortConnection()
        self.pair.pass_time(5)
        self.assertFalse(self.pair.agent.closed)
        late.abortConnection()
        self.pair.pump()
        self.assertTrue(self.pair.agent.closed)
        self.failureResultOf(self.pair.dial(), StreamFailed)

    def test_for_the_sake_of_others(self):
        """A session without streams ends only when ``may_end`` allows it."""
        may_end = False
        self.pair.agent.drain("the agent stops", lambda: may_end)
        self.pair.pass_time(5)
        self.pair.agent.end_if_idle()
        near, _ = self.pair.streams()
        may_end = True
        self.pair.agent.end_if_idle()
        self.pair.pass_time(1)
        self.assertFalse(self.pair.agent.closed)
        near.abortConnection()
        self.pair.pass_time(1)
        self.assertTrue(self.pair.agent.closed)

    def test_again(self):
        """A stopping agent does not wait for the successor of its session any longer."""
        self.pair.agent.drain("the agent begins anew", min_delay=REPLACEMENT_TIME)
        self.pair.pass_time(1)
        self.pair.agent.drain("the agent stops")
        self.assertFalse(self.pair.agent.closed)
        self.pair.pass_time(2 * GOAWAY_STEP)
        self.assertTrue(self.pair.agent.closed)

    def test_again_later(self):
        """A later call with a longer time does not delay the end."""
        self.pair.agent.drain("the agent stops")
        self.pair.agent.drain("the agent begins anew", min_delay=REPLACEMENT_TIME)
        self.pair.pass_time(2 * GOAWAY_STEP)
        self.assertTrue(self.pair.agent.closed)

    def test_repeated_for_others(self):
        """If GOAWAY is requested again, the ``may_end`` of the last call applies."""
        self.pair.agent.drain("the agent begins anew", min_delay=REPLACEMENT_TIME)
        self.pair.agent.drain("the agent stops", lambda: False)
        self.pair.pass_time(REPLACEMENT_TIME + 1)
        self.assertFalse(self.pair.agent.closed)
        self.pair.agent.drain("the agent stops")
        self.pair.agent.end_if_idle()
        self.pair.pass_time(1)
        self.assertTrue(self.pair.agent.closed)

    def test_both_go_away(self):
        """A session that waits for ``may_end`` does not keep the other end from closing."""
        self.pair.agent.drain("the agent stops", lambda: False)
        self.pair.pass_time(5)
        self.pair.server.drain("the server stops")
        self.pair.pass_time(1)
        self.assertTrue(self.pair.agent.closed)

    def test_a_stream_that_comes_too_late(self):
        """A stream in flight when the last one ends fails with GOING_AWAY."""
        self.pair.agent.drain("the agent stops")
        self.pair.pump()
        opening = self.pair.dial()
        # The second step is sent before the request has arrived.
        self.pair.agent_carrier.session, session = None, self.pair.agent_carrier.session
        self.pair.clock.advance(GOAWAY_STEP)
        self.pair.agent_carrier.session = session
        self.pair.pump()
        self.assertEqual(Code.GOING_AWAY, self.failureResultOf(opening, StreamFailed).value.code)

    def test_idle_session(self):
        """A session without streams ends after the second step, not before."""
        self.pair.agent.drain("the agent stops")
        self.pair.pump()
        self.assertFalse(self.pair.agent.closed)
        self.pair.clock.advance(GOAWAY_STEP)
        self.pair.pump()
        self.assertEqual(
            [(self.pair.agent, Code.GOING_AWAY), (self.pair.server, Code.GOING_AWAY)], self.ends
        )
        self.assert_no_timers()

    def test_steps_are_two_round_trips_apart(self):
        """With a distant peer the second step follows after two round trips."""
        self.pair.clock.pump([0, 1])
        self.pair.pump()
        self.pair.agent.drain("the agent stops")
        self.pair.clock.advance(1.9)
        self.pair.pump()
        self.assertFalse(self.pair.agent.closed)
        self.pair.clock.advance(0.2)
        self.pair.pump()
        self.assertTrue(self.pair.agent.closed)

    def test_reported_once(self):
        """The peer's owner is notified once that the session accepts no new streams."""
        self.join()
        events = []
        self.pair.server.on_draining.append(lambda: events.append(True))
        self.pair.agent.drain("the agent stops")
        self.pair.agent.drain("the agent stops")
        self.pair.pass_time(1)
        self.assertEqual([True], events)

    def test_drained(self):
        """The session ends with its last stream, after its data and FIN have arrived."""
        for last in (self.drain_by_near, self.drain_by_far):
            self.setUp()
            self.join()
            self.pair.agent.drain("the agent stops")
            self.pair.pass_time(1)
            self.assertFalse(self.pair.agent.closed)
            last()
            self.pair.pump()
            self.assertTrue(self.pair.agent.closed)
            self.assertTrue(self.pair.server.closed)
            for user in (self.near_user, self.far_user):
                self.assertEqual("Connection was closed cleanly.", str(user.reasons[0].value))
            self.pair.clock.advance(0)
            self.assert_no_timers()

    def drain_by_near(self):
        """Finish the server's end last."""
        self.far.loseWriteConnection()
        self.pair.pump()
        self.near.write(bytes(100_000))
        self.near.loseWriteConnection()
        self.pair.pump()
        self.assertEqual(100_000, len(self.far_user.received))

    def drain_by_far(self):
        """Finish the draining end last."""
        self.near.loseWriteConnection()
        self.pair.pump()
        self.far.write(bytes(100_000))
        self.far.loseWriteConnection()
        self.pair.pump()
        self.assertEqual(100_000, len(self.near_user.received))

    def drain_after_near_end(self):
        """Drain the agent, whose end of the only stream is finished."""
        self.join()
        self.pair.agent.drain("the agent stops")
        self.pair.pass_time(1)
        self.near.loseWriteConnection()
        self.pair.pump()

    def test_drained_by_an_end_alone(self):
        """The session also ends after a FIN without data."""
        self.drain_after_near_end()
        self.far.loseWriteConnection()
        self.pair.pump()
        self.assertEqual(["made", "write lost", "read lost", "lost"], self.near_user.events)
        self.assertTrue(self.pair.agent.closed)

    def test_drained_and_cut(self):
        """If the connection breaks before the last data has arrived, it is not lost."""
        self.drain_after_near_end()
        self.far.write(b"last words")
        self.far.loseWriteConnection()
        # It is in the connection, and has not been read.
        self.pair.clock.advance(0)
        self.assertTrue(self.pair.agent_carrier.size)
        self.assertFalse(self.pair.agent.closed)
        self.pair.cut()
        self.assertFalse(self.pair.agent.closed)
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(b"last words", self.near_user.received)
        self.assertEqual(["made", "write lost", "read lost", "lost"], self.near_user.events)
        self.assertTrue(self.pair.agent.closed)
        self.assertTrue(self.pair.server.closed)

    def test_drained_on_a_busy_connection(self):
        """A session with a congested connection ends once the last data is sent."""
        self.drain_after_near_end()
        self.pair.agent.pauseProducing()
        self.far.write(b"last words")
        self.far.loseWriteConnection()
        self.pair.pump()
        self.assertFalse(self.pair.agent.closed)
        self.pair.agent.resumeProducing()
        self.pair.pump()
        self.assertTrue(self.pair.agent.closed)
        self.assertEqual(b"last words", self.near_user.received)

    def test_drained_with_the_end_waiting(self):
        """Data received meanwhile does not end the session before the last FIN is sent."""
        self.drain_after_near_end()
        self.pair.agent.pauseProducing()
        self.far.loseWriteConnection()
        self.pair.agent.data_received(frames.offset_frame(frames.PING, 0, 1))
        self.assertFalse(self.pair.agent.closed)
        self.pair.agent.resumeProducing()
        self.pair.pump()
        self.assertTrue(self.pair.agent.closed)
        self.assertIn("read lost", self.near_user.events)

    def test_close_while_going_away(self):
        """A session that is closed between the two steps leaves no timer."""
        self.pair.agent.drain("the agent stops")
        self.pair.agent.close(Code.GOING_AWAY, "now")
        self.pair.pump()
        self.assert_no_timers()

    def test_go_away_after_close(self):
        """A closed session sends no GOAWAY."""
        self.pair.agent.close(Code.DONE, "over")
        self.pair.agent.drain("the agent stops")
        self.pair.pump()
        self.assert_no_timers()
