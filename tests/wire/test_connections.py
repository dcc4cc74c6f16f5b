"""A session over several connections: acknowledgement, resumption, liveness, and the end."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import REQUEST, End, Frame, Pair, frames_in, limits, user_of
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.session import Side
from yurttunnel.wire.session_events import OpenRefused, SessionState

ACK, PING, PONG, DATA = frames.ACK, frames.PING, frames.PONG, frames.DATA
KIB = 1024


def acks_in(found: list[Frame]) -> list[int]:
    """List the offsets of all ACKs."""
    return [frames.decode_offset(payload) for kind, _, payload in found if kind == ACK]


class ServersTests(SynchronousTestCase):
    """How many servers there are, told while a session lasts."""

    @conformance("C-136")
    def test_told_to_agents(self) -> None:
        """The owner is told, of the newest number that a connection could carry."""
        pair = Pair()
        pair.server.session.tell_servers(1)
        pair.server.session.tell_servers(3)
        self.assertTrue(pair.server.session.may_send)
        pair.settle()
        self.assertEqual([("servers", 3)], pair.agent.log.calls)
        pair.lose()
        pair.server.session.tell_servers(2)
        pair.connect()
        pair.settle()
        self.assertEqual([("servers", 3)], pair.agent.log.calls)

    @conformance("C-136")
    def test_skipped_by_servers(self) -> None:
        """A server takes no agent's word for it; an agent that is told of none ends the session."""
        server, agent = End(), End(Side.AGENT)
        server.feed(frames.servers_frame(3))
        self.assertEqual([], server.log.calls)
        agent.feed(frames.frame(frames.SERVERS, 0, bytes(4)))
        self.assertEqual((Code.PROTOCOL, False), agent.log.close)


class SendingTests(SynchronousTestCase):
    """How an owner knows that it need not ask."""

    def test_nothing_to_send(self) -> None:
        """An idle session says so; it has something to send when a frame of any kind waits."""
        end = End()
        stream = end.opened_by_peer()
        end.sent()
        self.assertFalse(end.session.may_send)
        for prepare in (
            lambda: end.session.send(stream, b"data"),
            lambda: end.session.go_away(Code.GOING_AWAY, ""),
            lambda: end.feed(frames.offset_frame(PING, 0, 1)),
            lambda: end.session.close(Code.DONE, ""),
        ):
            prepare()
            self.assertTrue(end.session.may_send)
            end.sent()
            self.assertFalse(end.session.may_send)

    def test_credit_to_send(self) -> None:
        """Credit for a stream, or for the session, that is due is something to send."""
        for desired in (limits(stream_window=16 * KIB), limits(session_window=128 * KIB)):
            end = End(local=desired)
            end.session.resume(end.opened_by_peer(), end.now)
            end.sent()
            end.feed(frames.frame(DATA, 2, bytes(16 * KIB)))
            self.assertTrue(end.session.may_send)
            self.assertEqual([frames.CREDIT], [kind for kind, _, _ in end.sent() if kind != ACK])
            self.assertFalse(end.session.may_send)

    def test_to_send_again(self) -> None:
        """What the peer has not got before the connection was lost is something to send."""
        pair = Pair()
        near, _ = pair.open()
        session = pair.ends[Side.SERVER].session
        session.send(near, b"data")
        session.data_to_send(KIB)
        self.assertFalse(session.may_send)
        pair.lose()
        pair.connect()
        self.assertTrue(session.may_send)
        self.assertIn(b"data", session.data_to_send(KIB))


