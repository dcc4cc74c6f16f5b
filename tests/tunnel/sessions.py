"""Two sessions and a stream between them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.tunnel.memory import HalfCloseUser, SessionPair

WINDOW = 64 * 1024


class SessionTestCase(SynchronousTestCase):
    """Two sessions, and a stream between two users."""

    def setUp(self):
        """Connect the sessions."""
        self.pair = SessionPair()
        self.addCleanup(self.pair.close)
        self.near_user, self.far_user = HalfCloseUser(), HalfCloseUser()
        self.ends = []
        for session in (self.pair.server, self.pair.agent):
            session.on_closed.append(lambda code, text, s=session: self.ends.append((s, code)))

    def join(self):
        """Open the stream."""
        self.near, self.far = self.pair.joined(self.near_user, self.far_user)
        self.pair.pump()

    def assert_no_timers(self):
        """Check that no delayed call is left."""
        self.assertEqual([], self.pair.clock.getDelayedCalls())

    def assert_counters(self, ends):
        """Compare the ends of streams that both processes have counted."""
        for context in (self.pair.server_context, self.pair.agent_context):
            self.assertEqual(ends, dict(context.counters.stream_ends))
