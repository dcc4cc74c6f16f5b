"""Tests of the manager of the rules: failures, and reports."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from tests.cluster.fakes import CLOUD, EDGE, node
from tests.steering.manager_support import (
    EDGE4,
    INSECURE,
    PERIOD,
    REFUSED,
    RULES,
    SECURE,
    ManagerTestCase,
    addresses,
    flow,
)
from yurttunnel.kube.resources import NODES
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interception import Match, Target
from yurttunnel.steering.manager import CHECK_SECONDS, SETTLE_SECONDS, SYNC_SECONDS


class FailureTests(ManagerTestCase):
    """What fails, and what continues."""

    def test_one_family(self):
        """A family that fails does not block the other; it is retried after pauses."""
        self.put("edge-2", "fd00::2", labels=EDGE)
        self.firewall.failure = REFUSED
        manager = self.start()
        self.assertEqual({10250, 10255}, self.firewall6.rules.keys())
        self.assertEqual(f"IPv4: {REFUSED}", manager.problem())
        self.calls.clear()
        self.clock.advance(0.99)
        self.assertEqual([], self.calls)
        self.clock.advance(0.01)
        self.assertEqual(1, self.calls.count(("apply", 4)))
        self.clock.advance(1.99)
        self.assertEqual(1, self.calls.count(("apply", 4)))
        self.firewall.failure = None
        self.clock.advance(0.01)
        self.assertEqual(RULES, self.firewall.rules)
        self.assertIsNone(manager.problem())
        self.assertEqual(1, len(self.logged("IPv4", "as desired again")))
        self.assertEqual(1, len(self.logged("retrying")))

    def test_change_while_failing(self):
        """A change waits for the next attempt: others can make any number of them."""
        self.firewall.failure = REFUSED
        self.start()
        self.calls.clear()
        for number in range(5):
            self.put("edge-2", f"fd00::{number + 2}", labels=EDGE)
            self.settle()
        self.assertEqual([], self.calls)
        self.clock.advance(1)
        self.assertEqual({10250, 10255}, self.firewall6.rules.keys())

    def test_a_change_that_was_made_though_it_failed(self):
        """Changes of a program that was killed are found, even if nothing is desired by then."""
        for match in (Match.CLOUD_RETURN, None):
            self.make_machine()
            self.put("edge-1", "192.168.0.1", labels=CLOUD)
            manager = self.start(match=match)
            self.firewall.late_failure = REFUSED
            self.put("edge-1", "192.168.0.1", labels=EDGE)
            self.settle()
            self.assertEqual(RULES.keys(), self.firewall.rules.keys())
            self.firewall.late_failure = None
            self.put("edge-1", "192.168.0.1", labels=CLOUD)
            self.clock.pump([CHECK_SECONDS] * 600)
            self.assertEqual({}, self.firewall.rules)
            self.assertIsNone(manager.problem())

    def test_flows_of_a_node_that_came_and_went(self):
        """They are cut, too, once the kernel lists flows again."""
        self.start()
        self.flows.failure = REFUSED
        self.put("edge-2", "192.168.0.2", labels=EDGE)
        self.clock.pump([CHECK_SECONDS] * 30)
        self.flows.flows = [flow("192.168.0.2", 10250, SECURE)]
        self.informers.put(NODES, node("edge-2", "192.168.0.3", labels=EDGE))
        self.clock.pump([CHECK_SECONDS] * 30)
        self.flows.failure = None
        self.clock.pump([CHECK_SECONDS] * 600)
        self.assertEqual([], self.flows.flows)

    def test_timeout(self):
        """A sync that does not end is cancelled, which is logged, and retried."""
        manager = self.start()
        self.put_ports(http_proxy_ports="9101")
        self.firewall.hold = Deferred()
        self.settle()
        self.clock.advance(SYNC_SECONDS - 1)
        self.assertEqual("steering", manager.report().state)
        self.clock.advance(1)
        self.assertEqual("failing", manager.report().state)
        self.assertIn("could not be updated in time", manager.problem())
        self.firewall.hold = None
        self.clock.advance(1.0)
        self.assertIn(9101, self.firewall.rules)
        self.assertIsNone(manager.problem())

    def test_defect(self):
        """An unexpected error is logged, and stops neither family nor manager."""
        self.put("edge-2", "fd00::2", labels=EDGE)
        self.firewall.failure = ZeroDivisionError("unexpected")
        manager = self.start()
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertIn("internal error: ZeroDivisionError", manager.problem())
        self.assertEqual({10250, 10255}, self.firewall6.rules.keys())
        self.firewall.failure = None
        self.clock.advance(1)
        self.assertEqual(RULES, self.firewall.rules)

    def test_defect_of_search(self):
        """An unexpected error of the detection is retried, too."""
        self.search_failure = ZeroDivisionError("unexpected")
        manager = self.start()
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertIn("internal error: ZeroDivisionError", manager.problem())
        self.search_failure = None
        self.clock.advance(1)
        self.assertEqual(RULES, self.firewall.rules)
        self.assertIsNone(manager.problem())

    def test_later_search_fails(self):
        """A later failed search for one family does not block the other."""
        del self.found[6]
        self.missing[6] = "there is no ip6tables"
        self.put("edge-2", "fd00::2", labels=EDGE)
        manager = self.start()
        self.search_failure = SteeringFailed("iptables-save: timed out")
        self.firewall.rules = {}
        self.clock.advance(PERIOD)
        self.assertEqual(2, self.searches)
        self.assertEqual(RULES, self.firewall.rules)
        self.assertEqual("there is no ip6tables", manager.problem())

    def test_flows(self):
        """Flows that cannot be cut are logged once, retried, and block no rules."""
        self.flows.failure = SteeringFailed("the kernel has no conntrack")
        manager = self.start()
        self.assertEqual(RULES, self.firewall.rules)
        self.assertIsNone(manager.problem())
        self.clock.advance(PERIOD)
        self.assertEqual(1, len(self.logged("the kernel has no conntrack")))
        [report, _] = manager.report().families
        self.assertIn("the kernel has no conntrack", report.notes[0])
        self.flows.failure = None
        self.flows.flows = [flow("192.168.0.1", 10250)]
        self.clock.advance(PERIOD)
        [report, _] = manager.report().families
        self.assertEqual(((), 1), (report.notes, report.flows_cut))

    def test_flows_of_former_ports(self):
        """Flows to ports of a previous process are cut by the first successful cut."""
        self.firewall.rules = {9999: (EDGE4, SECURE, None)}
        self.flows.failure = SteeringFailed("the kernel has no conntrack")
        self.start()
        self.firewall.rules = {9998: (EDGE4, SECURE, None)}
        self.clock.advance(PERIOD)
        self.flows.failure = None
        for former in (frozenset({9998, 9999}), frozenset()):
            self.calls.clear()
            self.firewall.rules.pop(10255)
            self.clock.advance(PERIOD)
            self.assertIn((4, former | {10250, 10255}), self.calls)

    def test_set_changed_before_failure(self):
        """Flows are cut for a change of the set, if the rules could be changed only later."""
        self.start()
        self.flows.flows = [flow("192.168.0.2", 10250)]
        self.firewall.failure = REFUSED
        self.put("edge-2", "192.168.0.2", labels=EDGE)
        self.put_ports(http_proxy_ports="9100")
        self.settle()
        self.assertEqual(1, len(self.flows.flows))
        self.firewall.failure = None
        self.clock.advance(1)
        self.assertEqual([], self.flows.flows)

    def test_rules_changed_by_failure(self):
        """Flows are cut for rules that a failed sync has created."""
        self.put_ports(http_proxy_ports="9443")
        self.start()
        self.flows.flows = [flow("192.168.0.1", 9443, INSECURE)]
        self.firewall.late_failure = REFUSED
        self.put_ports(https_proxy_ports="9443")
        self.settle()
        self.assertEqual((EDGE4, SECURE, None), self.firewall.rules[9443])
        self.firewall.late_failure = None
        self.clock.advance(1)
        self.assertEqual([], self.flows.flows)

    def test_set_changed_by_failure(self):
        """Flows are cut for a set that a failed sync has created."""
        self.start()
        self.flows.flows = [flow("192.168.0.2", 10250)]
        self.sets.late_failure = REFUSED
        self.put("edge-2", "192.168.0.2", labels=EDGE)
        self.settle()
        self.assertEqual(addresses("192.168.0.1", "192.168.0.2"), self.sets.sets[EDGE4])
        self.sets.late_failure = None
        self.clock.advance(1)
        self.assertEqual([], self.flows.flows)


class ReportTests(ManagerTestCase):
    """The reports."""

    def test_families(self):
        """A report has what is intercepted, its target, and what was changed when."""
        self.put("edge-2", "192.168.0.2", labels=EDGE)
        self.clock.advance(1000)
        [report, report6] = self.start(pods=True).report().families
        self.assertEqual((4, "nft", "edge-set"), (report.version, report.backend, report.match))
        self.assertEqual(
            [
                (10250, "10.0.0.1:10263", False),
                (10255, "127.0.0.1:10264", False),
                (10250, "10.0.0.1:10263", True),
            ],
            [(each.port, each.target, each.pods) for each in report.ports],
        )
        self.assertEqual(
            (2, ("192.168.0.1", "192.168.0.2")), (report.edge.total, report.edge.first)
        )
        self.assertEqual((1, ("10.0.0.1",)), (report.cloud.total, report.cloud.first))
        self.assertEqual(
            (1000, 1000, 1000), (report.last_sync, report.last_success, report.last_change)
        )
        self.assertEqual(
            (
                f"the set {EDGE4} had different addresses",
                "the rules of port 10250",
                "the rules of port 10255",
            ),
            report.differed,
        )
        self.assertIn("pods to port 10255", report.notes[0])
        self.assertEqual(1, len(self.logged("pods to port 10255")))
        self.assertEqual((6, ()), (report6.version, report6.ports))

    def test_targets(self):
        """Listeners on IPv6, and on all addresses, are shown as such."""
        self.put("edge-2", "fd00::2", labels=EDGE)
        settings = self.settings()
        anywhere = type(settings.listeners[4])(Target(None, 10263), Target(None, 10264))
        manager = self.start(listeners={4: anywhere, 6: settings.listeners[6]})
        [report, report6] = manager.report().families
        self.assertEqual("port 10263 of this machine", report.ports[0].target)
        self.assertEqual("[fd00::1]:10263", report6.ports[0].target)

    def test_many_addresses(self):
        """Of many addresses the report has the first ones, and their number."""
        for number in range(256):
            self.put(f"edge-{number}", f"192.168.7.{number}", labels=EDGE)
        [report, _] = self.start().report().families
        self.assertEqual((256, 100), (report.edge.total, len(report.edge.first)))
        self.assertEqual("192.168.7.99", report.edge.first[-1])

    def test_missing(self):
        """A family without firewall is in the report with the reason."""
        del self.found[6]
        self.missing[6] = "there is no ip6tables"
        [_, report] = self.start().report().families
        self.assertEqual(
            (6, None, "there is no ip6tables"), (report.version, report.backend, report.problem)
        )

    def test_before(self):
        """Before the start there is nothing to report."""
        report = self.manager().report()
        self.assertEqual(("stopped", ()), (report.state, report.families))
        self.assertIn("stopped", report.problem)

    def test_settled(self):
        """Existing state is not checked a second time when the manager starts."""
        self.start()
        self.calls.clear()
        self.clock.advance(2 * SETTLE_SECONDS)
        self.assertEqual([], self.calls)