class AcknowledgementTests(SynchronousTestCase):
    """When an ACK goes out, and what may be acknowledged."""

    def setUp(self) -> None:
        """Have a stream open whose frames can be counted."""
        self.end = End()
        self.end.opened_by_peer()
        self.end.sent()
        self.opened = self.end.session.received

    @conformance("C-096")
    def test_what_counts(self) -> None:
        """Headers and payloads of session frames count, link frames do not."""
        self.assertEqual(len(frames.open_frame(2, REQUEST)), self.opened)
        self.end.feed(frames.frame(DATA, 2, b"abc"), frames.offset_frame(PING, 0, 1))
        self.assertEqual(self.opened + 12, self.end.session.received)

    @conformance("C-097")
    def test_much(self) -> None:
        """An ACK goes out by itself after 128 KiB."""
        for _ in range(3):
            self.end.feed(frames.frame(DATA, 2, bytes(32 * KIB)))
        self.assertEqual([], acks_in(self.end.sent(0)[1:]))
        self.end = End(local=limits(max_frame=1 << 20, stream_window=1 << 20))
        self.end.opened_by_peer()
        self.end.sent()
        self.end.feed(frames.frame(DATA, 2, bytes(128 * KIB - 100)))
        self.assertEqual([], self.end.sent())
        self.end.feed(frames.frame(DATA, 2, bytes(100)))
        self.assertEqual([self.end.session.received], acks_in(self.end.sent()))

    @conformance("C-098")
    def test_little(self) -> None:
        """An ACK for less goes out after 0.2 s."""
        self.end.advance(0.1)
        self.end.sent()
        self.end.feed(frames.frame(DATA, 2, b"abc"))
        self.end.sent()
        self.end.advance(0.2)
        self.assertEqual([self.opened + 12], acks_in(self.end.sent()))
        self.end.advance(1.0)
        self.assertEqual([], acks_in(self.end.sent()))

    @conformance("C-099")
    def test_along(self) -> None:
        """An ACK for 16 KiB goes along with other frames."""
        self.end.feed(frames.frame(DATA, 2, bytes(16 * KIB)))
        self.assertEqual([], self.end.sent())
        self.end.open()
        self.assertEqual([self.end.session.received], acks_in(self.end.sent()))

    @conformance("C-100")
    def test_impossible(self) -> None:
        """An ACK of what was not sent, or that goes back, is a violation."""
        for offsets in ([1000], [20, 19]):
            end = End()
            end.open()
            end.sent()
            end.feed(*[frames.offset_frame(ACK, 0, offset) for offset in offsets])
            self.assertEqual(Code.PROTOCOL, end.closed)

    def test_kept_until_acknowledged(self) -> None:
        """What was sent is kept until it is acknowledged."""
        self.end.open()
        self.end.sent()
        self.assertGreater(self.end.session.kept, 0)
        self.end.feed(frames.offset_frame(ACK, 0, self.end.session._send_queue.log.end))
        self.assertEqual(0, self.end.session.kept)


