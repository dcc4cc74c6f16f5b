"""Nodes as several servers tell of them, and what has changed."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import time

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli import output
from yurttunnel.cli.client import CommandFailed, NotFound
from yurttunnel.cli.forwards import is_on_loopback
from yurttunnel.cli.node_text import described
from yurttunnel.cli.nodes import NodeOptions, NodesOptions, changed, merged, nodes
from yurttunnel.cli.nodes import node as told_of_one


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
        self.assertIn("yurttunnel token create prints the command", beside.getvalue())


class Told:
    """A server that tells of some nodes, or has gone since it was found."""

    name = ""

    def __init__(self, *known) -> None:
        self.known = known

    def get(self, page: str):
        """Answer."""
        if not self.known:
            raise CommandFailed("kubectl: pods s-1 not found")
        if page == "/nodes":
            return {"nodes": list(self.known)}
        found = [each for each in self.known if page == f"/nodes/{each['node']}"]
        if not found:
            raise NotFound("s-2 has no such page")
        return found[0]


NODE = node("a", "connected", rtt_seconds=None, streams=None, version="", address="", reason="")


class GoneTests(SynchronousTestCase):
    """Servers that go, as each of them does in an update, between being found and being asked."""

    def setUp(self) -> None:
        """Collect what is printed."""
        self.shown, self.beside = io.StringIO(), io.StringIO()
        self.looks: list[list[Told]] = []
        self.patch(time, "sleep", lambda seconds: None)

    def run_command(self, options, act, *arguments: str) -> None:
        """Have a command ask the servers of each look."""

        def servers(options):
            if not self.looks:
                raise KeyboardInterrupt
            found = self.looks.pop(0)
            for number, each in enumerate(found, 1):
                each.name = f"s-{number}"
            return found

        self.patch(type(options), "servers", servers)
        options.parseOptions(arguments)
        with contextlib.redirect_stdout(self.shown), contextlib.redirect_stderr(self.beside):
            act(options)

    def test_the_others_are_asked(self) -> None:
        """What they know is shown, and beside it who was not asked."""
        for options, act, words in (
            (NodesOptions(), nodes, ()),
            (NodeOptions(), told_of_one, ("a",)),
        ):
            self.looks = [[Told(), Told(NODE)]]
            self.run_command(options, act, *words)
        self.assertEqual(2, self.shown.getvalue().count("connected"))
        self.assertEqual("not queried: kubectl: pods s-1 not found\n" * 2, self.beside.getvalue())

    def test_nobody_is_left(self) -> None:
        """The command fails, and says why."""
        self.looks = [[Told(), Told()]]
        with self.assertRaisesRegex(CommandFailed, "pods s-1 not found"):
            self.run_command(NodesOptions(), nodes)

    def test_a_node_that_nobody_knows(self) -> None:
        """It is another matter than a server that does not answer."""
        known = [Told(), Told(NODE, {**NODE, "node": "edge-1"})]
        for name, meant in (("b", "yurttunnel nodes lists what is"), ("egde-1", "did you mean")):
            self.looks = [known, known]
            with self.assertRaisesRegex(CommandFailed, f"nothing is known of '{name}': {meant}"):
                self.run_command(NodeOptions(), told_of_one, name)

    def test_watched(self) -> None:
        """Servers are found anew at each look; while there is none it is waited, which is told."""
        lost = {**NODE, "state": "lost"}
        self.looks = [[Told(NODE)], [Told()], [Told()], [Told(lost)], [Told()], [Told(NODE)]]
        with self.assertRaises(KeyboardInterrupt):
            self.run_command(NodesOptions(), nodes, "--watch")
        states = [line.split()[1] for line in self.shown.getvalue().splitlines()[1:]]
        self.assertEqual(["connected", "lost", "connected"], states)
        said = "kubectl: pods s-1 not found; retrying\n"
        self.assertEqual(2 * said, self.beside.getvalue())

    def test_one_that_is_never_asked(self) -> None:
        """One of several servers that cannot be asked is told of once as long as that lasts."""
        gone, both = [Told(), Told(NODE)], [Told(NODE), Told(NODE)]
        self.looks = [gone, gone, gone, both, gone]
        with self.assertRaises(KeyboardInterrupt):
            self.run_command(NodesOptions(), nodes, "--watch")
        self.assertEqual("not queried: kubectl: pods s-1 not found\n" * 2, self.beside.getvalue())

    def test_one_that_is_not_asked_once(self) -> None:
        """The nodes of a server that was not asked at one look have not changed for that."""
        other = {**NODE, "node": "b"}
        self.looks = [[Told(NODE), Told(other)], [Told(), Told(other)], [Told(NODE), Told(other)]]
        with self.assertRaises(KeyboardInterrupt):
            self.run_command(NodesOptions(), nodes, "--watch")
        self.assertEqual(2, self.shown.getvalue().count("connected"))

    def test_others_know_less(self) -> None:
        """What others say of such a node, as each does of all in a cluster, is no change either."""
        seen = {**NODE, "since": None, "through": "192.0.2.1:10262"}
        missed = {**NODE, "state": "absent", "since": None}
        for less in (seen, missed):
            self.looks = [[Told(each), Told(less)] for each in (NODE, NODE)]
            self.looks.insert(1, [Told(), Told(less)])
            with self.assertRaises(KeyboardInterrupt):
                self.run_command(NodesOptions(), nodes, "--watch")
        self.assertEqual(["NODE", "a"] * 2, self.first_words())

    def test_a_server_that_is_there_no_longer(self) -> None:
        """What it told counts no more: the node is as the others say."""
        lost = {**NODE, "state": "lost"}
        self.looks = [[Told(lost), Told(NODE)], [Told(lost), Told()], [Told(lost)]]
        with self.assertRaises(KeyboardInterrupt):
            self.run_command(NodesOptions(), nodes, "--watch")
        self.assertEqual(["NODE", "a", "a"], self.first_words())
        self.assertIn("lost", self.shown.getvalue().splitlines()[-1])

    def first_words(self) -> list[str]:
        """Return that of each line that was shown."""
        return [line.split()[0] for line in self.shown.getvalue().splitlines()]

    def test_watched_by_a_program(self) -> None:
        """It gets an object in each line, of the nodes that are there and of those that change."""
        lost, other = {**NODE, "state": "lost"}, {**NODE, "node": "b"}
        self.looks = [[Told(NODE, other)], [Told(lost, other)]]
        with self.assertRaises(KeyboardInterrupt):
            self.run_command(NodesOptions(), nodes, "-w", "-o=json")
        told = [json.loads(line) for line in self.shown.getvalue().splitlines()]
        self.assertEqual([NODE, other, lost], told)


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
