"""The unreachable nodes, and the reasons."""

from __future__ import annotations

import datetime

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import EDGE, FakeInformers, node
from tests.fakes import FakeSession
from tests.server.agents import ListenerTests
from tests.server.expectations import nothing_expected
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.kube.resources import NODES
from yurttunnel.ops.slices import ITEMS_PER_PIECE
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.records import NodeRecord, NodeRecords
from yurttunnel.pki.revocation import Revocations, revoke_node
from yurttunnel.server.expected_nodes import ClusterNodes, EnrolledNodes
from yurttunnel.server.lost_nodes import LostNode, LostNodes
from yurttunnel.server.node_history import NodeHistory
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.wire.codes import Code


def listed(lost: LostNodes) -> list[LostNode]:
    """Return the lost nodes, without the pauses."""
    return [each for each in lost.newest_first() if each is not None]


class LostNodesTests(SynchronousTestCase):
    """Sessions that start and end."""

    def setUp(self) -> None:
        """Start without sessions or a cluster."""
        self.clock = Clock()
        self.clock.advance(1000)
        self.registry = SessionRegistry(self.clock)
        self.history = NodeHistory(self.clock, max_nodes=3)
        self.lost = LostNodes(self.registry, self.history, nothing_expected())

    def connect(self, name: str) -> FakeSession:
        """Connect a node."""
        session = FakeSession(name)
        self.registry.add(session)
        return session

    def disconnect(self, session: FakeSession, reason: str) -> None:
        """End its session."""
        self.registry.remove(session)
        self.lost.session_ended(session.node, reason)

    def names(self) -> list[str]:
        """Return the names of the lost nodes."""
        return [lost.node for lost in listed(self.lost)]

    def test_lost(self) -> None:
        """A node that has gone is lost, with time and reason, until it is back."""
        session = self.connect("edge-1")
        self.assertEqual([], self.names())
        self.disconnect(session, "silent")
        [lost] = listed(self.lost)
        self.assertEqual(("edge-1", 1000, "silent"), (lost.node, lost.last_seen, lost.reason))
        self.connect("edge-1")
        self.assertEqual([], self.names())

    def test_replaced(self) -> None:
        """The end of a replaced session does not make a node lost."""
        first = self.connect("edge-1")
        self.connect("edge-1")
        self.disconnect(first, "replaced")
        self.assertEqual([], self.names())

    def test_at_a_sibling(self) -> None:
        """A node of a sibling is not lost until the sibling loses it, too."""
        session, remote = self.connect("edge-1"), FakeSession("edge-1")
        self.registry.add_remote(remote)
        self.disconnect(session, "silent")
        self.assertEqual([], self.names())
        self.clock.advance(500)
        self.registry.remove_remote(remote)
        [lost] = listed(self.lost)
        self.assertEqual(("edge-1", 1500), (lost.node, lost.last_seen))
        self.assertIn("through another server", lost.reason)

    def test_here_after_a_sibling(self) -> None:
        """A node that a sibling has lost is not lost while it is here; its reason is then our
        own.
        """
        session, remote = self.connect("edge-1"), FakeSession("edge-1")
        self.registry.add_remote(remote)
        self.registry.remove_remote(remote)
        self.assertEqual([], self.names())
        self.disconnect(session, "silent")
        self.assertEqual(["silent"], [lost.reason for lost in listed(self.lost)])

    def test_at_siblings_only(self) -> None:
        """A node that only siblings had is lost when the last of them loses it."""
        first, second = FakeSession("edge-1"), FakeSession("edge-1")
        self.registry.add_remote(first)
        self.registry.add_remote(second)
        self.registry.remove_remote(first)
        self.assertEqual([], self.names())
        self.registry.remove_remote(second)
        [lost] = listed(self.lost)
        self.assertEqual(1000, lost.last_seen)

    def test_it_is_bounded(self) -> None:
        """The most recently lost nodes are kept, the last one first."""
        for name in ("a", "b", "c", "d"):
            self.disconnect(self.connect(name), "silent")
        self.assertEqual(["d", "c", "b"], self.names())
        self.disconnect(self.connect("b"), "again")
        self.assertEqual(["b", "d", "c"], self.names())


