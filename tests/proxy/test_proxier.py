"""What becomes of what Services ask for: sockets, rules, flows, and what is told."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.ops.status_pages import finished
from tests.proxy.fakes import (
    FakeChecks,
    FakeClaims,
    FakeConntrack,
    FakeKernel,
    FakeRules,
    FakeSockets,
    FakeSource,
)
from tests.proxy.services import endpoint, key, service
from yurttunnel.proxy.balancing.balancer import LoadBalancer
from yurttunnel.proxy.health import SyncHealth
from yurttunnel.proxy.interfaces import (
    IClaims,
    IConntrack,
    IDesiredStateSource,
    IProxySocket,
    IProxySockets,
    IRules,
    KernelStats,
    StaleFlows,
)
from yurttunnel.proxy.placement import IKernel, Placement
from yurttunnel.proxy.proxier import LOOK_SECONDS, MOST_TOLD, REMOVAL_SECONDS, Proxier
from yurttunnel.proxy.settings import SyncSettings
from yurttunnel.proxy.state.virtual_services import (
    Endpoint,
    HealthCheckNodePort,
    Portal,
    PortalKind,
    Problem,
    Protocol,
    Scope,
)

SETTINGS = SyncSettings(period=30.0, least=1.0, drain=5.0, removes_rules=False)
CLUSTER_IP = Portal(PortalKind.CLUSTER_IP, ip_address("10.96.0.1"), 80)
NODE_PORT = Portal(PortalKind.NODE_PORT, None, 30080)
DNS = key("dns", Protocol.UDP)


class ProxierTestCase(SynchronousTestCase):
    """A proxier among fakes."""

    settings = SETTINGS

    def setUp(self):
        """Start it with nothing listed."""
        self.clock = Clock()
        self.addresses = frozenset([ip_address("192.0.2.1"), ip_address("2001:db8::1")])
        self.source = FakeSource()
        self.claims = FakeClaims()
        self.sockets = FakeSockets()
        self.rules = FakeRules()
        self.conntrack = FakeConntrack()
        self.checks = FakeChecks()
        self.health = SyncHealth(self.clock, self.settings.period, lambda: True)
        self.placement = self.make_placement()
        self.proxier = Proxier(
            self.clock,
            self.settings,
            self.source,
            self.placement,
            self.claims,
            self.rules,
            self.conntrack,
            self.checks,
            self.health,
            lambda: self.addresses,
        )
        self.told = []
        globalLogPublisher.addObserver(self.told.append)
        self.addCleanup(globalLogPublisher.removeObserver, self.told.append)
        self.proxier.startService()

    kernel = None

    def make_placement(self):
        """Have sockets carry, but for what the kernel does."""
        return Placement(self.clock, LoadBalancer(self.clock), self.sockets, self.kernel)

    def set(self, *services, **more):
        """Have another state, and the turn of the reactor after it."""
        self.source.set(*services, **more)
        self.clock.advance(0)
        self.clock.advance(0)

    def pass_period(self):
        """Have the next sync that nobody asks for."""
        self.clock.advance(self.settings.least)
        self.clock.advance(self.settings.period)

    def warnings(self):
        """Return what was logged as a warning or worse."""
        return [
            each["log_format"].format(**each)
            for each in self.told
            if each.get("log_level", LogLevel.debug) >= LogLevel.warn
            and each["log_namespace"].startswith("yurttunnel")
        ]


class SocketTests(ProxierTestCase):
    """Which sockets there are, and where they are."""

    def test_interfaces(self):
        """The fakes and the placements have what they should have."""
        verifyObject(IKernel, FakeKernel())
        verifyObject(IDesiredStateSource, self.source)
        verifyObject(IClaims, self.claims)
        verifyObject(IProxySockets, self.sockets)
        verifyObject(IRules, self.rules)
        verifyObject(IConntrack, self.conntrack)
        self.set(service([1]))
        verifyObject(IProxySocket, self.sockets.opened[0])

    def test_nothing_is_done_before_all_is_listed(self):
        """Not even in time: the rules of a former process stay."""
        self.clock.advance(100)
        self.assertEqual([], self.rules.applied)
        self.assertIsNone(self.claims.wanted)
        self.assertEqual("nothing has been listed yet", self.proxier.problem())

    def test_addresses_of_this_machine_change(self):
        """Claims and rules, which depend on them, are made anew at once, though what is to be
        served is the same; before all is listed they are not.
        """
        self.proxier.node_changed()
        self.clock.advance(0)
        self.assertIsNone(self.claims.wanted)
        self.set(service([1], portals=(NODE_PORT,)))
        self.claims.wanted = None
        self.proxier.node_changed()
        self.clock.advance(0)
        self.assertEqual({key(): (NODE_PORT,)}, self.claims.wanted)
        self.assertEqual(2, len(self.rules.applied))
        self.proxier.stopService()
        self.proxier.node_changed()
        self.pass_period()
        self.assertEqual(2, len(self.rules.applied))

    def test_a_service_gets_a_socket_and_rules_that_lead_there(self):
        """At once."""
        self.set(service([1, 2], portals=(CLUSTER_IP,)))
        self.assertEqual({key(): 40000}, self.rules.ports)
        (placed,) = self.rules.applied[-1]
        self.assertEqual((CLUSTER_IP,), placed.service.portals)
        self.assertIsNone(self.proxier.problem())
        self.assertIsNone(self.proxier.warning())

    def test_endpoints_change_without_rules(self):
        """Also amid the pause between two syncs: the socket and the picker know them at once."""
        self.set(service([1, 2], portals=(CLUSTER_IP,)))
        placed = self.rules.applied[-1]
        self.source.set(service([2, 3], portals=(CLUSTER_IP,)))
        (socket,) = self.sockets.opened
        self.assertEqual((endpoint(2), endpoint(3)), socket.services[-1].endpoints)
        picked = {socket.picker.pick("192.0.2.1", ()) for _ in range(4)}
        self.assertEqual({endpoint(2), endpoint(3)}, picked)
        self.clock.advance(1)
        self.clock.advance(0)
        # Rules for the same are made of it, which takes no process.
        self.assertEqual(placed, self.rules.applied[-1])

    def test_a_socket_stays_while_portals_and_policies_change(self):
        """So does its port."""
        self.set(service([1], portals=(CLUSTER_IP,)))
        self.clock.advance(1)
        self.set(service([1], portals=(CLUSTER_IP, NODE_PORT), affinity=60.0))
        self.assertEqual(1, len(self.sockets.opened))
        self.assertEqual({key(): 40000}, self.rules.ports)
        self.assertEqual(60.0, self.sockets.opened[0].services[-1].affinity)
        self.assertEqual((CLUSTER_IP, NODE_PORT), self.rules.applied[-1][0].service.portals)

    def test_without_endpoints_rules_lead_nowhere(self):
        """The socket waits for endpoints that come back; where there never were any is none."""
        empty, full = service([]), service([1])
        self.set(empty)
        self.assertEqual(({key(): None}, []), (self.rules.ports, self.sockets.opened))
        self.clock.advance(1)
        self.set(full)
        self.assertEqual({key(): 40000}, self.rules.ports)
        self.clock.advance(1)
        self.set(empty)
        self.assertEqual({key(): None}, self.rules.ports)
        self.assertEqual([], self.sockets.opened[0].drains)
        self.clock.advance(1)
        self.set(full)
        self.assertEqual({key(): 40000}, self.rules.ports)
        self.assertEqual(1, len(self.sockets.opened))

    def test_services_without_endpoints_are_shown(self):
        """Whether or not they have ever had some: clients of both are refused."""

        def shown():
            return {
                (each.service.key, each.port, len(each.service.endpoints))
                for each in self.placement.carried()
            }

        never, sometimes = key("never"), key("sometimes")
        self.set(service([], key=never), service([1], key=sometimes))
        self.assertEqual({(never, None, 0), (sometimes, 40000, 1)}, shown())
        self.clock.advance(1)
        self.set(service([2], key=never), service([], key=sometimes))
        self.assertEqual({(never, 40001, 1), (sometimes, 40000, 0)}, shown())
        self.clock.advance(1)
        self.set()
        self.assertEqual(set(), shown())

    def test_a_removed_service_is_stopped_after_its_rules(self):
        """What is under way has its time; nothing was led to a port that nobody listens at."""
        self.set(service([1]))
        (socket,) = self.sockets.opened
        socket.active = 1
        self.clock.advance(1)
        self.rules.holds = True
        self.set()
        self.assertEqual([], socket.drains)
        self.rules.go_on()
        self.assertEqual([5.0], socket.drains)
        self.assertEqual([], list(self.placement.carried()))
        socket.drained()

    def in_scopes(self, *scopes, protocol=Protocol.TCP):
        """Have the Service with these, as its traffic policies have it."""
        self.clock.advance(1)
        self.set(*(service([1], key=key("web", protocol, scope=each)) for each in scopes))

    def test_connections_go_on_when_a_traffic_policy_changes(self):
        """Another socket serves the Service then, and they end with it, or with the proxy."""
        self.in_scopes(Scope.ALL)
        (former,) = self.sockets.opened
        former.active = 2
        self.in_scopes(Scope.INTERNAL, Scope.EXTERNAL)
        self.assertEqual([None], former.drains)
        self.assertEqual({Protocol.TCP: 2}, self.placement.draining())
        self.in_scopes(Scope.INTERNAL)
        self.assertEqual([None], former.drains)
        self.in_scopes()
        self.assertEqual([None, 5.0], former.drains)
        self.in_scopes()
        self.assertEqual([None, 5.0], former.drains)
        former.drained()
        self.assertEqual({}, self.placement.draining())

    def test_connections_go_on_when_a_port_gets_another_name(self):
        """As it does when the Service gets a second one; they end when its number is gone."""
        self.set(service([1], portals=(CLUSTER_IP,)))
        (former,) = self.sockets.opened
        former.active = 2
        renamed = replace(key(), name=replace(key().name, port="web"))
        self.set(service([1], key=renamed, portals=(CLUSTER_IP, NODE_PORT)))
        self.assertEqual([None], former.drains)
        self.clock.advance(1)
        self.set(service([1], key=renamed, portals=(replace(CLUSTER_IP, port=81),)))
        self.assertEqual([None, 5.0], former.drains)

    def test_connections_end_when_another_service_gets_the_port(self):
        """They were the other one's."""
        self.set(service([1], portals=(CLUSTER_IP,)))
        (former,) = self.sockets.opened
        former.active = 2
        self.set(service([1], key=key("api"), portals=(CLUSTER_IP,)))
        self.assertEqual([5.0], former.drains)

    def test_many_ports_that_are_gone(self):
        """Whether they have another name is looked for once for all: there may be thousands."""
        names = [f"web-{number}" for number in range(100)]
        self.set(*(service([1], key=key(name)) for name in names))

        class Services(dict):
            looks = 0

            def values(self):
                self.looks += 1
                return super().values()

        services = Services()
        self.placement.leave(services, 5.0)
        self.assertEqual([[5.0]] * len(names), [each.drains for each in self.sockets.opened])
        self.assertLess(services.looks, 10)

    def test_connections_that_went_on_have_ended(self):
        """Nothing is left to be stopped with the Service."""
        self.in_scopes(Scope.ALL)
        (former,) = self.sockets.opened
        former.active = 1
        self.in_scopes(Scope.INTERNAL)
        former.drained()
        self.in_scopes()
        self.assertEqual([None], former.drains)

    def test_clients_by_udp_go_to_the_new_socket_when_a_traffic_policy_changes(self):
        """What they send next gets there, and the former socket need not stay."""
        self.in_scopes(Scope.ALL, protocol=Protocol.UDP)
        self.in_scopes(Scope.INTERNAL, protocol=Protocol.UDP)
        self.assertEqual([[5.0], []], [each.drains for each in self.sockets.opened])

    def totals(self):
        """What was counted, as a scrape reads it."""
        return finished(self.placement.totals())

    def test_what_was_counted_is_not_forgotten(self):
        """Totals only grow, whatever becomes of the sockets."""
        self.set(service([1]), service([1], key=key("api")))
        before = self.totals()
        self.assertEqual(6, before[Protocol.TCP, "total"])
        self.clock.advance(1)
        self.set(service([1]))
        self.assertEqual(before, self.totals())

    def test_what_drains_counts_as_before(self):
        """A counter that fell until the end of that would be read as one of a new process."""
        self.set(service([1]), service([1], key=key("api")))
        before = self.totals()
        self.sockets.opened[1].active = 1
        self.clock.advance(1)
        self.set(service([1]))
        self.assertEqual([5.0], self.sockets.opened[1].drains)
        self.assertEqual(before, self.totals())
        self.sockets.opened[1].drained()
        self.assertEqual(before, self.totals())

    def test_many_services_leave_the_reactor_its_turns(self):
        """Their sockets are opened some at a time."""
        self.source.set(*(service([1], key=key(f"s{number}")) for number in range(100)))
        self.assertEqual(32, len(self.sockets.opened))
        for _ in range(5):
            self.clock.advance(0)
        self.assertEqual(100, len(self.rules.ports))

    def test_a_change_while_sockets_are_opened(self):
        """Those that were opened before it know it before rules lead to them."""
        services = [service([1], key=key(f"s{number}")) for number in range(100)]
        self.source.set(*services)
        self.assertEqual([], self.rules.applied)
        self.source.set(*(replace(each, endpoints=(endpoint(2),)) for each in services))
        while not self.rules.applied:
            self.clock.advance(0)
        for socket in self.sockets.opened:
            self.assertEqual(endpoint(2), socket.picker.pick("192.0.2.1", ()))


