"""Tests of the manager of the firewall rules: its requirements, and its triggers."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.defer import Deferred

from tests.cluster.fakes import CLOUD, EDGE
from tests.steering.manager_support import (
    EDGE4,
    EDGE6,
    INSECURE,
    PERIOD,
    REFUSED,
    RULES,
    SECURE,
    ManagerTestCase,
    addresses,
    flow,
)
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, SERVICES
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interception import Match
from yurttunnel.steering.manager import CHECK_SECONDS, SYNC_BURST


class StartTests(ManagerTestCase):
    """What it waits for."""

    def test_start(self):
        """Rules are created at once, after the set and before flows are cut."""
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
        """Nothing is created before all nodes are known."""
        self.informers.synced = False
        manager = self.start()
        self.clock.advance(PERIOD)
        self.assertEqual([], self.calls)
        self.assertIn("nodes have not been received from the API", manager.problem())
        self.informers.complete()
        self.clock.advance(CHECK_SECONDS)
        self.clock.advance(0)
        self.assertEqual(RULES, self.firewall.rules)

    def test_no_config_map(self):
        """Without the ConfigMap there are the kubelet's ports, and more with it."""
        self.start()
        self.assertEqual({10250, 10255}, self.firewall.rules.keys())
        self.put_ports(http_proxy_ports="9100")
        self.settle()
        self.assertEqual({9100, 10250, 10255}, self.firewall.rules.keys())
        self.informers.delete(CONFIG_MAPS, "yurt-tunnel-server-cfg", "kube-system")
        self.settle()
        self.assertEqual({10250, 10255}, self.firewall.rules.keys())

    def test_both_families(self):
        """A family has rules if an edge node has an address of it."""
        self.put("edge-2", "192.168.0.2", "fd00::2", labels=EDGE)
        self.start()
        self.assertEqual({10250, 10255}, self.firewall6.rules.keys())
        self.assertEqual(addresses("fd00::2"), self.sets.sets[EDGE6])
        self.informers.delete(NODES, "edge-2")
        self.settle()
        self.assertEqual({}, self.firewall6.rules)
        self.assertNotIn(EDGE6, self.sets.sets)

    def test_no_edge_node(self):
        """Without edge nodes there are no rules, and leftovers are removed."""
        self.firewall.rules = {10250: ("YURTTUNNEL-OLD", SECURE, None)}
        self.informers.delete(NODES, "edge-1")
        manager = self.start()
        self.assertEqual({}, self.firewall.rules)
        self.assertIsNone(manager.problem())

    def test_no_firewall(self):
        """A missing firewall is a problem if it is needed, and is searched again."""
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
        """If the detection fails, it is retried, soon and then later."""
        self.search_failure = SteeringFailed("iptables-save: timed out")
        manager = self.start()
        self.assertEqual("iptables-save: timed out", manager.problem())
        self.assertEqual("failing", manager.report().state)
        self.assertEqual(1, len(self.logged("iptables-save: timed out; retrying")))
        self.search_failure = None
        self.clock.advance(1.0)
        self.assertEqual(RULES, self.firewall.rules)
        self.assertIsNone(manager.problem())


