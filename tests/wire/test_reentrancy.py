"""Events that call back into the session, and users that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.harness import REQUEST, End, Pair, limits, user_of
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.session_events import OpenRefused
from yurttunnel.wire.stream import Stream

F = frames


def fail() -> NoReturn:
    """Simulate a user with a defect."""
    raise RuntimeError("defect")


class CallingBackTests(SynchronousTestCase):
    """Users call back into the session from events."""

    def setUp(self) -> None:
        """Open a stream, with data in flight to it followed by several frames."""
        self.end = End()
        self.stream = self.end.opened_by_peer()
        self.end.sent()
        self.bytes = (
            F.frame(F.DATA, 2, b"one")
            + F.frame(F.DATA, 2, b"two")
            + F.open_frame(4, REQUEST)
            + F.frame(F.DATA, 4, b"early")
            + F.frame(F.FIN, 2)
        )

    def on(self, event: str, reaction: Callable[[], object]) -> None:
        """Let the stream's user react to an event."""
        user_of(self.stream).on[event] = reaction

    def assert_nothing_left(self) -> None:
        """Check that only open streams have memory reserved, and all session credit is back."""
        session = self.end.session
        used = sum(stream.window.size for stream in session.streams.values())
        self.assertEqual(used, session.memory.used)
        backlog = sum(sum(map(len, s.backlog)) for s in session.streams.values())
        self.assertEqual(
            session._receiver.window.received, session._receiver.window.consumed + backlog
        )

    def test_reset_while_data_are_delivered(self) -> None:
        """A user that resets its stream gets no more data, and the other frames are processed."""
        self.on("deliver", lambda: self.end.session.reset(self.stream, Code.CANCELLED, ""))
        self.end.feed(self.bytes)
        self.assertEqual(b"one", user_of(self.stream).data)
        self.assertEqual([2, 4], [stream.number for stream in self.end.log.requested])
        self.assertIsNone(self.end.closed)
        self.assert_nothing_left()

    def test_reset_while_credit_is_due(self) -> None:
        """A user that resets its stream when credit is due gets none for it."""
        end = self.end = End(local=limits(stream_window=100))
        stream = end.opened_by_peer()
        end.sent()
        user_of(stream).on["deliver"] = lambda: end.session.reset(stream, Code.CANCELLED, "")
        end.feed(F.frame(F.DATA, 2, bytes(100)))
        self.assertEqual([F.RESET], [kind for kind, _, _ in end.sent()])
        self.assert_nothing_left()

    def test_reset_while_kept_data_are_delivered(self) -> None:
        """A user that resets its stream gets no more of the buffered data either."""
        self.end.session.pause(self.stream)
        self.end.feed(F.frame(F.DATA, 2, b"a" * 2000) + F.frame(F.DATA, 2, b"b" * 2000))
        self.on("deliver", lambda: self.end.session.reset(self.stream, Code.CANCELLED, ""))
        self.end.session.resume(self.stream, 0.0)
        self.assertEqual(b"a" * 2000, user_of(self.stream).data)
        self.assert_nothing_left()

    def test_pause_while_kept_data_are_delivered(self) -> None:
        """A user that pauses gets the rest when it resumes, even from within."""
        self.end.session.pause(self.stream)
        self.end.feed(*[F.frame(F.DATA, 2, bytes([value]) * 1500) for value in range(4)])

        def pause_and_resume() -> None:
            self.on("deliver", lambda: None)
            self.end.session.pause(self.stream)
            self.end.session.resume(self.stream, 0.0)

        self.on("deliver", pause_and_resume)
        self.end.session.resume(self.stream, 0.0)
        self.assertEqual(b"".join(bytes([v]) * 1500 for v in range(4)), user_of(self.stream).data)
        self.assert_nothing_left()

    def test_close_from_each_event(self) -> None:
        """A session closed from within any event stays closed, and is reported once."""
        for event, trigger in (
            ("deliver", self.bytes),
            ("ended", self.bytes),
            ("closed", F.coded_frame(F.RESET, 2, Code.CANCELLED, "") + self.bytes[24:]),
        ):
            self.setUp()
            self.on(event, lambda: self.end.session.close(Code.REPLACED, "newer"))
            self.end.feed(trigger)
            self.assertEqual((Code.REPLACED, False), self.end.log.close)
            self.assertEqual([(F.CLOSE, 0)], [frame[:2] for frame in self.end.sent()])
            self.assert_nothing_left()

    def test_close_when_a_stream_is_requested(self) -> None:
        """A session closed when a stream is requested ends this stream too."""
        self.end.log.on["requested"] = lambda: self.end.session.close(Code.REPLACED, "")
        self.end.feed(F.open_frame(4, REQUEST))
        self.assertEqual(Code.REPLACED, self.end.log.users[4].end)
        self.assert_nothing_left()

    def test_close_within_a_tick(self) -> None:
        """A session closed because an opening timed out is reported once."""
        end = End()
        stream = end.open()
        user_of(stream).on["closed"] = lambda: end.session.close(Code.REPLACED, "")
        for _ in range(4):
            end.advance(7.0)
            end.feed(F.offset_frame(F.PONG, 0, 0))
        end.advance(7.0)
        self.assertEqual((Code.REPLACED, False), end.log.close)

    def test_close_while_the_peer_goes_away(self) -> None:
        """A session closed because of the peer's GOAWAY is reported once."""
        stream = self.end.open()
        self.end.log.on["going away"] = lambda: self.end.session.close(Code.DONE, "")
        self.end.feed(F.goaway_frame(0, Code.GOING_AWAY, ""))
        self.assertEqual((Code.DONE, False), self.end.log.close)
        self.assertEqual(Code.GOING_AWAY, user_of(stream).end)

    def test_streams_that_end_one_another(self) -> None:
        """Users that reset each other's streams as the session ends are each notified once."""
        other = self.end.opened_by_peer()
        self.on("closed", lambda: self.end.session.reset(other, Code.CANCELLED, ""))
        user_of(other).on["closed"] = lambda: self.end.session.reset(self.stream, Code.DONE, "")
        self.end.session.close(Code.REPLACED, "")
        self.assertEqual(Code.REPLACED, user_of(self.stream).end)
        self.assertEqual(Code.CANCELLED, user_of(other).end)
        self.assert_nothing_left()

    def test_open_as_the_session_ends(self) -> None:
        """A user cannot open another stream when its own ends with the session."""
        self.on("closed", lambda: self.assertRaises(OpenRefused, self.end.open))
        self.end.session.close(Code.REPLACED, "")
        self.assertEqual([Code.REPLACED], [call[0] for call in user_of(self.stream).calls])

    def test_finish_from_ended(self) -> None:
        """A user that answers the peer's FIN with its own is notified of the end."""
        self.on("ended", lambda: self.end.session.finish(self.stream))
        self.end.feed(F.frame(F.FIN, 2))
        self.assertEqual(["ended", (Code.DONE, "")], user_of(self.stream).calls)


