"""The end of a session."""

from __future__ import annotations

import random

from tests.tunnel.memory import Producer, SessionPair
from tests.tunnel.sessions import SessionTestCase
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code


class CloseTests(SessionTestCase):
    """The end of a session."""

    def test_close(self):
        """A close sends the code to the peer; both ends notify their owners, once."""
        self.join()
        ended = self.pair.server.ended()
        self.pair.server.close(Code.REVOKED, "revoked")
        self.pair.server.close(Code.DONE, "again")
        self.successResultOf(ended)
        self.assertTrue(self.pair.server_carrier.ended)
        self.pair.pump()
        self.assertEqual(
            [(self.pair.server, Code.REVOKED), (self.pair.agent, Code.REVOKED)], self.ends
        )
        self.assertTrue(self.pair.agent_carrier.ended)
        self.assert_no_timers()

    def test_ended_already(self):
        """``ended`` of a closed session fires at once."""
        self.pair.server.close(Code.DONE, "over")
        self.successResultOf(self.pair.server.ended())

    def test_close_while_detached(self):
        """A session without a connection can be closed; no timer is left."""
        self.join()
        self.pair.cut()
        self.near.write(b"x")
        self.pair.server.close(Code.GOING_AWAY, "stop")
        self.pair.agent.close(Code.GOING_AWAY, "stop")
        self.assert_no_timers()

    def test_close_with_writes_pending(self):
        """Data to be sent later is dropped with its timer."""
        self.join()
        self.near.write(b"x")
        self.near.write(b"y")
        self.pair.server.close(Code.REVOKED, "revoked")
        self.pair.pump()
        self.assert_no_timers()

    def test_close_while_sending(self):
        """A session that a producer closes sends nothing after its CLOSE."""
        self.join()
        producer = Producer()
        producer.resumeProducing = lambda: self.pair.server.close(Code.REVOKED, "revoked")
        self.near.registerProducer(producer, True)
        self.far.pauseProducing()
        self.near.write(bytes(1024 * 1024))
        self.pair.pump()
        self.far.resumeProducing()
        self.pair.pump()
        self.assertTrue(self.pair.agent.closed)
        self.assertEqual(Code.REVOKED, self.far_user.reasons[0].value.code)

    def test_connection_lost_after_close(self):
        """The loss of a closed session's connection changes nothing."""
        self.pair.server.close(Code.DONE, "over")
        self.pair.server.connection_lost(by_peer=True)
        self.assertEqual(0, self.pair.server_context.counters.connections_lost)

    def test_violation(self):
        """A peer that violates the protocol gets a CLOSE, and the session ends."""
        self.pair.server.data_received(frames.frame(0xBF, 0))
        self.pair.pump()
        self.assertEqual(
            [(self.pair.server, Code.UNKNOWN_CRITICAL), (self.pair.agent, Code.UNKNOWN_CRITICAL)],
            self.ends,
        )
        self.assertEqual(
            {Code.UNKNOWN_CRITICAL: 1}, dict(self.pair.agent_context.counters.session_ends)
        )

    def test_garbage_cut_anywhere(self):
        """Garbage at any offset ends a session with a code, and raises nothing."""
        chance = random.Random(4)
        for _ in range(200):
            pair = SessionPair()
            pair.pump()
            data = chance.randbytes(60)
            cut = chance.randrange(60)
            pair.server.data_received(data[:cut])
            pair.server.data_received(data[cut:])
            pair.pump()
            pair.close()
            self.assertEqual([], pair.clock.getDelayedCalls())

    def test_memory_is_released(self):
        """The memory that a session has reserved is released when it ends."""
        self.join()
        self.assertGreater(self.pair.agent_context.budget.used, 0)
        self.pair.server.close(Code.REVOKED, "revoked")
        self.pair.pump()
        self.assertEqual(0, self.pair.agent_context.budget.used)
        self.assertEqual(0, self.pair.server_context.budget.used)