class ChangeTests(ManagerTestCase):
    """What triggers a sync."""

    def test_period(self):
        """Every period everything is checked, and nothing is done if nothing differs."""
        manager = self.start()
        self.calls.clear()
        self.clock.advance(PERIOD)
        # The other family has no rules, as was checked before.
        self.assertEqual([("put", EDGE4), ("apply", 4)], self.calls)
        [report, _] = manager.report().families
        self.assertEqual({"changed": 1, "unchanged": 1, "repaired": 0, "failed": 0}, report.syncs)
        self.assertEqual(0, report.last_change)
        self.assertEqual(PERIOD, report.last_success)

    def test_many_changes(self):
        """Many changes at the same time trigger one sync, a moment later."""
        self.start()
        self.calls.clear()
        for number in range(100):
            self.put(f"edge-{number}", f"192.168.1.{number}", labels=EDGE)
        self.assertEqual([], self.calls)
        self.settle()
        # Nobody has changed the rules, and they are the same for any addresses in the set.
        self.assertEqual(1, self.calls.count(("put", EDGE4)))
        self.assertNotIn(("apply", 4), self.calls)
        self.assertEqual(101 - 1, len(self.sets.sets[EDGE4]))

    def test_flapping_node(self):
        """One that changes repeatedly triggers one sync a second; the last change is applied."""
        self.start()
        self.calls.clear()
        for number in range(600):
            self.put("edge-2", f"192.168.{1 + number % 2}.1", labels=EDGE)
            self.clock.advance(0.1)
        self.assertIn(self.calls.count(("put", EDGE4)), range(60, 60 + 2 * SYNC_BURST))
        self.clock.pump([0.1] * 11)
        self.assertEqual(addresses("192.168.0.1", "192.168.2.1"), self.sets.sets[EDGE4])
        self.clock.pump([0.1] * 10 * SYNC_BURST)
        for number in range(SYNC_BURST // 2):
            self.put("edge-2", f"192.168.3.{number}", labels=EDGE)
            self.settle()
            self.assertIn(ip_address(f"192.168.3.{number}"), self.sets.sets[EDGE4])

    def test_meanwhile(self):
        """There is one sync at a time; changes meanwhile trigger another."""
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
        """A period that ends during a sync adds none."""
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
        """A change of a node's readiness changes nothing."""
        self.start()
        self.calls.clear()
        self.put("edge-1", "192.168.0.1", labels=EDGE, ready=False)
        self.settle()
        self.assertEqual([], self.calls)

    def test_api_unreachable(self):
        """During an outage of the API, rules are maintained with the last state."""
        self.start()
        self.firewall.rules = {}
        for informer in self.informers.by_spec.values():
            informer.error = ApiUnreachable("https://api: connection refused")
        self.clock.advance(PERIOD)
        self.assertEqual(RULES, self.firewall.rules)

    def test_moved_node(self):
        """A node that changes side has its flows cut; other flows continue."""
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
        """Flows to a deleted node, which we answer, are cut as well."""
        self.start()
        self.flows.flows = [flow("192.168.0.1", 10250, SECURE)]
        self.informers.delete(NODES, "edge-1")
        self.settle()
        self.assertEqual([], self.flows.flows)

    def test_ports(self):
        """Flows are cut on added and on removed ports."""
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
        """A node that claims the address of a Service does not get it, whichever is first."""
        self.put("evil", "192.168.0.9", "10.96.0.7", labels=EDGE)
        self.start()
        self.assertIn(ip_address("10.96.0.7"), self.sets.sets[EDGE4])
        metadata = {"namespace": "kube-system", "name": "x-tunnel-server-internal-svc"}
        self.informers.put(SERVICES, {"metadata": metadata, "spec": {"clusterIP": "10.96.0.7"}})
        self.settle()
        self.assertEqual(addresses("192.168.0.1", "192.168.0.9"), self.sets.sets[EDGE4])

    def test_what_is_left_out(self):
        """An address that a cloud node has, too, is in the report."""
        manager = self.start()
        self.put("evil", "192.168.0.1", labels=CLOUD)
        self.settle()
        [note] = manager.report().families[0].notes
        self.assertIn("192.168.0.1", note)
        self.assertIn("cloud node evil", note)
        self.assertIn("edge node edge-1", note)
        self.assertEqual(1, len(self.logged("cloud node evil")))


class MatchTests(ManagerTestCase):
    """How intercepted connections are matched."""

    def test_sets(self):
        """If the kernel has sets, they are used."""
        manager = self.start()
        self.assertEqual("edge-set", manager.report().families[0].match)

    def test_no_sets(self):
        """If it has none, rules exclude cloud nodes, and no set is used."""
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

    def test_requested(self):
        """Requested sets that are not supported are a problem, until they are."""
        self.sets.is_supported = False
        manager = self.start(match=Match.EDGE_SET)
        self.assertEqual({}, self.firewall.rules)
        self.assertIn("--intercept-match edge-set: this kernel has no ipset", manager.problem())
        self.sets.is_supported = True
        self.clock.advance(1)
        self.assertEqual(RULES, self.firewall.rules)

    def test_refused(self):
        """A firewall without sets gets other rules; this is logged, and stays reported."""
        self.firewall.refuses_sets = True
        manager = self.start()
        self.assertEqual(addresses("10.0.0.1"), self.firewall.rules[10250][0])
        self.assertEqual({}, self.sets.sets)
        self.clock.advance(PERIOD)
        [line] = self.logged("cloud-return", "rejected")
        self.assertIn("Can't open socket to ipset", line)
        self.assertEqual(line, manager.problem())
        [report, _] = manager.report().families
        self.assertEqual(("cloud-return", (line,)), (report.match, report.notes))

    def test_rejected_although_requested(self):
        """If sets are requested, their failure remains a problem."""
        self.firewall.refuses_sets = True
        manager = self.start(match=Match.EDGE_SET)
        for _ in range(10):
            self.clock.advance(PERIOD)
        self.assertEqual({}, self.firewall.rules)
        self.assertIn("ipset", manager.problem())

    def test_failure_after_success(self):
        """Once rules with sets were accepted, later failures cause no fallback."""
        manager = self.start()
        self.firewall.failure = REFUSED
        for _ in range(10):
            self.clock.advance(PERIOD)
        self.firewall.failure = None
        self.clock.advance(PERIOD)
        self.assertEqual(RULES, self.firewall.rules)
        self.assertEqual("edge-set", manager.report().families[0].match)

    def test_broken(self):
        """A firewall that rejects everything keeps its sets: without, more would be intercepted."""
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
        """The set of a previous process is removed after the rules that refer to it."""
        self.sets.sets, self.sets.versions = {EDGE4: addresses("192.168.0.1")}, {EDGE4: 4}
        self.firewall.rules = dict(RULES)
        self.sets.busy = {EDGE4}
        self.start(match=Match.CLOUD_RETURN)
        self.assertEqual(addresses("10.0.0.1"), self.firewall.rules[10250][0])
        self.assertEqual({}, self.sets.sets)

    def test_edge_nodes_come_and_go(self):
        """The set is removed each time that there are none any more, and created with the next."""
        self.start()
        for _ in range(2):
            self.assertEqual({EDGE4: addresses("192.168.0.1")}, self.sets.sets)
            self.informers.delete(NODES, "edge-1")
            self.settle()
            self.assertEqual({}, self.sets.sets)
            self.put("edge-1", "192.168.0.1", labels=EDGE)
            self.settle()

    def test_sets_unknown(self):
        """Support of sets does not matter if they are not requested."""
        self.sets.failure = SteeringFailed("netlink: not permitted")
        self.start(match=Match.CLOUD_RETURN)
        self.assertEqual(addresses("10.0.0.1"), self.firewall.rules[10250][0])
