"""A session and its connections: acknowledgements, and resumption over a new connection."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import REQUEST, End, Frame, Pair, limits, user_of
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.session import Side
from yurttunnel.wire.session_events import SessionState

ACK, PING, DATA = frames.ACK, frames.PING, frames.DATA

KIB = 1024


def acks_in(found: list[Frame]) -> list[int]:
    """List the offsets of all ACKs."""
    return [frames.decode_offset(payload) for kind, _, payload in found if kind == ACK]


class ServersTests(SynchronousTestCase):
    """The number of servers, sent during a session."""

    @conformance("C-136")
    def test_sent_to_agents(self) -> None:
        """The owner is notified of the newest number that a connection could transfer."""
        pair = Pair()
        pair.server.session.send_servers(1)
        pair.server.session.send_servers(3)
        self.assertTrue(pair.server.session.may_send)
        pair.settle()
        self.assertEqual([("servers", 3)], pair.agent.log.calls)
        pair.lose()
        pair.server.session.send_servers(2)
        pair.connect()
        pair.settle()
        self.assertEqual([("servers", 3)], pair.agent.log.calls)

    @conformance("C-136")
    def test_skipped_by_servers(self) -> None:
        """A server ignores SERVERS from an agent; an agent that receives 0 ends the session."""
        server, agent = End(), End(Side.AGENT)
        server.feed(frames.servers_frame(3))
        self.assertEqual([], server.log.calls)
        agent.feed(frames.frame(frames.SERVERS, 0, bytes(4)))
        self.assertEqual((Code.PROTOCOL, False), agent.log.close)


class SendingTests(SynchronousTestCase):
    """``may_send`` tells the owner whether there are bytes to send."""

    def test_nothing_to_send(self) -> None:
        """An idle session has nothing to send; it has when a frame of any kind is queued."""
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
        """Credit that is due for a stream or the session is something to send."""
        for desired in (limits(stream_window=16 * KIB), limits(session_window=128 * KIB)):
            end = End(local=desired)
            end.session.resume(end.opened_by_peer(), end.now)
            end.sent()
            end.feed(frames.frame(DATA, 2, bytes(16 * KIB)))
            self.assertTrue(end.session.may_send)
            self.assertEqual([frames.CREDIT], [kind for kind, _, _ in end.sent() if kind != ACK])
            self.assertFalse(end.session.may_send)

    def test_to_send_again(self) -> None:
        """Data that the peer lacked when the connection was lost is something to send."""
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
    """When an ACK is sent, and which positions are valid."""

    def setUp(self) -> None:
        """Open a stream whose frames can be counted."""
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
        """An ACK is sent on its own after 128 KiB."""
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
        """For fewer bytes an ACK is sent after 0.2 s."""
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
        """After 16 KiB an ACK is sent together with other frames."""
        self.end.feed(frames.frame(DATA, 2, bytes(16 * KIB)))
        self.assertEqual([], self.end.sent())
        self.end.open()
        self.assertEqual([self.end.session.received], acks_in(self.end.sent()))

    @conformance("C-100")
    def test_impossible(self) -> None:
        """An ACK for bytes that were not sent, or with a decreasing position, is a violation."""
        for offsets in ([1000], [20, 19]):
            end = End()
            end.open()
            end.sent()
            end.feed(*[frames.offset_frame(ACK, 0, offset) for offset in offsets])
            self.assertEqual(Code.PROTOCOL, end.closed)

    def test_kept_until_acknowledged(self) -> None:
        """Sent data is kept until it is acknowledged."""
        self.end.open()
        self.end.sent()
        self.assertGreater(self.end.session.unacknowledged, 0)
        self.end.feed(frames.offset_frame(ACK, 0, self.end.session._send_queue.log.end))
        self.assertEqual(0, self.end.session.unacknowledged)


class ResumptionTests(SynchronousTestCase):
    """A session resumes over another connection."""

    def setUp(self) -> None:
        """Connect an agent and a server, with a stream between them."""
        self.pair = Pair()
        self.near, self.far = self.pair.open()
        self.server, self.agent = self.pair.server.session, self.pair.agent.session

    @conformance("C-101", "C-102")
    def test_within_data(self) -> None:
        """After a loss within a DATA frame the rest of the frame follows, without a header."""
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
        """Retransmitted data is sent before new data."""
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
        """After a loss within any other frame the whole frame is sent again."""
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
        """A HELLO with a count that was not sent, or was acknowledged before, ends the session."""
        for change in (1, -1):
            pair = Pair()
            near, _ = pair.open()
            pair.server.advance(0.5)
            pair.agent.advance(0.5)
            pair.settle()
            self.assertEqual(0, pair.server.session.unacknowledged)
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
        """A new connection may arrive before the loss of the old one is detected."""
        self.server.send(self.near, b"abc")
        self.server.data_to_send(100)
        self.pair.connect()
        self.pair.settle()
        self.assertEqual(b"abc", user_of(self.far).data)

    def test_hello_acknowledges(self) -> None:
        """Data that the HELLO of a new connection has acknowledged is not acknowledged again."""
        self.server.send(self.near, bytes(60_000))
        self.pair.move(Side.SERVER, 100_000)
        self.pair.lose()
        self.pair.connect()
        self.assertEqual(0, self.server.unacknowledged)
        self.agent.send(self.far, b"x")
        self.assertEqual([], acks_in(self.pair.agent.sent()))

    def test_impossible_count_while_connected(self) -> None:
        """A violation in a HELLO is raised to the caller, which answers on the new connection."""
        self.assertRaises(Violation, self.server.attach, 1 << 20, 0.0)
        self.assertEqual((Code.PROTOCOL, False), self.pair.server.log.close)
        self.assertEqual(b"", self.server.data_to_send(100))

    def test_what_is_sent_again_acknowledges(self) -> None:
        """Data received meanwhile is acknowledged together with the first retransmitted data."""
        self.server.send(self.near, bytes(1000))
        self.server.data_to_send(10_000)
        self.pair.lose()
        self.pair.connect()
        self.agent.send(self.far, bytes(20_000))
        self.pair.move(Side.AGENT, 30_000)
        self.assertEqual([DATA, ACK], [kind for kind, _, _ in self.pair.server.sent()])

    def test_users_go_on(self) -> None:
        """Without a connection, streams can still be opened, written, ended and read."""
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
    def test_no_reconnection(self) -> None:
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
    def test_no_connection(self) -> None:
        """A session that never had a connection ends after its resume window."""
        end = End(local=limits(resume_window=5000), attached=False)
        end.session.tick(4.9)
        self.assertIsNone(end.closed)
        end.session.tick(5.0)
        self.assertEqual(Code.SESSION_LOST, end.closed)

    @conformance("C-108")
    def test_close_within_data(self) -> None:
        """When a session ends on a new connection, CLOSE follows the rest of a frame."""
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
        """Link frames that were not sent are dropped with the connection."""
        self.pair.server.feed(frames.offset_frame(PING, 0, 1))
        self.pair.lose()
        self.assertEqual([], self.pair.server.sent())
        self.pair.server.feed(frames.offset_frame(PING, 0, 1))
        self.pair.connect()
        self.assertEqual([], self.pair.server.sent())
        # The server has not detected the loss when the agent reconnects.
        self.pair.server.feed(frames.offset_frame(PING, 0, 1))
        self.pair.connect()
        self.assertEqual([], self.pair.server.sent())

    @conformance("C-110")
    def test_a_closed_session_stays_closed(self) -> None:
        """A closed session accepts no new connection."""
        self.server.close(Code.REVOKED, "")
        violation = self.assertRaises(Violation, self.server.attach, 0, 0.0)
        self.assertEqual(Code.SESSION_LOST, violation.code)
        self.server.detach(0.0, 1.0)
        self.assertIs(SessionState.CLOSED, self.server.state)

    def test_nothing_is_read_while_detached(self) -> None:
        """Bytes of an abandoned connection are ignored."""
        self.pair.lose()
        self.pair.server.feed(b"garbage" * 10)
        self.assertIsNone(self.pair.server.closed)