class WritableTests(SynchronousTestCase):
    """Users react to ``stream_writable``, while data is being sent."""

    def setUp(self) -> None:
        """Open a stream that is full."""
        self.end = End(peer=limits(stream_window=1 << 20))
        self.stream = self.end.open(answered=True)
        self.user = user_of(self.stream)
        self.end.session.send(self.stream, b"1" * 70_000)

    def test_bytes_are_not_reordered(self) -> None:
        """An event that requests bytes to send cannot overtake those that are being returned."""
        nested = []

        def send_and_request() -> None:
            self.end.session.send(self.stream, b"2" * 10)
            nested.append(self.end.session.data_to_send(100_000))

        self.user.on["writable"] = send_and_request
        sent = self.end.sent_bytes(100_000)
        self.assertEqual([b""], nested)
        self.assertEqual(70_000 + 10 + 2 * 9, len(sent))
        self.assertTrue(sent.endswith(b"2" * 10))

    def test_close(self) -> None:
        """A session closed in ``stream_writable`` still returns the data before CLOSE."""
        self.user.on["writable"] = lambda: self.end.session.close(Code.REPLACED, "")
        kinds = [kind for kind, _, _ in self.end.sent()]
        self.assertEqual([F.DATA, F.CLOSE], kinds)
        self.assertEqual(Code.REPLACED, self.user.end)

    def test_close_ends_other_full_streams(self) -> None:
        """Streams that would have been notified next are closed instead."""
        other = self.end.open(answered=True)
        for stream in (self.stream, other):
            self.end.session.send(stream, b"1" * 70_000)
            user_of(stream).calls.clear()
            user_of(stream).on["writable"] = lambda: self.end.session.close(Code.REPLACED, "")
        self.end.sent()
        asked = [user_of(stream).calls.count("writable") for stream in (self.stream, other)]
        self.assertEqual([0, 1], sorted(asked))

    def test_failing_user(self) -> None:
        """A user that fails in ``stream_writable`` loses its stream; the bytes are returned."""
        self.user.on["writable"] = fail
        kinds = [kind for kind, _, _ in self.end.sent()]
        self.assertEqual([F.DATA, F.RESET], kinds)
        self.assertEqual([("failed", 1, "defect")], self.end.log.calls)