class PortTests(ProxierTestCase):
    """What cannot be had is told, and leaves the rest served."""

    def make_placement(self):
        """Have but one port."""
        self.sockets = FakeSockets(range(40000, 40001))
        return super().make_placement()

    def test_no_port_remains(self):
        """The clients are refused; it is served once another one has gone."""
        api = key("api")
        self.set(service([1]), service([1], key=api))
        self.assertEqual({key(): 40000, api: None}, self.rules.ports)
        told = [each for each in self.warnings() if "no remaining ports" in each]
        self.assertEqual(1, len(told))
        self.assertIn("shop/api:http", told[0])
        self.assertIn("no remaining ports", self.proxier.warning())
        self.assertIsNone(self.proxier.problem())
        self.clock.advance(30)
        self.assertEqual(told, [each for each in self.warnings() if "no remaining ports" in each])
        self.clock.advance(1)
        self.set(service([1], key=api))
        self.clock.advance(1)
        self.clock.advance(0)
        self.assertEqual({api: 40000}, self.rules.ports)
        self.assertIsNone(self.proxier.warning())

    def test_a_portal_that_is_somebody_elses(self):
        """No rule is made for it, and the others of the Service are."""
        self.claims.taken = {30080}
        self.set(service([1], portals=(CLUSTER_IP, NODE_PORT)))
        self.assertEqual((CLUSTER_IP,), self.rules.applied[-1][0].service.portals)
        (problem,) = self.proxier.problems
        self.assertEqual("shop/web:http", problem.what)
        self.assertEqual(1, self.proxier.own_problems)
        self.assertIn("its node port 30080", problem.text)
        self.claims.taken = set()
        self.pass_period()
        self.assertEqual((CLUSTER_IP, NODE_PORT), self.rules.applied[-1][0].service.portals)
        self.assertEqual((), self.proxier.problems)

    def test_many_problems_are_told_in_one_line(self):
        """Those of objects are told by their source."""
        portals = [Portal(PortalKind.NODE_PORT, None, number) for number in range(1, 31)]
        self.claims.taken = set(range(1, 31))
        self.set(service([1], portals=tuple(portals)), problems=[Problem("shop/a", "bad")])
        told = self.warnings()
        self.assertEqual(MOST_TOLD + 1, len(told))
        self.assertIn("10 more problems", told[-1])
        self.assertEqual((31, 30), (len(self.proxier.problems), self.proxier.own_problems))

    def test_rules_that_somebody_else_has_changed_are_counted(self):
        """Differences from what was made before are repairs; those of what is asked for are not."""
        self.rules.differences = ("the chain is missing",)
        self.set(service([1]))
        self.clock.advance(1)
        self.assertEqual({"ok": 1, "repaired": 0, "failed": 0}, self.proxier.syncs)
        self.rules.differences = ("the chain is missing",)
        self.pass_period()
        self.assertEqual(1, self.proxier.syncs["repaired"])
        self.pass_period()
        self.assertEqual(1, self.proxier.syncs["repaired"])


