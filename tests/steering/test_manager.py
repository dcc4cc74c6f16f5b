"""When the manager makes rules, in which order, and what it tells of it."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.defer import Deferred

from tests.cluster.fakes import CLOUD, EDGE
from tests.steering.steered import (
    EDGE4,
    EDGE6,
    INSECURE,
    PERIOD,
    SECURE,
    SteeredTestCase,
    addresses,
    flow,
)
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, SERVICES
from yurttunnel.steering.interception import Match, Target
from yurttunnel.steering.interfaces import SteeringFailed
from yurttunnel.steering.manager import (
    FINISH_SECONDS,
    LISTENERS_PATIENCE,
    LOOK_SECONDS,
    REMOVAL_PATIENCE,
    REMOVAL_PAUSE,
    SETTLE_SECONDS,
    SYNC_SECONDS,
)

RULES = {10250: (EDGE4, SECURE, None), 10255: (EDGE4, INSECURE, None)}
"""What is there of an edge node with an IPv4 address."""

REFUSED = SteeringFailed("iptables-restore: line 3 failed")


class BeginningTests(SteeredTestCase):
    """What is waited for."""

    def test_start(self):
        """With everything there, rules are made at once, after the set and before flows are cut."""
        manager = self.start()
        self.assertEqual(RULES, self.firewall.rules)
        self.assertEqual({EDGE4: addresses("192.168.0.1")}, self.sets.sets)
        self.assertEqual(
            [
                ("put", EDGE4),
                ("apply", 4),
                (4, frozenset({10250, 10255})),
                ("apply", 6),
                ("remove", EDGE6),
            ],
            self.calls,
        )
        self.assertEqual("steering", manager.report().state)
        self.assertIsNone(manager.problem())

    def test_nodes(self):
        """Nothing is made before all nodes are known."""
        self.informers.synced = False
        manager = self.start()
        self.clock.advance(PERIOD)
        self.assertEqual([], self.calls)
        self.assertIn("API has not told all nodes", manager.problem())
        self.informers.complete()
        self.clock.advance(LOOK_SECONDS)
        self.clock.advance(0)
        self.assertEqual(RULES, self.firewall.rules)

    def test_no_config_map(self):
        """Without ConfigMap there are the kubelet's ports, and with it more."""
        self.start()
        self.assertEqual({10250, 10255}, self.firewall.rules.keys())
        self.put_ports(http_proxy_ports="9100")
        self.settle()
        self.assertEqual({9100, 10250, 10255}, self.firewall.rules.keys())
        self.informers.delete(CONFIG_MAPS, "yurt-tunnel-server-cfg", "kube-system")
        self.settle()
        self.assertEqual({10250, 10255}, self.firewall.rules.keys())

    def test_both_families(self):
        """A family has rules when an edge node has an address of it."""
        self.put("edge-2", "192.168.0.2", "fd00::2", labels=EDGE)
        self.start()
        self.assertEqual({10250, 10255}, self.firewall6.rules.keys())
        self.assertEqual(addresses("fd00::2"), self.sets.sets[EDGE6])
        self.informers.delete(NODES, "edge-2")
        self.settle()
        self.assertEqual({}, self.firewall6.rules)
        self.assertNotIn(EDGE6, self.sets.sets)

    def test_no_edge_node(self):
        """Without edge nodes there are no rules, and leftovers go."""
        self.firewall.rules = {10250: ("YURTTUNNEL-OLD", SECURE, None)}
        self.informers.delete(NODES, "edge-1")
        manager = self.start()
        self.assertEqual({}, self.firewall.rules)
        self.assertIsNone(manager.problem())

    def test_no_firewall(self):
        """A firewall that is missing is a problem where it is needed, and is looked for again."""
        del self.found[6]
        self.missing[6] = "there is no ip6tables: install the package iptables"
        manager = self.start()
        self.assertIsNone(manager.problem())
        self.put("edge-2", "fd00::2", labels=EDGE)
        self.settle()
        self.assertEqual("there is no ip6tables: install the package iptables", manager.problem())
        self.assertEqual(1, self.searches)
        self.assertEqual(RULES, self.firewall.rules)
        self.found[6] = self.firewall6
        self.clock.advance(PERIOD)
        self.assertEqual({10250, 10255}, self.firewall6.rules.keys())
        self.assertIsNone(manager.problem())

    def test_search_fails(self):
        """When it cannot be found out what there is, that is tried again, soon and then later."""
        self.search_failure = SteeringFailed("iptables-save: timed out")
        manager = self.start()
        self.assertEqual("iptables-save: timed out", manager.problem())
        self.assertEqual("failing", manager.report().state)
        self.assertEqual(1, len(self.logged("iptables-save: timed out; it is tried again")))
        self.search_failure = None
        self.clock.advance(1.0)
        self.assertEqual(RULES, self.firewall.rules)
        self.assertIsNone(manager.problem())


