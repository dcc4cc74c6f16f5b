"""Tests of deleting conntrack entries after changes of rules."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent

from tests.proxy.fakes import (
    FakeKernel,
)
from tests.proxy.proxier_world import DNS, NODE_PORT, ProxierTestCase
from tests.proxy.services import endpoint, key, service
from yurttunnel.ops import slices
from yurttunnel.ops.slices import at_once
from yurttunnel.proxy.interfaces import (
    KernelStats,
    ProxiedService,
    StaleFlows,
)
from yurttunnel.proxy.stale_flows import MAX_ENDS, flows_to
from yurttunnel.proxy.state.virtual_services import (
    Endpoint,
    Portal,
    PortalKind,
    Protocol,
    Scope,
)


class FlowTests(ProxierTestCase):
    """Flows that led elsewhere, or nowhere."""

    portal = Portal(PortalKind.CLUSTER_IP, ip_address("10.96.0.10"), 53)
    flows = StaleFlows(Protocol.UDP, "10.96.0.10", 53)

    def forgotten(self):
        """Return what was deleted since the last call."""
        found, self.conntrack.forgotten = self.conntrack.forgotten, []
        return found

    def at_first(self, *numbers):
        """Return those that are deleted with the first rules for services with endpoints."""
        return self.flows

    def test_once_there_are_rules(self):
        """A previous process may have led them to a closed port."""
        self.set(service([1], key=DNS, portals=(self.portal,)), service([1]))
        self.assertEqual([(4, self.at_first(1))], self.forgotten())
        self.pass_period()
        self.assertEqual([], self.forgotten())
        self.assertEqual(1, self.proxier.deleted_entries)

    def test_endpoints_come_and_go(self):
        """A socket handles them itself; without endpoints clients were refused."""
        for numbers, expected in (([1], 1), ([2], 0), ([], 1), ([2], 1)):
            self.set(service(numbers, key=DNS, portals=(self.portal,)))
            self.assertEqual(expected, len(self.forgotten()), numbers)
            self.clock.advance(1)

    def test_address_of_this_machine_is_removed(self):
        """Flows to sockets there are deleted, once; in kernel mode there were none."""
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
        """For example those of ipvs: all flows are deleted, not those to each address."""
        self.addresses |= {ip_address("10.97.0.0") + each for each in range(MAX_ENDS)}
        self.set(service([1], key=DNS, portals=(self.portal,)))
        self.forgotten()
        self.addresses = frozenset()
        self.proxier.node_changed()
        self.clock.advance(1)
        self.assertEqual([(4, self.flows) for _ in self.sockets.opened], self.forgotten())

    def test_addresses_of_very_many_services_go(self):
        """It is their product that counts."""
        lost = [ip_address("192.0.2.0") + each for each in range(10)]
        for number, count in ((100, 1000), (101, 101)):
            keys = [
                replace(DNS, name=replace(DNS.name, name=f"dns-{each}")) for each in range(number)
            ]
            proxied = {
                key: ProxiedService(service([1], key=key, portals=(self.portal,)), 1053)
                for key in keys
            }
            self.assertEqual(count, len(at_once(flows_to(lost, proxied))))

    def test_thousands_of_services_leave_the_reactor_its_turns(self):
        """What has become stale is found in slices, and from one state, whatever changes meanwhile:
        here endpoints, an address of this machine, and portals.
        """
        keys = [replace(DNS, name=replace(DNS.name, name=f"dns-{each}")) for each in range(100)]
        pauses = []

        def set_to(address, numbers):
            portal = replace(self.portal, address=ip_address(address))
            self.set(*(service(numbers, key=key, portals=(portal,)) for key in keys))

        def pause(clock, _):
            pauses.append(deferLater(clock, 0))
            if len(pauses) == 30:
                self.addresses = frozenset([ip_address("192.0.2.2")])
                self.proxier.node_changed()
                set_to("10.96.0.12", [2, 3])
            return pauses[-1]

        set_to("10.96.0.10", [1])
        self.forgotten()
        self.clock.advance(1)
        self.patch(slices, "WORK_SECONDS", 0)
        self.patch(slices, "deferLater", pause)
        set_to("10.96.0.11", [2])
        for _ in range(5):
            self.clock.advance(1)
        self.assertGreater(len(pauses), 50)
        found = {(each.address, each.endpoint is None) for _, each in self.forgotten()}
        self.assertLessEqual({("10.96.0.10", True), ("10.96.0.12", True)}, found)
        self.assertEqual(2 + 1, self.proxier.syncs["ok"])
        known = {self.last_numbers(each) for each in self.sockets.opened}
        self.assertEqual({(2, 3)} if self.kernel is None else set(), known)

    def last_numbers(self, socket):
        """Return the numbers of the endpoints that a socket knows."""
        return tuple(int(each.address) & 255 for each in socket.services[-1].endpoints)

    def test_address_is_removed_while_rules_fail(self):
        """Previous rules lead to it until then; in kernel mode none do."""
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

    def test_address_is_removed_during_a_sync(self):
        """They lead to it until the next change."""
        self.set(service([1], key=DNS, portals=(self.portal,)))
        self.clock.advance(1)
        self.rules.holds = True
        self.set(service([1], key=DNS, portals=(self.portal, NODE_PORT)))
        self.addresses = frozenset([ip_address("192.0.2.2")])
        self.proxier.node_changed()
        self.rules.release()
        self.assertNotIn(ip_address("192.0.2.1"), self.forgotten_to())
        self.clock.advance(1)
        self.assertEqual(
            [
                ip_address("192.0.2.1")
                for _ in (self.portal, NODE_PORT)
                for _ in self.sockets.opened
            ],
            self.forgotten_to(),
        )

    def test_address_is_added_and_removed_while_rules_fail(self):
        """Previous rules may have led to it."""
        self.set(service([1], key=DNS, portals=(self.portal,)))
        self.clock.advance(1)
        self.rules.failure = "locked"
        former, self.addresses = self.addresses, frozenset([ip_address("192.0.2.2")])
        self.proxier.node_changed()
        self.clock.advance(1)
        self.forgotten()
        self.addresses, self.rules.failure = former, None
        self.clock.advance(10)
        self.assertEqual(
            [ip_address("192.0.2.2") for _ in self.sockets.opened], self.forgotten_to()
        )

    def forgotten_to(self):
        """Return the addresses of the ends of entries deleted since the last call."""
        return [each.endpoint.address for _, each in self.forgotten() if each.endpoint]

    changes_by_table = 1
    """Whether attempts may be neither rejected nor redirected during a change."""

    def test_attempts(self):
        """Those from before there were rules are deleted; later ones are redirected, or refused,
        except for a moment when a service gets endpoints.
        """
        portal = replace(self.portal, port=80)
        attempts = StaleFlows(Protocol.TCP, "10.96.0.10", 80)
        between = self.changes_by_table
        cases = (([1], 1), ([2], 0), ([], between), ([2], between), (None, 0), ([], 1))
        for numbers, expected in cases:
            self.set(*([] if numbers is None else [service(numbers, portals=(portal,))]))
            self.assertEqual([(4, attempts)] * expected, self.forgotten(), numbers)
            self.clock.advance(1)

    def test_attempts_within_the_cluster(self):
        """So it is at an external portal that leads clients within the cluster to another scope."""
        every, outside = (replace(key(), scope=each) for each in (Scope.CLUSTER, Scope.EXTERNAL))
        external = service([], key=outside, portals=(NODE_PORT,), keeps_source=True)
        by_node_port = (4, StaleFlows(Protocol.TCP, None, 30080))
        between = self.changes_by_table
        for numbers, expected in (([2], 1), ([2, 3], 0), ([], between), ([2], between)):
            self.set(external, service(numbers, key=every))
            self.assertEqual(bool(expected), by_node_port in self.forgotten(), numbers)
            self.clock.advance(1)

    def test_attempts_cannot_be_deleted(self):
        """The failure is logged, and not retried, as clients soon give up; for UDP it is."""
        portal = replace(self.portal, port=80)
        self.conntrack.failure = "no netlink"
        with capturedLogs() as events:
            self.set(service([1], portals=(portal,)), service([1], key=DNS, portals=(self.portal,)))
        lines = [formatEvent(each) for each in events]
        self.assertTrue([each for each in lines if "keep failing: no netlink" in each], lines)
        self.conntrack.failure = None
        self.pass_period()
        self.assertEqual([(4, self.at_first(1))], self.forgotten())

    def test_endpoints_within_the_cluster(self):
        """Clients within it may be sent from an external portal to the socket of another scope, and
        to one that is a third's by now; flows of external ones continue with the same socket.
        """
        every, inside, outside = (
            replace(DNS, scope=each) for each in (Scope.CLUSTER, Scope.INTERNAL, Scope.EXTERNAL)
        )
        external = service([1], key=outside, portals=(NODE_PORT,), keeps_source=True)
        internal = service([1], key=inside, portals=(self.portal,))
        by_node_port = (4, StaleFlows(Protocol.UDP, None, 30080))
        self.set(internal, external, service([1, 2], key=every))
        self.forgotten()
        for proxied in ([internal, external], [internal, external, service([1, 2], key=every)]):
            self.clock.advance(1)
            self.set(*proxied)
            self.assertEqual([by_node_port], self.forgotten())

    def test_a_removed_service(self):
        """By node ports, too."""
        self.set(service([1], key=DNS, portals=(self.portal, NODE_PORT)))
        self.forgotten()
        self.clock.advance(1)
        self.set()
        expected = {(4, self.flows), (4, StaleFlows(Protocol.UDP, None, 30080))}
        self.assertEqual(expected, set(self.forgotten()))

    def test_rules_of_one_family_cannot_be_created(self):
        """Flows of the other are deleted as before, once; of the failed one when it has rules."""
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

    def test_they_cannot_be_deleted(self):
        """The failure is logged, retried, and blocks nothing else."""
        self.conntrack.failure = "no netlink"
        self.set(service([1], key=DNS, portals=(self.portal,)))
        self.assertIn("no netlink", self.proxier.warning())
        self.assertIsNone(self.proxier.problem())
        self.conntrack.failure = None
        self.pass_period()
        self.assertEqual([(4, self.at_first(1))], self.forgotten())
        self.assertNotIn("no netlink", self.proxier.warning() or "")


class KernelTests(FlowTests):
    """Differences in kernel mode."""

    kernel = FakeKernel()
    changes_by_table = 0

    def at_first(self, *numbers):
        """A previous process may have sent clients to endpoints that still serve them."""
        return replace(self.flows, excluded=frozenset(map(endpoint, numbers)))

    def test_the_first_endpoints_of_another_scope(self):
        """Clients within the cluster that a previous process has sent there keep theirs, too."""
        inside, outside = replace(DNS, scope=Scope.INTERNAL), replace(DNS, scope=Scope.EXTERNAL)
        self.set(
            service([1, 2], key=inside, portals=(self.portal,)),
            service([3], key=outside, portals=(NODE_PORT,), keeps_source=True),
        )
        by_node_port = replace(self.at_first(1, 2, 3), address=None, port=30080)
        self.assertEqual({(4, self.at_first(1, 2)), (4, by_node_port)}, set(self.forgotten()))

    def test_endpoints_come_and_go(self):
        """Flows to a removed endpoint are deleted, and those of the others stay."""
        removed = StaleFlows(Protocol.UDP, "10.96.0.10", 53, endpoint(1))
        for numbers, expected in (
            ([1, 2], [self.at_first(1, 2)]),
            ([2, 3], [removed]),
            ([2, 3, 4], []),
            ([], [self.flows]),
            ([2], [self.flows]),
        ):
            self.set(service(numbers, key=DNS, portals=(self.portal,)))
            self.assertEqual(expected, [each for _, each in self.forgotten()], numbers)
            self.clock.advance(1)

    def test_a_socket_is_no_longer_needed(self):
        """Clients that use the port of a reset connection again would be led to the closed one."""
        served = service([1], portals=(replace(self.portal, port=80),))
        for version in (1, 0):
            self.set(replace(served, proxy_protocol=version))
            self.assertEqual(1, len(self.forgotten()))
            self.clock.advance(1)

    def test_attempts_at_an_endpoint_itself(self):
        """They reach it without any rule, by its address or by a node port of the same number."""
        (there,) = service([1]).endpoints
        itself = Portal(PortalKind.EXTERNAL_IP, there.address, there.port)
        same = Portal(PortalKind.NODE_PORT, None, there.port)
        self.set(service([1], portals=(itself, same)))
        self.assertEqual([], self.forgotten())

    def test_endpoints_within_the_cluster(self):
        """Clients within it are sent from external portals to endpoints of another scope: flows to
        removed ones of these are deleted, too, and none to those that still serve there.
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
        removed = StaleFlows(Protocol.UDP, "10.96.0.10", 53, endpoint(1))
        self.assertEqual([(4, removed)], self.forgotten())

    def test_rules_know_the_endpoints(self):
        """No socket has them."""
        self.set(service([1, 2]))
        (proxied,) = self.rules.applied[-1]
        self.assertEqual((None, 2), (proxied.proxy_port, len(proxied.service.endpoints)))
        self.assertEqual([], self.sockets.opened)
        (status,) = self.manager.statuses()
        self.assertEqual(KernelStats(2, 7), status.stats)
        self.assertEqual({(Protocol.TCP, "total"): 9}, at_once(self.manager.totals()))
        self.assertEqual(["not as asked for"], [each.text for each in self.proxier.problems])

    def test_some_take_a_socket_all_the_same(self):
        """Services that the kernel cannot carry get one, and lose it, as they change."""
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
        self.assertEqual(1, len(list(self.manager.statuses())))
