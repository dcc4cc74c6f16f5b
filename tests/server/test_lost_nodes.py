"""The nodes that cannot be reached, and why."""

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
from yurttunnel.ops.slices import AT_ONCE
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.records import NodeRecord, NodeRecords
from yurttunnel.pki.revocation import Revocations, revoke_node
from yurttunnel.server.expected_nodes import ClusterNodes, EnrolledNodes
from yurttunnel.server.lost_nodes import LostNode, LostNodes
from yurttunnel.server.node_history import NodeHistory
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.wire.codes import Code


def told(lost: LostNodes) -> list[LostNode]:
    """Return the nodes that are lost, without the pauses."""
    return [each for each in lost.newest_first() if each is not None]


class LostNodesTests(SynchronousTestCase):
    """Sessions that come and go."""

    def setUp(self) -> None:
        """Begin with nobody connected, and no cluster."""
        self.clock = Clock()
        self.clock.advance(1000)
        self.registry = SessionRegistry(self.clock)
        self.history = NodeHistory(self.clock, most=3)
        self.lost = LostNodes(self.registry, self.history, nothing_expected())

    def come(self, name: str) -> FakeSession:
        """Have a node connect."""
        session = FakeSession(name)
        self.registry.add(session)
        return session

    def go(self, session: FakeSession, why: str) -> None:
        """Have its session end."""
        self.registry.remove(session)
        self.lost.ended(session.node, why)

    def names(self) -> list[str]:
        """The names of the nodes that are lost."""
        return [lost.node for lost in told(self.lost)]

    def test_lost(self) -> None:
        """A node that has gone is lost, with when and why, until it is back."""
        session = self.come("edge-1")
        self.assertEqual([], self.names())
        self.go(session, "silent")
        [lost] = told(self.lost)
        self.assertEqual(("edge-1", 1000, "silent"), (lost.node, lost.last_seen, lost.why))
        self.come("edge-1")
        self.assertEqual([], self.names())

    def test_replaced(self) -> None:
        """A session that has been replaced is not missed when it ends."""
        first = self.come("edge-1")
        self.come("edge-1")
        self.go(first, "replaced")
        self.assertEqual([], self.names())

    def test_at_a_sibling(self) -> None:
        """A node that a sibling has is not lost; it is when the sibling loses it, too."""
        session, remote = self.come("edge-1"), FakeSession("edge-1")
        self.registry.add_remote(remote)
        self.go(session, "silent")
        self.assertEqual([], self.names())
        self.clock.advance(500)
        self.registry.remove_remote(remote)
        [lost] = told(self.lost)
        self.assertEqual(("edge-1", 1500), (lost.node, lost.last_seen))
        self.assertIn("by another server", lost.why)

    def test_here_after_a_sibling(self) -> None:
        """What a sibling has lost is not lost as long as it is here, and then says why it went."""
        session, remote = self.come("edge-1"), FakeSession("edge-1")
        self.registry.add_remote(remote)
        self.registry.remove_remote(remote)
        self.assertEqual([], self.names())
        self.go(session, "silent")
        self.assertEqual(["silent"], [lost.why for lost in told(self.lost)])

    def test_at_siblings_only(self) -> None:
        """A node that only siblings have had is lost when the last of them loses it."""
        first, second = FakeSession("edge-1"), FakeSession("edge-1")
        self.registry.add_remote(first)
        self.registry.add_remote(second)
        self.registry.remove_remote(first)
        self.assertEqual([], self.names())
        self.registry.remove_remote(second)
        [lost] = told(self.lost)
        self.assertEqual(1000, lost.last_seen)

    def test_it_is_bounded(self) -> None:
        """The nodes that were lost last are remembered, the last of them first."""
        for name in ("a", "b", "c", "d"):
            self.go(self.come(name), "silent")
        self.assertEqual(["d", "c", "b"], self.names())
        self.go(self.come("b"), "again")
        self.assertEqual(["b", "d", "c"], self.names())


