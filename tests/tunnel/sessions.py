"""Two sessions and a stream between them, for the tests of both."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.tunnel.memory import HalfCloseUser, SessionPair


class SessionTestCase(SynchronousTestCase):
    """Two sessions."""

    def setUp(self):
        """Join them."""
        self.pair = SessionPair()
        self.addCleanup(self.pair.close)
        self.near_user, self.far_user = HalfCloseUser(), HalfCloseUser()
        self.ends = []
        for session in (self.pair.server, self.pair.agent):
            session.on_closed.append(lambda code, text, s=session: self.ends.append((s, code)))

    def join(self):
        """Open a stream."""
        self.near, self.far = self.pair.joined(self.near_user, self.far_user)
        self.pair.pump()

    def assert_no_timers(self):
        """Check that no delayed call is left."""
        self.assertEqual([], self.pair.clock.getDelayedCalls())