class ChangeTests(SteeredTestCase):
    """What leads to a sync."""

    def test_period(self):
        """Every period all is looked at, and nothing is done when nothing differs."""
        manager = self.start()
        self.calls.clear()
        self.clock.advance(PERIOD)
        # In the other family there is nothing, as was seen before.
        self.assertEqual([("put", EDGE4), ("apply", 4)], self.calls)
        [report, _] = manager.report().families
        self.assertEqual({"changed": 1, "unchanged": 1, "repaired": 0, "failed": 0}, report.syncs)
        self.assertEqual(0, report.last_change)
        self.assertEqual(PERIOD, report.last_success)

    def test_storm(self):
        """Many changes at the same time lead to one sync, a moment later."""
        self.start()
        self.calls.clear()
        for number in range(100):
            self.put(f"edge-{number}", f"192.168.1.{number}", labels=EDGE)
        self.assertEqual([], self.calls)
        self.settle()
        # Nobody has changed the rules, and they are the same whoever is in the set.
        self.assertEqual(1, self.calls.count(("put", EDGE4)))
        self.assertNotIn(("apply", 4), self.calls)
        self.assertEqual(101 - 1, len(self.sets.sets[EDGE4]))

    def test_meanwhile(self):
        """There is one sync at a time; what changes meanwhile leads to another."""
        self.start()
        self.firewall.hold = hold = Deferred()
        self.put_ports(http_proxy_ports="9101")
        self.settle()
        self.calls.clear()
        self.put("edge-3", "192.168.0.3", labels=EDGE)
        self.put_ports(http_proxy_ports="9100")
        self.clock.advance(PERIOD)
        self.assertEqual([], self.calls)
        self.firewall.hold = None
        hold.callback(None)
        self.settle()
        self.assertEqual(1, self.calls.count(("apply", 4)))
        self.assertIn(9100, self.firewall.rules)
        self.assertIn(ip_address("192.168.0.3"), self.sets.sets[EDGE4])

    def test_long_sync(self):
        """A period that ends while a sync is under way adds none."""
        self.start()
        self.firewall.hold = hold = Deferred()
        self.clock.advance(PERIOD)
        self.clock.advance(PERIOD)
        self.calls.clear()
        self.firewall.hold = None
        hold.callback(None)
        self.clock.advance(PERIOD / 2)
        self.assertNotIn(("apply", 4), self.calls)

    def test_what_does_not_matter(self):
        """A node that becomes ready, or not, changes nothing."""
        self.start()
        self.calls.clear()
        self.put("edge-1", "192.168.0.1", labels=EDGE, ready=False)
        self.settle()
        self.assertEqual([], self.calls)

    def test_api_away(self):
        """While the API is out of reach, rules are kept by what is known."""
        self.start()
        self.firewall.rules = {}
        for informer in self.informers.by_spec.values():
            informer.error = ApiUnreachable("https://api: connection refused")
        self.clock.advance(PERIOD)
        self.assertEqual(RULES, self.firewall.rules)

    def test_moved_node(self):
        """A node that changes side has its flows cut; other flows go on."""
        kept = [flow("10.0.0.1", 10250), flow("192.168.0.1", 22)]
        self.flows.flows = [flow("10.0.0.2", 10250), *kept]
        self.put("moving", "10.0.0.2", labels=CLOUD)
        self.start()
        self.assertEqual(3, len(self.flows.flows))
        self.put("moving", "10.0.0.2", labels=EDGE)
        self.settle()
        self.assertEqual(kept, self.flows.flows)
        self.flows.flows = [flow("10.0.0.2", 10250, SECURE), *kept]
        self.put("moving", "10.0.0.2", labels=CLOUD)
        self.settle()
        self.assertEqual(kept, self.flows.flows)

    def test_deleted_node(self):
        """Flows to a node that is no more, which we answer, are cut as well."""
        self.start()
        self.flows.flows = [flow("192.168.0.1", 10250, SECURE)]
        self.informers.delete(NODES, "edge-1")
        self.settle()
        self.assertEqual([], self.flows.flows)

    def test_ports(self):
        """Flows are cut on ports that came and on ports that left."""
        self.start()
        self.flows.flows = [flow("192.168.0.1", 9100)]
        self.put_ports(http_proxy_ports="9100")
        self.settle()
        self.assertEqual([], self.flows.flows)
        self.flows.flows = [flow("192.168.0.1", 9100, INSECURE)]
        self.put_ports(http_proxy_ports="")
        self.settle()
        self.assertEqual([], self.flows.flows)

    def test_services(self):
        """A node that claims the address of a Service does not get it, whichever comes first."""
        self.put("evil", "192.168.0.9", "10.96.0.7", labels=EDGE)
        self.start()
        self.assertIn(ip_address("10.96.0.7"), self.sets.sets[EDGE4])
        metadata = {"namespace": "kube-system", "name": "x-tunnel-server-internal-svc"}
        self.informers.put(SERVICES, {"metadata": metadata, "spec": {"clusterIP": "10.96.0.7"}})
        self.settle()
        self.assertEqual(addresses("192.168.0.1", "192.168.0.9"), self.sets.sets[EDGE4])

    def test_what_is_left_out(self):
        """An address that a cloud node has, too, is told in the report."""
        manager = self.start()
        self.put("evil", "192.168.0.1", labels=CLOUD)
        self.settle()
        [note] = manager.report().families[0].notes
        self.assertIn("192.168.0.1", note)
        self.assertIn("cloud node evil", note)
        self.assertIn("edge node edge-1", note)
        self.assertEqual(1, len(self.logged("cloud node evil")))


