"""Tests of the defects of yurttunnel 1.2's iptables manager that concern the manager.

Defects that concern the rules are tested with the firewall, under the same names.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from tests.cluster.fakes import CLOUD, EDGE
from tests.steering.manager_support import (
    EDGE4,
    INSECURE,
    PERIOD,
    SECURE,
    ManagerTestCase,
    addresses,
    flow,
)
from yurttunnel.kube.resources import NODES
from yurttunnel.steering.desired_state import Listeners
from yurttunnel.steering.interception import Match, Target
from yurttunnel.steering.manager import CHECK_SECONDS, LISTENERS_TIMEOUT
from yurttunnel.steering.probe_schedule import (
    MIN_PAUSE,
    OVERDUE_SECONDS,
    PAUSE_FACTOR,
    RECHECK_SECONDS,
)


class KnownDefectTests(ManagerTestCase):
    """One test for each, named by its number."""

    def test_f1(self):
        """F1: a port leads only to its current target, and flows to the old one are cut."""
        self.put_ports(http_proxy_ports="9443")
        self.start()
        self.flows.flows = [flow("192.168.0.1", 9443, INSECURE)]
        self.put_ports(https_proxy_ports="9443")
        self.settle()
        self.assertEqual((EDGE4, SECURE, None), self.firewall.rules[9443])
        self.assertEqual([], self.flows.flows)

    def test_f2(self):
        """F2: a node that changed side while the server was down is updated."""
        self.firewall.rules = {10250: (addresses("10.0.0.1", "192.168.0.1"), SECURE, None)}
        self.flows.flows = [flow("192.168.0.1", 10250)]
        self.start(match=Match.CLOUD_RETURN)
        self.assertEqual((addresses("10.0.0.1"), SECURE, None), self.firewall.rules[10250])
        self.assertEqual([], self.flows.flows)

    def test_f3(self):
        """F3: other hosts, and cloud nodes that are not ready, are not intercepted by default."""
        self.put("cloud-2", "10.0.0.2", labels=CLOUD, ready=False)
        self.flows.flows = others = [flow("203.0.113.1", 10250), flow("10.0.0.2", 10250)]
        self.start()
        self.assertEqual(addresses("192.168.0.1"), self.sets.sets[EDGE4])
        self.assertEqual(2, len(others))
        self.assertEqual(others, self.flows.flows)
        self.put("cloud-2", "10.0.0.2", labels=CLOUD)
        self.put("cloud-2", "10.0.0.2", labels=CLOUD, ready=False)
        self.settle()
        self.assertEqual(others, self.flows.flows)

    def test_f3_cloud_return(self):
        """F3: a cloud node that is not ready is reached directly with cloud-return, too."""
        self.put("cloud-2", "10.0.0.2", labels=CLOUD, ready=False)
        self.start(match=Match.CLOUD_RETURN)
        self.assertEqual(addresses("10.0.0.1", "10.0.0.2"), self.firewall.rules[10250][0])

    def test_f4(self):
        """F4: rules of a previous process stay until the first sync, which takes them over."""
        self.firewall.rules = left = {10250: (EDGE4, SECURE, None)}
        self.sets.sets, self.sets.versions = {EDGE4: addresses("192.168.0.1")}, {EDGE4: 4}
        self.informers.synced = False
        self.start()
        self.clock.advance(10 * PERIOD)
        self.assertEqual([], self.calls)
        self.assertEqual(left, self.firewall.rules)
        self.informers.complete()
        self.clock.advance(CHECK_SECONDS)
        self.clock.advance(0)
        self.assertNotIn(("remove", 4), self.calls)
        self.assertNotIn(("remove", EDGE4), self.calls)
        self.assertEqual({10250, 10255}, self.firewall.rules.keys())

    def test_f4_listeners(self):
        """F4: they stay while the listeners are about to accept, but not forever."""
        self.firewall.rules = left = {10250: (EDGE4, SECURE, None)}
        self.closed = "port 10263 is not bound"
        self.start()
        self.clock.advance(LISTENERS_TIMEOUT - 1)
        self.assertEqual(left, self.firewall.rules)
        self.clock.advance(1)
        self.clock.advance(0)
        self.assertEqual({}, self.firewall.rules)

    def test_f5(self):
        """F5: there are no rules before the listeners accept, and at once afterwards."""
        self.closed = "the serving certificate is not there yet"
        manager = self.start()
        self.clock.advance(PERIOD)
        self.put("edge-2", "192.168.0.2", labels=EDGE)
        self.settle()
        self.assertNotIn(("apply", 4), self.calls)
        self.assertEqual({}, self.firewall.rules)
        self.assertIn("the serving certificate is not there yet", manager.problem())
        self.closed = None
        self.clock.advance(CHECK_SECONDS)
        self.clock.advance(0)
        self.assertEqual({10250, 10255}, self.firewall.rules.keys())

    def test_f6(self):
        """F6: a listener on all addresses is reached on this machine, not at address 0.0.0.0."""
        anywhere = Listeners(Target(None, 10263), Target(None, 10264))
        self.flows.flows = kept = [
            flow("192.168.0.1", 10250, Target(next(iter(addresses("127.0.0.1"))), 10263))
        ]
        self.start(listeners={4: anywhere})
        self.assertEqual((EDGE4, Target(None, 10263), None), self.firewall.rules[10250])
        self.assertEqual(kept, self.flows.flows)

    def test_f7(self):
        """F7: rules that another program has flushed are repaired, counted and logged."""
        manager = self.start()
        self.firewall.rules = {}
        self.flows.flows = [flow("192.168.0.1", 10250)]
        self.clock.advance(PERIOD)
        self.assertEqual({10250, 10255}, self.firewall.rules.keys())
        self.assertEqual([], self.flows.flows)
        [report, _] = manager.report().families
        self.assertEqual((1, 1), (report.syncs["changed"], report.syncs["repaired"]))
        [line] = self.logged("rules differed", "restored")
        self.assertIn("the rules of port 10250; the rules of port 10255", line)

    def flush(self):
        """Have another program remove the rules."""
        self.firewall.rules = {}
        self.firewall.changes += 1

    def test_f7_soon(self):
        """F7: a flush is detected long before the period is over."""
        self.start()
        self.flush()
        self.clock.pump([CHECK_SECONDS] * round((MIN_PAUSE + 1) / CHECK_SECONDS))
        self.assertEqual({10250, 10255}, self.firewall.rules.keys())

    def test_f7_after_a_change_of_nodes(self):
        """F7: a flush is detected as soon after nodes or ports have changed, however long after."""
        for seconds in (2.0, 3600.0):
            for change in (self.move_node, self.add_port):
                manager = self.start()
                self.clock.advance(seconds)
                change()
                self.settle()
                self.clock.advance(2.0)
                self.flush()
                self.clock.pump([CHECK_SECONDS] * round((MIN_PAUSE + 1) / CHECK_SECONDS))
                self.assertIn(10250, self.firewall.rules, (seconds, change))
                self.assertIsNone(manager.problem())
                self.successResultOf(manager.stopService())

    def move_node(self):
        """Move another node behind the tunnel, so that only the set changes."""
        self.put("edge-2", f"192.168.7.{len(self.calls) % 250}", labels=EDGE)

    def add_port(self):
        """Add another port, so that the rules change."""
        self.put_ports(http_proxy_ports=str(9000 + len(self.calls)))

    def test_f7_no_checks(self):
        """F7: if changed rules cannot be checked, this is reported as a problem meanwhile."""
        manager = self.start()
        self.flush()
        self.firewall.hold = hold = Deferred()
        self.clock.pump(
            [CHECK_SECONDS] * round((RECHECK_SECONDS + OVERDUE_SECONDS) / CHECK_SECONDS)
        )
        self.assertIn("takes too long to read", manager.problem())
        self.firewall.hold = None
        hold.callback(None)
        self.assertEqual({10250, 10255}, self.firewall.rules.keys())
        self.assertIsNone(manager.problem())

    def check_during_hold(self, seconds, cpu_seconds):
        """Have a check, caused by a change, take this long, and this much processor time."""
        self.flush()
        self.firewall.hold = hold = Deferred()
        self.clock.pump([CHECK_SECONDS] * round(MIN_PAUSE / CHECK_SECONDS))
        self.clock.advance(seconds)
        self.cpu_seconds += cpu_seconds
        self.firewall.hold = None
        hold.callback(None)
        self.assertIn(10250, self.firewall.rules)

    def test_f7_busy_machine(self):
        """F7: a check that has waited long for a processor, or a lock, does not delay the next."""
        self.start()
        self.check_during_hold(30.0, cpu_seconds=0.1)
        self.flush()
        self.clock.pump([CHECK_SECONDS] * round((MIN_PAUSE + 1) / CHECK_SECONDS))
        self.assertIn(10250, self.firewall.rules)

    def test_f7_many_rules(self):
        """F7: a check that used much processor time, because others have many rules, does."""
        self.start()
        self.check_during_hold(0.0, cpu_seconds=1.0)
        self.flush()
        self.clock.pump([CHECK_SECONDS] * round((PAUSE_FACTOR - 1) / CHECK_SECONDS))
        self.assertNotIn(10250, self.firewall.rules)
        self.clock.pump([CHECK_SECONDS] * round(2 / CHECK_SECONDS))
        self.assertIn(10250, self.firewall.rules)

    def test_f7_changes_of_others(self):
        """F7: constant changes of other rules cause checks of ours, but not all the time."""
        self.start()
        self.calls.clear()
        for _ in range(40):
            self.firewall.changes += 1
            self.clock.advance(CHECK_SECONDS)
        self.assertEqual(round(40 * CHECK_SECONDS / MIN_PAUSE), self.calls.count(("apply", 4)))

    def test_f7_nothing_happens(self):
        """F7: without changes there is one check each period; so it is with our own changes."""
        self.start()
        self.informers.delete(NODES, "cloud-1")
        self.settle()
        self.calls.clear()
        self.clock.pump([CHECK_SECONDS] * round(PERIOD / CHECK_SECONDS))
        self.assertEqual(1, self.calls.count(("apply", 4)))

    def test_f7_legacy(self):
        """F7: if the kernel does not count changes, rules are checked more often."""
        self.firewall.counts_changes = False
        self.start()
        self.flush()
        self.clock.pump([CHECK_SECONDS] * round((RECHECK_SECONDS + 1) / CHECK_SECONDS))
        self.assertEqual({10250, 10255}, self.firewall.rules.keys())

    def test_f7_set(self):
        """F7: so is a set that another program has emptied."""
        manager = self.start()
        self.sets.sets[EDGE4] = addresses()
        self.clock.advance(PERIOD)
        self.assertEqual(addresses("192.168.0.1"), self.sets.sets[EDGE4])
        [report, _] = manager.report().families
        self.assertEqual(1, report.syncs["repaired"])

    def test_f8(self):
        """F8: a machine whose server cannot redirect callers reports it, for /readyz."""
        self.found.clear()
        self.missing[4] = "there is no iptables"
        manager = self.start()
        self.assertEqual("there is no iptables", manager.problem())
        self.assertEqual(1, len(self.logged("there is no iptables")))