class FailureTests(ProxierTestCase):
    """Rules that cannot be made."""

    def test_it_is_tried_again(self):
        """All stays as it was, and it is told once."""
        self.rules.failure = "the lock is held"
        self.set(service([1]))
        self.assertEqual("the lock is held", self.proxier.problem())
        self.assertEqual(1, len(self.warnings()))
        for _ in range(40):
            self.clock.advance(1)
        self.assertGreater(self.proxier.syncs["failed"], 1)
        self.assertEqual(1, len(self.warnings()))
        self.rules.failure = None
        self.clock.advance(30)
        self.assertEqual({key(): 40000}, self.rules.ports)
        self.assertIsNone(self.proxier.problem())

    def test_removed_sockets_go_on_until_there_are_rules(self):
        """Rules lead to them still."""
        self.set(service([1]))
        self.clock.advance(1)
        self.rules.failure = "the lock is held"
        self.set()
        self.assertEqual([], self.sockets.opened[0].drains)
        self.rules.failure = None
        self.clock.advance(30)
        self.assertEqual([5.0], self.sockets.opened[0].drains)

    def test_a_family_is_refused(self):
        """Sockets of the other one are closed as ever, and its ports can be had again; those of
        the one that is refused stay, since rules lead there still.
        """
        six = replace(key(), version=6)
        self.set(service([1]), service([1], key=six))
        self.clock.advance(1)
        self.rules.refused = {6}
        self.set()
        self.assertEqual([[5.0], []], [each.drains for each in self.sockets.opened])
        self.assertEqual("a family is refused", self.proxier.problem())
        self.rules.refused = set()
        self.clock.advance(30)
        self.assertEqual([[5.0], [5.0]], [each.drains for each in self.sockets.opened])
        self.assertIsNone(self.proxier.problem())

    def test_changes_that_wait_too_long_are_told_to_load_balancers(self):
        """After two sync periods."""
        self.set(service([1]))
        self.assertTrue(self.health.is_alive)
        self.clock.advance(1)
        self.rules.failure = "the lock is held"
        self.set()
        self.clock.advance(60)
        self.assertTrue(self.health.is_alive)
        self.clock.advance(0.1)
        self.assertFalse(self.health.is_alive)
        self.rules.failure = None
        for _ in range(31):
            self.clock.advance(1)
        self.assertTrue(self.health.is_alive)

    def test_a_hanging_firewall(self):
        """It is given up after some time, and tried again."""
        self.rules.holds = True
        self.set(service([1]))
        self.clock.advance(60)
        self.assertIn("in time", self.proxier.problem())
        self.rules.holds = False
        self.clock.advance(30)
        self.assertIsNone(self.proxier.problem())


