"""The streams of a session: how they are opened and closed, and what is valid in between."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import REQUEST, End, Pair, limits, user_of
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import OpenRequest
from yurttunnel.wire.send_queue import MAX_CONTROL
from yurttunnel.wire.session import Side
from yurttunnel.wire.session_events import OpenRefused
from yurttunnel.wire.stream import StreamState

OK, FIN, DATA, RESET, FAIL = frames.OK, frames.FIN, frames.DATA, frames.RESET, frames.FAIL
ACK = frames.ACK


def reason(code: Code, text: str = "") -> bytes:
    """Encode the payload of a FAIL, RESET or CLOSE."""
    return code.to_bytes(2, "big") + text.encode()


class OpeningTests(SynchronousTestCase):
    """From OPEN to its answer, on the opening side."""

    def setUp(self) -> None:
        """Create a server with a connection."""
        self.end = End()

    def refused(self, end: End | None = None) -> OpenRefused:
        """Return the exception when a stream is not opened."""
        return self.assertRaises(OpenRefused, (end or self.end).open)

    @conformance("C-043")
    def test_numbers(self) -> None:
        """A server's streams are 1, 3, 5; an agent's are 2, 4, 6."""
        for side, expected in ((Side.SERVER, [1, 3, 5]), (Side.AGENT, [2, 4, 6])):
            end = End(side)
            self.assertEqual(expected, [end.open().number for _ in range(3)])
            self.assertEqual(expected, [number for _, number, _ in end.sent()])

    @conformance("C-052")
    def test_ok(self) -> None:
        """OK opens the stream."""
        stream = self.end.open()
        self.assertEqual(frames.open_frame(1, REQUEST), self.end.sent_bytes())
        self.assertIs(StreamState.OPENING, stream.state)
        self.end.feed(frames.frame(OK, 1))
        self.assertIs(StreamState.OPEN, stream.state)
        self.assertEqual(["opened"], user_of(stream).calls)

    @conformance("C-053")
    def test_fail(self) -> None:
        """FAIL ends the stream with its code and text."""
        stream = self.end.open()
        self.end.feed(frames.coded_frame(FAIL, 1, Code.REFUSED, "nobody listens"))
        self.assertTrue(stream.closed)
        self.assertEqual([(Code.REFUSED, "nobody listens")], user_of(stream).calls)
        self.assertEqual({}, self.end.session.streams)

    @conformance("C-064")
    def test_reset_for_an_answer(self) -> None:
        """RESET ends a stream that was not answered."""
        stream = self.end.open()
        self.end.feed(frames.coded_frame(RESET, 1, Code.CONNECTION_LOST, ""))
        self.assertEqual(Code.CONNECTION_LOST, user_of(stream).end)

    @conformance("C-075")
    def test_failure_with_code_done(self) -> None:
        """FAIL or RESET with code 0 does not count as a normal end."""
        for kind in (FAIL, RESET):
            stream = self.end.open()
            self.end.feed(frames.coded_frame(kind, stream.number, Code.DONE, ""))
            self.assertEqual(Code.INTERNAL, user_of(stream).end)

    @conformance("C-054")
    def test_no_answer(self) -> None:
        """A stream without an answer ends with TIMEOUT half a second after its deadline."""
        stream = self.end.open(OpenRequest("h", 1, 1500, ""))
        self.end.sent()
        self.end.advance(1.999)
        self.assertIsNone(user_of(stream).end)
        self.end.advance(0.001)
        self.assertEqual(Code.TIMEOUT, user_of(stream).end)
        self.assertIn((RESET, 1), [frame[:2] for frame in self.end.sent()])
        self.end.feed(frames.frame(OK, 1))
        self.assertIsNone(self.end.closed)

    def test_no_answer_while_detached(self) -> None:
        """The deadline of an opening also passes without a connection."""
        self.end.session.detach(0.0, 30.0)
        stream = self.end.open(OpenRequest("h", 1, 1500, ""))
        self.end.advance(2.0)
        self.assertEqual(Code.TIMEOUT, user_of(stream).end)

    def test_two_deadlines_at_once(self) -> None:
        """A user may reset another stream when its own times out."""
        first, second = self.end.open(), self.end.open()
        user_of(first).on["closed"] = lambda: self.end.session.reset(second, Code.CANCELLED, "")
        self.end.advance(31.0)
        self.assertEqual(Code.CANCELLED, user_of(second).end)
        kinds = [frame[:2] for frame in self.end.sent()]
        self.assertEqual(1, kinds.count((RESET, 3)))

    @conformance("C-055", "C-056")
    def test_data_and_end_before_the_answer(self) -> None:
        """Data and FIN may follow OPEN before the answer, in this order."""
        stream = self.end.open()
        self.end.session.send(stream, b"early")
        self.end.session.finish(stream)
        self.assertEqual([frames.OPEN, DATA, FIN], [kind for kind, _, _ in self.end.sent()])
        self.end.feed(frames.frame(OK, 1), frames.frame(FIN, 1))
        self.end.session.resume(stream, 0.0)
        self.assertEqual(["opened", "ended", (Code.DONE, "")], user_of(stream).calls)

    @conformance("C-060")
    def test_the_peers_limit_of_streams(self) -> None:
        """No more streams are open at once than the peer's HELLO allows."""
        end = End(peer=limits(max_streams=2))
        first = end.open()
        end.open()
        self.assertEqual(Code.OVERLOADED, self.refused(end).code)
        end.opened_by_peer()
        self.assertEqual(Code.OVERLOADED, self.refused(end).code)
        end.session.reset(first, Code.CANCELLED, "")
        end.open()

    def test_as_much_memory_as_there_is(self) -> None:
        """A stream is not opened if there is no memory for its window."""
        end = End(local=limits(session_window=4 * 65536))
        for _ in range(3):
            end.open()
        self.assertEqual(Code.OVERLOADED, self.refused(end).code)

    @conformance("C-061")
    def test_numbers_used_up(self) -> None:
        """When the numbers of a side are used up, no more streams are opened."""
        for side, last in ((Side.SERVER, 0xFFFFFFFF), (Side.AGENT, 0xFFFFFFFE)):
            end = End(side)
            end.session._table.next_number = last
            self.assertEqual(last, end.open().number)
            self.assertEqual(Code.OVERLOADED, self.refused(end).code)

    @conformance("C-130")
    def test_too_much_waits(self) -> None:
        """No stream is opened while 64 KiB of control frames are queued, even if retried often."""
        self.end.session.detach(0.0, 30.0)
        opened = 0
        refused = None
        while refused is None:
            try:
                stream = self.end.open()
            except OpenRefused as error:
                refused = error
            else:
                opened += 1
                self.end.session.reset(stream, Code.CANCELLED, "x" * 100)
            self.assertLess(opened, 2000)
        self.assertEqual(Code.OVERLOADED, refused.code)
        waiting = sum(map(len, self.end.session._send_queue._control))
        self.assertTrue(MAX_CONTROL < waiting < MAX_CONTROL + 2000)
        self.end.session.attach(0, 1.0)
        self.end.sent()
        self.end.open()

    def test_a_bad_request_leaves_nothing_behind(self) -> None:
        """An invalid request opens nothing and reserves no memory."""
        self.assertRaises(ValueError, self.end.open, OpenRequest("bad\nhost", 1, 1, ""))
        self.assertEqual({}, self.end.session.streams)
        self.assertEqual(0, self.end.session.memory.used)
        self.assertEqual([], self.end.sent())
        self.assertEqual(1, self.end.open().number)

    def test_refusals_when_the_session_ends(self) -> None:
        """No stream is opened in a closed session."""
        self.end.session.close(Code.REPLACED, "")
        self.assertEqual(Code.SESSION_LOST, self.refused().code)

    @conformance("C-062")
    def test_answers_that_nobody_waits_for(self) -> None:
        """OK or FAIL for a stream that is not being opened is a violation."""
        for answer in (OK, FAIL):
            for opened_here in (True, False):
                end = End()
                stream = end.open(answered=True) if opened_here else end.opened_by_peer()
                payload = b"" if answer == OK else reason(Code.REFUSED)
                end.feed(frames.frame(answer, stream.number, payload))
                self.assertEqual(Code.PROTOCOL, end.closed)
        end = End()
        end.feed(frames.open_frame(2, REQUEST), frames.frame(OK, 2))
        self.assertEqual(Code.PROTOCOL, end.closed)

    @conformance("C-071")
    def test_data_before_the_answer(self) -> None:
        """DATA or FIN from the peer before its OK is a violation."""
        for frame in (frames.frame(DATA, 1, b"x"), frames.frame(FIN, 1)):
            end = End()
            end.open()
            end.feed(frame)
            self.assertEqual(Code.PROTOCOL, end.closed)


