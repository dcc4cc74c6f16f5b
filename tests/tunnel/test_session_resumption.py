"""Sessions outlive their connections."""

from __future__ import annotations

import hashlib
import random

from tests.tunnel.memory import Bulk, MemoryCarrier, SessionPair
from tests.tunnel.sessions import SessionTestCase
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Limits


class ResumptionTests(SessionTestCase):
    """Sessions outlive their connections."""

    def test_return_grace(self):
        """If the peer's side closed the connection, the server keeps the session only briefly."""
        self.join()
        self.pair.cut(by_peer=True)
        self.pair.clock.advance(0.4)
        self.assertFalse(self.pair.server.closed)
        self.pair.clock.advance(0.2)
        self.assertTrue(self.pair.server.closed)
        self.assertFalse(self.pair.agent.closed)
        self.pair.clock.advance(30)
        self.assertTrue(self.pair.agent.closed)

    def test_end_of_a_connection_that_was_not_in_order(self):
        """A peer with unanswered PINGs may be alive, and has the resume window."""
        self.join()
        while not self.pair.agent_carrier.abandoned:
            self.pair.clock.advance(0.25)
            self.pair.server_carrier.take(1 << 20)
            self.pair.move()
        # The peer resets the abandoned connection, which is noticed.
        self.pair.server.connection_lost(by_peer=True)
        self.pair.clock.pump([1] * 29)
        self.assertFalse(self.pair.server.closed)
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(([], []), (self.near_user.reasons, self.far_user.reasons))

    def test_return_grace_of_distant_peers(self):
        """The server keeps the session of a distant peer for longer."""
        pair = SessionPair(return_grace=0.5)
        pair.clock.pump([0, 1])
        pair.pump()
        self.assertEqual(1.0, pair.server.snapshot().round_trip)
        pair.cut()
        pair.clock.advance(4.4)
        self.assertFalse(pair.server.closed)
        pair.clock.advance(0.2)
        self.assertTrue(pair.server.closed)
        pair.close()

    def test_resume_window(self):
        """The resume window is the smaller one of both ends."""
        short, long = Limits(resume_window=2_000), Limits(resume_window=9_000)
        for server, agent in ((short, long), (long, short)):
            pair = SessionPair(limits=server, agent_limits=agent)
            pair.cut(by_peer=False)
            for passes, left in ((0, 2.0), (1.5, 0.5)):
                pair.clock.advance(passes)
                self.assertAlmostEqual(left, pair.server.snapshot().waits_for)
                self.assertFalse(pair.server.closed)
            pair.clock.advance(0.5)
            self.assertTrue(pair.server.closed)
            self.assertTrue(pair.agent.closed)
            self.assertEqual([], pair.clock.getDelayedCalls())

    def test_counted(self):
        """Resumptions and lost connections are counted; the first connection is neither."""
        self.pair.cut()
        self.pair.connect()
        self.pair.pump()
        for context in (self.pair.server_context, self.pair.agent_context):
            self.assertEqual(1, context.counters.resumptions)
            self.assertEqual(1, context.counters.connections_lost)
        self.assertEqual(1, self.pair.server.snapshot().resumptions)

    def test_replaced_connection(self):
        """A new connection replaces one that still seems alive, which is abandoned."""
        self.join()
        self.near.write(b"lost with the old one")
        old = self.pair.server_carrier
        self.pair.agent.connection_lost(by_peer=False)
        self.pair.connect()
        self.assertTrue(old.abandoned)
        self.pair.pump()
        self.assertEqual(b"lost with the old one", self.far_user.received)
        self.assertEqual([], self.near_user.reasons)

    def test_data_both_ways(self):
        """However often connections are lost, all data arrives once and in order."""
        self.join()
        chance = random.Random(3)
        sent = [chance.randbytes(600_000), chance.randbytes(600_000)]
        for stream, data in zip((self.near, self.far), sent, strict=True):
            stream.registerProducer(Bulk(stream, data), True)
        cuts = 0
        for _ in range(100_000):
            self.pair.piece = chance.randrange(1, 30_000)
            self.pair.clock.advance(0.001)
            if not self.pair.turn() and not self.pair.turn():
                break
            if chance.random() < 0.05:
                self.pair.cut()
                self.pair.clock.advance(0.1)
                self.pair.connect()
                cuts += 1
        self.assertGreater(cuts, 3)
        for user, data in ((self.far_user, sent[0]), (self.near_user, sent[1])):
            self.assertEqual(hashlib.sha256(data).digest(), hashlib.sha256(user.received).digest())

    def test_end_in_flight(self):
        """Data and FIN in flight when the connection was lost arrive afterwards."""
        self.join()
        self.near.write(b"last words")
        self.near.loseWriteConnection()
        self.pair.cut()
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(b"last words", self.far_user.received)
        self.assertEqual(["made", "read lost"], self.far_user.events)
        self.assertEqual(["made", "write lost"], self.near_user.events)

    def test_dial_while_detached(self):
        """A stream opened without a connection is opened on the next one."""
        self.pair.acceptor.answer = lambda request: request.accept()
        self.pair.cut()
        opening = self.pair.dial()
        self.pair.connect()
        self.pair.pump()
        self.successResultOf(opening)

    def test_impossible_position(self):
        """A peer that acknowledges data that was never sent ends the session with PROTOCOL."""
        self.pair.cut()
        with self.assertRaises(Violation) as caught:
            self.pair.server.carry(MemoryCarrier(self.pair.server), 10**9)
        self.assertEqual(Code.PROTOCOL, caught.exception.code)
        self.assertEqual([(self.pair.server, Code.PROTOCOL)], self.ends)