class ResumptionTests(SynchronousTestCase):
    """A session goes on over another connection."""

    def setUp(self) -> None:
        """Connect an agent and a server, with a stream between them."""
        self.pair = Pair()
        self.near, self.far = self.pair.open()
        self.server, self.agent = self.pair.server.session, self.pair.agent.session

    @conformance("C-101", "C-102")
    def test_within_data(self) -> None:
        """After a loss within a DATA frame its rest follows, without a header."""
        content = bytes(range(256)) * 100
        before = self.agent.received
        self.server.send(self.near, content)
        self.pair.move(Side.SERVER, 9 + 10_000)
        self.pair.lose()
        self.assertEqual(before + 9 + 10_000, self.agent.received)
        self.pair.connect()
        self.assertEqual(content[10_000:], self.server.data_to_send(1 << 20))
        self.pair.lose()
        self.pair.connect()
        self.pair.settle()
        self.assertEqual(content, user_of(self.far).data)

    @conformance("C-101")
    def test_old_before_new(self) -> None:
        """What was sent is sent again before anything new."""
        self.server.send(self.near, b"old")
        self.server.data_to_send(100)
        self.pair.lose()
        self.server.send(self.near, b"new")
        self.pair.server.open()
        self.pair.connect()
        self.assertEqual(
            [DATA, frames.OPEN, DATA], [kind for kind, _, _ in self.pair.server.sent()]
        )

    @conformance("C-103")
    def test_within_another_frame(self) -> None:
        """After a loss within any other frame the whole frame comes again."""
        self.pair.server.open()
        before = self.agent.received
        self.pair.move(Side.SERVER, 15)
        self.assertEqual(before, self.agent.received)
        self.pair.lose()
        self.pair.connect()
        self.pair.settle()
        self.assertEqual(2, len(self.pair.agent.log.requested))

    @conformance("C-104")
    def test_impossible_counts(self) -> None:
        """A HELLO that claims what was not sent, or less than was acknowledged, ends all."""
        for change in (1, -1):
            pair = Pair()
            near, _ = pair.open()
            pair.server.advance(0.5)
            pair.agent.advance(0.5)
            pair.settle()
            self.assertEqual(0, pair.server.session.kept)
            pair.lose()
            self.assertTrue(pair.server.session.can_resume(pair.agent.session.received))
            received = pair.agent.session.received + change
            self.assertFalse(pair.server.session.can_resume(received))
            violation = self.assertRaises(Violation, pair.server.session.attach, received, 1.0)
            self.assertEqual(Code.PROTOCOL, violation.code)
            self.assertEqual((Code.PROTOCOL, False), pair.server.log.close)
            self.assertEqual(Code.PROTOCOL, user_of(near).end)
            self.assertEqual(b"", pair.server.session.data_to_send(100))

    def test_a_connection_takes_another_ones_place(self) -> None:
        """A new connection may come before the loss of the old one has been noticed."""
        self.server.send(self.near, b"abc")
        self.server.data_to_send(100)
        self.pair.connect()
        self.pair.settle()
        self.assertEqual(b"abc", user_of(self.far).data)

    def test_hello_acknowledges(self) -> None:
        """What the HELLO of a new connection has acknowledged is not acknowledged again."""
        self.server.send(self.near, bytes(60_000))
        self.pair.move(Side.SERVER, 100_000)
        self.pair.lose()
        self.pair.connect()
        self.assertEqual(0, self.server.kept)
        self.agent.send(self.far, b"x")
        self.assertEqual([], acks_in(self.pair.agent.sent()))

    def test_impossible_count_while_connected(self) -> None:
        """A violation in a HELLO is for the caller to answer, on the new connection."""
        self.assertRaises(Violation, self.server.attach, 1 << 20, 0.0)
        self.assertEqual((Code.PROTOCOL, False), self.pair.server.log.close)
        self.assertEqual(b"", self.server.data_to_send(100))

    def test_what_is_sent_again_acknowledges(self) -> None:
        """What has come meanwhile is acknowledged along with the first of it."""
        self.server.send(self.near, bytes(1000))
        self.server.data_to_send(10_000)
        self.pair.lose()
        self.pair.connect()
        self.agent.send(self.far, bytes(20_000))
        self.pair.move(Side.AGENT, 30_000)
        self.assertEqual([DATA, ACK], [kind for kind, _, _ in self.pair.server.sent()])

    def test_users_go_on(self) -> None:
        """While there is no connection, streams can be opened, written, ended and read."""
        self.server.send(self.near, b"before")
        self.agent.pause(self.far)
        self.pair.settle()
        self.pair.lose()
        self.assertEqual(b"", self.server.data_to_send(100))
        self.agent.resume(self.far, 0.0)
        self.assertEqual(b"before", user_of(self.far).data)
        self.server.send(self.near, b" after")
        self.server.finish(self.near)
        self.agent.finish(self.far)
        self.pair.server.open()
        self.pair.connect()
        self.pair.settle()
        self.assertEqual(b"before after", user_of(self.far).data)
        self.assertTrue(self.near.closed and self.far.closed)
        self.assertEqual(2, len(self.pair.agent.log.requested))

    @conformance("C-107")
    def test_nobody_comes_back(self) -> None:
        """Without a connection for the resume window the session and its streams end."""
        self.pair.server.advance(100.0)
        self.assertIsNone(self.server.waits_for(100.0))
        self.pair.lose(keep=20.0)
        waits = [self.server.waits_for(now) for now in (100.0, 119.0, 121.0)]
        self.assertEqual([20.0, 1.0, 0.0], waits)
        self.pair.server.advance(19.9)
        self.assertIsNone(self.pair.server.closed)
        self.pair.server.advance(0.1)
        self.assertEqual((Code.SESSION_LOST, False), self.pair.server.log.close)
        self.assertEqual(Code.SESSION_LOST, user_of(self.near).end)
        self.assertEqual(0, self.server.memory.used)

    @conformance("C-107")
    def test_nobody_ever_came(self) -> None:
        """A session that never had a connection ends after its resume window."""
        end = End(local=limits(resume_window=5000), attached=False)
        end.session.tick(4.9)
        self.assertIsNone(end.closed)
        end.session.tick(5.0)
        self.assertEqual(Code.SESSION_LOST, end.closed)

    @conformance("C-108")
    def test_close_within_data(self) -> None:
        """When a session ends on a new connection, CLOSE comes after a frame's rest."""
        self.server.send(self.near, b"x" * 1000)
        self.pair.move(Side.SERVER, 500)
        self.pair.lose()
        self.pair.connect()
        self.server.close(Code.REPLACED, "newer")
        self.pair.settle()
        self.assertEqual(b"x" * 1000, user_of(self.far).data)
        self.assertEqual((Code.REPLACED, True), self.pair.agent.log.close)

    @conformance("C-109")
    def test_link_frames_are_not_repeated(self) -> None:
        """Link frames that were not sent are forgotten with the connection."""
        self.pair.server.feed(frames.offset_frame(PING, 0, 1))
        self.pair.lose()
        self.assertEqual([], self.pair.server.sent())
        self.pair.server.feed(frames.offset_frame(PING, 0, 1))
        self.pair.connect()
        self.assertEqual([], self.pair.server.sent())
        # The server has not noticed the loss when the agent comes back.
        self.pair.server.feed(frames.offset_frame(PING, 0, 1))
        self.pair.connect()
        self.assertEqual([], self.pair.server.sent())

    @conformance("C-110")
    def test_a_closed_session_stays_closed(self) -> None:
        """A session that is over takes no new connection."""
        self.server.close(Code.REVOKED, "")
        violation = self.assertRaises(Violation, self.server.attach, 0, 0.0)
        self.assertEqual(Code.SESSION_LOST, violation.code)
        self.server.detach(0.0, 1.0)
        self.assertIs(SessionState.CLOSED, self.server.state)

    def test_nothing_is_read_while_detached(self) -> None:
        """Bytes of a connection that is given up are not read."""
        self.pair.lose()
        self.pair.server.feed(b"garbage" * 10)
        self.assertIsNone(self.pair.server.closed)


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
        """Both ends ping at the longer of their intervals, four times as often when busy."""
        for local, peer in ((1000, 4000), (4000, 1000)):
            end = End(local=limits(ping_interval=local), peer=limits(ping_interval=peer))
            times = []
            for busy in (False, True):
                if busy:
                    end.opened_by_peer()
                for _ in range(100):
                    end.advance(0.125)
                    # The peer is there.
                    end.feed(frames.offset_frame(PONG, 0, 0))
                    if any(kind == PING for kind, _, _ in end.sent()):
                        times.append(end.now)
            idle = [time for time in times if time <= 12.5]
            self.assertEqual([0.125, 4.0, 8.0, 12.0], idle)
            self.assertEqual(1.0, times[-1] - times[-2])

    @conformance("C-114")
    def test_idle(self) -> None:
        """An idle connection is given up 25 s after the last byte."""
        end = End()
        end.advance(0.1)
        end.feed(frames.offset_frame(PONG, 0, 1))
        end.advance(24.8)
        self.assertEqual([], end.log.calls)
        end.advance(0.2)
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
        end.advance(9.75)
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
                self.pass_time(pair, 0.05, deaf=True)
            self.assertEqual(["silent"], pair.agent.log.calls)
            self.assertFalse(pair.server.session.in_order(pair.server.now))

    def pass_time(self, pair: Pair, seconds: float, deaf: bool = False) -> None:
        """Let time pass in steps, and all arrive, but at the agent nothing if it is ``deaf``."""
        for _ in range(round(seconds / 0.05)):
            for end in pair.ends.values():
                end.advance(0.05)
            if deaf:
                pair.server.sent_bytes()
                pair.move(Side.AGENT, 1 << 20)
            else:
                pair.settle()

    def test_round_trip(self) -> None:
        """The round trip is what a PONG took."""
        end = End()
        self.assertIsNone(end.session.round_trip)
        end.advance(0.0)
        end.advance(0.25)
        end.feed(frames.offset_frame(PONG, 0, 1))
        self.assertEqual(0.25, end.session.round_trip)