class FailureTests(SteeredTestCase):
    """What fails, and what goes on."""

    def test_one_family(self):
        """One family that fails does not hold up the other; it is tried again after pauses."""
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
        self.assertEqual(1, len(self.logged("IPv4", "as wanted again")))
        self.assertEqual(1, len(self.logged("it is tried again")))

    def test_change_while_failing(self):
        """A change waits for the next attempt: others can make as many as they like."""
        self.firewall.failure = REFUSED
        self.start()
        self.calls.clear()
        for number in range(5):
            self.put("edge-2", f"fd00::{number + 2}", labels=EDGE)
            self.settle()
        self.assertEqual([], self.calls)
        self.clock.advance(1)
        self.assertEqual({10250, 10255}, self.firewall6.rules.keys())

    def test_takes_too_long(self):
        """A sync that does not end is given up, which is told, and made again."""
        manager = self.start()
        self.put_ports(http_proxy_ports="9101")
        self.firewall.hold = Deferred()
        self.settle()
        self.clock.advance(SYNC_SECONDS - 1)
        self.assertEqual("steering", manager.report().state)
        self.clock.advance(1)
        self.assertEqual("failing", manager.report().state)
        self.assertIn("could not be made in time", manager.problem())
        self.firewall.hold = None
        self.clock.advance(1.0)
        self.assertIn(9101, self.firewall.rules)
        self.assertIsNone(manager.problem())

    def test_defect(self):
        """An error that nobody has thought of is told, and stops neither family nor manager."""
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
        """An unexpected error while it is found out what there is, is tried again, too."""
        self.search_failure = ZeroDivisionError("unexpected")
        manager = self.start()
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertIn("internal error: ZeroDivisionError", manager.problem())
        self.search_failure = None
        self.clock.advance(1)
        self.assertEqual(RULES, self.firewall.rules)
        self.assertIsNone(manager.problem())

    def test_later_search_fails(self):
        """A search for one family that fails later does not hold up the one that was found."""
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
        """Flows that cannot be cut are told once, tried again, and hold up no rules."""
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
        """Flows of ports that a former process had are cut by the first cut that goes well."""
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
        """Flows are cut for a change of the set, when the rules could be made only later."""
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