class ClusterTests(SynchronousTestCase):
    """Lost nodes when the nodes of a cluster are expected."""

    def setUp(self) -> None:
        """Start with three nodes, two of them behind the tunnel."""
        self.clock = Clock()
        self.registry = SessionRegistry(self.clock)
        self.informers = FakeInformers(synced=False)
        expected = ClusterNodes(Nodes(self.informers))
        self.lost = LostNodes(self.registry, NodeHistory(self.clock), expected)
        for name, labels in (("edge-2", EDGE), ("edge-1", EDGE), ("cloud", ())):
            self.informers.put(NODES, node(name, labels=labels))

    def test_never_seen(self) -> None:
        """Edge nodes that have not connected yet are reported, once the cache has synced."""
        self.assertEqual([], listed(self.lost))
        self.informers.complete()
        self.registry.add(FakeSession("edge-1"))
        [lost] = listed(self.lost)
        self.assertEqual(("edge-2", None), (lost.node, lost.last_seen))
        self.assertIn("its agent has not connected", lost.reason)

    def test_thousands_that_are_there(self) -> None:
        """The reactor may run during the iteration, also if no node is lost."""
        for number in range(1000):
            self.informers.put(NODES, node(f"there-{number}", labels=EDGE))
            self.registry.add(FakeSession(f"there-{number}"))
        self.informers.complete()
        found = list(self.lost.newest_first())
        self.assertGreater(found.count(None), 1000 / ITEMS_PER_PIECE)
        self.assertLess(found.count(None), 3 * 1000 / ITEMS_PER_PIECE)
        self.assertNotIn("there-7", [each.node for each in listed(self.lost)])

    def test_deleted(self) -> None:
        """A node that was deleted from the cluster is not lost."""
        self.informers.complete()
        session = FakeSession("edge-1")
        self.registry.add(session)
        self.registry.remove(session)
        self.lost.session_ended("edge-1", "silent")
        self.assertEqual(["edge-1", "edge-2"], [lost.node for lost in listed(self.lost)])
        self.informers.delete(NODES, "edge-1")
        self.assertEqual(["edge-2"], [lost.node for lost in listed(self.lost)])


class EnrolledTests(SynchronousTestCase):
    """Lost nodes when the enrolled nodes are expected."""

    def setUp(self) -> None:
        """Start with one enrolled node."""
        self.clock = Clock()
        self.registry = SessionRegistry(self.clock)
        self.state = self.mktemp()
        directory = StateDirectory.open(self.state)
        self.records = NodeRecords(directory)
        self.revocations = Revocations(self.clock, directory, self.records)
        self.enrol("edge-1")
        self.lost = LostNodes(
            self.registry,
            NodeHistory(self.clock),
            EnrolledNodes(self.records, self.revocations),
        )

    def enrol(self, node: str) -> None:
        """Enroll a node."""
        at = datetime.datetime(2026, 11, 23, 4, 5, 6, tzinfo=datetime.UTC)
        identifiers = Identifiers(frozenset({node}))
        self.records.put(NodeRecord(node, identifiers, f"{len(node):x}", ("key",), at))

    def test_never_seen(self) -> None:
        """An enrolled node that has not connected is reported, with the time of its enrolment."""
        self.enrol("edge-22")
        self.registry.add(FakeSession("edge-1"))
        [lost] = listed(self.lost)
        self.assertEqual(("edge-22", None), (lost.node, lost.last_seen))
        self.assertIn("enrolled on 2026-11-23 04:05 UTC", lost.reason)
        self.assertEqual(lost, self.lost.get("edge-22"))
        self.assertIsNone(self.lost.get("edge-1"))
        self.assertIsNone(self.lost.get("nobody"))

    def test_revoked(self) -> None:
        """A revoked node is not lost, whether it was ever connected or not."""
        session = FakeSession("edge-1")
        self.registry.add(session)
        self.enrol("edge-22")
        for each in ("edge-1", "edge-22"):
            revoke_node(self.clock, self.state, each)
        self.revocations.refresh()
        self.registry.remove(session)
        self.lost.session_ended("edge-1", "revoked")
        self.assertEqual([], listed(self.lost))

    def test_of_another_server(self) -> None:
        """A node that was enrolled at another server is lost, too, once it was connected here."""
        session = FakeSession("edge-9")
        self.registry.add(session)
        self.registry.remove(session)
        self.lost.session_ended("edge-9", "silent")
        self.assertEqual(["edge-9", "edge-1"], [lost.node for lost in listed(self.lost)])


class ReasonTests(ListenerTests):
    """The agents' listener's reasons for the ends of sessions."""

    def setUp(self) -> None:
        """Listen."""
        super().setUp()
        self.reported: list[tuple[str, str]] = []
        self.listener.on_ended.append(lambda node, reason: self.reported.append((node, reason)))

    def test_an_agent_that_stops(self) -> None:
        """A drained session was ended gracefully by its agent."""
        agent = self.connected()
        agent.session.drain("the agent is about to stop")
        self.clock.pump([0.25] * 8)
        self.network.settle()
        self.clock.pump([0.25] * 8)
        self.network.settle()
        [(node, reason)] = self.reported
        self.assertEqual("edge-1", node)
        self.assertIn("the agent has disconnected gracefully", reason)
        self.assertIn("GOING_AWAY", reason)

    def test_interrupted(self) -> None:
        """A lost connection is reported with its reason, although the session waits."""
        reported: list[tuple[str, str]] = []
        self.listener.on_interrupted.append(lambda node, reason: reported.append((node, reason)))
        self.connected()
        self.network.cut()
        [(node, reason)] = reported
        self.assertEqual("edge-1", node)
        self.assertIn("the connection was lost: ", reason)
        self.assertEqual([], self.reported)

    def test_another_end(self) -> None:
        """Otherwise the reason is that of the session's end."""
        agent = self.connected()
        agent.session.close(Code.PROTOCOL, "that is no frame")
        self.network.settle()
        self.assertEqual([("edge-1", "that is no frame (PROTOCOL)")], self.reported)
