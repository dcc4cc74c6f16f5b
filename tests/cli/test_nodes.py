"""Merging the nodes that several servers report, and detecting changes."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import time

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli import output
from yurttunnel.cli.client import CommandFailed, NotFound
from yurttunnel.cli.forwards import needs_permission
from yurttunnel.cli.nodes import NodeOptions, NodesOptions, changed, described, merged, nodes
from yurttunnel.cli.nodes import node as told_of_one


def node(name: str, state: str, since: str | None = "2026-01-01T00:00:00Z", **more):
    """Return an entry of /nodes."""
    return {"node": name, "state": state, "since": since, "through": None, **more}


class MergedTests(SynchronousTestCase):
    """Each node is listed once."""

    def test_the_best_counts(self) -> None:
        """The best state that any server reports counts."""
        reported = merged(
            [
                [node("b", "lost"), node("a", "absent", None), node("c", "waiting")],
                [node("a", "lost"), node("b", "connected"), node("c", "lost")],
            ]
        )
        self.assertEqual(
            [("a", "lost"), ("b", "connected"), ("c", "waiting")],
            [(each["node"], each["state"]) for each in reported],
        )

    def test_session_takes_precedence(self) -> None:
        """A server with a session takes precedence over one that reaches the node through it."""
        ways = [node("a", "connected", None, through="server-2")], [node("a", "connected")]
        for order in (ways, ways[::-1]):
            [reported] = merged(order)
            self.assertIsNone(reported["through"])

    def test_nothing(self) -> None:
        """Without servers or nodes the result is empty."""
        self.assertEqual([], merged([]))
        self.assertEqual([], merged([[], []]))

    def test_no_nodes(self) -> None:
        """An empty list has its headings, and a note on how to add a node."""
        options = NodesOptions()
        options.parseOptions([])
        self.patch(NodesOptions, "servers", lambda options: [])
        shown, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
            nodes(options)
        self.assertEqual(["NODE", "STATE"], shown.getvalue().split()[:2])
        self.assertIn("yurttunnel token create prints the command", errors.getvalue())


class FakeServer:
    """A server that reports some nodes, or has gone since it was found."""

    name = ""

    def __init__(self, *nodes_found) -> None:
        self.nodes_found = nodes_found

    def get(self, page: str):
        """Return the page."""
        if not self.nodes_found:
            raise CommandFailed("kubectl: pods s-1 not found")
        if page == "/nodes":
            return {"nodes": list(self.nodes_found)}
        found = [each for each in self.nodes_found if page == f"/nodes/{each['node']}"]
        if not found:
            raise NotFound("s-2 has no such page")
        return found[0]


NODE = node("a", "connected", rtt_seconds=None, streams=None, version="", address="", reason="")


class StoppedServerTests(SynchronousTestCase):
    """Servers that stop between discovery and query, as in a rolling update."""

    def setUp(self) -> None:
        """Capture the output."""
        self.shown, self.errors = io.StringIO(), io.StringIO()
        self.queries: list[list[FakeServer]] = []
        self.patch(time, "sleep", lambda seconds: None)

    def run_command(self, options, act, *arguments: str) -> None:
        """Run a command; each query finds the servers of the next look."""

        def servers(options):
            if not self.queries:
                raise KeyboardInterrupt
            found = self.queries.pop(0)
            for number, each in enumerate(found, 1):
                each.name = f"s-{number}"
            return found

        self.patch(type(options), "servers", servers)
        options.parseOptions(arguments)
        with contextlib.redirect_stdout(self.shown), contextlib.redirect_stderr(self.errors):
            act(options)

    def test_other_servers_are_shown(self) -> None:
        """The nodes of the other servers are shown, and the failed query is reported."""
        for options, act, words in (
            (NodesOptions(), nodes, ()),
            (NodeOptions(), told_of_one, ("a",)),
        ):
            self.queries = [[FakeServer(), FakeServer(NODE)]]
            self.run_command(options, act, *words)
        self.assertEqual(2, self.shown.getvalue().count("connected"))
        self.assertEqual("not queried: kubectl: pods s-1 not found\n" * 2, self.errors.getvalue())

    def test_no_server_responds(self) -> None:
        """If no server responds, the command fails with the reason."""
        self.queries = [[FakeServer(), FakeServer()]]
        with self.assertRaisesRegex(CommandFailed, "pods s-1 not found"):
            self.run_command(NodesOptions(), nodes)

    def test_unknown_node(self) -> None:
        """An unknown node is reported as such, although one server does not respond."""
        servers_found = [FakeServer(), FakeServer(NODE, {**NODE, "node": "edge-1"})]
        for name, hint in (("b", "yurttunnel nodes lists the known"), ("egde-1", "did you mean")):
            self.queries = [servers_found, servers_found]
            with self.assertRaisesRegex(CommandFailed, f"unknown node '{name}': {hint}"):
                self.run_command(NodeOptions(), told_of_one, name)

    def test_watched(self) -> None:
        """--watch finds servers at each look; it reports once that there are none, and retries."""
        lost = {**NODE, "state": "lost"}
        self.queries = [
            [FakeServer(NODE)],
            [FakeServer()],
            [FakeServer()],
            [FakeServer(lost)],
            [FakeServer()],
            [FakeServer(NODE)],
        ]
        with self.assertRaises(KeyboardInterrupt):
            self.run_command(NodesOptions(), nodes, "--watch")
        states = [line.split()[1] for line in self.shown.getvalue().splitlines()[1:]]
        self.assertEqual(["connected", "lost", "connected"], states)
        message = "kubectl: pods s-1 not found; retrying\n"
        self.assertEqual(2 * message, self.errors.getvalue())

    def test_unreachable_server(self) -> None:
        """A server that cannot be queried is reported once until it recovers."""
        stopped, both = [FakeServer(), FakeServer(NODE)], [FakeServer(NODE), FakeServer(NODE)]
        self.queries = [stopped, stopped, stopped, both, stopped]
        with self.assertRaises(KeyboardInterrupt):
            self.run_command(NodesOptions(), nodes, "--watch")
        self.assertEqual("not queried: kubectl: pods s-1 not found\n" * 2, self.errors.getvalue())

    def test_missed_query(self) -> None:
        """Nodes of a server that missed one query are not shown as changed."""
        other = {**NODE, "node": "b"}
        self.queries = [
            [FakeServer(NODE), FakeServer(other)],
            [FakeServer(), FakeServer(other)],
            [FakeServer(NODE), FakeServer(other)],
        ]
        with self.assertRaises(KeyboardInterrupt):
            self.run_command(NodesOptions(), nodes, "--watch")
        self.assertEqual(2, self.shown.getvalue().count("connected"))

    def test_others_know_less(self) -> None:
        """Other servers' lesser knowledge of such a node is not shown as a change."""
        seen = {**NODE, "since": None, "through": "192.0.2.1:10262"}
        missed = {**NODE, "state": "absent", "since": None}
        for less in (seen, missed):
            self.queries = [[FakeServer(each), FakeServer(less)] for each in (NODE, NODE)]
            self.queries.insert(1, [FakeServer(), FakeServer(less)])
            with self.assertRaises(KeyboardInterrupt):
                self.run_command(NodesOptions(), nodes, "--watch")
        self.assertEqual(["NODE", "a"] * 2, self.first_words())

    def test_removed_server(self) -> None:
        """A server that is gone no longer counts; its nodes have the state that others report."""
        lost = {**NODE, "state": "lost"}
        self.queries = [
            [FakeServer(lost), FakeServer(NODE)],
            [FakeServer(lost), FakeServer()],
            [FakeServer(lost)],
        ]
        with self.assertRaises(KeyboardInterrupt):
            self.run_command(NodesOptions(), nodes, "--watch")
        self.assertEqual(["NODE", "a", "a"], self.first_words())
        self.assertIn("lost", self.shown.getvalue().splitlines()[-1])

    def first_words(self) -> list[str]:
        """Return the first word of each line of output."""
        return [line.split()[0] for line in self.shown.getvalue().splitlines()]

    def test_watched_by_a_program(self) -> None:
        """As JSON, --watch prints an object per line: first all nodes, then each change."""
        lost, other = {**NODE, "state": "lost"}, {**NODE, "node": "b"}
        self.queries = [[FakeServer(NODE, other)], [FakeServer(lost, other)]]
        with self.assertRaises(KeyboardInterrupt):
            self.run_command(NodesOptions(), nodes, "-w", "-o=json")
        reported = [json.loads(line) for line in self.shown.getvalue().splitlines()]
        self.assertEqual([NODE, other, lost], reported)