class TimeTests(ProxierTestCase):
    """When syncs are."""

    def test_the_first_changes_wait_for_nothing(self):
        """Two after a quiet time do not; those that follow within a second come together."""
        self.set(service([1]))
        self.assertEqual(1, len(self.rules.applied))
        for number in range(2, 100):
            self.set(service([1]), service([1], key=key(f"s{number}")))
            self.assertEqual(2, len(self.rules.applied))
        self.clock.advance(1)
        self.clock.advance(0)
        self.assertEqual(3, len(self.rules.applied))
        self.assertEqual({key(), key("s99")}, self.rules.ports.keys())

    def test_a_change_after_a_quiet_time(self):
        """It waits for nothing, also where the period has had a sync right before."""
        self.set(service([1]))
        self.pass_period()
        self.assertEqual(2, len(self.rules.applied))
        self.set(service([2]))
        self.assertEqual(3, len(self.rules.applied))

    def test_each_period(self):
        """Rules are looked at though nothing is known to have changed."""
        self.set(service([1]))
        self.pass_period()
        self.assertEqual(2, len(self.rules.applied))

    def test_somebody_changes_rules(self):
        """That is noticed sooner."""
        self.set(service([1]))
        self.rules.number += 1
        self.clock.advance(LOOK_SECONDS)
        self.clock.advance(0)
        self.assertEqual(2, len(self.rules.applied))
        for _ in range(3):
            self.clock.advance(LOOK_SECONDS)
        self.assertEqual(2, len(self.rules.applied))

    def test_figures(self):
        """What went well, and how long it took."""
        self.rules.holds = True
        self.set(service([1]))
        self.clock.advance(0.25)
        self.rules.go_on()
        self.assertEqual({"ok": 1, "repaired": 0, "failed": 0}, self.proxier.syncs)
        self.assertEqual(0.25, self.proxier.durations.total_seconds)
        self.assertEqual(0.25, self.health.last_synced)


