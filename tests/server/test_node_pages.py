"""The contents of ``/nodes``."""

from __future__ import annotations

import json

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import EDGE, FakeInformers, node
from tests.fakes import FakeSession
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.kube.resources import NODES
from yurttunnel.ops.failures import Failures
from yurttunnel.ops.slices import json_pieces
from yurttunnel.server.expected_nodes import ClusterNodes
from yurttunnel.server.lost_nodes import LostNodes
from yurttunnel.server.node_history import NodeHistory
from yurttunnel.server.node_pages import NodePages
from yurttunnel.server.registry import SessionRegistry


class NodePageTests(SynchronousTestCase):
    """Nodes of a cluster in every state."""

    def setUp(self) -> None:
        """Start with three edge nodes, none of them connected."""
        self.clock = Clock()
        self.clock.advance(1000)
        self.registry = SessionRegistry(self.clock)
        self.history = NodeHistory(self.clock)
        informers = FakeInformers()
        for name in ("a", "b", "c"):
            informers.put(NODES, node(name, labels=EDGE))
        self.lost = LostNodes(self.registry, self.history, ClusterNodes(Nodes(informers)))
        self.failures = Failures(self.clock)
        self.page = NodePages(self.registry, self.history, self.lost, self.failures).page()

    def nodes(self) -> dict[str, dict[str, object]]:
        """Return the list's entry of each node."""
        listed = json.loads("".join(json_pieces(self.page.show())))["nodes"]
        return {each["node"]: each for each in listed}

    def states(self) -> dict[str, object]:
        """Return the state of each node."""
        return {name: each["state"] for name, each in self.nodes().items()}

    def test_states(self) -> None:
        """Nodes are connected, waiting, lost, or absent; each has its reason."""
        self.assertEqual({"a": "absent", "b": "absent", "c": "absent"}, self.states())
        first, second = FakeSession("b"), FakeSession("c")
        self.registry.add(first)
        self.registry.add(second)
        self.assertEqual({"a": "absent", "b": "connected", "c": "connected"}, self.states())
        first.connected = False
        self.registry.remove(second)
        self.lost.session_ended("c", "silent")
        self.assertEqual({"a": "absent", "b": "waiting", "c": "lost"}, self.states())
        listed = self.nodes()
        self.assertEqual(["b", "c", "a"], list(listed))
        self.assertEqual("1970-01-01T00:16:40Z", listed["c"]["since"])
        self.assertEqual(["silent", "192.0.2.1"], [listed["c"][k] for k in ("reason", "address")])
        self.assertEqual("2030-01-01T00:00:00Z", listed["b"]["since"])
        self.assertIn("its agent has not connected", listed["a"]["reason"])
        self.assertIsNone(listed["a"]["since"])

    def test_at_another_server(self) -> None:
        """A node of another server is connected, and the entry names that server."""
        self.registry.add_remote(FakeSession("b"))
        listed = self.nodes()["b"]
        self.assertEqual("connected", listed["state"])
        self.assertEqual("192.0.2.1", listed["through"])
        self.assertIsNone(listed["address"])

    def test_each_has_the_same_fields(self) -> None:
        """In every state, unknown values of a node are null."""
        self.registry.add(FakeSession("a"))
        self.registry.add_remote(FakeSession("b"))
        self.history.lost("c", "silent")
        fields = {tuple(each) for each in self.nodes().values()}
        self.assertEqual(1, len(fields))

    def test_one_node(self) -> None:
        """A node has its identifiers, its sessions, and its past disconnections."""
        session = FakeSession("b", addresses=["192.0.2.7"])
        self.registry.add(session)
        self.history.interrupted("b", "reset")
        shown = self.page.show_one("b")
        self.assertEqual("connected", shown["state"])
        self.assertIn("ipv4=192.0.2.7", shown["identifiers"])
        self.assertEqual(["b"], [each["node"] for each in shown["sessions"]])
        self.assertEqual(
            [{"at": "1970-01-01T00:16:40Z", "reason": "reset"}], shown["disconnections"]
        )
        json.dumps(shown)

    def test_disconnected_node(self) -> None:
        """A disconnected node has a page with its history; an unknown node has none."""
        self.history.lost("c", "silent")
        shown = self.page.show_one("c")
        self.assertEqual(("lost", []), (shown["state"], shown["sessions"]))
        self.assertEqual("absent", self.page.show_one("a")["state"])
        self.assertIsNone(self.page.show_one("nobody"))
