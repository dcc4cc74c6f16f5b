"""Nodes as several servers tell of them, and what has changed."""

from __future__ import annotations

import datetime

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli import output
from yurttunnel.cli.nodes import changed, merged


def node(name: str, state: str, since: str | None = "2026-01-01T00:00:00Z", **more):
    """Return an entry of /nodes."""
    return {"node": name, "state": state, "since": since, "through": None, **more}


class MergedTests(SynchronousTestCase):
    """Each node is listed once."""

    def test_the_best_counts(self) -> None:
        """A node that any server has is connected, whatever the others have lost."""
        told = merged(
            [
                [node("b", "lost"), node("a", "absent", None), node("c", "waiting")],
                [node("a", "lost"), node("b", "connected"), node("c", "lost")],
            ]
        )
        self.assertEqual(
            [("a", "lost"), ("b", "connected"), ("c", "waiting")],
            [(each["node"], each["state"]) for each in told],
        )

    def test_who_has_it_tells(self) -> None:
        """The server that has the session tells of it, not one that knows the way."""
        ways = [node("a", "connected", None, through="server-2")], [node("a", "connected")]
        for order in (ways, ways[::-1]):
            [told] = merged(order)
            self.assertIsNone(told["through"])

    def test_nothing(self) -> None:
        """Without servers, or nodes, there are none."""
        self.assertEqual([], merged([]))
        self.assertEqual([], merged([[], []]))


class ChangedTests(SynchronousTestCase):
    """What --watch prints."""

    def test_changes(self) -> None:
        """New nodes, and those in another state or since another time, and no others."""
        before = [node("a", "connected"), node("b", "connected"), node("c", "lost")]
        after = [
            node("a", "connected"),
            node("b", "lost"),
            node("c", "lost", "2026-01-01T00:00:09Z"),
            node("d", "absent", None),
        ]
        self.assertEqual(["b", "c", "d"], [each["node"] for each in changed(before, after)])


class OutputTests(SynchronousTestCase):
    """Tables and ages."""

    def test_table(self) -> None:
        """Columns are as wide as what is in them, and nothing moves the cursor."""
        self.assertEqual(
            "A         BB\nlonger    1\n\\x1b[31m  é\n",
            output.table(("A", "BB"), [("longer", 1), ("\x1b[31m", "é")]),
        )

    def test_age(self) -> None:
        """Two units are enough."""
        now = datetime.datetime(2026, 1, 3, 1, 0, 5, tzinfo=datetime.UTC)
        for moment, expected in (
            ("2026-01-03T01:00:05Z", "0s"),
            ("2026-01-03T00:59:00Z", "1m5s"),
            ("2026-01-03T00:00:05Z", "1h"),
            ("2026-01-01T00:00:05Z", "2d1h"),
            # The clocks of two machines are never the same.
            ("2026-01-03T01:00:09Z", "0s"),
            (None, "-"),
        ):
            self.assertEqual(expected, output.ago(moment, now))
