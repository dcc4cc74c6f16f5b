"""A session finds out whether its peer is there."""

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
    """Whether the peer is there."""

    @conformance("C-111", "C-112")
    def test_pong(self) -> None:
        """A PING is answered by a PONG with its number; of several that wait, the newest."""
        end = End()
        end.feed(frames.offset_frame(PING, 0, 2**64 - 1))
        self.assertEqual([(PONG, 0, b"\xff" * 8)], end.sent())
        end.feed(*[frames.offset_frame(PING, 0, number) for number in range(1000)])
        self.assertEqual([(PONG, 0, (999).to_bytes(8, "big"))], end.sent())

    def test_by_itself(self) -> None:
        """PING and PONG do not share a write, and so a record of TLS, with data."""
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
        """When the rate falls a PING goes out at once; the next one that is due lets data go on."""
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
        started = end.session.kept
        self.assertGreater(end.session.bytes_sent, before)
        end.advance(2.0)
        end.feed(frames.offset_frame(ACK, 0, 1000))
        sent()
        end.advance(0.4)
        end.feed(frames.offset_frame(ACK, 0, 2000))
        self.assertEqual([PING], sent())
        # All of it has arrived, and still data wait for the PONG.
        end.feed(frames.offset_frame(ACK, 0, started))
        self.assertNotIn(DATA, sent())
        end.advance(2.4)
        self.assertNotIn(DATA, sent())
        end.advance(0.2)
        self.assertIn(DATA, sent())

    @conformance("C-113")
    def test_interval(self) -> None:
        """Both ends ping at the longer of their intervals, four times as often when busy.

        A server is a twentieth of it ahead, and an idle agent that hears it leaves its own out.
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
                    # The peer is there.
                    end.feed(frames.offset_frame(PONG, 0, 0))
                    if any(kind == PING for kind, _, _ in end.sent()):
                        times.append(end.now)
            self.assertEqual(expected, [time for time in times if time <= 25.0])
            self.assertEqual(1.0, times[-1] - times[-2])

    @conformance("C-113")
    def test_unheard_server(self) -> None:
        """An agent that hears nothing of an idle server for an interval pings by itself."""
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
        """Those of a server's idle sessions go out together, up to a 128th of an interval early."""
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
        """An idle connection is given up 25 s after the last byte, by a server a little earlier."""
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
        """A connection with streams open is given up 7.5 s after the last byte."""
        end = End()
        end.advance(0.1)
        end.opened_by_peer()
        end.advance(7.3)
        self.assertEqual([], end.log.calls)
        end.advance(0.2)
        self.assertEqual(["silent"], end.log.calls)

    def test_becoming_busy(self) -> None:
        """A connection that has been idle is checked at once when a stream is opened."""
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
        """Any byte that comes shows that the peer is there, even half a frame."""
        end = End()
        frame = frames.coded_frame(frames.CLOSE, 0, Code.DONE, "x" * 50)
        for byte in frame[:20]:
            end.advance(10.0)
            end.feed(bytes([byte]))
        self.assertEqual([], end.log.calls)

    def test_silence_and_loss(self) -> None:
        """An owner that gives up the silent connection at once is asked nothing more."""
        end = End()
        end.log.on["silent"] = lambda: end.session.detach(end.now, 30.0)
        end.advance(40.0)
        self.assertEqual(["silent"], end.log.calls)
        end.advance(10.0)
        self.assertEqual((Code.SESSION_LOST, False), end.log.close)

    @conformance("C-134")
    def test_unanswered_ping(self) -> None:
        """A connection is in order as long as no PING waits for its answer for long."""
        end = End()
        end.advance(0.0)
        end.advance(0.25)
        end.feed(frames.offset_frame(PONG, 0, 1))
        end.advance(9.203125)
        self.assertTrue(end.session.in_order(end.now))
        end.advance(1.5 + 0.24)
        # That the peer is heard does not help.
        end.feed(frames.offset_frame(PING, 0, 7))
        self.assertTrue(end.session.in_order(end.now))
        end.advance(0.01)
        self.assertFalse(end.session.in_order(end.now))
        end.feed(frames.offset_frame(PONG, 0, 2))
        self.assertTrue(end.session.in_order(end.now))

    @conformance("C-134")
    def test_late_pong_is_an_answer(self) -> None:
        """So is the PONG of an earlier PING than the last, but one of none is not."""
        end = End()
        end.open(answered=True)
        for _ in range(2):
            end.advance(2.5)
        self.assertFalse(end.session.in_order(end.now))
        end.feed(frames.offset_frame(PONG, 0, 0), frames.offset_frame(PONG, 0, 99))
        self.assertFalse(end.session.in_order(end.now))
        end.feed(frames.offset_frame(PONG, 0, 1))
        self.assertTrue(end.session.in_order(end.now))

    @conformance("C-134")
    def test_acknowledgements_are_answers(self) -> None:
        """An ACK of more than before shows as well that the peer hears this side."""
        end = End()
        end.open(answered=True)
        end.advance(5.0)
        self.assertFalse(end.session.in_order(end.now))
        end.feed(frames.offset_frame(frames.ACK, 0, 0))
        self.assertFalse(end.session.in_order(end.now), "nothing new")
        end.feed(frames.offset_frame(frames.ACK, 0, 9))
        self.assertTrue(end.session.in_order(end.now))

    @conformance("C-134")
    def test_a_new_connection_is_in_order(self) -> None:
        """What was not answered on one connection says nothing of the next."""
        end = End()
        end.advance(5.0)
        end.session.detach(end.now, 30.0)
        end.session.attach(0, end.now)
        self.assertTrue(end.session.in_order(end.now))

    @conformance("C-134")
    def test_deaf_peer_gives_up(self) -> None:
        """When a peer gives up what it hears nothing from, the other end knows it did not hear.

        Whenever one direction is cut, and although the other one works until then.
        """
        for step in range(51):
            pair = Pair()
            pair.open()
            self.pass_time(pair, 10.0 + step * 0.05)
            while not pair.agent.log.calls:
                self.assertEqual([], pair.server.log.calls)
                self.pass_time(pair, 0.05, deaf=Side.AGENT)
            self.assertEqual(["silent"], pair.agent.log.calls)
            self.assertFalse(pair.server.session.in_order(pair.server.now))

    @conformance("C-134")
    def test_deaf_idle_agent_gives_up(self) -> None:
        """Without streams the server knows as well."""
        pair = Pair()
        self.pass_time(pair, 20.0)
        while not pair.agent.log.calls:
            self.assertEqual([], pair.server.log.calls)
            self.pass_time(pair, 0.05, deaf=Side.AGENT)
        self.assertFalse(pair.server.session.in_order(pair.server.now))

    @conformance("C-114", "C-134")
    def test_deaf_idle_server_gives_up(self) -> None:
        """Within 25 s; the agent, which asks nothing while it hears the server, does not know."""
        pair = Pair()
        self.pass_time(pair, 20.0)
        deaf_since = pair.server.now
        while not pair.server.log.calls:
            self.assertLess(pair.server.now - deaf_since, 25.0)
            self.pass_time(pair, 0.05, deaf=Side.SERVER)
        self.assertEqual([], pair.agent.log.calls)
        self.assertTrue(pair.agent.session.in_order(pair.agent.now))

    def pass_time(self, pair: Pair, seconds: float, deaf: Side | None = None) -> None:
        """Let time pass in steps, and all arrive, but nothing at the side that is ``deaf``."""
        for _ in range(round(seconds / 0.05)):
            for end in pair.ends.values():
                end.advance(0.05)
            if deaf is None:
                pair.settle()
            else:
                pair.ends[Side(3 - deaf)].sent_bytes()
                pair.move(deaf, 1 << 20)

    def test_round_trip(self) -> None:
        """The round trip is what a PONG took."""
        end = End()
        self.assertIsNone(end.session.round_trip)
        end.advance(0.0)
        end.advance(0.25)
        end.feed(frames.offset_frame(PONG, 0, 1))
        self.assertEqual(0.25, end.session.round_trip)