class FlowTests(ProxierTestCase):
    """Flows that led elsewhere, or nowhere."""

    portal = Portal(PortalKind.CLUSTER_IP, ip_address("10.96.0.10"), 53)
    flows = StaleFlows(Protocol.UDP, "10.96.0.10", 53)

    def forgotten(self):
        """Return what was forgotten since the last call."""
        found, self.conntrack.forgotten = self.conntrack.forgotten, []
        return found

    def at_first(self, *numbers):
        """Return those that go when the first rules are there, by which endpoints serve."""
        return self.flows

    def test_once_there_are_rules(self):
        """A former process may have led them to a port that nobody listens at."""
        self.set(service([1], key=DNS, portals=(self.portal,)), service([1]))
        self.assertEqual([(4, self.at_first(1))], self.forgotten())
        self.pass_period()
        self.assertEqual([], self.forgotten())
        self.assertEqual(1, self.proxier.flows_forgotten)

    def test_endpoints_come_and_go(self):
        """A socket sees to that itself; where there were none clients were refused."""
        for numbers, expected in (([1], 1), ([2], 0), ([], 1), ([2], 1)):
            self.set(service(numbers, key=DNS, portals=(self.portal,)))
            self.assertEqual(expected, len(self.forgotten()), numbers)
            self.clock.advance(1)

    def test_an_address_of_this_machine_goes(self):
        """Flows that were led to sockets there are forgotten, once; in kernel mode none were."""
        self.set(service([1], key=DNS, portals=(self.portal,)), service([1]))
        self.forgotten()
        (former,) = [each for each in self.addresses if each.version == 4]
        self.addresses = frozenset([former + 1])
        self.proxier.node_changed()
        self.clock.advance(1)
        ports = [each.port for each in self.sockets.opened if each.services[0].key == DNS]
        lost = [(4, replace(self.flows, endpoint=Endpoint(former, port))) for port in ports]
        self.assertEqual(lost, self.forgotten())
        self.pass_period()
        self.assertEqual([], self.forgotten())

    def test_very_many_addresses_go(self):
        """As those of ipvs do: all flows are forgotten, not those to each address one by one."""
        self.addresses |= {ip_address("10.97.0.0") + each for each in range(100)}
        self.set(service([1], key=DNS, portals=(self.portal,)))
        self.forgotten()
        self.addresses = frozenset()
        self.proxier.node_changed()
        self.clock.advance(1)
        self.assertEqual([(4, self.flows) for _ in self.sockets.opened], self.forgotten())

    def test_an_address_goes_while_rules_cannot_be_made(self):
        """Those of before lead to it as long; in kernel mode none do."""
        self.set(service([1], key=DNS, portals=(self.portal,)))
        self.forgotten()
        self.addresses = frozenset([ip_address("192.0.2.2")])
        self.rules.refused = {4}
        self.proxier.node_changed()
        self.clock.advance(1)
        self.assertEqual([], self.forgotten())
        self.rules.refused = set()
        self.clock.advance(10)
        lost = [each.endpoint.address for _, each in self.forgotten()]
        self.assertEqual([ip_address("192.0.2.1") for _ in self.sockets.opened], lost)

    def test_attempts(self):
        """Those of before there were rules are forgotten; later ones are led, or refused."""
        portal = replace(self.portal, port=80)
        attempts = StaleFlows(Protocol.TCP, "10.96.0.10", 80)
        for numbers, expected in (([1], 1), ([2], 0), ([], 0), ([2], 0), (None, 0), ([], 1)):
            self.set(*([] if numbers is None else [service(numbers, portals=(portal,))]))
            self.assertEqual([(4, attempts)] * expected, self.forgotten(), numbers)
            self.clock.advance(1)

    def test_attempts_cannot_be_forgotten(self):
        """It is told, and not tried again, as clients soon give up; UDP is."""
        portal = replace(self.portal, port=80)
        self.conntrack.failure = "no netlink"
        with capturedLogs() as events:
            self.set(service([1], portals=(portal,)), service([1], key=DNS, portals=(self.portal,)))
        told = [formatEvent(each) for each in events]
        self.assertTrue([each for each in told if "try in vain: no netlink" in each], told)
        self.conntrack.failure = None
        self.pass_period()
        self.assertEqual([(4, self.at_first(1))], self.forgotten())

    def test_endpoints_within_the_cluster(self):
        """Clients within it may be led from an external portal to the socket of another scope, and
        to one that is a third's by now; flows of external ones there go on by the same socket.
        """
        every, inside, outside = (
            replace(DNS, scope=each) for each in (Scope.CLUSTER, Scope.INTERNAL, Scope.EXTERNAL)
        )
        external = service([1], key=outside, portals=(NODE_PORT,), keeps_source=True)
        internal = service([1], key=inside, portals=(self.portal,))
        by_node_port = (4, StaleFlows(Protocol.UDP, None, 30080))
        self.set(internal, external, service([1, 2], key=every))
        self.forgotten()
        for placed in ([internal, external], [internal, external, service([1, 2], key=every)]):
            self.clock.advance(1)
            self.set(*placed)
            self.assertEqual([by_node_port], self.forgotten())

    def test_a_removed_service(self):
        """By node ports, too."""
        self.set(service([1], key=DNS, portals=(self.portal, NODE_PORT)))
        self.forgotten()
        self.clock.advance(1)
        self.set()
        expected = {(4, self.flows), (4, StaleFlows(Protocol.UDP, None, 30080))}
        self.assertEqual(expected, set(self.forgotten()))

    def test_rules_of_one_family_cannot_be_made(self):
        """Flows of the other one are forgotten as ever, once; those of that one when it has its
        rules.
        """
        six, there = replace(DNS, version=6), ip_address("fd00::10")
        self.rules.refused = {6}
        self.set(
            service([1], key=DNS, portals=(self.portal,)),
            service([1], key=six, portals=(replace(self.portal, address=there),)),
        )
        self.assertEqual([(4, self.at_first(1))], self.forgotten())
        self.pass_period()
        self.assertGreater(self.proxier.syncs["failed"], 1)
        self.assertEqual([], self.forgotten())
        self.rules.refused = set()
        self.pass_period()
        self.assertEqual([(6, replace(self.flows, address="fd00::10"))], self.forgotten())

    def test_they_cannot_be_forgotten(self):
        """It is told, tried again, and stops nothing else."""
        self.conntrack.failure = "no netlink"
        self.set(service([1], key=DNS, portals=(self.portal,)))
        self.assertIn("no netlink", self.proxier.warning())
        self.assertIsNone(self.proxier.problem())
        self.conntrack.failure = None
        self.pass_period()
        self.assertEqual([(4, self.at_first(1))], self.forgotten())
        self.assertNotIn("no netlink", self.proxier.warning() or "")