class ChangedTests(SynchronousTestCase):
    """The nodes that --watch prints."""

    def test_changes(self) -> None:
        """New nodes and nodes with a new state or time are printed, and no others."""
        before = [node("a", "connected"), node("b", "connected"), node("c", "lost")]
        after = [
            node("a", "connected"),
            node("b", "lost"),
            node("c", "lost", "2026-01-01T00:00:09Z"),
            node("d", "absent", None),
        ]
        self.assertEqual(["b", "c", "d"], [each["node"] for each in changed(before, after)])


class DescribedTests(SynchronousTestCase):
    """The description of one node."""

    def test_text(self) -> None:
        """Values are lines, lists are tables, and control characters are escaped."""
        session = {
            "node": "edge-1", "session": "0edd9d4af7cd4665441813007a49d402", "connected": True,
            "since": "2026-01-01T00:00:00Z", "rtt_seconds": 0.00123, "streams": 2,
            "bytes_received": 10, "bytes_sent": 20, "resumptions": 0, "address": "192.0.2.7:4",
        }  # fmt: skip
        lost = [{"at": "2026-01-01T00:00:00Z", "reason": "it\x1b[2J left"}]
        lists = {"sessions": [session], "failures": [], "disconnections": lost}
        reported = node("edge-1", "connected", rtt_seconds=0.0004, **lists)
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
            described(reported).splitlines(),
        )


