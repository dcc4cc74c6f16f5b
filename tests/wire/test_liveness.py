"""A session detects whether its peer is alive."""

from __future__ import annotations

from itertools import product

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import End, Pair, frames_in, limits
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.session import Side

ACK, PING, PONG, DATA = frames.ACK, frames.PING, frames.PONG, frames.DATA

KIB = 1024


class LivenessTests(SynchronousTestCase):
    """Detection of a dead peer."""

    @conformance("C-111", "C-112")
    def test_pong(self) -> None:
        """A PING is answered by a PONG with its number; of several only the newest is answered."""
        end = End()
        end.feed(frames.offset_frame(PING, 0, 2**64 - 1))
        self.assertEqual([(PONG, 0, b"\xff" * 8)], end.sent())
        end.feed(*[frames.offset_frame(PING, 0, number) for number in range(1000)])
        self.assertEqual([(PONG, 0, (999).to_bytes(8, "big"))], end.sent())

    def test_by_itself(self) -> None:
        """PING and PONG are not sent in one write, and so in one TLS record, with data."""
        end = End()
        end.advance(0.1)
        stream = end.opened_by_peer()
        end.session.send(stream, bytes(1000))
        self.assertEqual([PING], [kind for kind, _, _ in frames_in(end.session.data_to_send(9999))])
        end.feed(frames.offset_frame(PING, 0, 7))
        end.session.send(stream, bytes(1000))
        self.assertEqual([PONG], [kind for kind, _, _ in frames_in(end.session.data_to_send(9999))])
        self.assertIn(DATA, [kind for kind, _, _ in end.sent()])

    @conformance("C-135")
    def test_probe_without_an_answer(self) -> None:
        """If the rate falls a PING is sent at once; if unanswered, the next one resumes data."""
        end = End()
        stream = end.opened_by_peer()
        end.feed(frames.offset_frame(frames.CREDIT, 2, 1 << 40))
        end.advance(0.0)
        end.feed(frames.offset_frame(PONG, 0, 1))
        before = end.session.bytes_sent

        def sent() -> list[int]:
            while not stream.full:
                end.session.send(stream, bytes(64 * KIB))
            return [kind for kind, _, _ in end.sent()]

        self.assertIn(DATA, sent())
        started = end.session.unacknowledged
        self.assertGreater(end.session.bytes_sent, before)
        end.advance(2.0)
        end.feed(frames.offset_frame(ACK, 0, 1000))
        sent()
        end.advance(0.4)
        end.feed(frames.offset_frame(ACK, 0, 2000))
        self.assertEqual([PING], sent())
        # All of it has arrived, but data still waits for the PONG.
        end.feed(frames.offset_frame(ACK, 0, started))
        self.assertNotIn(DATA, sent())
        end.advance(2.4)
        self.assertNotIn(DATA, sent())
        end.advance(0.2)
        self.assertIn(DATA, sent())

    @conformance("C-113")
    def test_interval(self) -> None:
        """Both ends send PINGs at the longer of their intervals, four times as often when busy.

        An idle server sends them a twentieth early; an idle agent that receives them sends none.
        """
        server = [0.125, 3.875, 7.625, 11.375, 15.125, 19.0, 22.75]
        cases = ((Side.SERVER, server), (Side.AGENT, [0.125]))
        for (side, expected), (local, peer) in product(cases, ((1000, 4000), (4000, 1000))):
            end = End(side, limits(ping_interval=local), limits(ping_interval=peer))
            times = []
            for busy in (False, True):
                if busy:
                    end.opened_by_peer()
                for _ in range(200):
                    end.advance(0.125)
                    # The peer is alive.
                    end.feed(frames.offset_frame(PONG, 0, 0))
                    if any(kind == PING for kind, _, _ in end.sent()):
                        times.append(end.now)
            self.assertEqual(expected, [time for time in times if time <= 25.0])
            self.assertEqual(1.0, times[-1] - times[-2])

    @conformance("C-113")
    def test_unheard_server(self) -> None:
        """An agent that receives nothing from an idle server for an interval sends a PING."""
        end = End(Side.AGENT)
        end.advance(0.0)
        end.feed(frames.offset_frame(PONG, 0, 1))
        end.sent()
        for heard in (9.0, 18.0):
            end.advance(heard - end.now)
            end.feed(frames.offset_frame(PING, 0, 7))
            self.assertEqual([PONG], [kind for kind, _, _ in end.sent()])
        end.advance(9.75)
        self.assertEqual([], end.sent())
        end.advance(0.25)
        self.assertEqual([PING], [kind for kind, _, _ in end.sent()])

    @conformance("C-113")
    def test_pings_of_many_sessions(self) -> None:
        """The PINGs of idle sessions are sent together, up to 1/128 of an interval early."""
        due = set()
        for began in (0.04, 0.06, 0.1):
            end = End()
            end.advance(began)
            end.session.detach(end.now, 30.0)
            end.session.attach(0, end.now)
            end.advance(0.0)
            self.assertEqual([PING], [kind for kind, _, _ in end.sent()])
            end.feed(frames.offset_frame(PONG, 0, 2))
            due.add(end.session.timer)
        self.assertEqual({9.53125}, due)

    @conformance("C-114")
    def test_idle(self) -> None:
        """An idle connection is dropped 25 s after the last byte, by a server slightly earlier."""
        for side, seconds, more in ((Side.AGENT, 24.8, 0.2), (Side.SERVER, 24.2, 0.4)):
            end = End(side)
            end.advance(0.1)
            end.feed(frames.offset_frame(PONG, 0, 1))
            end.advance(seconds)
            self.assertEqual([], end.log.calls)
            end.advance(more)
            self.assertEqual(["silent"], end.log.calls)

    @conformance("C-115")
    def test_busy(self) -> None:
        """A connection with open streams is dropped 7.5 s after the last byte."""
        end = End()
        end.advance(0.1)
        end.opened_by_peer()
        end.advance(7.3)
        self.assertEqual([], end.log.calls)
        end.advance(0.2)
        self.assertEqual(["silent"], end.log.calls)

    def test_becoming_busy(self) -> None:
        """A connection that was idle is checked at once when a stream is opened."""
        end = End()
        end.advance(0.1)
        end.feed(frames.offset_frame(PONG, 0, 1))
        end.sent()
        end.advance(7.0)
        end.open()
        end.advance(0.0)
        self.assertIn(PING, [kind for kind, _, _ in end.sent()])
        end.advance(5.0)
        self.assertEqual(["silent"], end.log.calls)

    @conformance("C-116")
    def test_any_byte_is_a_sign_of_life(self) -> None:
        """Any received byte shows that the peer is alive, even part of a frame."""
        end = End()
        frame = frames.coded_frame(frames.CLOSE, 0, Code.DONE, "x" * 50)
        for byte in frame[:20]:
            end.advance(10.0)
            end.feed(bytes([byte]))
        self.assertEqual([], end.log.calls)

    def test_silence_and_loss(self) -> None:
        """An owner that drops the silent connection at once gets no further event for it."""
        end = End()
        end.log.on["silent"] = lambda: end.session.detach(end.now, 30.0)
        end.advance(40.0)
        self.assertEqual(["silent"], end.log.calls)
        end.advance(10.0)
        self.assertEqual((Code.SESSION_LOST, False), end.log.close)

    @conformance("C-134")
    def test_unanswered_ping(self) -> None:
        """A connection is healthy unless a PING is unanswered for too long."""
        end = End()
        end.advance(0.0)
        end.advance(0.25)
        end.feed(frames.offset_frame(PONG, 0, 1))
        end.advance(9.203125)
        self.assertTrue(end.session.is_healthy(end.now))
        end.advance(1.5 + 0.24)
        # Received data does not count as an answer.
        end.feed(frames.offset_frame(PING, 0, 7))
        self.assertTrue(end.session.is_healthy(end.now))
        end.advance(0.01)
        self.assertFalse(end.session.is_healthy(end.now))
        end.feed(frames.offset_frame(PONG, 0, 2))
        self.assertTrue(end.session.is_healthy(end.now))

    @conformance("C-134")
    def test_late_pong_is_an_answer(self) -> None:
        """A PONG for an earlier PING is an answer too, but one for no PING is not."""
        end = End()
        end.open(answered=True)
        for _ in range(2):
            end.advance(2.5)
        self.assertFalse(end.session.is_healthy(end.now))
        end.feed(frames.offset_frame(PONG, 0, 0), frames.offset_frame(PONG, 0, 99))
        self.assertFalse(end.session.is_healthy(end.now))
        end.feed(frames.offset_frame(PONG, 0, 1))
        self.assertTrue(end.session.is_healthy(end.now))

    @conformance("C-134")
    def test_acknowledgements_are_answers(self) -> None:
        """An ACK with a higher position also shows that the peer receives data from this side."""
        end = End()
        end.open(answered=True)
        end.advance(5.0)
        self.assertFalse(end.session.is_healthy(end.now))
        end.feed(frames.offset_frame(frames.ACK, 0, 0))
        self.assertFalse(end.session.is_healthy(end.now), "nothing new")
        end.feed(frames.offset_frame(frames.ACK, 0, 9))
        self.assertTrue(end.session.is_healthy(end.now))

    @conformance("C-134")
    def test_a_new_connection_is_in_order(self) -> None:
        """PINGs unanswered on one connection do not count on the next."""
        end = End()
        end.advance(5.0)
        end.session.detach(end.now, 30.0)
        end.session.attach(0, end.now)
        self.assertTrue(end.session.is_healthy(end.now))

    @conformance("C-134")
    def test_unresponsive_peer_closes(self) -> None:
        """When a peer drops a silent connection, the other end has found it unhealthy.

        This holds whenever one direction is cut while the other one works.
        """
        for step in range(51):
            pair = Pair()
            pair.open()
            self.pass_time(pair, 10.0 + step * 0.05)
            while not pair.agent.log.calls:
                self.assertEqual([], pair.server.log.calls)
                self.pass_time(pair, 0.05, deaf=Side.AGENT)
            self.assertEqual(["silent"], pair.agent.log.calls)
            self.assertFalse(pair.server.session.is_healthy(pair.server.now))

    @conformance("C-134")
    def test_unresponsive_idle_agent_closes(self) -> None:
        """Without streams the server detects a deaf agent as well."""
        pair = Pair()
        self.pass_time(pair, 20.0)
        while not pair.agent.log.calls:
            self.assertEqual([], pair.server.log.calls)
            self.pass_time(pair, 0.05, deaf=Side.AGENT)
        self.assertFalse(pair.server.session.is_healthy(pair.server.now))

    @conformance("C-114", "C-134")
    def test_unresponsive_idle_server_closes(self) -> None:
        """A deaf idle server gives up within 25 s; an agent that sends no PINGs does not."""
        pair = Pair()
        self.pass_time(pair, 20.0)
        deaf_since = pair.server.now
        while not pair.server.log.calls:
            self.assertLess(pair.server.now - deaf_since, 25.0)
            self.pass_time(pair, 0.05, deaf=Side.SERVER)
        self.assertEqual([], pair.agent.log.calls)
        self.assertTrue(pair.agent.session.is_healthy(pair.agent.now))

    def pass_time(self, pair: Pair, seconds: float, deaf: Side | None = None) -> None:
        """Let time pass in steps, and transfer data except to the side that is ``deaf``."""
        for _ in range(round(seconds / 0.05)):
            for end in pair.ends.values():
                end.advance(0.05)
            if deaf is None:
                pair.settle()
            else:
                pair.ends[Side(3 - deaf)].sent_bytes()
                pair.move(deaf, 1 << 20)

    def test_round_trip(self) -> None:
        """The round trip is the time from PING to PONG."""
        end = End()
        self.assertIsNone(end.session.round_trip)
        end.advance(0.0)
        end.advance(0.25)
        end.feed(frames.offset_frame(PONG, 0, 1))
        self.assertEqual(0.25, end.session.round_trip)
