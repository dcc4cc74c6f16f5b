"""Tests of reconciliation: sockets, ports, and messages."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.defer import Deferred
from zope.interface.verify import verifyObject

from tests.proxy import objects
from tests.proxy.fakes import (
    FakeKernel,
    FakeSockets,
)
from tests.proxy.proxier_world import CLUSTER_IP, NODE_PORT, ProxierTestCase
from tests.proxy.services import endpoint, key, service
from yurttunnel.ops.slices import at_once
from yurttunnel.proxy.interfaces import (
    IConntrack,
    IDesiredStateSource,
    IPortClaims,
    IProxySocket,
    IProxySockets,
    IRules,
)
from yurttunnel.proxy.proxier import MAX_REPORTED
from yurttunnel.proxy.socket_manager import IKernelMode
from yurttunnel.proxy.state.virtual_services import (
    Portal,
    PortalKind,
    Problem,
    Protocol,
    Scope,
)


class SocketTests(ProxierTestCase):
    """Which sockets exist, and where they listen."""

    def test_interfaces(self):
        """The fakes and the placements provide their interfaces."""
        verifyObject(IKernelMode, FakeKernel())
        verifyObject(IDesiredStateSource, self.source)
        verifyObject(IPortClaims, self.claims)
        verifyObject(IProxySockets, self.sockets)
        verifyObject(IRules, self.rules)
        verifyObject(IConntrack, self.conntrack)
        self.set(service([1]))
        verifyObject(IProxySocket, self.sockets.opened[0])

    def test_nothing_is_done_before_all_is_listed(self):
        """Not even after a while: the rules of a previous process stay."""
        self.clock.advance(100)
        self.assertEqual([], self.rules.applied)
        self.assertIsNone(self.claims.wanted)
        self.assertEqual("nothing has been listed yet", self.proxier.problem())

    def test_addresses_of_this_machine_change(self):
        """Claims and rules, which depend on them, are updated at once, though the state is the
        same; before everything is listed they are not.
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
        (proxied,) = self.rules.applied[-1]
        self.assertEqual((CLUSTER_IP,), proxied.service.portals)
        self.assertIsNone(self.proxier.problem())
        self.assertIsNone(self.proxier.warning())

    def test_endpoints_change_without_rules(self):
        """Also between two syncs: the socket and the picker get them at once."""
        self.set(service([1, 2], portals=(CLUSTER_IP,)))
        proxied = self.rules.applied[-1]
        self.source.set(service([2, 3], portals=(CLUSTER_IP,)))
        (socket,) = self.sockets.opened
        self.assertEqual((endpoint(2), endpoint(3)), socket.services[-1].endpoints)
        picked = {socket.picker.pick("192.0.2.1", ()) for _ in range(4)}
        self.assertEqual({endpoint(2), endpoint(3)}, picked)
        self.clock.advance(1)
        self.clock.advance(0)
        # Rules for the same are derived from it, which runs nothing.
        self.assertEqual(proxied, self.rules.applied[-1])

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
        """The socket waits until endpoints return; without any so far there is no socket."""
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
        """Whether they have ever had some or not: clients of both are refused."""

        def shown():
            return {
                (each.service.key, each.port, len(each.service.endpoints))
                for each in self.manager.statuses()
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
        """Its connections have their time; no rule led to a closed port."""
        self.set(service([1]))
        (socket,) = self.sockets.opened
        socket.active = 1
        self.clock.advance(1)
        self.rules.holds = True
        self.set()
        self.assertEqual([], socket.drains)
        self.rules.release()
        self.assertEqual([5.0], socket.drains)
        self.assertEqual([], list(self.manager.statuses()))
        socket.drained()

    def in_scopes(self, *scopes, protocol=Protocol.TCP):
        """Place the Service in these scopes, as its traffic policies require."""
        self.clock.advance(1)
        self.set(*(service([1], key=key("web", protocol, scope=each)) for each in scopes))

    def test_a_removed_service_comes_back(self):
        """The state of its endpoints is new."""
        self.set(service([1], portals=(CLUSTER_IP,)))
        for services in ((), (service([1], portals=(CLUSTER_IP,)),)):
            self.clock.advance(1)
            self.set(*services)
        former, new = self.sockets.opened
        self.assertIsNot(former.picker, new.picker)

    def test_connections_go_on_when_a_traffic_policy_changes(self):
        """Another socket serves the Service then; they end with it, or with the proxy."""
        self.in_scopes(Scope.ALL)
        (former,) = self.sockets.opened
        former.active = 2
        self.in_scopes(Scope.INTERNAL, Scope.EXTERNAL)
        self.assertEqual([None], former.drains)
        self.assertEqual({Protocol.TCP: 2}, self.manager.draining())
        self.in_scopes(Scope.INTERNAL)
        self.assertEqual([None], former.drains)
        self.in_scopes()
        self.assertEqual([None, 5.0], former.drains)
        self.in_scopes()
        self.assertEqual([None, 5.0], former.drains)
        former.drained()
        self.assertEqual({}, self.manager.draining())

    def test_connections_go_on_when_a_port_gets_another_name(self):
        """For example when the Service gets a second one; they end when its number is removed."""
        self.set(service([1], portals=(CLUSTER_IP,), port=80))
        (former,) = self.sockets.opened
        former.active = 2
        renamed = replace(key(), name=replace(key().name, port="web"))
        self.set(service([1], key=renamed, portals=(CLUSTER_IP, NODE_PORT), port=80))
        self.assertEqual([None], former.drains)
        self.clock.advance(1)
        self.set(service([1], key=renamed, portals=(replace(CLUSTER_IP, port=81),), port=81))
        self.assertEqual([None, 5.0], former.drains)

    def test_connections_of_all_scopes_go_on_when_a_port_gets_another_name(self):
        """Also those of clients within the cluster to external portals, whose scope has none."""
        for name in ("", "http"):
            found = objects.taken(
                objects.service(
                    ports=[objects.port(name=name)],
                    external=["192.0.2.1"],
                    internalTrafficPolicy="Local",
                    externalTrafficPolicy="Local",
                ),
                objects.endpoint_slice(
                    objects.endpoint(node="here"), ports=[objects.port(8080, name)]
                ),
            )
            self.set(*objects.desired_state(*found, objects.HERE).services.values())
            for each in self.sockets.opened:
                each.active = 1
        former = self.sockets.opened[:3]
        self.assertEqual(6, len(self.sockets.opened))
        self.assertEqual([[None]] * 3, [each.drains for each in former])

    def test_connections_end_when_another_service_gets_the_port(self):
        """They belonged to the other one."""
        self.set(service([1], portals=(CLUSTER_IP,), port=80))
        (former,) = self.sockets.opened
        former.active = 2
        self.set(service([1], key=key("api"), portals=(CLUSTER_IP,), port=80))
        self.assertEqual([5.0], former.drains)

    def test_many_ports_that_are_gone(self):
        """Other names are searched once for all of them: there may be thousands."""
        names = [f"web-{number}" for number in range(100)]
        self.set(*(service([1], key=key(name)) for name in names))

        class Services(dict):
            looks = 0

            def values(self):
                self.looks += 1
                return super().values()

        services = Services()
        self.successResultOf(Deferred.fromCoroutine(self.manager.close_unused(services, 5.0)))
        self.assertEqual([[5.0]] * len(names), [each.drains for each in self.sockets.opened])
        self.assertLess(services.looks, 10)

    def test_connections_that_went_on_have_ended(self):
        """Nothing remains to be stopped with the Service."""
        self.in_scopes(Scope.ALL)
        (former,) = self.sockets.opened
        former.active = 1
        self.in_scopes(Scope.INTERNAL)
        former.drained()
        self.in_scopes()
        self.assertEqual([None], former.drains)

    def test_clients_by_udp_go_to_the_new_socket_when_a_traffic_policy_changes(self):
        """Their next datagrams go there, and the former socket need not stay."""
        self.in_scopes(Scope.ALL, protocol=Protocol.UDP)
        self.in_scopes(Scope.INTERNAL, protocol=Protocol.UDP)
        self.assertEqual([[5.0], []], [each.drains for each in self.sockets.opened])

    def totals(self):
        """Return the totals, as a scrape reads them."""
        return at_once(self.manager.totals())

    def test_counters_never_decrease(self):
        """Totals only increase, whatever happens to the sockets."""
        self.set(service([1]), service([1], key=key("api")))
        before = self.totals()
        self.assertEqual(6, before[Protocol.TCP, "total"])
        self.clock.advance(1)
        self.set(service([1]))
        self.assertEqual(before, self.totals())

    def test_draining_connections_are_counted(self):
        """A counter that decreases would be interpreted as a restart."""
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
        """Those that were opened before are updated before rules lead to them."""
        services = [service([1], key=key(f"s{number}")) for number in range(100)]
        self.source.set(*services)
        self.assertEqual([], self.rules.applied)
        self.source.set(*(replace(each, endpoints=(endpoint(2),)) for each in services))
        while not self.rules.applied:
            self.clock.advance(0)
        for socket in self.sockets.opened:
            self.assertEqual(endpoint(2), socket.picker.pick("192.0.2.1", ()))


class PortTests(ProxierTestCase):
    """Ports that cannot be used are reported, and the rest is served."""

    def make_manager(self):
        """Have only one port."""
        self.sockets = FakeSockets(range(40000, 40001))
        return super().make_manager()

    def test_no_port_remains(self):
        """The clients are refused; it is served once another one is removed."""
        api = key("api")
        self.set(service([1]), service([1], key=api))
        self.assertEqual({key(): 40000, api: None}, self.rules.ports)
        warned = [each for each in self.warnings if "no remaining ports" in each]
        self.assertEqual(1, len(warned))
        self.assertIn("shop/api:http", warned[0])
        self.assertIn("no remaining ports", self.proxier.warning())
        self.assertIsNone(self.proxier.problem())
        self.clock.advance(30)
        self.assertEqual(warned, [each for each in self.warnings if "no remaining ports" in each])
        self.clock.advance(1)
        self.set(service([1], key=api))
        self.clock.advance(1)
        self.clock.advance(0)
        self.assertEqual({api: 40000}, self.rules.ports)
        self.assertIsNone(self.proxier.warning())

    def test_a_portal_that_is_somebody_elses(self):
        """No rule is created for it, but for the others of the Service."""
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

    def test_many_problems_are_summarized_in_one_line(self):
        """Those of objects are logged by their source."""
        portals = [Portal(PortalKind.NODE_PORT, None, number) for number in range(1, 31)]
        self.claims.taken = set(range(1, 31))
        self.set(service([1], portals=tuple(portals)), problems=[Problem("shop/a", "bad")])
        warned = list(self.warnings)
        self.assertEqual(MAX_REPORTED + 1, len(warned))
        self.assertIn("10 more problems", warned[-1])
        self.assertEqual((31, 30), (len(self.proxier.problems), self.proxier.own_problems))

    def test_rules_that_somebody_else_has_changed_are_counted(self):
        """Differences from previous rules are repairs; changes of the desired state are not."""
        self.rules.differences = ("the chain is missing",)
        self.set(service([1]))
        self.clock.advance(1)
        self.assertEqual({"ok": 1, "repaired": 0, "failed": 0}, self.proxier.syncs)
        self.rules.differences = ("the chain is missing",)
        self.pass_period()
        self.assertEqual(1, self.proxier.syncs["repaired"])
        self.pass_period()
        self.assertEqual(1, self.proxier.syncs["repaired"])
