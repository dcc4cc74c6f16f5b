"""Callers' input quoted in logs."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.server.redaction import MAX_QUOTED, redacted


class QuotingTests(SynchronousTestCase):
    """``redacted`` removes secrets, and truncates long texts."""

    def test_as_it_is(self):
        """Sentences and destinations are quoted unchanged."""
        for text in ("", "edge-1:10250", "[2001:db8::1]:1", "is it there? No: look at edge-1"):
            self.assertEqual(redacted(text), text)

    def test_user_information(self):
        """The text before each ``@`` is removed."""
        for text, expected in (
            ("u:pw@edge-1:1", "***@edge-1:1"),
            ("http://u:p@w@edge-1/", "***@edge-1/"),
            ("'u:pw@a' is no host, nor is u@b", "***@a' is no host, nor is ***@b"),
            (f"http://u:{'w' * 5000}@edge-1/", "***@edge-1/"),
        ):
            self.assertEqual(redacted(text), expected)

    def test_query(self):
        """Queries are removed, and with them the commands of ``exec`` and ``run``."""
        self.assertEqual(
            redacted("'/run/a/b/c?cmd=x&cmd=y' is not a port"), "'/run/a/b/c?*** is not a port"
        )

    def test_query_or_user_information(self):
        """If it may be either, neither is quoted."""
        for text in ("'http://edge-1/run?cmd=y@z'", "http://u:p?w@edge-1/"):
            self.assertEqual(redacted(f"look: {text} b"), "look: ***@?*** b")

    def test_length(self):
        """A long text is truncated visibly; the time is linear in its length."""
        self.assertEqual(redacted("x" * MAX_QUOTED), "x" * MAX_QUOTED)
        # In quadratic time these would take hours.
        for text in ("x" * 10_000_000, "x@" * 5_000_000, "?" * 10_000_000, "? @" * 10_000):
            self.assertLessEqual(len(redacted(text)), MAX_QUOTED + 3)
        self.assertEqual(redacted("x" * 1000), f"{'x' * MAX_QUOTED}...")
