"""Opening of a stream."""

from __future__ import annotations

import gc
import weakref

from tests.tunnel.sessions import SessionTestCase
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.wire.codes import Code


class OpeningTests(SessionTestCase):
    """From the OPEN to the answer."""

    def test_refusal(self):
        """A FAIL fails the Deferred with the code and text of the far end."""
        opening = self.pair.dial()
        self.pair.pump()
        self.pair.acceptor.requests[0].fail(Code.REFUSED, "nobody listens")
        self.pair.pump()
        error = self.failureResultOf(opening, StreamFailed).value
        self.assertEqual((Code.REFUSED, "nobody listens"), (error.code, error.text))
        self.assertEqual("nobody listens (REFUSED)", str(error))
        self.assertEqual({}, self.pair.server.wire.streams)

    def test_cancel(self):
        """Cancelling the Deferred cancels the dial at the far end."""
        opening = self.pair.dial()
        self.pair.pump()
        cancelled = []
        request = self.pair.acceptor.requests[0]
        request.on_cancel(lambda: cancelled.append("first"))
        opening.cancel()
        self.assertEqual(Code.CANCELLED, self.failureResultOf(opening, StreamFailed).value.code)
        self.pair.pump()
        self.assertEqual(["first"], cancelled)
        request.on_cancel(lambda: cancelled.append("at once"))
        self.assertEqual(["first", "at once"], cancelled)
        self.assertEqual({}, self.pair.agent.wire.streams)

    def test_answers_after_cancel(self):
        """An answer after the cancellation has no effect; an accepted stream ends at once."""
        opening = self.pair.dial()
        opening.addErrback(lambda failure: None)
        self.pair.pump()
        request = self.pair.acceptor.requests[0]
        opening.cancel()
        self.pair.pump()
        request.fail(Code.REFUSED, "too late")
        stream = request.accept()
        stream.attach(self.far_user)
        stream.write(b"x")
        self.pair.pump()
        self.assertEqual(["made", "lost"], self.far_user.events)
        self.assertEqual(Code.CANCELLED, self.far_user.reasons[0].value.code)

    def test_requests_without_a_stream_are_no_garbage(self):
        """A request that is refused or cancelled is freed without the garbage collector."""
        gc.disable()
        self.addCleanup(gc.enable)
        refused, cancelled = self.pair.dial(), self.pair.dial()
        self.pair.pump()
        requests = [weakref.ref(request) for request in self.pair.acceptor.requests]
        self.pair.acceptor.requests[0].fail(Code.REFUSED, "nobody listens")
        cancelled.cancel()
        self.pair.pump()
        self.pair.acceptor.requests.clear()
        self.assertEqual([None, None], [request() for request in requests])
        for opening in (refused, cancelled):
            self.failureResultOf(opening, StreamFailed)

    def test_no_answer(self):
        """A dial that is not answered fails with TIMEOUT, soon after its deadline."""
        opening = self.pair.dial(timeout=3)
        self.pair.pass_time(3)
        self.assertNoResult(opening)
        self.pair.pass_time(1)
        self.assertEqual(Code.TIMEOUT, self.failureResultOf(opening, StreamFailed).value.code)

    def test_session_ends(self):
        """A dial that is not answered when its session ends fails with the session's code."""
        opening = self.pair.dial()
        self.pair.pump()
        cancelled = []
        self.pair.acceptor.requests[0].on_cancel(lambda: cancelled.append(True))
        self.pair.server.close(Code.REVOKED, "revoked")
        self.assertEqual(Code.REVOKED, self.failureResultOf(opening, StreamFailed).value.code)
        self.pair.pump()
        self.assertEqual([True], cancelled)

    def test_bad_destination(self):
        """A destination that does not fit into an OPEN fails; the session continues."""
        for host, port, request_id in (("", 80, "r"), ("h" * 256, 80, "r"), ("h", 0, "r")):
            opening = self.pair.server.open_stream(host, port, 1.0, request_id)
            error = self.failureResultOf(opening, StreamFailed).value
            self.assertEqual(Code.BAD_DESTINATION, error.code)
        self.join()
        self.assertEqual(["made"], self.far_user.events)

    def test_endless_timeout(self):
        """A timeout above the maximum of an OPEN is reduced to it."""
        self.pair.dial(timeout=float("inf")).addErrback(lambda failure: None)
        self.pair.pump()
        self.assertEqual(0xFFFFFFFF / 1000, self.pair.acceptor.requests[0].timeout)

    def test_no_new_streams(self):
        """A session after GOAWAY opens no stream; the message names the node."""
        self.pair.agent.drain("the agent stops")
        self.pair.pass_time(1)
        self.assertTrue(self.pair.server.closed)
        error = self.failureResultOf(self.pair.dial(), StreamFailed).value
        self.assertEqual(Code.SESSION_LOST, error.code)
        self.assertIn("edge-1", error.text)

    def test_dials_are_counted(self):
        """Each answer is counted once at each end, and the duration of each success."""
        self.join()
        opening = self.pair.dial()
        opening.addErrback(lambda failure: None)
        self.pair.pump()
        self.pair.acceptor.requests[-1].fail(Code.REFUSED, "nobody listens")
        self.pair.pump()
        for context in (self.pair.server_context, self.pair.agent_context):
            self.assertEqual({Code.DONE: 1, Code.REFUSED: 1}, dict(context.counters.dials))
        self.assertEqual(1, sum(self.pair.server_context.counters.dial_durations.buckets))
        # A stream that was never open does not count as ended.
        self.assert_counters({})

    def test_dials_that_are_cancelled_are_counted_once(self):
        """Whatever is answered later, only the first result of each counts."""
        for answer in (
            lambda request: request.fail(Code.REFUSED, "nobody listens"),
            lambda request: request.accept(),
        ):
            opening = self.pair.dial()
            opening.addErrback(lambda failure: None)
            self.pair.pump()
            opening.cancel()
            self.pair.pump()
            answer(self.pair.acceptor.requests[-1])
            self.pair.pump()
        for context in (self.pair.server_context, self.pair.agent_context):
            self.assertEqual({Code.CANCELLED: 2}, dict(context.counters.dials))
        self.assertEqual(0, sum(self.pair.server_context.counters.dial_durations.buckets))
        self.assert_counters({})
