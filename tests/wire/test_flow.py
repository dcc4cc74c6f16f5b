"""Credit and order in a session: how much each side may send, and what is sent first."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import End, Frame, Pair, frames_in, limits, user_of
from yurttunnel.wire import frames
from yurttunnel.wire.bdp_estimate import MAX_UNACKNOWLEDGED
from yurttunnel.wire.codes import Code
from yurttunnel.wire.send_queue import MAX_CONTROL
from yurttunnel.wire.session import Side

DATA, CREDIT, FIN = frames.DATA, frames.CREDIT, frames.FIN
KIB = 1024
PLENTY = 1 << 31


def data_in(found: list[Frame]) -> int:
    """Count the payload bytes of all DATA."""
    return sum(len(payload) for kind, _, payload in found if kind == DATA)


def credits_in(found: list[Frame]) -> list[tuple[int, int]]:
    """List the stream and the offset of each CREDIT."""
    return [(number, frames.decode_offset(data)) for kind, number, data in found if kind == CREDIT]


class SendingCreditTests(SynchronousTestCase):
    """The credit of this end."""

    @conformance("C-077", "C-078")
    def test_stream_credit(self) -> None:
        """The peer's window limits the sent data, and each CREDIT raises the limit."""
        end = End(peer=limits(stream_window=1000))
        stream = end.open(answered=True)
        end.session.send(stream, bytes(5000))
        self.assertEqual(1000, data_in(end.sent()))
        end.feed(frames.offset_frame(CREDIT, 1, 1500))
        self.assertEqual(500, data_in(end.sent()))
        end.feed(frames.offset_frame(CREDIT, 1, 1501))
        self.assertEqual(1, data_in(end.sent()))

    @conformance("C-079", "C-091")
    def test_repeated_credit(self) -> None:
        """A repeated or lower CREDIT changes nothing; the maximum value is valid."""
        end = End(peer=limits(stream_window=1000))
        stream = end.open(answered=True)
        end.session.send(stream, bytes(5000))
        end.sent()
        end.feed(*[frames.offset_frame(CREDIT, 1, limit) for limit in (0, 999, 1000)])
        end.feed(frames.offset_frame(CREDIT, 0, 5))
        self.assertEqual(0, data_in(end.sent()))
        end.feed(frames.offset_frame(CREDIT, 1, 2**64 - 1), frames.offset_frame(CREDIT, 1, 7))
        self.assertEqual(4000, data_in(end.sent()))

    def test_credit_before_the_answer(self) -> None:
        """CREDIT may arrive before OK."""
        end = End(peer=limits(stream_window=1000))
        stream = end.open()
        end.session.send(stream, bytes(5000))
        end.feed(frames.offset_frame(CREDIT, 1, 2000))
        self.assertEqual(2000, data_in(end.sent()))

    @conformance("C-081")
    def test_session_credit(self) -> None:
        """The session's credit limits all streams together, and CREDIT for stream 0 raises it."""
        end = End(peer=limits(session_window=1500, stream_window=1000))
        for stream in [end.open(answered=True) for _ in range(2)]:
            end.session.send(stream, bytes(1000))
        self.assertEqual(1500, data_in(end.sent()))
        end.feed(frames.offset_frame(CREDIT, 0, 1600))
        self.assertEqual(100, data_in(end.sent()))
        self.assertEqual(1600, end.session.bytes_sent)

    def test_closed_streams_do_not_wait_for_credit(self) -> None:
        """Streams closed while the session has no credit leave nothing behind."""
        end = End(peer=limits(session_window=1))
        for _ in range(100):
            stream = end.open()
            end.session.send(stream, b"abc")
            end.sent()
            end.session.reset(stream, Code.CANCELLED, "")
        self.assertFalse(end.session._send_queue.queue.new)

    def test_fin_needs_no_credit(self) -> None:
        """FIN is sent without credit if no data precedes it."""
        end = End(peer=limits(stream_window=10))
        stream = end.open(answered=True)
        end.session.send(stream, bytes(10))
        end.sent()
        end.session.finish(stream)
        self.assertEqual([(FIN, 1, b"")], end.sent())

    @conformance("C-034")
    def test_largest_frame(self) -> None:
        """No frame exceeds the peer's maximum."""
        end = End(peer=limits(max_frame=5000))
        end.session.send(end.open(answered=True), bytes(12_000))
        self.assertEqual([5000, 5000, 2000], [len(payload) for _, _, payload in end.sent()])

    @conformance("C-106")
    def test_too_much_unacknowledged(self) -> None:
        """Above the limit of unacknowledged data no new data is sent, but control frames are."""
        end = End(peer=limits(stream_window=PLENTY, session_window=PLENTY))
        stream = end.open(answered=True)
        for _ in range(48):
            end.session.send(stream, bytes(KIB * KIB))
        end.sent(64 * KIB)
        self.assertTrue(
            MAX_UNACKNOWLEDGED <= end.session.unacknowledged < MAX_UNACKNOWLEDGED + 128 * KIB
        )
        end.open()
        found = end.sent(64 * KIB)
        self.assertEqual([frames.OPEN], [kind for kind, _, _ in found])
        acknowledge(end)
        self.assertEqual(0, end.session.unacknowledged)
        self.assertGreaterEqual(data_in(end.sent(64 * KIB)), MAX_UNACKNOWLEDGED)

    @conformance("C-131")
    def test_nothing_is_ever_acknowledged(self) -> None:
        """A peer that reads everything and acknowledges nothing costs limited memory."""
        end = End(peer=limits(stream_window=PLENTY, session_window=PLENTY))
        stream = end.open(answered=True)
        for _ in range(20):
            end.session.send(stream, bytes(KIB * KIB))
        end.sent(64 * KIB)
        self.assertGreaterEqual(end.session.unacknowledged, MAX_UNACKNOWLEDGED)
        number = 2
        while not end.closed:
            end.now += 0.001
            end.feed(frames.open_frame(number, end.session.streams[1].request))
            request = end.log.requested[-1]
            end.session.refuse(request, Code.DENIED, "x" * 1000)
            end.sent(64 * KIB)
            self.assertLess(
                end.session.unacknowledged, MAX_UNACKNOWLEDGED + MAX_CONTROL + 200 * KIB
            )
            self.assertLess(end.session._send_queue.control_size, 2 * KIB * KIB)
            number += 2
        self.assertEqual(Code.FLOOD, end.closed)