class ClusterTests(SynchronousTestCase):
    """Where the nodes that there are to be are known."""

    def setUp(self) -> None:
        """Begin with three nodes, of which two are reached by the tunnel."""
        self.clock = Clock()
        self.registry = SessionRegistry(self.clock)
        self.informers = FakeInformers(synced=False)
        expected = ClusterNodes(Nodes(self.informers))
        self.lost = LostNodes(self.registry, NodeHistory(self.clock), expected)
        for name, labels in (("edge-2", EDGE), ("edge-1", EDGE), ("cloud", ())):
            self.informers.put(NODES, node(name, labels=labels))

    def test_never_seen(self) -> None:
        """Edge nodes that have not connected yet are told, as soon as all nodes are known."""
        self.assertEqual([], told(self.lost))
        self.informers.complete()
        self.registry.add(FakeSession("edge-1"))
        [lost] = told(self.lost)
        self.assertEqual(("edge-2", None), (lost.node, lost.last_seen))
        self.assertIn("no agent of it has connected", lost.why)

    def test_thousands_that_are_there(self) -> None:
        """The reactor may turn while they are looked at, also when none of them is lost."""
        for number in range(1000):
            self.informers.put(NODES, node(f"there-{number}", labels=EDGE))
            self.registry.add(FakeSession(f"there-{number}"))
        self.informers.complete()
        found = list(self.lost.newest_first())
        self.assertGreater(found.count(None), 1000 / AT_ONCE)
        self.assertLess(found.count(None), 3 * 1000 / AT_ONCE)
        self.assertNotIn("there-7", [each.node for each in told(self.lost)])

    def test_deleted(self) -> None:
        """Nobody misses a node that has been deleted from the cluster."""
        self.informers.complete()
        session = FakeSession("edge-1")
        self.registry.add(session)
        self.registry.remove(session)
        self.lost.ended("edge-1", "silent")
        self.assertEqual(["edge-1", "edge-2"], [lost.node for lost in told(self.lost)])
        self.informers.delete(NODES, "edge-1")
        self.assertEqual(["edge-2"], [lost.node for lost in told(self.lost)])


class EnrolledTests(SynchronousTestCase):
    """Where the nodes that there are to be are those that have enrolled."""

    def setUp(self) -> None:
        """Begin with one enrolled node."""
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
        """Have a node given a certificate."""
        at = datetime.datetime(2026, 11, 23, 4, 5, 6, tzinfo=datetime.UTC)
        identifiers = Identifiers(frozenset({node}))
        self.records.put(NodeRecord(node, identifiers, f"{len(node):x}", ("key",), at))

    def test_never_seen(self) -> None:
        """A node that has enrolled and has not connected is told, with when it enrolled."""
        self.enrol("edge-22")
        self.registry.add(FakeSession("edge-1"))
        [lost] = told(self.lost)
        self.assertEqual(("edge-22", None), (lost.node, lost.last_seen))
        self.assertIn("enrolled on 2026-11-23 04:05 UTC", lost.why)
        self.assertEqual(lost, self.lost.get("edge-22"))
        self.assertIsNone(self.lost.get("edge-1"))
        self.assertIsNone(self.lost.get("nobody"))

    def test_revoked(self) -> None:
        """Nobody misses a node that was revoked, whether it has ever been there or not."""
        session = FakeSession("edge-1")
        self.registry.add(session)
        self.enrol("edge-22")
        for each in ("edge-1", "edge-22"):
            revoke_node(self.clock, self.state, each)
        self.revocations.refresh()
        self.registry.remove(session)
        self.lost.ended("edge-1", "revoked")
        self.assertEqual([], told(self.lost))

    def test_of_another_server(self) -> None:
        """A node that was enrolled elsewhere is missed, too, once it has been here."""
        session = FakeSession("edge-9")
        self.registry.add(session)
        self.registry.remove(session)
        self.lost.ended("edge-9", "silent")
        self.assertEqual(["edge-9", "edge-1"], [lost.node for lost in told(self.lost)])


class ReasonTests(ListenerTests):
    """What the agents' listener says of the ends of sessions."""

    def setUp(self) -> None:
        """Listen."""
        super().setUp()
        self.told: list[tuple[str, str]] = []
        self.listener.on_ended.append(lambda node, why: self.told.append((node, why)))

    def test_an_agent_that_stops(self) -> None:
        """A session that is drained was ended by its agent, in order."""
        agent = self.connected()
        agent.session.go_away("the agent is about to stop")
        self.clock.pump([0.25] * 8)
        self.network.settle()
        self.clock.pump([0.25] * 8)
        self.network.settle()
        [(node, why)] = self.told
        self.assertEqual("edge-1", node)
        self.assertIn("the agent has left cleanly", why)
        self.assertIn("GOING_AWAY", why)

    def test_interrupted(self) -> None:
        """That a connection was lost is told with what broke it, though the session waits."""
        told: list[tuple[str, str]] = []
        self.listener.on_interrupted.append(lambda node, why: told.append((node, why)))
        self.connected()
        self.network.cut()
        [(node, why)] = told
        self.assertEqual("edge-1", node)
        self.assertIn("the connection was lost: ", why)
        self.assertEqual([], self.told)

    def test_another_end(self) -> None:
        """Otherwise it is what the session ended with."""
        agent = self.connected()
        agent.session.close(Code.PROTOCOL, "that is no frame")
        self.network.settle()
        self.assertEqual([("edge-1", "that is no frame (PROTOCOL)")], self.told)