class AnsweringTests(SynchronousTestCase):
    """From OPEN to its answer, on the other side."""

    def setUp(self) -> None:
        """Create a server with a connection."""
        self.end = End()

    def test_request(self) -> None:
        """The request is passed on as it was sent."""
        stream = self.end.opened_by_peer(accepted=False)
        self.assertEqual(
            (2, REQUEST, StreamState.ANSWERING), (stream.number, stream.request, stream.state)
        )

    def test_accept(self) -> None:
        """Accepting a stream answers OK, once."""
        stream = self.end.opened_by_peer()
        self.end.session.accept(stream)
        self.assertEqual([(OK, 2, b"")], self.end.sent())

    def test_refuse(self) -> None:
        """Refusing a stream answers FAIL and frees it; its user is not notified."""
        stream = self.end.opened_by_peer(accepted=False)
        for _ in range(2):
            self.end.session.refuse(stream, Code.DENIED, "not this one")
        self.assertEqual([(FAIL, 2, reason(Code.DENIED, "not this one"))], self.end.sent())
        self.assertEqual((0, {}), (self.end.session.memory.used, self.end.session.streams))
        self.assertEqual([], user_of(stream).calls)

    def test_response_after_cancellation(self) -> None:
        """After the peer's RESET no answer is sent, and the memory is released once."""
        stream = self.end.opened_by_peer(accepted=False)
        self.end.feed(frames.coded_frame(RESET, 2, Code.CANCELLED, "late"))
        self.assertEqual([(Code.CANCELLED, "late")], user_of(stream).calls)
        self.end.session.accept(stream)
        self.end.session.refuse(stream, Code.DENIED, "")
        self.assertEqual([], self.end.sent())
        self.assertEqual(0, self.end.session.memory.used)

    @conformance("C-063")
    def test_nothing_before_the_answer(self) -> None:
        """No data can be sent on a stream before it is accepted."""
        stream = self.end.opened_by_peer(accepted=False)
        self.assertRaises(RuntimeError, self.end.session.send, stream, b"x")
        self.assertRaises(RuntimeError, self.end.session.finish, stream)
        self.assertEqual([], self.end.sent())

    @conformance("C-065")
    def test_ok_before_data(self) -> None:
        """OK is sent before data, even if both are ready."""
        stream = self.end.opened_by_peer()
        self.end.session.send(stream, b"data")
        self.assertEqual([(OK, 2, b""), (DATA, 2, b"data")], self.end.sent())

    @conformance("C-055", "C-056")
    def test_early_data_is_kept(self) -> None:
        """Data and FIN that arrive before the answer are delivered after it."""
        stream = self.end.opened_by_peer(accepted=False)
        self.end.feed(frames.frame(DATA, 2, b"early"), frames.frame(FIN, 2))
        self.assertEqual(b"", user_of(stream).data)
        self.end.session.accept(stream)
        self.end.session.resume(stream, 0.0)
        self.assertEqual(b"early", user_of(stream).data)
        self.assertEqual(["ended"], user_of(stream).calls)

    @conformance("C-044", "C-045")
    def test_numbers_that_are_not_the_peers(self) -> None:
        """OPEN with a number of this side, or not above the last one, is a violation."""
        for side, bad in (
            (Side.SERVER, [0, 1, 3, 4, 2]),
            (Side.AGENT, [0, 2, 4, 3, 1]),
        ):
            for number in bad:
                end = End(side)
                end.opened_by_peer(5 - side)
                end.feed(frames.open_frame(number, REQUEST))
                self.assertEqual(Code.PROTOCOL, end.closed)

    @conformance("C-046")
    def test_numbers_may_be_left_out(self) -> None:
        """Numbers may be skipped; frames for them count as those for a closed stream."""
        stream = self.end.opened_by_peer(100)
        self.end.feed(frames.frame(FIN, 98))
        self.assertIsNone(self.end.closed)
        self.assertEqual([(OK, 100, b"")], self.end.sent())
        self.assertFalse(stream.closed)

    @conformance("C-057")
    def test_too_many(self) -> None:
        """OPEN above the maximum number of streams is answered by OVERLOADED."""
        end = End(local=limits(max_streams=2))
        first = end.opened_by_peer()
        end.opened_by_peer()
        end.open()
        end.sent()
        end.feed(frames.open_frame(6, REQUEST))
        self.assertEqual([(FAIL, 6)], [frame[:2] for frame in end.sent()])
        self.assertEqual(2, len(end.log.requested))
        end.session.reset(first, Code.CANCELLED, "")
        end.opened_by_peer(8)
        self.assertEqual(3, len(end.log.requested))

    @conformance("C-058")
    def test_no_memory(self) -> None:
        """OPEN for whose window there is no memory is answered by OVERLOADED."""
        shared = MemoryBudget(65536)
        end = End(parent_budget=shared)
        first = end.opened_by_peer()
        end.sent()
        end.feed(frames.open_frame(4, REQUEST))
        ((kind, number, payload),) = end.sent()
        self.assertEqual((FAIL, 4), (kind, number))
        self.assertEqual(Code.OVERLOADED, frames.decode_coded(payload)[0])
        end.session.reset(first, Code.CANCELLED, "")
        # Only the answers are left, until the peer has acknowledged them.
        self.assertEqual(end.session.unacknowledged, shared.used)
        end.feed(frames.offset_frame(ACK, 0, end.session._send_queue.log.end))
        self.assertEqual(0, shared.used)
        end.opened_by_peer(6)

    @conformance("C-059")
    def test_after_a_refusal(self) -> None:
        """Data that the opener sent before it received the FAIL does no harm."""
        stream = self.end.opened_by_peer(accepted=False)
        self.end.session.refuse(stream, Code.DENIED, "")
        self.end.feed(
            frames.frame(DATA, 2, b"early"),
            frames.frame(FIN, 2),
            frames.coded_frame(RESET, 2, Code.CANCELLED, ""),
        )
        self.assertIsNone(self.end.closed)
        self.assertEqual(5, self.end.session._receiver.window.consumed)