class FullOutboxTests(SynchronousTestCase):
    """The peer acknowledges nothing for a while, until nothing new at all may be sent."""

    def setUp(self) -> None:
        """Fill the limit, first with data and then with other frames."""
        self.end = End(
            local=limits(stream_window=1000, session_window=8000),
            peer=limits(stream_window=PLENTY, session_window=PLENTY),
        )
        self.stream = self.end.opened_by_peer()
        self.end.session.send(self.stream, bytes(MAX_UNACKNOWLEDGED + KIB * KIB))
        self.end.sent(64 * KIB)
        while self.end.session.unacknowledged < MAX_UNACKNOWLEDGED + MAX_CONTROL:
            number = self.end.log.requested[-1].number
            request = self.end.opened_by_peer(number + 2, accepted=False)
            self.end.session.refuse(request, Code.DENIED, "x" * 1000)
            self.end.sent(64 * KIB)

    @conformance("C-131")
    def test_nothing_new(self) -> None:
        """Neither data nor control frames are sent, but link frames are."""
        self.end.open()
        self.end.feed(frames.offset_frame(frames.PING, 0, 7))
        found = self.end.sent(64 * KIB)
        self.assertEqual([(frames.PONG, 0, (7).to_bytes(8, "big"))], found)

    def test_no_credit_is_lost(self) -> None:
        """Credit that becomes due meanwhile is granted as soon as there is room again."""
        self.end.feed(frames.frame(DATA, 2, bytes(999)), frames.frame(DATA, 2, b"x"))
        for _ in range(3):
            self.assertEqual([], credits_in(self.end.sent(64 * KIB)))
        acknowledge(self.end)
        found = self.end.sent(64 * KIB)
        self.assertEqual([(0, 9000), (2, 2000)], credits_in(found))
        self.assertEqual([], credits_in(self.end.sent(64 * KIB)))
        self.end.feed(frames.frame(DATA, 2, bytes(1000)))
        self.assertIsNone(self.end.closed)

    def test_no_control_frame_is_lost(self) -> None:
        """Frames queued meanwhile are sent in order, before data."""
        self.end.open()
        self.end.session.accept(self.end.opened_by_peer(5000, accepted=False))
        self.assertEqual([], self.end.sent(64 * KIB))
        acknowledge(self.end)
        found = [kind for kind, _, _ in self.end.sent(64 * KIB)]
        self.assertEqual([frames.OPEN, frames.OK], found[:2])
        self.assertEqual({DATA}, set(found[2:]))