class MatchTests(SteeredTestCase):
    """Which way is taken to recognise what is intercepted."""

    def test_sets(self):
        """Where the kernel has sets, they are used."""
        manager = self.start()
        self.assertEqual("edge-set", manager.report().families[0].match)

    def test_no_sets(self):
        """Where it has none, cloud nodes are left out by rules, and no set is touched."""
        self.sets.is_supported = False
        manager = self.start()
        self.assertEqual(
            {
                10250: (addresses("10.0.0.1"), SECURE, None),
                10255: (addresses("10.0.0.1"), INSECURE, None),
            },
            self.firewall.rules,
        )
        self.assertEqual([], [call for call in self.calls if call[0] in ("put", "remove")])
        self.assertEqual("cloud-return", manager.report().families[0].match)
        self.assertIsNone(manager.problem())

    def test_asked_for(self):
        """Sets that are asked for and not there are a problem, until they are there."""
        self.sets.is_supported = False
        manager = self.start(match=Match.EDGE_SET)
        self.assertEqual({}, self.firewall.rules)
        self.assertIn("--intercept-match edge-set: this kernel has no sets", manager.problem())
        self.sets.is_supported = True
        self.clock.advance(1)
        self.assertEqual(RULES, self.firewall.rules)

    def test_refused(self):
        """A firewall that has no rules with sets gets others; that is told, and stays told."""
        self.firewall.refuses_sets = True
        manager = self.start()
        self.assertEqual(addresses("10.0.0.1"), self.firewall.rules[10250][0])
        self.assertEqual({}, self.sets.sets)
        self.clock.advance(PERIOD)
        [line] = self.logged("cloud-return", "refused")
        self.assertIn("Can't open socket to ipset", line)
        self.assertEqual(line, manager.problem())
        [report, _] = manager.report().families
        self.assertEqual(("cloud-return", (line,)), (report.match, report.notes))

    def test_refused_though_asked(self):
        """Where sets are asked for, their refusal remains a problem."""
        self.firewall.refuses_sets = True
        manager = self.start(match=Match.EDGE_SET)
        for _ in range(10):
            self.clock.advance(PERIOD)
        self.assertEqual({}, self.firewall.rules)
        self.assertIn("ipset", manager.problem())

    def test_failure_after_success(self):
        """What has been taken once is not given up for failures that come later."""
        manager = self.start()
        self.firewall.failure = REFUSED
        for _ in range(10):
            self.clock.advance(PERIOD)
        self.firewall.failure = None
        self.clock.advance(PERIOD)
        self.assertEqual(RULES, self.firewall.rules)
        self.assertEqual("edge-set", manager.report().families[0].match)

    def test_broken(self):
        """A firewall that refuses everything is no reason to give up sets: that would open more."""
        self.firewall.failure = REFUSED
        manager = self.start()
        for _ in range(30):
            self.clock.advance(PERIOD)
        self.assertEqual({}, self.firewall.rules)
        self.firewall.failure = None
        self.clock.advance(PERIOD)
        self.assertEqual(RULES, self.firewall.rules)
        self.assertIsNone(manager.problem())

    def test_former_set(self):
        """The set of a former process is removed after the rules that refer to it."""
        self.sets.sets, self.sets.versions = {EDGE4: addresses("192.168.0.1")}, {EDGE4: 4}
        self.firewall.rules = dict(RULES)
        self.sets.busy = {EDGE4}
        self.start(match=Match.CLOUD_RETURN)
        self.assertEqual(addresses("10.0.0.1"), self.firewall.rules[10250][0])
        self.assertEqual({}, self.sets.sets)

    def test_edge_nodes_come_and_go(self):
        """The set goes each time that there are none any more, and comes with the next."""
        self.start()
        for _ in range(2):
            self.assertEqual({EDGE4: addresses("192.168.0.1")}, self.sets.sets)
            self.informers.delete(NODES, "edge-1")
            self.settle()
            self.assertEqual({}, self.sets.sets)
            self.put("edge-1", "192.168.0.1", labels=EDGE)
            self.settle()

    def test_sets_unknown(self):
        """Whether there are sets does not matter to whoever does not want them."""
        self.sets.failure = SteeringFailed("netlink: not permitted")
        self.start(match=Match.CLOUD_RETURN)
        self.assertEqual(addresses("10.0.0.1"), self.firewall.rules[10250][0])