class LifeTests(SynchronousTestCase):
    """Open streams, seen from both ends."""

    def setUp(self) -> None:
        """Connect an agent and a server."""
        self.pair = Pair()
        self.server, self.agent = self.pair.server.session, self.pair.agent.session

    @conformance("C-066")
    def test_half_close(self) -> None:
        """After FIN in one direction the other still transfers data."""
        near, far = self.pair.open()
        self.server.send(near, b"question")
        self.server.finish(near)
        self.pair.settle()
        self.assertEqual(b"question", user_of(far).data)
        self.assertEqual(["ended"], user_of(far).calls)
        self.agent.send(far, b"answer")
        self.pair.settle()
        self.assertEqual(b"answer", user_of(near).data)
        self.assertFalse(near.closed or far.closed)

    @conformance("C-067")
    def test_both_ends(self) -> None:
        """FIN in both directions ends the stream with DONE at both ends."""
        for side in Side:
            near, far = self.pair.open(side)
            self.pair.ends[side].session.finish(near)
            self.pair.settle()
            self.pair.ends[Side(3 - side)].session.finish(far)
            self.pair.settle()
            self.assertEqual(["opened", "ended", (Code.DONE, "")], user_of(near).calls)
            self.assertEqual(["ended", (Code.DONE, "")], user_of(far).calls)
        self.assertEqual((0, 0), (self.server.memory.used, self.agent.memory.used))

    @conformance("C-068")
    def test_end_after_all_data(self) -> None:
        """FIN follows all data, even if data waits for credit or for its user."""
        near, far = self.pair.open()
        self.agent.pause(far)
        self.server.send(near, b"x" * 200_000)
        self.server.finish(near)
        self.server.finish(near)
        self.pair.settle()
        self.assertFalse(near.send_ended)
        self.agent.resume(far, 0.0)
        self.pair.settle()
        self.assertTrue(near.send_ended)
        self.assertEqual(b"x" * 200_000, user_of(far).data)
        self.assertEqual(["ended"], user_of(far).calls)

    def test_end_waits_for_its_user(self) -> None:
        """A FIN after data that the user has not read is reported after the data."""
        near, far = self.pair.open()
        self.agent.pause(far)
        self.server.send(near, b"abc")
        self.server.finish(near)
        self.agent.finish(far)
        self.pair.settle()
        self.assertTrue(near.closed)
        self.assertEqual([], user_of(far).calls)
        user_of(far).on["deliver"] = lambda: self.agent.pause(far)
        self.agent.resume(far, 0.0)
        self.assertEqual((b"abc", []), (user_of(far).data, user_of(far).calls))
        self.agent.resume(far, 0.0)
        self.assertEqual(["ended", (Code.DONE, "")], user_of(far).calls)
        self.agent.resume(far, 0.0)

    def test_ending_while_the_end_waits(self) -> None:
        """A user that ends its direction first still gets the buffered data."""
        near, far = self.pair.open()
        self.agent.pause(far)
        self.server.send(near, b"abc")
        self.server.finish(near)
        self.pair.settle()
        self.agent.finish(far)
        self.pair.settle()
        self.assertFalse(far.closed)
        self.agent.resume(far, 0.0)
        self.assertEqual(b"abc", user_of(far).data)
        self.assertEqual(["ended", (Code.DONE, "")], user_of(far).calls)

    @conformance("C-072")
    def test_reset(self) -> None:
        """RESET ends both directions at once, and drops buffered data at both ends."""
        near, far = self.pair.open()
        self.agent.pause(far)
        self.server.send(near, b"x" * 100_000)
        self.agent.send(far, b"y" * 100_000)
        self.pair.settle()
        self.agent.reset(far, Code.CONNECTION_LOST, "broken")
        self.agent.reset(far, Code.CANCELLED, "again")
        self.assertEqual((Code.CONNECTION_LOST, "broken"), user_of(far).calls[-1])
        self.assertEqual(Code.CONNECTION_LOST, user_of(far).end)
        self.pair.settle()
        self.assertEqual((Code.CONNECTION_LOST, "broken"), user_of(near).calls[-1])
        self.assertEqual(b"", user_of(far).data)
        self.assertEqual((0, 0), (self.server.memory.used, self.agent.memory.used))
        for end, stream in ((self.server, near), (self.agent, far)):
            self.assertFalse(stream.pending or stream.backlog or stream.queued)
            self.assertEqual(end._receiver.window.received, end._receiver.window.consumed)

    def test_nothing_after_the_end(self) -> None:
        """Data sent on a closed or ended stream is dropped, and so is empty data."""
        near, far = self.pair.open()
        self.server.send(near, b"")
        self.server.finish(near)
        self.server.send(near, b"more")
        self.pair.settle()
        self.assertEqual(b"", user_of(far).data)
        self.agent.reset(far, Code.CANCELLED, "")
        self.agent.send(far, b"more")
        self.agent.finish(far)
        self.agent.resume(far, 0.0)
        self.pair.settle()
        self.assertEqual((Code.CANCELLED, ""), user_of(near).calls[-1])

    @conformance("C-076")
    def test_crossing_resets(self) -> None:
        """RESETs that cross each other do no harm."""
        near, far = self.pair.open()
        self.server.reset(near, Code.CANCELLED, "near")
        self.agent.reset(far, Code.CONNECTION_LOST, "far")
        self.pair.settle()
        self.assertEqual(Code.CANCELLED, user_of(near).end)
        self.assertEqual(Code.CONNECTION_LOST, user_of(far).end)
        self.assertTrue(self.pair.attached)

    def test_writable(self) -> None:
        """A full stream notifies its user once when most of the data has been sent."""
        near, far = self.pair.open()
        self.agent.pause(far)
        self.server.send(near, b"x" * 150_000)
        self.assertTrue(near.full)
        self.pair.settle()
        self.assertEqual(["opened"], user_of(near).calls)
        self.agent.resume(far, 0.0)
        self.pair.settle()
        self.assertEqual(["opened", "writable"], user_of(near).calls)
        self.assertFalse(near.full)

    def test_writable_is_not_reported_to_a_full_stream(self) -> None:
        """A user that refills at once is notified once, even after several quanta."""
        other = self.pair.server.open()
        near, far = self.pair.open()
        self.server._send_queue.queue.quantum = 4096
        user_of(near).on["writable"] = lambda: self.server.send(near, bytes(65_537))
        self.server.send(other, bytes(65_536))
        self.server.send(near, bytes(65_537))
        self.server.data_to_send(130_000)
        self.assertEqual(1, user_of(near).calls.count("writable"))
        self.assertLess(near.pending_size, 2 * 65_537)
        self.assertFalse(far.closed)