class KernelTests(FlowTests):
    """What is otherwise where the kernel carries."""

    kernel = FakeKernel()

    def at_first(self, *numbers):
        """A former process may have led clients to endpoints that serve them still."""
        return replace(self.flows, kept=frozenset(map(endpoint, numbers)))

    def test_the_first_endpoints_of_another_scope(self):
        """Clients within the cluster that a former process has led to those keep theirs, too."""
        inside, outside = replace(DNS, scope=Scope.INTERNAL), replace(DNS, scope=Scope.EXTERNAL)
        self.set(
            service([1, 2], key=inside, portals=(self.portal,)),
            service([3], key=outside, portals=(NODE_PORT,), keeps_source=True),
        )
        by_node_port = replace(self.at_first(1, 2, 3), address=None, port=30080)
        self.assertEqual({(4, self.at_first(1, 2)), (4, by_node_port)}, set(self.forgotten()))

    def test_endpoints_come_and_go(self):
        """Flows to an endpoint that is gone are forgotten, and those of the others stay."""
        gone = StaleFlows(Protocol.UDP, "10.96.0.10", 53, endpoint(1))
        for numbers, expected in (
            ([1, 2], [self.at_first(1, 2)]),
            ([2, 3], [gone]),
            ([2, 3, 4], []),
            ([], [self.flows]),
            ([2], [self.flows]),
        ):
            self.set(service(numbers, key=DNS, portals=(self.portal,)))
            self.assertEqual(expected, [each for _, each in self.forgotten()], numbers)
            self.clock.advance(1)

    def test_attempts_at_an_endpoint_itself(self):
        """They get there without any rule, by its address or by a node port of the same number."""
        (there,) = service([1]).endpoints
        itself = Portal(PortalKind.EXTERNAL_IP, there.address, there.port)
        same = Portal(PortalKind.NODE_PORT, None, there.port)
        self.set(service([1], portals=(itself, same)))
        self.assertEqual([], self.forgotten())

    def test_endpoints_within_the_cluster(self):
        """Clients within it are led to endpoints of another scope by external portals: flows by
        those to one that is gone are forgotten, too, and no flows to one that still serves there.
        """
        inside, outside = replace(DNS, scope=Scope.INTERNAL), replace(DNS, scope=Scope.EXTERNAL)
        balancer = Portal(PortalKind.LOAD_BALANCER_IP, ip_address("192.0.2.7"), 53)

        def served(within, here):
            return (
                service(within, key=inside, portals=(self.portal,)),
                service(here, key=outside, portals=(balancer, NODE_PORT), keeps_source=True),
            )

        self.set(*served([1, 2], [1]))
        self.forgotten()
        self.clock.advance(1)
        self.set(*served([1, 3], [1]))
        ports = (("10.96.0.10", 53), ("192.0.2.7", 53), (None, 30080))
        self.assertEqual(
            {(4, StaleFlows(Protocol.UDP, *port, endpoint(2))) for port in ports},
            set(self.forgotten()),
        )
        self.clock.advance(1)
        self.set(*served([3], [1]))
        gone = StaleFlows(Protocol.UDP, "10.96.0.10", 53, endpoint(1))
        self.assertEqual([(4, gone)], self.forgotten())

    def test_rules_know_the_endpoints(self):
        """They are in no socket."""
        self.set(service([1, 2]))
        (placed,) = self.rules.applied[-1]
        self.assertEqual((None, 2), (placed.proxy_port, len(placed.service.endpoints)))
        self.assertEqual([], self.sockets.opened)
        (carried,) = self.placement.carried()
        self.assertEqual(KernelStats(2, 7), carried.stats)
        self.assertEqual({(Protocol.TCP, "total"): 9}, finished(self.placement.totals()))
        self.assertEqual(["not as asked for"], [each.text for each in self.proxier.problems])

    def test_some_take_a_socket_all_the_same(self):
        """Those that the kernel cannot carry; they get one, and leave it, as they change."""
        by_socket = service([1], proxy_protocol=1)
        self.set(by_socket)
        self.assertEqual({key(): 40000}, self.rules.ports)
        self.clock.advance(1)
        self.set(service([1]))
        self.assertEqual({key(): None}, self.rules.ports)
        self.assertEqual([None], self.sockets.opened[0].drains)
        self.clock.advance(1)
        self.set(by_socket)
        self.assertEqual({key(): 40000}, self.rules.ports)
        self.assertEqual(1, len(list(self.placement.carried())))


