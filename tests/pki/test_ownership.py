"""Ownership of names and addresses, which only their owners serve."""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_network

from twisted.logger import LogLevel

from tests.fakes import FakeSession
from tests.logged import Logged
from tests.pki.world import World
from yurttunnel.pki.identity import Identifiers, parse_identifiers
from yurttunnel.pki.names import BadIdentity
from yurttunnel.pki.records import NODES_DIRECTORY
from yurttunnel.pki.revocation import revoke_node
from yurttunnel.server.registry import AmbiguousAddress, NodeNotConnected, SessionRegistry
from yurttunnel.server.standalone_trust import StandaloneServerTrust

NAMES = ("edge-1", "EDGE-1.", "camera", "10.77.2.2", "::ffff:10.77.2.2", "[::ffff:a4d:202]")
"""The names and addresses of edge-1, in several spellings."""


class OwnershipTests(World):
    """The names and addresses of an enrolled node are served by it or not at all."""

    def setUp(self) -> None:
        """Enroll a node, and one that claims as much as it can."""
        super().setUp()
        self.ask("edge-1", "host=camera&ipv4=10.77.2.2")
        self.ask("mallory", "default-route=true&cidr=10.77.2.0/24")
        self.registry = SessionRegistry(self.clock)
        self.registry.belongs_to_other_node = self.ownership.belongs_to_other_node
        self.registry.nodes_with_address = self.ownership.nodes_with
        self.owner = FakeSession("edge-1", hosts=["edge-1", "camera"], addresses=["10.77.2.2"])
        self.other = FakeSession(
            "mallory",
            hosts=["mallory", "camera"],
            addresses=["10.77.2.2"],
            networks=["10.77.2.2/32", "10.77.2.0/24"],
            default_route=True,
        )
        for session in (self.owner, self.other):
            self.registry.add(session)

    def test_served(self) -> None:
        """They are served by their owner, even while it drains or is disconnected."""
        for connected, draining in ((True, False), (True, True), (False, False), (False, True)):
            self.owner.connected, self.owner.draining = connected, draining
            for name in NAMES:
                self.assertIs(self.owner, self.registry.find(name), (name, connected, draining))

    def test_stopped(self) -> None:
        """Without their owner they are not served, and the error has the owner's last-seen time."""
        self.clock.advance(10)
        self.registry.remove(self.owner)
        self.clock.advance(20)
        for remembered in (False, True):
            for name in NAMES:
                error = self.assertRaises(NodeNotConnected, self.registry.find, name)
                self.assertIn("it was last seen 20 s ago", str(error), (name, remembered))
            self.registry.remove(self.other)
        self.registry.add(self.other)
        for name in ("10.77.2.3", "192.0.2.1", "other.example", "127.0.0.1"):
            self.assertIs(self.other, self.registry.find(name), name)

    def test_revoked(self) -> None:
        """The names of a revoked node are free."""
        self.registry.remove(self.owner)
        revoke_node(self.clock, self.directory.path, "edge-1")
        self.revocations.refresh()
        for name in NAMES:
            self.assertIs(self.other, self.registry.find(name), name)

    def test_shared(self) -> None:
        """Traffic to an address of two nodes reaches neither, whichever is connected."""
        self.ask("edge-2", "ipv4=10.77.2.2")
        twin = FakeSession("edge-2", addresses=["10.77.2.2"])
        expected = (
            "10.77.2.2 is the address of several nodes: edge-1, edge-2; request one of them by"
            " its name"
        )
        for change in (
            lambda: None,
            lambda: self.registry.add(twin),
            lambda: self.registry.remove(self.owner),
            lambda: self.registry.remove(twin),
        ):
            change()
            for name in ("10.77.2.2", "::ffff:10.77.2.2"):
                error = self.assertRaises(AmbiguousAddress, self.registry.find, name)
                self.assertEqual(expected, str(error))

    def test_shared_no_more(self) -> None:
        """The address is one node's again once the other is revoked, or has given it up."""
        self.ask("edge-2", "ipv4=10.77.2.2")
        moved = FakeSession("edge-2", addresses=["10.77.2.3"])
        self.registry.add(moved)
        self.assertIs(self.owner, self.registry.find("10.77.2.2"))
        self.registry.remove(moved)
        self.assertRaises(AmbiguousAddress, self.registry.find, "10.77.2.2")
        revoke_node(self.clock, self.directory.path, "edge-2")
        self.revocations.refresh()
        self.assertIs(self.owner, self.registry.find("10.77.2.2"))

    def write(self, node: str, identifiers: str, enrolled: str) -> None:
        """Write a record that was not created by an enrolment."""
        record = {
            "node": node,
            "identifiers": identifiers,
            "enrolment": node.encode().hex(),
            "keys": ["key"],
            "enrolled": f"{enrolled}T00:00:00+00:00",
        }
        nodes = self.directory.subdirectory(NODES_DIRECTORY)
        nodes.write(node, json.dumps(record).encode())

    def test_records_that_collide(self) -> None:
        """A name belongs to the node of that name, or the first enrolled; collisions are logged."""
        self.write("a", "host=a&host=b&ipv4=10.0.0.5", "2026-01-02")
        self.write("b", "host=b&cidr=10.0.0.5/32", "2026-01-01")
        warnings = Logged(self, level=LogLevel.warn)
        self.restart()
        self.assertEqual(
            [
                "b belongs to several enrolled nodes, a, b: only b gets its traffic;"
                " revoke the nodes that should not have it"
            ],
            warnings,
        )
        self.assertEqual("b", self.ownership.owner("b"))
        self.assertIsNone(self.ownership.owner("10.0.0.5"))
        self.assertEqual("a", self.ownership.owner("a"))
        warnings.clear()
        revoke_node(self.clock, self.directory.path, "b")
        self.restart()
        self.assertEqual([], warnings)
        self.assertEqual(["a"], list(self.ownership.nodes_with(ip_address("10.0.0.5"))))

    def test_certificates_with_what_is_anothers(self) -> None:
        """Certificates with another's names are rejected; a revoked node is told that it is."""
        trust = StandaloneServerTrust(self.clock, self.directory.path, ["127.0.0.1"])

        def identify(node: str, identifiers: Identifiers) -> str:
            return trust.identify(self.issuer.node(node, identifiers).certificate).node

        address, host = frozenset({ip_address("10.77.2.2")}), frozenset({"camera"})
        single = Identifiers(frozenset(), networks=frozenset({ip_network("10.77.2.2/32")}))
        self.assertEqual("edge-1", identify("edge-1", Identifiers(host, address)))
        self.assertEqual("mallory", identify("mallory", parse_identifiers("cidr=10.77.0.0/16")))
        error = self.assertRaises(BadIdentity, identify, "mallory", Identifiers(host))
        self.assertIn("which belongs to node edge-1", str(error))
        for shared in (Identifiers(frozenset(), address), single):
            self.assertEqual("mallory", identify("mallory", shared))
        revoke_node(self.clock, self.directory.path, "mallory")
        trust.revocations.refresh()
        self.assertEqual("mallory", identify("mallory", Identifiers(host)))
