"""Tests of the DNS controller: the ConfigMap."""

from __future__ import annotations

from tests.cluster.fakes import EDGE, node
from tests.steering.dns.support import (
    NAME,
    NAMESPACE,
    ControllerTestCase,
)
from yurttunnel.kube.errors import ApiError, ApiUnreachable, Conflict, NotAllowed
from yurttunnel.kube.resources import CONFIG_MAPS, NODES


class ConfigMapTests(ControllerTestCase):
    """The ConfigMap has the desired content, whoever changes it."""

    def test_what_somebody_changes_is_repaired(self):
        """It is repaired within seconds, and other keys in it stay."""
        self.start()
        edited = self.client.look(CONFIG_MAPS, NAME, NAMESPACE)
        edited["data"] = {"tunnel-nodes": "127.0.0.1\tedge-1", "mine": "x"}
        self.client.put(CONFIG_MAPS, edited)
        self.settle()
        data = self.client.look(CONFIG_MAPS, NAME, NAMESPACE)["data"]
        self.assertEqual("x", data["mine"])
        self.assertIn("10.96.0.5\tedge-1", data["tunnel-nodes"])

    def test_one_that_is_deleted_is_made_again(self):
        """It is created again without waiting for the period."""
        self.start()
        self.client.remove(CONFIG_MAPS, NAME, NAMESPACE)
        self.settle()
        self.assertIn("10.96.0.5\tedge-1", self.text())

    def test_one_that_cannot_be_made_at_first(self):
        """D5: the creation is retried until it succeeds, without another leader."""
        recover = self.refuse("create", ApiError(500, "InternalError", "no"))
        self.start()
        self.settle(120)
        problem = self.controller.problem()
        self.assertIn(f"ConfigMap {NAMESPACE}/{NAME} cannot be written: no", problem)
        attempts = len(self.writes())
        self.assertTrue(4 <= attempts <= 40, attempts)
        recover()
        self.settle(31)
        self.assertIn("10.96.0.5\tedge-1", self.text())
        self.assertIsNone(self.controller.problem())

    def test_a_conflict(self):
        """After a conflict the object is read again; no change is overwritten unseen."""
        self.start()
        update, others = self.client.update, []

        def too_late(resource, body):
            if not others:
                edited = self.client.look(CONFIG_MAPS, NAME, NAMESPACE)
                edited["data"]["mine"] = "x"
                others.append(self.client.put(CONFIG_MAPS, edited))
            return update(resource, body)

        self.client.update = too_late
        self.client.put(NODES, node("edge-2", labels=EDGE))
        self.settle(5)
        data = self.client.look(CONFIG_MAPS, NAME, NAMESPACE)["data"]
        self.assertEqual("x", data["mine"])
        self.assertIn("10.96.0.5\tedge-2", data["tunnel-nodes"])
        self.assertIsNone(self.controller.problem())

    def test_conflicts_are_no_storm(self):
        """However often conflicts occur, the attempts become less frequent; they are reported."""
        self.start()
        before = len(self.writes())
        recover = self.refuse("update", Conflict(409, "Conflict", "modified"))
        self.client.put(NODES, node("edge-2", labels=EDGE))
        self.settle(120)
        self.assertLess(len(self.writes()) - before, 40)
        self.assertIn("cannot be written: modified (409 Conflict)", self.controller.problem())
        recover()
        self.settle(31)
        self.assertIn("edge-2", self.text())
        self.assertIsNone(self.controller.problem())

    def test_one_that_somebody_else_has_made(self):
        """An object that was created meanwhile is not overwritten unseen, either."""
        create = self.client.create

        def too_late(resource, body, namespace=None):
            self.client.create = create
            metadata = {"name": NAME, "namespace": NAMESPACE}
            self.client.put(CONFIG_MAPS, {"metadata": metadata, "data": {"mine": "x"}})
            return create(resource, body, namespace)

        self.client.create = too_late
        self.start()
        data = self.client.look(CONFIG_MAPS, NAME, NAMESPACE)["data"]
        self.assertEqual({"mine", "tunnel-nodes"}, set(data))

    def test_the_api_is_unreachable(self):
        """Changes during an outage are written afterwards."""
        self.start()
        recover = self.refuse("update", ApiUnreachable("10.96.0.1 does not answer"))
        self.client.put(NODES, node("edge-2", labels=EDGE))
        self.settle(60)
        self.assertIn("10.96.0.1 does not answer", self.controller.problem())
        warned = [line for line in self.lines if "does not answer" in line]
        self.assertTrue(1 <= len(warned) <= 2, warned)
        recover()
        self.settle(31)
        self.assertIn("edge-2", self.text())

    def test_what_the_role_does_not_allow(self):
        """The problem says which Role the server needs."""
        error = NotAllowed(403, "Forbidden", 'cannot create resource "configmaps"')
        self.refuse("create", error)
        self.start()
        self.assertIn("needs the Role in deploy/overlays/dns/rbac.yaml", self.controller.problem())
        self.assertIn(str(error), self.controller.problem())

    def test_too_many_records(self):
        """Records that do not fit are not written; this is logged once, with an event."""
        self.start()
        before = self.text()
        metadata = {"name": NAME, "namespace": NAMESPACE}
        data = {"tunnel-nodes": before, "mine": "x" * (1024 * 1024 - 40)}
        self.client.put(CONFIG_MAPS, {"metadata": metadata, "data": data})
        for number in range(3):
            self.client.put(NODES, node(f"edge-x{number}", labels=EDGE))
            self.settle()
        self.assertEqual(before, self.text())
        self.assertIn("the limit of a ConfigMap is 1048576", self.controller.problem())
        [(involved, type, reason, message)] = self.events.recorded
        self.assertEqual(("Warning", "TooManyRecords"), (type, reason))
        self.assertEqual(NAME, involved["metadata"]["name"])
        self.assertTrue(involved["metadata"]["uid"])
        self.assertIn("--enable-iptables", message)
        self.client.remove(CONFIG_MAPS, NAME, NAMESPACE)
        self.settle()
        self.assertIn("edge-x2", self.text())
        self.assertIsNone(self.controller.problem())