class EndTests(ProxierTestCase):
    """An orderly end."""

    def test_no_clients_are_taken_while_it_drains(self):
        """Nor are any to be sent here: a proxy that is started again is."""
        self.set(service([1]))
        (socket,) = self.sockets.opened
        socket.active = 1
        self.assertTrue(self.health.takes_clients)
        stopped = self.proxier.stopService()
        self.assertFalse(self.health.takes_clients)
        self.assertEqual("draining: the proxy is about to stop", self.proxier.problem())
        socket.drained()
        self.successResultOf(stopped)
        self.proxier.startService()
        self.assertTrue(self.health.takes_clients)
        self.assertNotIn("draining", str(self.proxier.problem()))
        self.successResultOf(self.proxier.stopService())

    def test_what_outlived_a_traffic_policy_drains(self):
        """The proxy does not wait for ever."""
        self.set(service([1]))
        (former,) = self.sockets.opened
        former.active = 1
        self.clock.advance(1)
        self.set(service([1], key=key(scope=Scope.INTERNAL)))
        stopped = self.proxier.stopService()
        self.assertEqual([None, 5.0], former.drains)
        self.assertNoResult(stopped)
        former.drained()
        self.successResultOf(stopped)

    def test_rules_stay(self):
        """The next process takes them over; connections have their time."""
        self.set(service([1]), checks=[HealthCheckNodePort(30000, "shop", "web", 1)])
        self.assertEqual({30000}, self.checks.desired.keys())
        (socket,) = self.sockets.opened
        socket.active = 1
        stopped = self.proxier.stopService()
        self.assertEqual(0, self.rules.removed)
        self.assertEqual([5.0], socket.drains)
        self.assertEqual((None, {}), (self.claims.wanted, self.checks.desired))
        self.assertNoResult(stopped)
        socket.drained()
        self.successResultOf(stopped)
        self.assertEqual([], self.clock.getDelayedCalls())


class RemovalTests(ProxierTestCase):
    """An orderly end that removes the rules."""

    settings = replace(SETTINGS, removes_rules=True)

    def test_rules_go_first(self):
        """Then nobody is led to sockets that listen no more."""
        self.set(service([1]))
        self.successResultOf(self.proxier.stopService())
        self.assertEqual(1, self.rules.removed)
        self.assertEqual([5.0], self.sockets.opened[0].drains)

    def test_they_cannot_be_removed(self):
        """It is told what to do, and the end comes all the same."""
        self.set(service([1]))
        self.rules.failure = "the lock is held"
        self.successResultOf(self.proxier.stopService())
        self.assertIn("run yurttunnel proxy --cleanup", self.warnings()[-1])

    def test_their_removal_hangs(self):
        """It is waited for no longer than it may take."""
        self.set(service([1]))
        hanging = Deferred()
        self.rules.remove = lambda: hanging
        stopped = self.proxier.stopService()
        self.clock.advance(REMOVAL_SECONDS)
        self.clock.advance(0)
        self.successResultOf(stopped)
        self.assertIn("left behind", self.warnings()[-1])