class ReceivingCreditTests(SynchronousTestCase):
    """The credit of the peer."""

    @conformance("C-080")
    def test_stream_credit_exactly(self) -> None:
        """All of a stream's credit may be used; a byte more is a violation, in any pieces."""
        for cut in (1, 7, 999, 1000, 2000):
            end = End(local=limits(stream_window=1000))
            stream = end.opened_by_peer()
            end.session.pause(stream)
            end.feed(frames.frame(DATA, 2, bytes(1000)))
            self.assertIsNone(end.closed)
            end = End(local=limits(stream_window=1000))
            stream = end.opened_by_peer()
            end.session.pause(stream)
            data = frames.frame(DATA, 2, bytes(1001))
            end.feed(*[data[start : start + cut] for start in range(0, len(data), cut)])
            self.assertEqual(Code.FLOW_CONTROL, end.closed)

    @conformance("C-082")
    def test_session_credit_exactly(self) -> None:
        """All of the session's credit may be used; a byte more is a violation."""
        end = End(local=limits(session_window=3000, stream_window=1000))
        for number in (2, 4):
            end.session.pause(end.opened_by_peer(number))
            end.feed(frames.frame(DATA, number, bytes(1000)))
        # Data for a closed stream is consumed at once, but counts when it arrives.
        end.session.reset(end.opened_by_peer(6, accepted=False), Code.CANCELLED, "")
        for amount in (1000, 1001):
            end.feed(frames.frame(DATA, 6, bytes(amount)))
        self.assertEqual(Code.FLOW_CONTROL, end.closed)
        self.assertEqual(3000, end.session.bytes_received)

    @conformance("C-082")
    def test_session_credit_of_open_streams(self) -> None:
        """Credit used by closed streams is not available to open ones until CREDIT is sent."""
        end = End(local=limits(session_window=3000, stream_window=1000))
        end.opened_by_peer(2)
        end.session.reset(end.opened_by_peer(4, accepted=False), Code.CANCELLED, "")
        end.feed(frames.frame(DATA, 4, bytes(2500)), frames.frame(DATA, 2, bytes(500)))
        self.assertIsNone(end.closed)
        end.feed(frames.frame(DATA, 2, b"x"))
        self.assertEqual(Code.FLOW_CONTROL, end.closed)

    @conformance("C-083", "C-084")
    def test_only_consumed_bytes_earn_credit(self) -> None:
        """A paused stream gets no credit, while another gets it for each half window."""
        end = End(local=limits(stream_window=1000))
        paused, read = end.opened_by_peer(), end.opened_by_peer()
        end.sent()
        end.session.pause(paused)
        for number in (2, 4):
            end.feed(frames.frame(DATA, number, bytes(499)))
        self.assertEqual([], credits_in(end.sent()))
        for number in (2, 4):
            end.feed(frames.frame(DATA, number, b"x"))
        self.assertEqual([(4, 1500)], credits_in(end.sent()))
        end.session.resume(paused, 0.0)
        self.assertEqual([(2, 1500)], credits_in(end.sent()))
        self.assertEqual(500, len(user_of(read).data))

    @conformance("C-085", "C-086")
    def test_session_earns_credit_by_the_eighth(self) -> None:
        """The session's credit is renewed after an eighth of its window is consumed or dropped."""
        end = End(local=limits(session_window=8000, stream_window=3000))
        stream = end.opened_by_peer()
        end.sent()
        end.session.pause(stream)
        end.feed(frames.frame(DATA, 2, bytes(999)))
        end.session.resume(stream, 0.0)
        self.assertEqual([], credits_in(end.sent()))
        end.session.pause(stream)
        end.feed(frames.frame(DATA, 2, bytes(500)))
        self.assertEqual([], credits_in(end.sent()))
        end.session.reset(stream, Code.CANCELLED, "")
        self.assertEqual([(0, 9499)], credits_in(end.sent()))

    @conformance("C-073")
    def test_late_data_earn_session_credit(self) -> None:
        """Data for a closed stream counts against the session's credit, and is granted again."""
        end = End(local=limits(session_window=8000, stream_window=3000))
        end.session.reset(end.opened_by_peer(), Code.CANCELLED, "")
        end.sent()
        end.feed(frames.frame(DATA, 2, bytes(1000)))
        self.assertEqual([(0, 9000)], credits_in(end.sent()))
        end.feed(frames.HEADER.pack(8001, DATA, 2), bytes(8000))
        self.assertIsNone(end.closed)

    @conformance("C-087")
    def test_no_credit_after_the_end(self) -> None:
        """No CREDIT is sent for a stream that is closed or whose peer has ended."""
        for ending in (frames.frame(FIN, 2), frames.coded_frame(frames.RESET, 2, Code.DONE, "")):
            end = End(local=limits(stream_window=1000))
            end.opened_by_peer()
            end.sent()
            end.feed(frames.frame(DATA, 2, bytes(900)), ending)
            self.assertEqual([], credits_in(end.sent()))

    def test_late_credit_for_a_stream_with_nothing_to_send(self) -> None:
        """CREDIT for a stream without queued data only raises its limit."""
        end = End()
        stream = end.open(answered=True)
        end.feed(frames.offset_frame(CREDIT, 1, 1 << 30))
        self.assertEqual([], end.sent())
        self.assertEqual(1 << 30, stream.send_limit)

    @conformance("C-088", "C-089")
    def test_windows_grow_inside_the_budget(self) -> None:
        """The windows of fast streams grow, but their sum never exceeds the budget."""
        pair = Pair(agent=limits(session_window=4 * KIB * KIB))
        agent = pair.agent.session
        streams = [pair.open() for _ in range(5)]
        pair.agent.advance(0.0)
        pair.server.now = pair.agent.now = 0.1
        pair.settle()
        self.assertAlmostEqual(0.1, agent.round_trip or 0)
        for _ in range(40):
            for near, _ in streams:
                pair.server.session.send(near, bytes(64 * KIB))
            pair.settle()
            self.assertEqual(
                agent.memory.used, sum(stream.window.size for stream in agent.streams.values())
            )
            self.assertLessEqual(agent.memory.used, agent.memory.limit)
        self.assertGreater(agent.memory.used, 1024 * KIB)
        # Half of the budget is left for new streams.
        self.assertLessEqual(agent.memory.used, agent.memory.limit // 2)
        # Closed streams release their memory and their share.
        for stream in list(agent.streams.values()):
            agent.reset(stream, Code.CANCELLED, "")
        self.assertEqual((0, agent.memory.limit // 2), (agent.memory.used, agent.memory.share))

    def test_a_new_window_is_measured_from_its_opening(self) -> None:
        """The first half of a window is measured from its first byte, not from the opening."""
        end = End()
        end.advance(0.0)
        end.now = 0.1
        end.feed(frames.offset_frame(frames.PONG, 0, 1))
        end.now = 100.0
        stream = end.open()
        end.feed(frames.frame(frames.OK, 1))
        end.session.resume(stream, end.now)
        # The stream has been idle too; data that does not fill half of it does not count.
        for idle in (100.0, 10.0):
            end.now += idle
            end.feed(frames.frame(DATA, 1, bytes(16 * KIB)))
        self.assertEqual(64 * KIB, stream.window.size)
        end.now += 100.0
        end.sent()
        end.feed(frames.frame(DATA, 1, bytes(16 * KIB)), frames.frame(DATA, 1, bytes(16 * KIB)))
        self.assertEqual(1024 * KIB, stream.window.size)

    def test_stalled_streams_cannot_use_up_the_session(self) -> None:
        """With all the memory used by stalled streams, another one still gets its data."""
        pair = Pair(agent=limits(session_window=400 * KIB))
        stalled = [pair.open() for _ in range(3)]
        for near, far in stalled:
            pair.agent.session.pause(far)
            pair.server.session.send(near, bytes(64 * KIB))
        pair.settle()
        near, far = pair.open()
        for _ in range(50):
            pair.server.session.send(near, bytes(10 * KIB))
            pair.settle()
        self.assertEqual(500 * KIB, len(user_of(far).data))


class OrderTests(SynchronousTestCase):
    """The order of frames."""

    @conformance("C-092")
    def test_control_overtakes_data(self) -> None:
        """Frames other than DATA are sent before data that was queued earlier."""
        end = End()
        bulk = end.open(answered=True)
        end.session.send(bulk, bytes(60_000))
        self.assertEqual(10_000, data_in(frames_of(end, 10_000)))
        end.opened_by_peer()
        end.open()
        kinds = [kind for kind, _, _ in frames_of(end, 10_000)]
        self.assertEqual([frames.OK, frames.OPEN, DATA], kinds)

    @conformance("C-093")
    def test_bulk_streams_share(self) -> None:
        """Eight bulk streams are served evenly, to within a quantum."""
        end = End(peer=limits(stream_window=1 << 20))
        streams = [end.open(answered=True) for _ in range(8)]
        for stream in streams:
            end.session.send(stream, bytes(1 << 20))
        while sum(stream.sent for stream in streams) < 4 << 20:
            self.assertNotEqual(b"", end.session.data_to_send(50_000))
            acknowledge(end)
            sent = [stream.sent for stream in streams]
            self.assertLessEqual(max(sent) - min(sent), end.session._send_queue.queue.quantum)

    @conformance("C-094")
    def test_small_stream_within_a_round(self) -> None:
        """A small stream's data is sent next, before all bulk streams."""
        end = End(peer=limits(stream_window=1 << 20))
        for _ in range(8):
            end.session.send(end.open(answered=True), bytes(1 << 20))
        # Each bulk stream has its first quantum, as a new one, before.
        for _ in range(8):
            frames_of(end, 64 * KIB)
            acknowledge(end)
        small = end.open(answered=True)
        for _ in range(20):
            frames_of(end, 64 * KIB)
            acknowledge(end)
            end.session.send(small, b"key")
            self.assertEqual((DATA, small.number, b"key"), frames_of(end, 64 * KIB)[0])

    def test_nothing_left(self) -> None:
        """After a call that has returned everything, there is nothing to send."""
        end = End()
        for stream in [end.open(answered=True) for _ in range(16)]:
            end.session.send(stream, b"request")
        self.assertEqual(16, len(frames_of(end, 64 * KIB)))
        self.assertFalse(end.session.may_send)

    @conformance("C-095")
    def test_link_frames_between_session_frames(self) -> None:
        """Link frames are sent between session frames, on a new connection after a frame's rest."""
        pair = Pair()
        near, _ = pair.open()
        pair.server.session.send(near, bytes(50_000))
        pair.move(Side.SERVER, 20_000)
        pair.lose()
        pair.connect()
        pair.server.feed(frames.offset_frame(frames.PING, 0, 5))
        rest = pair.server.session.data_to_send(64 * KIB)
        self.assertEqual(30_009, len(rest) - 17)
        self.assertEqual([(frames.PONG, 0, (5).to_bytes(8, "big"))], frames_in(rest[-17:]))


def acknowledge(end: End, but: int = 0) -> None:
    """Let the peer acknowledge the sent data except the last ``but`` bytes."""
    end.feed(frames.offset_frame(frames.ACK, 0, end.session._send_queue.log.end - but))


def frames_of(end: End, limit: int) -> list[Frame]:
    """Return the frames of one call."""
    return frames_in(end.session.data_to_send(limit))
