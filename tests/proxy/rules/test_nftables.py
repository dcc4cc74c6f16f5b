"""Tests of the nftables tables for user mode, in the kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from ipaddress import ip_address, ip_network

from twisted.internet import reactor
from twisted.internet.defer import inlineCallbacks
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface.verify import verifyObject

from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.network.namespaces import run
from tests.proxy.services import key, service
from tests.steering.firewall.fakes import FakePrograms
from tests.steering.firewall.machines import CountedPrograms
from yurttunnel.ops import slices
from yurttunnel.ops.programs import CompletedProgram, Programs
from yurttunnel.ops.slices import ITEMS_PER_PIECE, at_once
from yurttunnel.proxy.host_address import no_address
from yurttunnel.proxy.interfaces import IRules, ProxiedService
from yurttunnel.proxy.rules.nftables.parts import user_part
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.proxy.rules.nftables.tables import Networks, Tables
from yurttunnel.proxy.state.virtual_services import (
    NoEndpointsAction,
    Portal,
    PortalKind,
    Protocol,
    Scope,
)
from yurttunnel.steering.failures import SteeringFailed

HOSTS = {4: ip_address("10.0.0.1"), 6: ip_address("fd00::1")}
CLUSTER = {4: "10.96.0.1", 6: "fd96::1"}
EXTERNAL = {4: "192.0.2.1", 6: "2001:db8::1"}
FOREIGN = "add table ip other; add chain ip other theirs; add rule ip other theirs accept"


def tables(versions=(4, 6), networks=None, part=user_part, host_for_all=no_address):
    """Return the factory of tables for a machine with the addresses ``HOSTS``."""
    return Tables(versions, part, HOSTS.get, networks or Networks(), host_for_all=host_for_all)


def portal(kind, version, port=80, sources=None):
    """Make a portal with the address of its kind."""
    address = {
        PortalKind.CLUSTER_IP: CLUSTER,
        PortalKind.NODE_PORT: {},
    }.get(kind, EXTERNAL)
    found = address.get(version)
    return Portal(kind, None if found is None else ip_address(found), port, sources)


def all_portals(version):
    """Return a portal of each kind."""
    ranges = {4: "203.0.113.0/24", 6: "2001:db8:1::/48"}
    return (
        portal(PortalKind.CLUSTER_IP, version),
        portal(PortalKind.LOAD_BALANCER_IP, version, 80, (ip_network(ranges[version]),)),
        portal(PortalKind.NODE_PORT, version, 30080),
    )


def proxied(name="web", version=4, port=40000, portals=None, **more):
    """Make a service that is carried by a proxy socket on ``port``."""
    the_key = key(name, more.pop("protocol", Protocol.TCP), version, more.pop("scope", Scope.ALL))
    portals = all_portals(version) if portals is None else portals
    return ProxiedService(service(key=the_key, portals=tuple(portals), **more), port)


def elements(found, version=4):
    """Return the elements of one family's table by map."""
    (table,) = [each for each in at_once(found) if each.version == version]
    by_map = {}
    for (name, element), data in table.elements.items():
        by_map.setdefault(name, {})[element] = data
    return by_map


