"""Nodes as several servers tell of them, and what has changed."""

from __future__ import annotations

import contextlib
import datetime
import io

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli import output
from yurttunnel.cli.forwards import is_on_loopback
from yurttunnel.cli.node_text import described
from yurttunnel.cli.nodes import NodesOptions, changed, merged, nodes


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

    def test_nobody_has_come(self) -> None:
        """A list without a node has its headings, and beside them how one comes."""
        options = NodesOptions()
        options.parseOptions([])
        self.patch(NodesOptions, "servers", lambda options: [])
        shown, beside = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(beside):
            nodes(options)
        self.assertEqual(["NODE", "STATE"], shown.getvalue().split()[:2])
        self.assertIn("yurttunnel token create says what to run", beside.getvalue())


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


class DescribedTests(SynchronousTestCase):
    """What is printed of one node."""

    def test_text(self) -> None:
        """A line for each value, and a table for each list, without what moves a cursor."""
        session = {
            "node": "edge-1", "session": "0edd9d4af7cd4665441813007a49d402", "connected": True,
            "since": "2026-01-01T00:00:00Z", "rtt_seconds": 0.00123, "streams": 2,
            "bytes_received": 10, "bytes_sent": 20, "resumptions": 0, "address": "192.0.2.7:4",
        }  # fmt: skip
        lost = [{"at": "2026-01-01T00:00:00Z", "reason": "it\x1b[2J left"}]
        lists = {"sessions": [session], "failures": [], "disconnections": lost}
        told = node("edge-1", "connected", rtt_seconds=0.0004, **lists)
        self.assertEqual(
            [
                "node: edge-1",
                "state: connected",
                "since: 2026-01-01T00:00:00Z",
                "through: -",
                "round trip: 0.4ms",
                "sessions:",
                "  SESSION   SINCE                 ROUND TRIP  STREAMS  BYTES RECEIVED  BYTES SENT"
                "  RESUMPTIONS  ADDRESS",
                "  0edd9d4a  2026-01-01T00:00:00Z  1.2ms       2        10              20        "
                "  0            192.0.2.7:4",
                "failures: none",
                "disconnections:",
                "  AT                    REASON",
                "  2026-01-01T00:00:00Z  it\\x1b[2J left",
            ],
            described(told).splitlines(),
        )


class TargetTests(SynchronousTestCase):
    """Whether an agent lets a target be reached that was told nothing."""

    def test_on_loopback(self) -> None:
        """Those of loopback it does not, but for the kubelet's."""
        for target, denied in (
            ("127.0.0.1:80", True),
            ("[::1]:80", True),
            ("127.0.0.1:10250", False),
            ("192.0.2.7:80", False),
            ("edge-1:80", False),
        ):
            self.assertEqual(denied, is_on_loopback(target), target)


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