class GoingAwayTests(SynchronousTestCase):
    """GOAWAY in two steps."""

    def setUp(self) -> None:
        """Connect an agent and a server."""
        self.pair = Pair()
        self.server, self.agent = self.pair.server.session, self.pair.agent.session

    @conformance("C-118", "C-121", "C-122")
    def test_first_step(self) -> None:
        """After the first GOAWAY either side may still open streams, after the second neither."""
        near, far = self.pair.open()
        opened = [self.pair.server.open()]
        self.agent.go_away(Code.GOING_AWAY, "upgrade")
        self.pair.settle()
        self.assertIn(("going away", Code.GOING_AWAY, "upgrade"), self.pair.server.log.calls)
        opened.append(self.pair.server.open())
        self.pair.agent.open()
        self.pair.settle()
        self.assertEqual(1, len(self.pair.server.log.requested))
        for stream in self.pair.agent.log.requested[1:]:
            self.agent.accept(stream)
        self.server.send(near, b"still here")
        self.pair.settle()
        self.assertEqual([["opened"], ["opened"]], [user_of(stream).calls for stream in opened])
        self.assertEqual(b"still here", user_of(far).data)

        self.agent.go_away(Code.GOING_AWAY, "upgrade")
        self.assertRaises(OpenRefused, self.pair.agent.open)
        self.pair.settle()
        refused = self.assertRaises(OpenRefused, self.pair.server.open)
        self.assertEqual(Code.GOING_AWAY, refused.code)
        self.assertIsNone(user_of(opened[1]).end)

    @conformance("C-118")
    def test_frames_of_both_steps(self) -> None:
        """The first step names the highest number of all, the second the last one served."""
        end = End()
        end.opened_by_peer(8)
        end.sent()
        for _ in range(3):
            end.session.go_away(Code.GOING_AWAY, "")
        lasts = [frames.decode_goaway(payload)[0] for _, _, payload in end.sent()]
        self.assertEqual([0xFFFFFFFF, 8], lasts)

    @conformance("C-119")
    def test_streams_after_the_second_step(self) -> None:
        """A stream that comes after the second step is answered by GOING_AWAY."""
        end = End()
        for _ in range(2):
            end.session.go_away(Code.GOING_AWAY, "")
        end.sent()
        end.feed(frames.open_frame(2, REQUEST))
        ((kind, number, payload),) = end.sent()
        self.assertEqual((frames.FAIL, 2), (kind, number))
        self.assertEqual(Code.GOING_AWAY, frames.decode_coded(payload)[0])

    @conformance("C-120")
    def test_streams_above_the_last(self) -> None:
        """Streams being opened above the last number end with GOING_AWAY, others go on."""
        end = End()
        streams = [end.open() for _ in range(3)]
        end.feed(frames.goaway_frame(3, Code.GOING_AWAY, "bye"))
        self.assertEqual([None, None, Code.GOING_AWAY], [user_of(stream).end for stream in streams])
        end.feed(frames.frame(frames.OK, 3), frames.coded_frame(frames.FAIL, 5, Code.DONE, ""))
        self.assertIsNone(end.closed)

    @conformance("C-121")
    def test_drained(self) -> None:
        """The end of the last stream is told at both ends, whichever the step is."""
        near, far = self.pair.open()
        self.agent.go_away(Code.GOING_AWAY, "")
        self.pair.settle()
        for log in (self.pair.agent.log, self.pair.server.log):
            self.assertNotIn("drained", log.calls)
        self.server.reset(near, Code.CANCELLED, "")
        self.pair.settle()
        self.assertTrue(far.closed)
        for log in (self.pair.agent.log, self.pair.server.log):
            self.assertEqual(1, log.calls.count("drained"))

    def test_refuses_streams(self) -> None:
        """That no stream is left is told with each step; after the second none can come."""
        for step, refuses in ((1, False), (2, True)):
            self.agent.go_away(Code.GOING_AWAY, "")
            self.assertEqual(["drained"] * step, self.pair.agent.log.calls)
            self.assertEqual(refuses, self.agent.refuses_streams)

    def test_refusing_the_last_stream(self) -> None:
        """Refusing the last stream drains the session as well."""
        end = End()
        stream = end.opened_by_peer(accepted=False)
        for _ in range(2):
            end.session.go_away(Code.GOING_AWAY, "")
        end.session.refuse(stream, Code.DENIED, "")
        self.assertEqual(["drained"], end.log.calls)

    def test_when_the_session_is_over(self) -> None:
        """A session that is over does not go away."""
        end = End()
        end.session.close(Code.DONE, "")
        end.session.go_away(Code.GOING_AWAY, "")
        self.assertFalse(end.session.going_away)

    @conformance("C-033")
    def test_goaway_of_a_stream(self) -> None:
        """GOAWAY that names a stream is a violation."""
        end = End()
        end.feed(frames.HEADER.pack(6, frames.GOAWAY, 1), bytes(6))
        self.assertEqual(Code.PROTOCOL, end.closed)

    def test_told_once(self) -> None:
        """That the peer goes away is told once."""
        end = End()
        for last in (0xFFFFFFFF, 0):
            end.feed(frames.goaway_frame(last, Code.GOING_AWAY, ""))
        self.assertEqual(1, sum(call[0] == "going away" for call in end.log.calls))