class FailingUserTests(SynchronousTestCase):
    """An exception of a user costs only its stream."""

    def assert_reset(self, pair: Pair, near: Stream, far: Stream) -> None:
        """Check that the far end reset the stream and reported it, and the session continues."""
        pair.settle()
        self.assertEqual(Code.INTERNAL, user_of(near).end)
        self.assertTrue(far.closed)
        self.assertEqual([("failed", far.number, "defect")], pair.agent.log.calls)
        another, _ = pair.open()
        self.assertFalse(another.closed)
        self.assertTrue(pair.attached)

    def test_deliver_and_ended(self) -> None:
        """A user that fails on data or FIN has its stream reset with INTERNAL."""
        for event in ("deliver", "ended"):
            pair = Pair()
            near, far = pair.open()
            user_of(far).on[event] = fail
            pair.server.session.send(near, b"data")
            pair.server.session.finish(near)
            self.assert_reset(pair, near, far)
            window = pair.agent.session._receiver.window
            self.assertEqual(window.received, window.consumed)

    def test_deliver_after_a_reset(self) -> None:
        """A user that resets its stream and then fails has it reset once."""
        end = End()
        stream = end.opened_by_peer()
        end.sent()

        def reset_and_fail() -> None:
            end.session.reset(stream, Code.CANCELLED, "")
            fail()

        user_of(stream).on["deliver"] = reset_and_fail
        end.feed(F.frame(F.DATA, 2, b"x"))
        self.assertEqual([(F.RESET, 2, b"\0\x10")], end.sent())

    def test_opened(self) -> None:
        """A user that fails when its stream is opened has it reset."""
        end = End()
        stream = end.open()
        user_of(stream).on["opened"] = fail
        end.sent()
        end.feed(F.frame(F.OK, 1))
        self.assertEqual(Code.INTERNAL, user_of(stream).end)
        self.assertEqual([F.RESET], [kind for kind, _, _ in end.sent()])

    def test_closed(self) -> None:
        """A user that fails when its stream is closed does not affect other users."""
        end = End()
        first, second = end.opened_by_peer(), end.opened_by_peer()
        user_of(first).on["closed"] = fail
        end.session.close(Code.REPLACED, "")
        self.assertEqual(Code.REPLACED, user_of(second).end)
        self.assertEqual(("failed", 2, "defect"), end.log.calls[0])
        self.assertEqual((Code.REPLACED, False), end.log.close)

    def test_failing_owner(self) -> None:
        """An owner that fails loses the connection, but can resume on the next one."""
        pair = Pair()
        pair.agent.log.on["requested"] = fail
        pair.server.open()
        pair.server.open()
        self.assertRaises(RuntimeError, pair.settle)
        pair.lose()
        pair.agent.log.on.clear()
        pair.connect()
        pair.settle()
        self.assertEqual([1, 3], [stream.number for stream in pair.agent.log.requested])
