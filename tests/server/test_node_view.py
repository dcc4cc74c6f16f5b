"""The page of one node."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import FakeInformers
from tests.fakes import FakeSession
from tests.ops.status_pages import NOW, PageUnderTest
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.server.expected_nodes import ClusterNodes
from yurttunnel.server.lost_nodes import LostNodes
from yurttunnel.server.node_history import NodeHistory
from yurttunnel.server.node_pages import NodePages
from yurttunnel.server.node_view import NodeView
from yurttunnel.server.process import NODES
from yurttunnel.server.registry import SessionRegistry

HOSTILE = "<script>alert(1)</script>"


class NodeViewTests(SynchronousTestCase):
    """A node that connects and leaves."""

    def setUp(self) -> None:
        """Start without sessions."""
        self.status = PageUnderTest(one=lambda *asked: self.view.sections(*asked))
        clock = self.status.clock
        self.registry, self.history = SessionRegistry(clock), NodeHistory(clock)
        expected = ClusterNodes(Nodes(FakeInformers(synced=False)))
        lost = LostNodes(self.registry, self.history, expected)
        failures = self.status.failures
        pages = NodePages(self.registry, self.history, lost, failures)
        self.view = NodeView(self.registry, self.history, pages, failures, NODES)

    def test_nobody(self) -> None:
        """For an unknown name the page says so, whatever it is."""
        page = self.status.render(one=HOSTILE)
        self.assertIn(f"Node '{HOSTILE}' is unknown.", page.sections["node"])
        self.assertEqual(1, sum(name == "script" for name, _ in page.elements))

    def test_a_node(self) -> None:
        """The page has identifiers, session, round trip, failures, and disconnections."""
        self.registry.add(FakeSession("edge-1", addresses=["192.0.2.7"]))
        self.history.interrupted("edge-1", HOSTILE)
        self.status.failures.note("connect", "a", "edge-1", "r-1", 503, HOSTILE)
        self.status.failures.note("connect", "a", "edge-2", "r-2", 503, "of another")
        page = self.status.render(one="edge-1")
        facts = dict(page.rows["node"])
        self.assertEqual(["connected", "192.0.2.1"], [facts["State"], facts["Address"]])
        self.assertIn("ipv4=192.0.2.7", facts["Identifiers"])
        self.assertEqual(1, len(page.rows["sessions"]))
        self.assertIn("Round trip not measured yet", page.sections["round-trip"])
        self.assertEqual([f"{HOSTILE} r-1"], [row[0] for row in page.rows["failures"]])
        self.assertEqual([[HOSTILE, "0 s ago"]], page.rows["disconnections"])
        self.assertTrue(page.text.startswith("edge-1: yurttunnel-server on "))

    def test_disconnected_node(self) -> None:
        """A disconnected node is shown as lost, with time and reason."""
        self.history.lost("edge-1", "silent")
        page = self.status.render(one="edge-1")
        facts = dict(page.rows["node"])
        self.assertEqual(["lost", "silent"], [facts["State"], facts["Why"]])
        self.assertEqual(f"{NOW:%Y-%m-%d %H:%M:%S} UTC, 0 s ago", facts["Since"])
        self.assertNotIn("sessions", page.sections)

    def test_readiness(self) -> None:
        """The server's readiness is shown only if it is bad: a lost node is not ready."""
        self.history.lost("edge-1", "silent")
        problems: list[str | None] = [None, "port 10262 is not bound"]
        self.status.readiness.add("listeners", lambda: problems[0])
        page = self.status.render(one="edge-1")
        self.assertNotIn("readiness", page.sections)
        self.assertIn("seen by yurttunnel-server", page.text)
        problems.reverse()
        page = self.status.render(one="edge-1")
        self.assertIn("port 10262 is not bound", page.sections["readiness"])

    def test_links(self) -> None:
        """The names of nodes link to their pages."""
        self.status.snapshots = [FakeSession("edge-1&x").snapshot()]
        links = [found.get("href") for name, found in self.status.render().elements if name == "a"]
        self.assertIn("/?node=edge-1%26x", links)