class ClosingTests(SynchronousTestCase):
    """The end of a session."""

    @conformance("C-123")
    def test_close(self) -> None:
        """CLOSE ends the session and every stream at both ends with its code."""
        pair = Pair()
        near, far = pair.open()
        pair.server.session.close(Code.REVOKED, "the certificate")
        pair.server.session.close(Code.DONE, "again")
        self.assertEqual((Code.REVOKED, "the certificate"), user_of(near).calls[-1])
        pair.settle()
        self.assertEqual((Code.REVOKED, "the certificate"), user_of(far).calls[-1])
        self.assertEqual((Code.REVOKED, False), pair.server.log.close)
        self.assertEqual((Code.REVOKED, True), pair.agent.log.close)
        for end in (pair.server, pair.agent):
            self.assertEqual((0, {}), (end.session.memory.used, end.session.streams))

    @conformance("C-123")
    def test_close_well(self) -> None:
        """CLOSE with DONE ends streams that are open with GOING_AWAY: they did not end well."""
        pair = Pair()
        near, far = pair.open()
        pair.server.session.close(Code.DONE, "")
        pair.settle()
        self.assertEqual(Code.GOING_AWAY, user_of(near).end)
        self.assertEqual(Code.GOING_AWAY, user_of(far).end)
        self.assertEqual((Code.DONE, True), pair.agent.log.close)

    @conformance("C-124")
    def test_nothing_is_read_after_close(self) -> None:
        """Nothing that follows CLOSE is read, in the same bytes or later."""
        end = End()
        after = frames.open_frame(2, REQUEST) + frames.frame(DATA, 2, b"x") + b"\xff" * 99
        end.feed(frames.coded_frame(frames.CLOSE, 0, Code.DONE, "") + after, after)
        self.assertEqual([], end.log.requested)
        self.assertEqual((Code.DONE, True), end.log.close)

    @conformance("C-125")
    def test_nothing_is_sent_after_close(self) -> None:
        """CLOSE is the last frame, whatever waited to be sent; a received one is not answered."""
        end = End()
        stream = end.open(answered=True)
        end.session.send(stream, b"x" * 100)
        end.feed(frames.offset_frame(PING, 0, 1))
        end.session.close(Code.REPLACED, "")
        self.assertEqual([(frames.CLOSE, 0, b"\0\x22")], end.sent())
        end.session.reset(stream, Code.CANCELLED, "")
        end.advance(100.0)
        self.assertEqual([], end.sent())
        end = End()
        end.open()
        end.feed(frames.coded_frame(frames.CLOSE, 0, Code.DONE, ""))
        self.assertEqual([], end.sent())

    @conformance("C-126")
    def test_violations_are_answered(self) -> None:
        """A violation is answered by CLOSE with its code and a sentence."""
        end = End()
        end.feed(frames.frame(frames.OK, 9))
        ((kind, number, payload),) = end.sent()
        self.assertEqual((frames.CLOSE, 0), (kind, number))
        code, text = frames.decode_coded(payload)
        self.assertEqual(Code.PROTOCOL, code)
        self.assertIn("never opened", text)