class ListenerTests(SteeredTestCase):
    """Rules are there as long as what they lead to."""

    def look(self, seconds=LOOK_SECONDS):
        """Let the manager look again and again for some time."""
        self.clock.pump([LOOK_SECONDS] * round(seconds / LOOK_SECONDS))
        self.clock.advance(0)

    def test_short_pause(self):
        """Listeners that are away for a moment keep their rules."""
        self.start()
        self.calls.clear()
        self.closed = "port 10263 is not bound"
        self.look(LISTENERS_PATIENCE - 1)
        self.closed = None
        self.look(LISTENERS_PATIENCE)
        self.assertNotIn(("remove", 4), self.calls)
        self.assertEqual(RULES, self.firewall.rules)

    def test_closed(self):
        """Those of listeners that stay away go, and come back with them; flows are left alone."""
        manager = self.start()
        self.flows.flows = [flow("192.168.0.1", 10250, SECURE)]
        self.closed = "port 10263 is not bound"
        self.look(LISTENERS_PATIENCE + 1)
        self.assertEqual(({}, {}), (self.firewall.rules, self.sets.sets))
        self.assertEqual(1, len(self.flows.flows))
        self.assertIn("port 10263 is not bound", manager.problem())
        self.assertEqual("waiting", manager.report().state)
        self.assertEqual(1, len(self.logged("No rules", "port 10263 is not bound")))
        self.calls.clear()
        self.look(2 * PERIOD)
        self.assertEqual([], self.calls)
        self.closed = None
        self.look()
        self.assertEqual(RULES, self.firewall.rules)
        self.assertEqual(1, len(self.flows.flows))
        self.assertIsNone(manager.problem())

    def test_cannot_be_asked(self):
        """An error of who knows the listeners is told, and the next look is in time."""
        manager = self.start()
        self.not_accepting = lambda: 1 // 0
        self.clock.advance(LOOK_SECONDS)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.not_accepting = lambda: "port 10263 is not bound"
        self.look(LISTENERS_PATIENCE + 1)
        self.assertEqual({}, self.firewall.rules)
        self.successResultOf(manager.stopService())
        self.assertEqual({}, self.firewall.rules)

    def test_removal_fails(self):
        """A removal that fails is tried again after pauses, not with every look."""
        manager = self.start()
        self.firewall.failure = REFUSED
        self.closed = "port 10263 is not bound"
        self.look(LISTENERS_PATIENCE + 1)
        self.assertIn(str(REFUSED), manager.problem())
        self.assertLess(self.calls.count(("remove", 4)), 3)
        self.firewall.failure = None
        self.look(5)
        self.assertEqual({}, self.firewall.rules)


