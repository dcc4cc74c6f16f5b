"""What logs quote of what callers have sent."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.server.quoting import LONGEST_QUOTED, quotable


class QuotingTests(SynchronousTestCase):
    """``quotable`` leaves secrets out, and most of what is very long."""

    def test_as_it_is(self):
        """Sentences and destinations are quoted unchanged."""
        for text in ("", "edge-1:10250", "[2001:db8::1]:1", "is it there? No: look at edge-1"):
            self.assertEqual(quotable(text), text)

    def test_user_information(self):
        """What stands before an ``@`` is left out, each time there is one."""
        for text, expected in (
            ("u:pw@edge-1:1", "***@edge-1:1"),
            ("http://u:p@w@edge-1/", "***@edge-1/"),
            ("'u:pw@a' is no host, nor is u@b", "***@a' is no host, nor is ***@b"),
            (f"http://u:{'w' * 5000}@edge-1/", "***@edge-1/"),
        ):
            self.assertEqual(quotable(text), expected)

    def test_query(self):
        """So are the commands of ``exec`` and ``run``."""
        self.assertEqual(
            quotable("'/run/a/b/c?cmd=x&cmd=y' is not a port"), "'/run/a/b/c?*** is not a port"
        )

    def test_query_or_user_information(self):
        """Where it may be either, neither is told."""
        for text in ("'http://edge-1/run?cmd=y@z'", "http://u:p?w@edge-1/"):
            self.assertEqual(quotable(f"look: {text} b"), "look: ***@?*** b")

    def test_length(self):
        """It is cut, and that is seen; the time for a long text grows as its length does."""
        self.assertEqual(quotable("x" * LONGEST_QUOTED), "x" * LONGEST_QUOTED)
        # In time that grows with the square these would take hours.
        for text in ("x" * 10_000_000, "x@" * 5_000_000, "?" * 10_000_000, "? @" * 10_000):
            self.assertLessEqual(len(quotable(text)), LONGEST_QUOTED + 3)
        self.assertEqual(quotable("x" * 1000), f"{'x' * LONGEST_QUOTED}...")