class ElementsTests(SynchronousTestCase):
    """The elements of a service in the maps."""

    def test_portals(self):
        """Packets to each portal, in both directions, lead to the proxy port."""
        found = elements(tables()([proxied()]))
        by_address = {"10.96.0.1 . tcp . 80": "40000", "192.0.2.1 . tcp . 80": "40000"}
        for direction in ("arriving", "own"):
            self.assertEqual(by_address, found[f"{direction}-portals"])
            self.assertEqual({"tcp . 30080": "40000"}, found[f"{direction}-portals-node-ports"])

    def test_address_for_all(self):
        """Incoming packets are sent to it as well, because a link may have no address; those to an
        address of the link are redirected to the link.
        """
        make = tables(host_for_all={4: HOSTS[4]}.get)
        four, six = (
            str([table.chains[name] for name in ("nat-prerouting", "prerouting-node-ports")])
            for table in at_once(make([proxied()]))
        )
        self.assertEqual(2, four.count(f"dnat to {HOSTS[4]}:"))
        of_the_link = "fib daddr . iif type local meta l4proto { tcp, udp } redirect to :"
        self.assertEqual((2, 2), (four.count(of_the_link), four.count("redirect")))
        self.assertEqual((0, 2), (six.count("dnat"), six.count("redirect to :")))
        self.assertNotIn("iif", six)

    def test_source_ranges(self):
        """A load balancer's portal is restricted to them, merged as far as possible."""
        nets = [ip_network(each) for each in ("10.8.0.0/16", "10.8.1.0/24", "192.0.2.7/32")]
        nets.append(ip_network("fd00::/8"))
        lb = portal(PortalKind.LOAD_BALANCER_IP, 4, 80, tuple(nets))
        found = elements(tables()([proxied(portals=[lb])]))
        self.assertEqual({"192.0.2.1 . tcp . 80": ""}, found["restricted"])
        self.assertEqual(
            {"192.0.2.1 . tcp . 80 . 10.8.0.0/16", "192.0.2.1 . tcp . 80 . 192.0.2.7"},
            found["allowed"].keys(),
        )

    def test_source_ranges_with_this_machine(self):
        """If this machine's address is in a range, the load balancer's address is allowed, too;
        also after this machine's address has changed.
        """
        hosts = dict(HOSTS)
        make = Tables((4,), user_part, hosts.get, Networks())
        lb = portal(PortalKind.LOAD_BALANCER_IP, 4, 80, (ip_network("10.0.0.0/8"),))
        for host, allowed in (
            ("10.0.0.1", {"10.0.0.0/8", "192.0.2.1"}),
            ("11.1.1.1", {"10.0.0.0/8"}),
        ):
            hosts[4] = ip_address(host)
            found = elements(make([proxied(portals=[lb])]))
            self.assertEqual(
                {f"192.0.2.1 . tcp . 80 . {each}" for each in allowed}, found["allowed"].keys()
            )

    def test_no_endpoints(self):
        """Clients are refused, or get no answer, as the service specifies."""
        cluster = [portal(PortalKind.CLUSTER_IP, 4)]
        refused = proxied(port=None, portals=cluster)
        self.assertEqual(
            {"10.96.0.1 . tcp . 80": "goto refuse"}, elements(tables()([refused]))["own-nobody"]
        )
        dropped = proxied(port=None, portals=cluster, no_endpoints_action=NoEndpointsAction.DROPPED)
        self.assertEqual(
            {"10.96.0.1 . tcp . 80": "drop"}, elements(tables()([dropped]))["own-nobody"]
        )

    def test_own_packets_to_external_portals(self):
        """Own packets go to the endpoints for the cluster, and others' to local ones."""
        within = proxied(port=40001, scope=Scope.INTERNAL, portals=[])
        outside = proxied(
            port=None,
            scope=Scope.EXTERNAL,
            portals=[portal(PortalKind.EXTERNAL_IP, 4)],
            no_endpoints_action=NoEndpointsAction.DROPPED,
            keeps_source=True,
        )
        found = elements(tables()([outside, within]))
        at = "192.0.2.1 . tcp . 80"
        self.assertEqual({at: "drop"}, found["arriving-nobody"])
        self.assertEqual({at: "40001"}, found["own-portals"])
        self.assertNotIn("own-nobody", found)

    def test_the_same_portal_twice(self):
        """The first service has it; the rest of the second is served."""
        both = [proxied("one", port=1001), proxied("two", port=1002)]
        found = elements(tables()(both))
        self.assertEqual({"1001"}, set(found["own-portals"].values()))

    def test_other_families(self):
        """Families without a table are left out."""
        (table,) = at_once(tables(versions=(4,))([proxied(version=6)]))
        self.assertEqual({}, table.elements)

    def test_rules_do_not_grow(self):
        """A thousand services need no more rules than none."""
        many = [proxied(f"web-{number}", port=number + 1) for number in range(1000)]
        few, more = at_once(tables()([])), at_once(tables()(many))
        self.assertEqual([each.chains for each in few], [each.chains for each in more])

    def test_unchanged_services_are_reused(self):
        """Only the part of a changed service is made again."""
        asked = []

        def part(one, internal, host):
            asked.append(str(one.service.key.name))
            return user_part(one, internal, host)

        make = tables(part=part)
        both = [proxied("one"), proxied("two")]
        at_once(make(both))
        at_once(make([both[0], replace(both[1], proxy_port=7)]))
        self.assertEqual(["shop/one:http", "shop/two:http", "shop/two:http"], asked)

    def test_a_part_changes_while_tables_are_made(self):
        """It is made anew, unless it has been made already: then it is at the next call."""
        asked = []

        def part(one, internal, host):
            asked.append(one.service.key.name.name)
            return user_part(one, internal, host)

        make = tables(part=part)
        many = [proxied(f"web-{number}") for number in range(100)]
        at_once(make(many))
        del asked[:]
        making = make(many)
        # All services are looked at once before the first parts are made.
        for _ in range(len(many) // ITEMS_PER_PIECE + 1):
            next(making)
        make.invalidate([many[0].service.key, many[99].service.key])
        at_once(making)
        self.assertEqual(["web-99"], asked)
        at_once(make(many))
        self.assertEqual(["web-99", "web-0"], asked)


class NftablesTests(TestCase):
    """The kernel's table, in the test's own network namespace."""

    def setUp(self):
        """Enter the namespace."""
        self.network = ClusterNetwork()
        self.addCleanup(self.network.close)
        self.programs = CountedPrograms(Programs(reactor))
        self.rules = self.new()
        self.both = [proxied(version=4), proxied(version=6)]

    def new(self, host_for_all=no_address):
        """Make the rules of a new process."""
        networks = Networks((ip_network("10.0.0.0/8"),), (ip_network("10.9.0.0/16"),))
        return Nftables(
            reactor, self.programs, tables(networks=networks, host_for_all=host_for_all)
        )

    def calls(self):
        """Return the program runs since the last call."""
        found, self.programs.calls = self.programs.calls, []
        return found

    def listed(self, family="ip"):
        """Return the current rules."""
        return run("nft", "list", "table", family, "yurtproxy")

    def test_interface(self):
        """The rules provide their interface."""
        verifyObject(IRules, self.rules)
        self.assertEqual("nftables", self.rules.backend)

    @inlineCallbacks
    def test_both_families_at_once(self):
        """One transaction creates both tables; then nothing is run."""
        applied = yield self.rules.apply(self.both)
        self.assertEqual(2, len(applied.differences))
        self.assertEqual(1, self.calls().count(["nft", "-f", "-"]))
        self.assertIn("10.96.0.1 . tcp . 80 : 40000", self.listed())
        self.assertIn("fd96::1 . tcp . 80 : 40000", self.listed("ip6"))
        again = yield self.rules.apply(list(self.both))
        self.assertEqual((), again.differences)
        self.assertEqual([], self.calls())

    @inlineCallbacks
    def test_a_change(self):
        """One process changes what differs, and reads nothing."""
        yield self.rules.apply(self.both)
        self.calls()
        applied = yield self.rules.apply([self.both[0], replace(self.both[1], proxy_port=40007)])
        self.assertEqual([["nft", "-f", "-"]], self.calls())
        self.assertIn("ip6 yurtproxy: in the map own-portals 2 elements", str(applied.differences))
        self.assertIn("fd96::1 . tcp . 80 : 40007", self.listed("ip6"))
        yield self.rules.apply([])
        self.assertNotIn("elements", self.listed())

    @inlineCallbacks
    def test_another_process(self):
        """It finds the rules as desired, and keeps them."""
        for host_for_all in (no_address, HOSTS.get):
            yield self.new(host_for_all).apply(self.both)
            before = self.rules.generation()
            applied = yield self.new(host_for_all).apply(self.both)
            self.assertEqual((), applied.differences)
            self.assertEqual(before, self.rules.generation())

    @inlineCallbacks
    def test_changes_by_others(self):
        """Changes of our tables by others are reported and repaired; their own tables stay."""
        yield self.rules.apply(self.both)
        right = self.listed()
        for command, reported in (
            ("flush ruleset", "the table ip yurtproxy is missing"),
            ("delete table ip yurtproxy", "the table ip yurtproxy is missing"),
            ("flush map ip yurtproxy own-portals", "in the map own-portals 2 elements are missing"),
            (
                "add element ip yurtproxy own-portals { 10.96.0.9 . udp . 53 : 53 }",
                "in the map own-portals 1 elements are not wanted",
            ),
            ("flush chain ip yurtproxy nat-output", "the chain nat-output has other rules"),
            (
                "insert rule ip yurtproxy nat-output accept",
                "the chain nat-output has other rules",
            ),
            ("add chain ip yurtproxy theirs", "the chain theirs is not wanted"),
            (
                "add set ip yurtproxy theirs { type ipv4_addr; }",
                "the map theirs is not wanted",
            ),
        ):
            run("nft", "-f", "-", stdin=f"{FOREIGN}\n{command}\n")
            applied = yield self.rules.apply(self.both)
            self.assertIn(reported, " ".join(applied.differences), command)
            self.assertEqual(sorted(right.split()), sorted(self.listed().split()), command)
        self.assertIn("accept", run("nft", "list", "table", "ip", "other"))

    @inlineCallbacks
    def test_changes_of_others_only(self):
        """The tables are read, once, and nothing is changed."""
        yield self.rules.apply(self.both)
        run("nft", "-f", "-", stdin=FOREIGN)
        before = self.rules.generation()
        self.calls()
        applied = yield self.rules.apply(self.both)
        self.assertEqual((), applied.differences)
        self.assertEqual(before, self.rules.generation())
        self.assertEqual(["list", "list"], [each[1] for each in self.calls()])
        yield self.rules.apply(self.both)
        self.assertEqual([], self.calls())

    @inlineCallbacks
    def test_a_table_of_another_version(self):
        """It is created again, in one transaction."""
        another = "add map ip yurtproxy own-portals { type ipv4_addr : inet_service; }"
        run("nft", "-f", "-", stdin=f"add table ip yurtproxy; {another}")
        applied = yield self.rules.apply(self.both)
        self.assertIn("ip yurtproxy is of another version", applied.differences[0])
        self.assertIn("10.96.0.1 . tcp . 80 : 40000", self.listed())

    @inlineCallbacks
    def test_removal(self):
        """Everything of ours is removed, of whichever process, and nothing else."""
        run("nft", "-f", "-", stdin=FOREIGN)
        before = run("nft", "list", "ruleset")
        yield self.rules.apply(self.both)
        self.assertTrue((yield self.new().remove()))
        self.assertFalse((yield self.rules.remove()))
        self.assertEqual(before, run("nft", "list", "ruleset"))
        yield self.rules.apply(self.both)
        self.assertIn("40000", self.listed())

    @inlineCallbacks
    def test_removal_of_one_family(self):
        """The other family keeps its table."""
        yield self.rules.apply(self.both)
        self.assertTrue((yield self.new().remove([4])))
        tables = run("nft", "list", "tables").split("\n")
        self.assertIn("table ip6 yurtproxy", tables)
        self.assertNotIn("table ip yurtproxy", tables)


class RefusalTests(SynchronousTestCase):
    """Messages about errors of nft."""

    def setUp(self):
        """Do all work in one turn: a collection of garbage might add some."""
        self.patch(slices, "WORK_SECONDS", math.inf)

    def refusal(self, said):
        """Apply rules while the program fails; return the message."""
        programs = FakePrograms()
        programs.programs["nft"] = lambda arguments, given: CompletedProgram(1, b"", said)
        applied = Nftables(Clock(), programs, tables()).apply([])
        return str(self.failureResultOf(applied, SteeringFailed).value)

    def test_without_the_right_to(self):
        """The message says which capability is required."""
        reported = self.refusal("Error: Operation not permitted (you must be root)")
        self.assertIn("reading the tables yurtproxy of nftables", reported)
        self.assertIn("NET_ADMIN", reported)

    def test_without_the_program(self):
        """The message says so."""
        applied = Nftables(Clock(), FakePrograms(), tables()).apply([])
        reported = str(self.failureResultOf(applied, SteeringFailed).value)
        self.assertIn("nft is not installed", reported)

    def test_where_the_kernel_has_nftables(self):
        """Errors that may mean that there is no nftables are failures here."""
        for number, doing in ((7, "reading"), (None, "changing")):
            self.patch(Nftables, "generation", lambda _, number=number: number)
            self.assertIn(f"{doing} the tables", self.refusal("Error: Invalid argument"))

    def test_next_time_everything_is_read(self):
        """A failed transaction may have been based on outdated rules."""
        programs = FakePrograms()
        answers = [CompletedProgram(1, b"", "Error: No such file or directory")]
        programs.programs["nft"] = lambda arguments, given: (
            answers[0]
            if arguments[0] == "list"
            else CompletedProgram(1, b"", "Error: No such file")
        )
        rules = Nftables(Clock(), programs, tables(versions=(4,)))
        for _ in range(2):
            self.failureResultOf(rules.apply([]), SteeringFailed)
        self.assertEqual(["list", "-f", "list", "-f"], [each[1] for each in programs.calls])

    def make(self, *statuses):
        """Start without a table, let changes end with these results; return rules and program."""
        programs, left = FakePrograms(), iter(statuses)
        programs.programs["nft"] = lambda arguments, given: (
            CompletedProgram(1, b"", "Error: No such file or directory")
            if arguments[0] == "list"
            else CompletedProgram(next(left), b"", "")
        )
        return Nftables(Clock(), programs, tables(versions=(4,))), programs

    def test_next_time_everything_is_read_that_was_known(self):
        """This also holds if the state was known, and no changes were counted since."""
        rules, programs = self.make(0, 1, 1)
        numbers = iter([7, 8, 8])
        self.patch(Nftables, "generation", lambda _: next(numbers))
        self.successResultOf(rules.apply([]))
        for _ in range(2):
            self.failureResultOf(rules.apply([proxied()]), SteeringFailed)
        self.assertEqual(["list", "-f", "-f", "list", "-f"], [each[1] for each in programs.calls])

    def test_where_changes_are_not_counted(self):
        """Everything is read each time."""
        rules, programs = self.make(0, 0)
        self.patch(Nftables, "generation", lambda _: None)
        for _ in range(2):
            self.successResultOf(rules.apply([]))
        self.assertEqual(["list", "-f", "list", "-f"], [each[1] for each in programs.calls])
