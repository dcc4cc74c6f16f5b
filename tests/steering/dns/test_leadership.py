"""Tests of the DNS controller: leader election."""

from __future__ import annotations

from tests.cluster.fakes import EDGE, node
from tests.steering.dns.support import (
    NAMESPACE,
    PERIOD,
    SERVICE,
    ControllerTestCase,
    service,
)
from yurttunnel.kube.lease import LeaderElection
from yurttunnel.kube.resources import LEASES, NODES, SERVICES
from yurttunnel.steering.dns.controller import LEASE


class LeadershipTests(ControllerTestCase):
    """Only one of all servers publishes."""

    def elect(self):
        """Have an election run the controller."""
        election = LeaderElection(
            self.clock, self.client, NAMESPACE, LEASE, "server-1", self.controller
        )
        election.startService()
        self.addCleanup(lambda: self.settle(1))
        self.addCleanup(lambda: self.assertIsNone(self.successResultOf(election.stopService())))
        self.settle()
        return election

    def take(self, holder):
        """Give the lease to another server."""
        lease = self.client.look(LEASES, LEASE, NAMESPACE)
        lease["spec"]["holderIdentity"] = holder
        self.client.put(LEASES, lease)

    def test_losing_the_lease_stops_only_this(self):
        """D1: the process continues, and the controller runs again when it leads again."""
        election = self.elect()
        self.assertTrue(self.controller.report().leader)
        self.take("server-2")
        self.settle(5)
        self.assertFalse(self.controller.running)
        self.assertTrue(election.running)
        self.assertTrue(self.informers.running)
        self.client.put(NODES, node("edge-2", labels=EDGE))
        self.settle(5)
        self.assertNotIn("edge-2", self.text())
        # The other one does not renew it.
        self.settle(40)
        self.assertTrue(self.controller.running)
        self.assertIn("edge-2", self.text())
        self.assertEqual([], self.flushLoggedErrors())

    def test_without_the_lead_nothing_is_written_or_reported(self):
        """Its caches are up to date all the same, so it can take over at once."""
        self.settle()
        self.client.remove(SERVICES, SERVICE, NAMESPACE)
        self.settle()
        self.assertEqual([], self.writes())
        self.assertIsNone(self.controller.problem())
        self.assertFalse(self.controller.report().leader)
        self.client.put(SERVICES, service())
        self.settle()
        calls = len(self.client.calls)
        self.controller.startService()
        self.settle(0.1)
        self.assertIn("edge-1", self.text())
        self.assertEqual(1, len(self.client.calls) - calls)

    def test_stopping_while_writing(self):
        """A write in progress is cancelled, and nothing follows it."""
        self.settle()
        self.client.hold()
        self.controller.startService()
        self.settle()
        self.stop()
        self.client.release()
        self.client.put(NODES, node("edge-2", labels=EDGE))
        self.settle(PERIOD + 10)
        self.assertEqual(1, len(self.writes()))

    def test_figures(self):
        """They report what was done, and when."""
        self.start()
        started = self.clock.seconds()
        report = self.controller.report()
        self.assertEqual(
            (True, 2, {"ConfigMap": 1}, None),
            (report.leader, report.records, report.writes, report.problem),
        )
        self.assertTrue(started - 5 <= report.last_write <= started)
        self.client.remove(SERVICES, SERVICE, NAMESPACE)
        self.settle()
        problem = self.controller.report().problem
        self.assertIsNotNone(problem)
        self.assertEqual(problem, self.controller.problem())
