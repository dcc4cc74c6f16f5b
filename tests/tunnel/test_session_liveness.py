"""Silent connections."""

from __future__ import annotations

from tests.tunnel.sessions import SessionTestCase
from yurttunnel.wire.codes import Code


class LivenessTests(SessionTestCase):
    """Silent connections."""

    def elapse_until_silent(self, limit):
        """Drop all sent data; return the seconds until both ends have dropped the connection."""
        self.pair.silent = True
        seconds = 0.0
        ends = (self.pair.server_carrier, self.pair.agent_carrier)
        while not all(each.abandoned for each in ends) and seconds < limit:
            self.pair.clock.advance(0.25)
            seconds += 0.25
        return seconds

    def test_idle(self):
        """An idle peer that has become silent is detected within 25 seconds."""
        self.pair.pass_time(30)
        seconds = self.elapse_until_silent(60)
        self.assertLessEqual(seconds, 25)
        self.assertGreater(seconds, 12)
        for end in (self.pair.server, self.pair.agent):
            self.assertFalse(end.connected)
            self.assertFalse(end.closed)

    def test_busy(self):
        """With an open stream a silent peer is detected within 7.5 seconds."""
        self.join()
        self.pair.pass_time(30)
        self.assertLessEqual(self.elapse_until_silent(60), 7.5)

    def test_peer_that_answers(self):
        """A peer that answers PINGs is never dropped, however long nothing else happens."""
        self.join()
        self.pair.pass_time(300, 1)
        self.assertTrue(self.pair.server.connected)
        self.assertTrue(self.pair.agent.connected)

    def test_stored_for_the_resume_window(self):
        """A session whose peer became silent is kept for the whole resume window."""
        self.join()
        self.elapse_until_silent(60)
        self.pair.clock.pump([1] * 29)
        self.assertFalse(self.pair.server.closed)
        self.pair.clock.pump([1] * 2)
        self.assertTrue(self.pair.server.closed)
        self.assertIn((self.pair.server, Code.SESSION_LOST), self.ends)
        self.assertEqual(Code.SESSION_LOST, self.near_user.reasons[0].value.code)