class EndTests(SteeredTestCase):
    """Stopping."""

    def test_stop(self):
        """Rules go before sets, flows are left alone, and nothing is done afterwards."""
        manager = self.start()
        self.flows.flows = [flow("192.168.0.1", 10250, SECURE)]
        self.calls.clear()
        self.successResultOf(manager.stopService())
        self.assertEqual(
            [("remove", 4), ("remove", EDGE4), ("remove", 6), ("remove", EDGE6)], self.calls
        )
        self.assertEqual(({}, {}), (self.firewall.rules, self.sets.sets))
        self.assertEqual(1, len(self.flows.flows))
        self.put("edge-2", "192.168.0.2", labels=EDGE)
        self.put_ports(http_proxy_ports="9100")
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual("stopped", manager.report().state)

    def test_while_waiting(self):
        """Leftovers of a former process go, too, when nothing has been made yet."""
        self.firewall.rules = dict(RULES)
        self.closed = "certificates are pending"
        manager = self.start()
        self.successResultOf(manager.stopService())
        self.assertEqual({}, self.firewall.rules)

    def test_under_way(self):
        """A sync that is under way comes to its end first."""
        manager = self.start()
        self.firewall.hold = hold = Deferred()
        self.put_ports(http_proxy_ports="9100")
        self.settle()
        self.calls.clear()
        stopped = manager.stopService()
        self.assertEqual([], self.calls)
        self.firewall.hold = None
        hold.callback(None)
        self.successResultOf(stopped)
        self.assertEqual({}, self.firewall.rules)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_hangs(self):
        """A sync that does not end is cancelled, and the rules are removed."""
        manager = self.start()
        self.firewall.hold = Deferred()
        self.put_ports(http_proxy_ports="9100")
        self.settle()
        stopped = manager.stopService()
        self.firewall.hold = None
        self.clock.advance(FINISH_SECONDS)
        self.successResultOf(stopped)
        self.assertEqual({}, self.firewall.rules)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_removal_hangs(self):
        """A removal that does not end in time is told, with what is to be done."""
        manager = self.start()
        self.firewall.hold = Deferred()
        stopped = manager.stopService()
        self.assertNoResult(stopped)
        self.clock.advance(REMOVAL_PATIENCE)
        self.successResultOf(stopped)
        self.assertEqual(1, len(self.logged("left behind", "--cleanup-iptables")))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_removal_fails(self):
        """What one family's firewall refuses to the end is told; the other's rules go at once."""
        self.put("edge-2", "fd00::2", labels=EDGE)
        manager = self.start()
        self.firewall.failure = REFUSED
        stopped = manager.stopService()
        self.assertEqual({}, self.firewall6.rules)
        self.clock.pump([REMOVAL_PAUSE] * round(REMOVAL_PATIENCE / REMOVAL_PAUSE))
        self.successResultOf(stopped)
        self.assertEqual(1, len(self.logged("left behind", str(REFUSED), "--cleanup-iptables")))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_removal_is_tried_again(self):
        """Rules that cannot be removed for some time, as behind a lock, are removed then."""
        manager = self.start()
        self.firewall.failure = REFUSED
        stopped = manager.stopService()
        self.clock.pump([REMOVAL_PAUSE] * 14)
        self.assertNoResult(stopped)
        self.firewall.failure = None
        self.clock.advance(REMOVAL_PAUSE)
        self.successResultOf(stopped)
        self.assertEqual({}, self.firewall.rules)
        self.assertEqual([], self.logged("left behind"))

    def test_removal_without_the_right_to(self):
        """Who has made no rules does not wait to be allowed to remove some."""
        self.firewall.failure = REFUSED
        manager = self.start()
        self.successResultOf(manager.stopService())
        self.assertEqual(1, len(self.logged("IPv4", str(REFUSED), "--cleanup-iptables")))

    def test_removal_has_a_defect(self):
        """An unexpected error at the end is told with what is to be done, and ends it."""
        manager = self.start()
        self.firewall.failure = ZeroDivisionError("unexpected")
        self.successResultOf(manager.stopService())
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertEqual(1, len(self.logged("ZeroDivisionError", "--cleanup-iptables")))

    def test_search_fails(self):
        """What cannot even be looked for is told at the end."""
        self.search_failure = SteeringFailed("iptables-save: timed out")
        manager = self.start()
        self.successResultOf(manager.stopService())
        self.assertEqual(1, len(self.logged("timed out", "--cleanup-iptables")))

    def test_again(self):
        """What was stopped can be started again."""
        manager = self.start()
        self.successResultOf(manager.stopService())
        manager.startService()
        self.clock.advance(0)
        self.assertEqual(RULES, self.firewall.rules)
        self.successResultOf(manager.stopService())


class ReportTests(SteeredTestCase):
    """What is told of it all."""

    def test_families(self):
        """A report says what is intercepted, where it leads to, and what was changed when."""
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
                f"the set {EDGE4} had other addresses",
                "the rules of port 10250",
                "the rules of port 10255",
            ),
            report.differed,
        )
        self.assertIn("pods to port 10255", report.notes[0])
        self.assertEqual(1, len(self.logged("pods to port 10255")))
        self.assertEqual((6, ()), (report6.version, report6.ports))

    def test_targets(self):
        """Listeners on IPv6, and on all addresses, are spelled as such."""
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
        """What is there is not looked at a second time when the manager starts."""
        self.start()
        self.calls.clear()
        self.clock.advance(2 * SETTLE_SECONDS)
        self.assertEqual([], self.calls)
