"""The end of a session, at once or by GOAWAY."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import REQUEST, End, Pair, user_of
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.session_events import OpenRefused

PING, DATA = frames.PING, frames.DATA


class GoawayTests(SynchronousTestCase):
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
        """The first step names the maximum stream number, the second the last one served."""
        end = End()
        end.opened_by_peer(8)
        end.sent()
        for _ in range(3):
            end.session.go_away(Code.GOING_AWAY, "")
        lasts = [frames.decode_goaway(payload)[0] for _, _, payload in end.sent()]
        self.assertEqual([0xFFFFFFFF, 8], lasts)

    @conformance("C-119")
    def test_streams_after_the_second_step(self) -> None:
        """A stream that arrives after the second step is answered by GOING_AWAY."""
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
        """Openings above the last number end with GOING_AWAY, the others continue."""
        end = End()
        streams = [end.open() for _ in range(3)]
        end.feed(frames.goaway_frame(3, Code.GOING_AWAY, "bye"))
        self.assertEqual([None, None, Code.GOING_AWAY], [user_of(stream).end for stream in streams])
        end.feed(frames.frame(frames.OK, 3), frames.coded_frame(frames.FAIL, 5, Code.DONE, ""))
        self.assertIsNone(end.closed)

    @conformance("C-121")
    def test_drained(self) -> None:
        """The end of the last stream is reported at both ends, in either step."""
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
        """Each step reports that no stream is open; after the second none can be opened."""
        for step, refuses in ((1, False), (2, True)):
            self.agent.go_away(Code.GOING_AWAY, "")
            self.assertEqual(["drained"] * step, self.pair.agent.log.calls)
            self.assertEqual(refuses, self.agent.refuses_streams)

    def test_refusing_the_last_stream(self) -> None:
        """Refusing the last stream also drains the session."""
        end = End()
        stream = end.opened_by_peer(accepted=False)
        for _ in range(2):
            end.session.go_away(Code.GOING_AWAY, "")
        end.session.refuse(stream, Code.DENIED, "")
        self.assertEqual(["drained"], end.log.calls)

    def test_when_the_session_is_over(self) -> None:
        """A closed session sends no GOAWAY."""
        end = End()
        end.session.close(Code.DONE, "")
        end.session.go_away(Code.GOING_AWAY, "")
        self.assertFalse(end.session.draining)

    @conformance("C-033")
    def test_goaway_of_a_stream(self) -> None:
        """GOAWAY with a stream number is a violation."""
        end = End()
        end.feed(frames.HEADER.pack(6, frames.GOAWAY, 1), bytes(6))
        self.assertEqual(Code.PROTOCOL, end.closed)

    def test_reported_once(self) -> None:
        """The peer's GOAWAY is reported once."""
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
        """CLOSE with DONE ends open streams with GOING_AWAY, since they did not end well."""
        pair = Pair()
        near, far = pair.open()
        pair.server.session.close(Code.DONE, "")
        pair.settle()
        self.assertEqual(Code.GOING_AWAY, user_of(near).end)
        self.assertEqual(Code.GOING_AWAY, user_of(far).end)
        self.assertEqual((Code.DONE, True), pair.agent.log.close)

    @conformance("C-124")
    def test_nothing_is_read_after_close(self) -> None:
        """Nothing after CLOSE is processed, in the same bytes or later."""
        end = End()
        after = frames.open_frame(2, REQUEST) + frames.frame(DATA, 2, b"x") + b"\xff" * 99
        end.feed(frames.coded_frame(frames.CLOSE, 0, Code.DONE, "") + after, after)
        self.assertEqual([], end.log.requested)
        self.assertEqual((Code.DONE, True), end.log.close)

    @conformance("C-125")
    def test_nothing_is_sent_after_close(self) -> None:
        """CLOSE is the last frame, whatever was queued; a received one is not answered."""
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
        """A violation is answered by CLOSE with its code and a message."""
        end = End()
        end.feed(frames.frame(frames.OK, 9))
        ((kind, number, payload),) = end.sent()
        self.assertEqual((frames.CLOSE, 0), (kind, number))
        code, text = frames.decode_coded(payload)
        self.assertEqual(Code.PROTOCOL, code)
        self.assertIn("never opened", text)
