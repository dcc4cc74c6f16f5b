"""The statistics of a session, for diagnosis."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.harness import Pair


class FiguresTests(SynchronousTestCase):
    """Credit, queues and memory, at rest and with data that is not consumed."""

    def setUp(self) -> None:
        """Open a stream."""
        self.pair = Pair()
        self.stream, self.accepted = self.pair.open()
        self.size = 1000

    def send(self) -> None:
        """Send data from the server."""
        self.pair.server.session.send(self.stream, b"x" * self.size)

    def test_at_rest(self) -> None:
        """A session without data has all its credit, and nothing queued or held."""
        for end in (self.pair.agent, self.pair.server):
            stats = end.session.stats()
            self.assertEqual("attached", stats["state"])
            self.assertEqual(
                (0, 0, 0), (stats["held"], stats["control_queued"], stats["to_send_again"])
            )
            self.assertEqual(stats["window"], stats["credit_given"])
            self.assertFalse(stats["going_away"] or stats["peer_going_away"])
            self.assertEqual(self.stream.window.size, self.accepted.window.size)
            self.assertGreaterEqual(stats["memory_used"], self.stream.window.size)

    def test_unread_data(self) -> None:
        """Data received by a paused stream is held, and uses credit at both ends."""
        before = self.pair.server.session.stats()
        self.pair.agent.session.pause(self.accepted)
        self.send()
        self.pair.settle()
        agent, server = self.pair.agent.session.stats(), self.pair.server.session.stats()
        self.assertEqual(self.size, agent["held"])
        self.assertEqual(agent["window"] - self.size, agent["credit_given"])
        self.assertEqual(before["credit_left"] - self.size, server["credit_left"])
        self.assertGreater(server["unacknowledged"], self.size)
        self.assertLess(server["unacknowledged"], server["most_unacknowledged"])

    def test_lost_connection(self) -> None:
        """After a lost connection the data to be retransmitted is reported."""
        self.send()
        self.pair.server.session.data_to_send(1 << 16)
        self.pair.lose()
        self.assertEqual("detached", self.pair.server.session.stats()["state"])
        self.pair.connect()
        self.assertGreater(self.pair.server.session.stats()["to_send_again"], self.size)

    def test_age(self) -> None:
        """A stream has its start time, by the session's clock."""
        self.pair.server.now += 5.0
        self.assertEqual(self.pair.server.now, self.pair.server.open().since)
        self.assertEqual(self.pair.server.now - 5.0, self.stream.since)