class TargetTests(SynchronousTestCase):
    """Targets that an agent denies by default."""

    def test_needs_permission(self) -> None:
        """Targets on loopback are denied, except ports of the kubelet and the hub, and so is the
        meta port of the agent, also on other addresses of the node.
        """
        for target, denied in (
            ("127.0.0.1:80", True),
            ("[::1]:80", True),
            ("0.0.0.0:80", True),
            ("[::]:80", True),
            ("127.0.0.1:10250", False),
            ("127.0.0.1:10267", False),
            ("127.0.0.1:10266", True),
            ("192.0.2.7:10266", True),
            ("192.0.2.7:80", False),
            ("edge-1:80", False),
        ):
            self.assertEqual(denied, needs_permission(target), target)


class OutputTests(SynchronousTestCase):
    """Tables and ages."""

    def test_table(self) -> None:
        """Columns fit their content, and control characters are escaped."""
        self.assertEqual(
            "A         BB\nlonger    1\n\\x1b[31m  é\n",
            output.table(("A", "BB"), [("longer", 1), ("\x1b[31m", "é")]),
        )

    def test_age(self) -> None:
        """An age has at most two units."""
        now = datetime.datetime(2026, 1, 3, 1, 0, 5, tzinfo=datetime.UTC)
        for moment, expected in (
            ("2026-01-03T01:00:05Z", "0s"),
            ("2026-01-03T00:59:00Z", "1m5s"),
            ("2026-01-03T00:00:05Z", "1h"),
            ("2026-01-01T00:00:05Z", "2d1h"),
            # The clock of the other machine may be ahead.
            ("2026-01-03T01:00:09Z", "0s"),
            (None, "-"),
        ):
            self.assertEqual(expected, output.ago(moment, now))