class ClosedStreamTests(SynchronousTestCase):
    """Frames that are late, or for streams that never existed."""

    FRAMES = (
        frames.frame(OK, 0),
        frames.frame(DATA, 0, b"abc"),
        frames.frame(FIN, 0),
        frames.coded_frame(FAIL, 0, Code.REFUSED, ""),
        frames.coded_frame(RESET, 0, Code.CANCELLED, ""),
        frames.offset_frame(frames.CREDIT, 0, 10),
    )

    def for_stream(self, frame: bytes, number: int) -> bytes:
        """Insert a stream's number into a frame."""
        return frame[:5] + number.to_bytes(4, "big") + frame[9:]

    @conformance("C-073")
    def test_late_frames(self) -> None:
        """Frames for closed streams of either side are ignored, and data counts as consumed."""
        for opened_here in (True, False):
            for frame in self.FRAMES:
                end = End()
                stream = end.open() if opened_here else end.opened_by_peer()
                end.session.reset(stream, Code.CANCELLED, "")
                end.feed(self.for_stream(frame, stream.number))
                self.assertIsNone(end.closed)
                window = end.session._receiver.window
                self.assertEqual(window.received, window.consumed)

    @conformance("C-074")
    def test_streams_that_never_were(self) -> None:
        """Frames for a stream that was never opened, or for 0, are a violation."""
        for frame in self.FRAMES:
            for number in (0, 1, 3, 4, 0xFFFFFFFF):
                if frame[4] == frames.CREDIT and number == 0:
                    continue
                end = End()
                end.opened_by_peer(2)
                end.feed(self.for_stream(frame, number))
                self.assertEqual(Code.PROTOCOL, end.closed, (frame, number))

    @conformance("C-069", "C-070")
    def test_after_the_end(self) -> None:
        """DATA or a second FIN after FIN is a violation."""
        for frame in (frames.frame(DATA, 2, b"x"), frames.frame(FIN, 2)):
            end = End()
            end.opened_by_peer()
            end.feed(frames.frame(FIN, 2), frame)
            self.assertEqual(Code.PROTOCOL, end.closed)

    @conformance("C-042")
    def test_payloads_where_none_belong(self) -> None:
        """OK or FIN with a payload is a violation."""
        for kind in (OK, FIN):
            end = End()
            end.open()
            end.feed(frames.frame(kind, 1, b"x"))
            self.assertEqual(Code.PROTOCOL, end.closed)
