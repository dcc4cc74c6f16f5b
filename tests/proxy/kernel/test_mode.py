"""Kernel mode with real packets: a client, a node and endpoints, each in a namespace."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from ipaddress import ip_address, ip_network
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, DeferredList, gatherResults
from twisted.internet.error import ConnectionRefusedError, TimeoutError
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs
from twisted.trial.unittest import SkipTest, TestCase

from tests.proxy.kernel.lab import (
    CLIENT,
    CLUSTER,
    EXTERNAL,
    NODE,
    PODS,
    PORT,
    Echo,
    Flow,
    Lab,
    Resolver,
    Server,
    connect,
    hang_up,
    out_of_window,
)
from tests.proxy.services import key, service
from tests.steering.firewall.fakes import FakePrograms
from yurttunnel.proxy.interfaces import Placed
from yurttunnel.proxy.kernel.availability import kernel_mode_available
from yurttunnel.proxy.kernel.connection_counts import ConnectionCounts
from yurttunnel.proxy.kernel.marks import ATTENDED
from yurttunnel.proxy.kernel.mode import KernelMode
from yurttunnel.proxy.kernel.parts import Masquerade
from yurttunnel.proxy.kernel.prober import Outcome, Prober
from yurttunnel.proxy.kernel.targets import Target
from yurttunnel.proxy.rules.nftables.parts import user_part
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.proxy.rules.nftables.tables import Networks, Tables
from yurttunnel.proxy.state.virtual_services import (
    Endpoint,
    NobodyServes,
    Portal,
    PortalKind,
    Protocol,
    Scope,
)
from yurttunnel.steering.netlink import own_table
from yurttunnel.steering.netlink.worker import KernelWorker
from yurttunnel.steering.programs import Programs

LOOPBACK = {4: "127.0.0.1", 6: "::1"}
HOSTS = {version: ip_address(text) for version, text in NODE.items()}

FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}

NARROW = 1400
"""Bytes of a packet on a way that carries no larger ones."""

PATH_MTU = {4: (socket.IPPROTO_IP, 14), 6: (socket.IPPROTO_IPV6, 24)}
"""The level, and ``IP_MTU`` of linux/in.h and of linux/in6.h."""

BRIDGED = {4: "bridge-nf-call-iptables", 6: "bridge-nf-call-ip6tables"}
"""The setting by which rules see what passes a bridge."""


_SEEN = """
table inet seen {
    counter invalid { }
    chain input {
        type filter hook input priority 0;
        ct state invalid counter name invalid
    }
}
"""
"""What this machine itself gets of what conntrack takes for no connection's."""

_POLICY = """
table inet network-policy {{
    chain {hook} {{
        type filter hook {hook} priority filter;
        {family} daddr {endpoint} {verdict}
    }}
}}
"""
"""Of a firewall of the node that keeps others from one endpoint."""

_OTHER_MARKS = """
table inet others {
    chain prerouting {
        type filter hook prerouting priority mangle;
        ct state new ct mark set 0xea6c
    }
}
"""
"""Of a program whose marks have the bits of ours."""


def most_retransmissions(found):
    """Return how often a client had to send its first packet again: 0 is at once, 1 takes 1 s."""
    return max(each.retransmissions for each in found)


class KernelTestCase(TestCase):
    """A node in kernel mode."""

    version = 4
    bridged = False
    masquerade = Masquerade()

    def setUp(self):
        """Make the network, and start."""
        self.lab = Lab(3, self.bridged)
        self.addCleanup(self.lab.close)
        self.mode = self.new()
        self.mode.startService()
        self.addCleanup(self.stop)
        self.assertIsNone(self.mode.problem)

    def new(self):
        """Make the mode of a process."""
        run = KernelWorker(reactor).run
        self.last_job = time.monotonic()

        def timed(job):
            return run(job).addBoth(ended)

        def ended(result):
            self.last_job = time.monotonic()
            return result

        return KernelMode(
            reactor,
            Programs(reactor),
            timed,
            (4, 6),
            HOSTS.get,
            Networks(),
            self.masquerade,
            lambda: HOSTS.values(),
        )

    async def stop(self):
        """Stop, unless the test has done so."""
        if self.mode.running:
            await self.mode.stopService()

    def serve(self, number):
        """Have an endpoint listen, in both families."""
        with self.lab.endpoints[number].inside():
            port = reactor.listenTCP(PORT, Server(str(number)), interface="::")
        self.addCleanup(hang_up, port)
        return port

    def serve_all(self):
        """Have all of them listen."""
        return [self.serve(number) for number in range(3)]

    def answer_datagrams(self):
        """Have the first endpoint answer by UDP."""
        with self.lab.endpoints[0].inside():
            port = reactor.listenUDP(PORT, Echo(), interface="::")
        self.addCleanup(port.stopListening)

    async def resolve(self, count):
        """Have clients send until they are answered, and return them."""
        resolvers = [Resolver(CLUSTER[self.version], 80) for _ in range(count)]
        for each in resolvers:
            with self.lab.client.inside():
                own = reactor.listenUDP(0, each, interface=CLIENT[self.version])
            self.addCleanup(own.stopListening)
        await gatherResults([each.answered for each in resolvers])
        return resolvers

    def apply(self, *services):
        """Make the rules."""
        return self.mode.rules.apply([Placed(each, None) for each in services])

    def service(self, version=None, numbers=(0, 1, 2), portals=None, others=(), **more):
        """Make a service of some endpoints, of all where it is not said which, and of others."""
        version = version or self.version
        cluster = Portal(PortalKind.CLUSTER_IP, ip_address(CLUSTER[version]), 80)
        the_key = key(
            "web", more.pop("protocol", Protocol.TCP), version, more.pop("scope", Scope.ALL)
        )
        return service(
            [*(self.lab.address(number, version) for number in numbers), *others],
            key=the_key,
            portals=(cluster,) if portals is None else portals,
            **more,
        )

    def external(self, kind, sources=None):
        """Make a portal at the external address."""
        return Portal(kind, ip_address(EXTERNAL[self.version]), 80, sources)

    def target(self, number):
        """Return an endpoint, by TCP."""
        return Target(Protocol.TCP, self.lab.address(number, self.version))

    def clients(self, count, host, inside=None, port=80):
        """Connect many at once."""
        inside = inside or self.lab.client
        return gatherResults([connect(inside, host, port) for _ in range(count)])

    async def clients_are_soon_served(self, inside=None, then=None, host=None, port=80):
        """Require that clients are connected by the first packet that they send after the dead are
        found out, which is the second one of each: a second later. Return what became of them.

        ``then`` is what happens meanwhile. Where this machine is so busy that finding out takes
        more than a second, that may be a later one, and no more than that: what the last job does
        is to forget attempts at the dead.
        """
        begun = done = time.monotonic()
        clients = self.clients(24, host or CLUSTER[self.version], inside, port)
        if then is not None:
            await then()
            done = time.monotonic()
        found = await clients
        late = int(max(done, self.last_job) - begun)
        self.assertLessEqual(most_retransmissions(found), 1 + late)
        return found

    def seen(self, found):
        """Return which clients the endpoints have seen."""
        return {str(ip_address(each.seen.removeprefix("::ffff:"))) for each in found}

    async def is_refused(self, inside=None, host="", port=80):
        """Require that a client is told that nobody serves."""
        connecting = connect(inside or self.lab.client, host or CLUSTER[self.version], port)
        await self.assertFailure(connecting, ConnectionRefusedError)

    async def until(self, condition):
        """Wait for a condition."""
        while not condition():
            await deferLater(reactor, 0.01)

    async def log_is_read(self):
        """Wait until the process has read of the packets that have been delivered."""
        for _ in range(2):
            await deferLater(reactor, 0)

    async def until_served_by(self, servers):
        """Connect until these have served: rules follow a moment later."""
        served = set()
        while served != servers:
            served |= {each.server for each in await self.clients(8, CLUSTER[self.version])}


class Carrying:
    """Endpoints that are well, by the version of IP."""

    async def test_all_serve(self):
        """Connections from elsewhere and from this node are spread, at once."""
        self.serve_all()
        await self.apply(self.service())
        for inside in (self.lab.client, self.lab.node):
            found = await self.clients(90, CLUSTER[self.version], inside)
            counts = Counter(each.server for each in found)
            self.assertEqual({"0", "1", "2"}, set(counts))
            self.assertGreater(min(counts.values()), 10)
            self.assertEqual(0, most_retransmissions(found))

    async def test_affinity(self):
        """A client keeps its endpoint, and gets another one where that goes."""
        self.serve_all()
        await self.apply(self.service(affinity=60.0))
        found = await self.clients(20, CLUSTER[self.version])
        (first,) = {each.server for each in found}
        others = [number for number in range(3) if str(number) != first]
        await self.apply(self.service(numbers=others, affinity=60.0))
        found = await self.clients(20, CLUSTER[self.version])
        (second,) = {each.server for each in found}
        self.assertNotEqual(first, second)
        await self.apply(self.service(affinity=60.0))
        found = await self.clients(20, CLUSTER[self.version])
        self.assertEqual({second}, {each.server for each in found})

    async def test_affinity_slides(self):
        """A client's time begins anew with each connection."""
        self.serve_all()
        await self.apply(self.service(affinity=50.0))
        await self.clients(1, CLUSTER[self.version])
        first = self.seconds_of_affinity()
        # More than it takes to look again, on a busy machine.
        await self.until(lambda: self.seconds_of_affinity() < first - 2)
        before = self.seconds_of_affinity()
        await self.clients(1, CLUSTER[self.version])
        self.assertGreater(self.seconds_of_affinity(), before)

    async def test_affinity_gets_shorter(self):
        """No client keeps its endpoint for the time that was; a longer time takes it from none."""
        self.serve_all()
        for seconds, is_kept in ((100.0, True), (200.0, True), (50.0, False)):
            await self.apply(self.service(affinity=seconds))
            if seconds == 100.0:
                await self.clients(1, CLUSTER[self.version])
            family = "ip" if self.version == 4 else "ip6"
            listed = self.lab.node.run("nft", "list", "table", family, "yurtproxy")
            self.assertEqual(is_kept, CLIENT[self.version] in listed)

    async def test_connections_are_counted(self):
        """Once each, whatever becomes of endpoints, and also when the process has ended."""
        self.serve_all()
        for affinity, numbers in ((None, (0, 1, 2)), (60.0, (0, 1, 2)), (None, (0, 1))):
            await self.apply(self.service(numbers=numbers, affinity=affinity))
            await self.clients(10, CLUSTER[self.version])
            await self.clients(5, CLUSTER[self.version], self.lab.node)
        self.assertEqual(45, await self.counted())
        await self.apply(self.service(numbers=[]))
        await self.is_refused()
        self.assertEqual(45, await self.counted())
        await self.mode.stopService()
        self.assertEqual(45, await self.counted())

    async def test_datagrams_are_counted(self):
        """A client is one connection, whatever it sends."""
        await self.apply(self.service(numbers=[0], protocol=Protocol.UDP))
        self.answer_datagrams()
        await self.resolve(10)
        self.assertEqual(10, await self.counted(protocol=Protocol.UDP))

    async def counted(self, **service):
        """Return how many connections the service has had, as another process reads it."""
        counts = ConnectionCounts(reactor, KernelWorker(reactor).run, (4, 6))
        counts.startService()
        the_service = self.service(**service)
        await self.until(lambda: counts.of(the_service).total is not None)
        await counts.stopService()
        return counts.of(the_service).total

    async def test_the_other_mode(self):
        """It takes the table over, and nothing of this one is left."""
        await self.apply(self.service(affinity=60.0))
        programs = Programs(reactor)
        tables = Tables((4, 6), user_part, HOSTS.get, Networks())
        await Nftables(programs, tables).apply([Placed(self.service(numbers=[]), 40000)])
        family = "ip" if self.version == 4 else "ip6"
        listed = self.lab.node.run("nft", "list", "table", family, "yurtproxy")
        self.assertNotIn("counter", listed)
        self.assertIn(": 40000", listed)

    def seconds_of_affinity(self):
        """Return for how much longer the one client keeps its endpoint."""
        family = "ip" if self.version == 4 else "ip6"
        listed = self.lab.node.run("nft", "list", "table", family, "yurtproxy")
        seconds, milliseconds = re.search(r"expires (?:(\d+)s)?(?:(\d+)ms)?", listed).groups()
        return int(seconds or 0) + int(milliseconds or 0) / 1000

    async def test_source_is_kept_within_the_cluster(self):
        """Endpoints see the client of a cluster IP."""
        self.serve_all()
        await self.apply(self.service())
        found = await self.clients(3, CLUSTER[self.version])
        self.assertEqual({CLIENT[self.version]}, self.seen(found))

    async def test_external_clients(self):
        """Endpoints see this node, whose answers alone lead back; unless they are all here."""
        self.serve_all()
        node_port = Portal(PortalKind.NODE_PORT, None, 30080)
        portals = (node_port, self.external(PortalKind.EXTERNAL_IP))
        for kept, seen in ((False, PODS), (True, CLIENT)):
            await self.apply(self.service(portals=portals, keeps_source=kept))
            found = await self.clients(3, NODE[self.version], port=30080)
            found += await self.clients(3, EXTERNAL[self.version])
            self.assertEqual({seen[self.version]}, self.seen(found))

    async def test_marks_of_others(self):
        """They mean nothing of ours: such a client is seen as itself, and refused."""
        self.serve(0)
        await self.apply(self.service())
        self.lab.node.run("nft", "-f", "-", stdin=_OTHER_MARKS)
        found = await connect(self.lab.client, str(self.lab.address(0, self.version).address), PORT)
        self.assertEqual({CLIENT[self.version]}, self.seen([found]))
        refusing = str(self.lab.address(1, self.version).address)
        await self.is_refused(host=refusing, port=PORT)
        self.assertLessEqual(self.lab.attempts(), 2)
        self.assertFalse(self.mode.ejections.is_ejected(*self.target(1)))

    async def test_node_port_at_loopback(self):
        """It is refused at once: no endpoint could answer a client with such an address."""
        self.serve_all()
        await self.apply(self.service(portals=(Portal(PortalKind.NODE_PORT, None, 30080),)))
        found = await self.clients(3, NODE[self.version], self.lab.node, port=30080)
        self.assertEqual({PODS[self.version]}, self.seen(found))
        await self.is_refused(self.lab.node, LOOPBACK[self.version], 30080)

    async def test_hairpin(self):
        """An endpoint reaches itself by its service."""
        self.serve_all()
        local = frozenset([self.lab.address(0, self.version)])
        await self.apply(self.service(numbers=[0], local=local))
        found = await self.clients(3, CLUSTER[self.version], self.lab.endpoints[0])
        self.assertEqual({PODS[self.version]}, self.seen(found))

    async def test_own_packets_to_external_portals(self):
        """They are served by all that serve within the cluster."""
        await self.own_packets_are_served_by(self.service(numbers=[0], scope=Scope.INTERNAL))

    async def test_own_packets_where_both_policies_are_local(self):
        """They are served by all endpoints all the same."""
        await self.own_packets_are_served_by(
            self.service(numbers=[2], scope=Scope.INTERNAL),
            self.service(numbers=[0], scope=Scope.CLUSTER, portals=()),
        )

    async def own_packets_are_served_by(self, *within):
        """Require that endpoint 0 serves packets of this machine by a portal from outside."""
        self.serve_all()
        await self.apply(
            *within,
            self.service(
                numbers=[1],
                scope=Scope.EXTERNAL,
                portals=(self.external(PortalKind.EXTERNAL_IP),),
                keeps_source=True,
            ),
        )
        found = await self.clients(5, EXTERNAL[self.version])
        self.assertEqual({"1"}, {each.server for each in found})
        found = await self.clients(5, EXTERNAL[self.version], self.lab.node)
        self.assertEqual({"0"}, {each.server for each in found})

    async def test_nobody_serves(self):
        """Clients are refused at once, or get nothing."""
        for inside in (self.lab.client, self.lab.node):
            await self.apply(self.service(numbers=[]))
            # What was dropped before has been sent again, perhaps.
            self.lab.attempts()
            await self.is_refused(inside)
            self.assertLessEqual(self.lab.attempts(), 1)
            await self.apply(self.service(numbers=[], nobody_serves=NobodyServes.DROPPED))
            await self.assertFailure(
                connect(inside, CLUSTER[self.version], timeout=0.3), TimeoutError
            )

    async def test_source_ranges(self):
        """Only clients in these networks get to a load balancer's address."""
        self.serve_all()
        for address, error in ((CLIENT, None), (PODS, TimeoutError)):
            net = ip_network(address[self.version])
            portal = self.external(PortalKind.LOAD_BALANCER_IP, (net,))
            await self.apply(self.service(portals=(portal,)))
            if error is None:
                await connect(self.lab.client, EXTERNAL[self.version])
            else:
                connecting = connect(self.lab.client, EXTERNAL[self.version], timeout=0.3)
                await self.assertFailure(connecting, error)

    async def test_services_with_sockets(self):
        """What the kernel cannot carry is led to its proxy port."""
        server = Server("proxy")
        port = reactor.listenTCP(0, server, interface="::")
        self.addCleanup(hang_up, port)
        placed = Placed(self.service(numbers=[]), port.getHost().port)
        await self.mode.rules.apply([placed])
        for inside in (self.lab.client, self.lab.node):
            found = await self.clients(3, CLUSTER[self.version], inside)
            self.assertEqual({"proxy"}, {each.server for each in found})


class OutOfWindow:
    """Packets that conntrack takes for no connection's, by the version of IP."""

    async def test_they_break_nothing(self):
        """They are not led to clients untranslated, who would reset the connection."""
        await self.apply(self.service(numbers=[0]))
        self.connection_survives()
        self.assertIn("ct state invalid drop", self.rules())

    async def test_those_for_this_machine(self):
        """They get to it: it is only not to forward them."""
        await self.apply(self.service(numbers=[0]))
        self.lab.node.run("nft", "-f", "-", stdin=_SEEN)
        with self.lab.node.inside():
            listening = socket.create_server(("", PORT), family=FAMILY[self.version])
        self.addCleanup(listening.close)
        with self.lab.client.inside():
            forging = socket.socket(FAMILY[self.version], socket.SOCK_RAW, socket.IPPROTO_TCP)
            client = socket.create_connection((NODE[self.version], PORT), 10)
        for each in (forging, client):
            self.addCleanup(each.close)
        forging.sendto(out_of_window(client), (NODE[self.version], 0))
        await self.until(
            lambda: "packets 1" in self.lab.node.run("nft", "list", "counters", "inet")
        )

    async def test_where_conntrack_is_liberal(self):
        """They are the connection's, and no rule is needed; a sync sees that this has changed."""
        await self.apply(self.service(numbers=[0]))
        Path("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal").write_text("1")
        await self.apply(self.service(numbers=[0]))
        self.assertNotIn("invalid", self.rules())
        self.connection_survives()

    def rules(self):
        """Return those of the family."""
        family = "ip" if self.version == 4 else "ip6"
        return self.lab.node.run("nft", "list", "table", family, "yurtproxy")

    def connection_survives(self):
        """Require that a connection carries data after its endpoint has sent such a packet."""
        family = FAMILY[self.version]
        with self.lab.endpoints[0].inside():
            listening = socket.create_server(("", PORT), family=family)
            forging = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP)
        with self.lab.client.inside():
            client = socket.create_connection((CLUSTER[self.version], 80), 10)
        listening.settimeout(10)
        served, peer = listening.accept()
        for each in (listening, forging, client, served):
            self.addCleanup(each.close)
        forging.sendto(out_of_window(served), (peer[0], 0))
        served.settimeout(10)
        client.sendall(b"!")
        self.assertEqual(b"!", served.recv(1))


class OutOfWindowTests(OutOfWindow, KernelTestCase):
    """IPv4."""


class OutOfWindowIPv6Tests(OutOfWindow, KernelTestCase):
    """IPv6."""

    version = 6


class CarryingTests(Carrying, KernelTestCase):
    """IPv4."""


class CarryingIPv6Tests(Carrying, KernelTestCase):
    """IPv6."""

    version = 6


class MasqueradeTests(KernelTestCase):
    """Where clients of cluster IPs are masqueraded."""

    masquerade = Masquerade(pods=(ip_network("10.5.0.0/24"), ip_network("fd01::/64")))

    async def test_clients_from_elsewhere(self):
        """The client is as a pod by IPv4, and is kept; by IPv6 it is none, and is replaced."""
        self.serve_all()
        for version, seen in ((4, CLIENT), (6, PODS)):
            await self.apply(self.service(version))
            found = await self.clients(3, CLUSTER[version])
            self.assertEqual({seen[version]}, self.seen(found))


class ProberTests(KernelTestCase):
    """What endpoints do."""

    async def test_outcomes(self):
        """One answers, one refuses, one is silent; who does not wait for that hears nothing."""
        prober = Prober(reactor)
        self.serve(0)
        self.lab.drop(2)
        for version in (4, 6):
            outcomes = [await prober.probe(self.lab.address(n, version)) for n in range(3)]
            self.assertEqual([Outcome.ANSWERED, Outcome.REFUSED, Outcome.SILENT], outcomes)
        probing = prober.probe(self.lab.address(2))
        prober.stop()
        self.failureResultOf(probing, CancelledError)


class Retry:
    """Endpoints that are dead, by the version of IP."""

    async def all_are_served(self, by):
        """Require that clients are connected in time, and later ones at once."""
        found = await self.clients_are_soon_served()
        self.assertEqual(by, {each.server for each in found})
        found = await self.clients(24, CLUSTER[self.version])
        self.assertEqual(0, most_retransmissions(found))

    async def test_two_of_three_dead(self):
        """One refuses, and one is a black hole."""
        self.serve(0)
        self.lab.drop(1)
        await self.apply(self.service())
        await self.all_are_served({"0"})

    async def test_two_black_holes(self):
        """Both are found out before any client tries again."""
        self.serve(0)
        self.lab.drop(1)
        self.lab.drop(2)
        await self.apply(self.service())
        await self.all_are_served({"0"})

    async def test_a_black_hole_is_replaced(self):
        """Clients that were led to it are led elsewhere, though it is no endpoint any more."""
        self.serve(0)
        self.lab.drop(1)
        await self.apply(self.service(numbers=[1]))
        sent = 0

        def all_have_tried():
            nonlocal sent
            sent += self.lab.attempts()
            return sent >= 24

        async def replace():
            await self.until(all_have_tried)
            await self.apply(self.service(numbers=[0]))

        found = await self.clients_are_soon_served(then=replace)
        self.assertEqual({"0"}, {each.server for each in found})

    async def test_amid_a_change(self):
        """Who comes by rules of which the map has just gone is led by those that follow."""
        self.serve(0)
        family = "ip" if self.version == 4 else "ip6"
        for affinity in (None, 60.0):
            placed = self.service(numbers=[0], affinity=affinity)
            await self.apply(placed)
            listed = self.lab.node.run("nft", "-a", "list", "table", family, "yurtproxy")
            (choice,) = (line for line in listed.splitlines() if "numgen random" in line)
            rule, _, handle = choice.strip().partition(" # handle ")
            # Without the digest that it has for a comment it is written anew.
            rule, _, _ = rule.partition(" comment ")
            (name,) = re.findall(r"chain (svc-\S+) {[^}]*numgen random", listed)
            # No number is in the map now.
            empty = rule.replace("numgen random mod 1", "numgen random mod 1 offset 1")
            where = f"{family} yurtproxy {name}"
            self.lab.node.run("nft", f"replace rule {where} handle {handle} {empty}")
            self.lab.attempts()

            async def repair(placed=placed):
                await self.until(self.lab.attempts)
                await self.apply(placed)

            await self.clients_are_soon_served(then=repair)

    async def test_refusal_by_icmp(self):
        """A firewall in front of an endpoint refuses, which no client sees."""
        self.serve(0)
        self.lab.refuse(1)
        await self.apply(self.service(numbers=[0, 1]))
        await self.all_are_served({"0"})

    async def test_with_affinity(self):
        """A client whose endpoint dies gets another, and keeps that."""
        ports = self.serve_all()
        await self.apply(self.service(affinity=60.0))
        ((first, _),) = Counter(
            each.server for each in await self.clients(6, CLUSTER[self.version])
        ).items()
        await ports[int(first)].stopListening()
        found = await self.clients_are_soon_served()
        self.assertEqual(1, len({each.server for each in found}))

    async def test_programs_of_the_node(self):
        """They are clients like others."""
        self.serve(0)
        await self.apply(self.service())
        await self.clients_are_soon_served(self.lab.node)

    async def test_an_endpoint_of_the_node(self):
        """One in the node's own network that refuses is left out, for all clients."""
        self.serve(0)
        own = Endpoint(HOSTS[self.version], PORT)
        for inside in (self.lab.client, self.lab.node):
            await self.apply(self.service(numbers=[0], others=[own]))
            await self.clients_are_soon_served(inside)
            self.assertTrue(self.mode.ejections.is_ejected(Protocol.TCP, own))
            await self.apply(self.service(numbers=[0]))

    async def test_clients_seen_as_the_node(self):
        """Those of a node port, whose addresses are replaced, are led elsewhere like others."""
        self.serve(0)
        self.lab.drop(1)
        node_port = Portal(PortalKind.NODE_PORT, None, 30080)
        await self.apply(self.service(numbers=[0, 1], portals=(node_port,)))
        host = NODE[self.version]
        await self.clients_are_soon_served(host=host, port=30080)
        self.assertTrue(self.mode.ejections.is_ejected(*self.target(1)))

    async def test_a_firewall_of_the_node(self):
        """Who is not let through to an endpoint is told so at once, and others go on to get it."""
        self.serve_all()
        await self.apply(self.service())
        for hook, inside in (("forward", self.lab.client), ("output", self.lab.node)):
            self.forbid(hook, "reject with tcp reset")
            clients = [connect(inside, CLUSTER[self.version], 80) for _ in range(24)]
            results = await DeferredList(clients, consumeErrors=True)
            refused = {each.type for is_served, each in results if not is_served}
            self.assertEqual({ConnectionRefusedError}, refused)
            found = [each for is_served, each in results if is_served]
            self.assertEqual({"0", "2"}, {each.server for each in found})
            self.assertEqual(0, most_retransmissions(found))
            if hook == "forward":
                # The other one keeps probes of this machine from it as well.
                await self.log_is_read()
                self.assertFalse(self.mode.ejections.is_ejected(*self.target(1)))
            self.lab.node.run("nft", "delete", "table", "inet", "network-policy")

    async def test_a_firewall_that_refuses_by_icmp(self):
        """It leaves the endpoint to others as well, whatever it says."""
        self.serve_all()
        await self.apply(self.service())
        for reason in ("port-unreachable", "host-unreachable", "admin-prohibited"):
            self.forbid("forward", f"reject with icmpx {reason}")
            clients = [connect(self.lab.client, CLUSTER[self.version], 80) for _ in range(24)]
            # Some kernels do not know by then whom to tell.
            await DeferredList(clients, consumeErrors=True)
            await self.log_is_read()
            self.assertFalse(self.mode.ejections.is_ejected(*self.target(1)), reason)
            self.lab.node.run("nft", "delete", "table", "inet", "network-policy")

    def forbid(self, hook, verdict):
        """Have the node keep what is sent by one hook from endpoint 1."""
        endpoint = self.lab.address(1, self.version).address
        family = "ip" if self.version == 4 else "ip6"
        policy = _POLICY.format(hook=hook, family=family, endpoint=endpoint, verdict=verdict)
        self.lab.node.run("nft", "-f", "-", stdin=policy)

    async def test_all_dead(self):
        """Clients are refused as soon as that is known: by what they send after a second."""
        await self.apply(self.service())
        begun = time.monotonic()
        await self.is_refused()
        late = int(max(0.0, self.last_job - begun))
        self.assertLessEqual(self.lab.attempts(), 2 + late)

    async def test_one_endpoint(self):
        """Where there is no other, its refusal is the truth, at once."""
        await self.apply(self.service(numbers=[0]))
        await self.is_refused()
        self.assertEqual(1, self.lab.attempts())

    async def test_return(self):
        """One that listens again is used again."""
        self.serve(0)
        await self.apply(self.service(numbers=[0, 1]))
        await self.all_are_served({"0"})
        self.assertTrue(self.mode.ejections.is_ejected(*self.target(1)))
        self.serve(1)
        await self.until(lambda: not self.mode.ejections.is_ejected(*self.target(1)))
        await self.until_served_by({"0", "1"})

    async def test_udp(self):
        """Datagrams for a port where nobody listens go elsewhere, and nobody hears of it."""
        self.answer_datagrams()
        await self.apply(self.service(numbers=[0, 1], protocol=Protocol.UDP))
        found = await self.resolve(10)
        self.assertEqual([0] * 10, [each.refusals for each in found])

    async def test_too_big(self):
        """That a packet has to be smaller is told the client, and held against no endpoint."""
        endpoints = [self.lab.address(number, self.version) for number in (0, 1)]
        for number in (0, 1):
            self.lab.drop(number)
        await self.apply(self.service(numbers=[0, 1], protocol=Protocol.UDP))
        with self.lab.client.inside():
            client = socket.socket(FAMILY[self.version], socket.SOCK_DGRAM)
        self.addCleanup(client.close)
        client.connect((CLUSTER[self.version], 80))
        client.send(b"?")
        level, mtu = PATH_MTU[self.version]

        def is_told():
            for each in endpoints:
                self.lab.tell_too_big(2, client.getsockname()[:2], each, NARROW)
            return client.getsockopt(level, mtu) == NARROW

        await self.until(is_told)
        await self.log_is_read()
        for each in endpoints:
            self.assertFalse(self.mode.ejections.is_ejected(Protocol.UDP, each))

    async def test_no_way(self):
        """An endpoint that this machine has no way to is left out, and no client hears of it."""
        self.serve(0)
        family = "-4" if self.version == 4 else "-6"
        there = str(self.lab.address(1, self.version).address)
        self.lab.node.run("ip", family, "route", "add", "unreachable", there)
        await self.apply(self.service(numbers=[0, 1]))
        await self.all_are_served({"0"})
        self.assertTrue(self.mode.ejections.is_ejected(*self.target(1)))

    async def test_flows_begun_without_a_process(self):
        """One by UDP that lasts is led elsewhere by a process that begins later."""
        self.answer_datagrams()
        with self.lab.endpoints[1].inside():
            # Else a machine sends one host few errors in a second (RFC 1812, 4.3.2.8).
            for setting in ("ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"):
                Path("/proc/sys/net", setting).write_text("0")
        placed = self.service(numbers=[0, 1], protocol=Protocol.UDP)
        await self.apply(placed)
        await self.mode.stopService()
        flows = [Flow(self.lab.client, CLUSTER[self.version]) for _ in range(20)]
        for each in flows:
            self.addCleanup(each.close)

        def all_are_told():
            told = [each.ask() for each in flows]
            return all(told)

        await self.until(all_are_told)
        self.assertIn(False, [each.is_answered for each in flows])
        self.mode = self.new()
        self.mode.startService()
        await self.apply(placed)
        await self.until(lambda: all_are_told() and all(each.is_answered for each in flows))

    async def test_the_end_of_the_process(self):
        """What stays ejects nobody, and keeps no refusal from clients."""
        self.serve(0)
        await self.apply(self.service(numbers=[0, 1]))
        await self.all_are_served({"0"})
        await self.mode.stopService()
        family = "ip" if self.version == 4 else "ip6"
        listed = self.lab.node.run("nft", "list", "table", family, "yurtproxy")
        self.assertNotIn("watch", listed)
        self.assertIn("numgen random mod 2", listed)


class RetryTests(Retry, KernelTestCase):
    """IPv4."""


class RetryIPv6Tests(Retry, KernelTestCase):
    """IPv6."""

    version = 6


class Bridge:
    """Pods on one bridge of the node, as bridge plugins of CNI have them."""

    bridged = True

    async def test_a_pod_that_refuses_another(self):
        """The rules see a refusal that the bridge passes on."""
        setting = Path("/proc/sys/net/bridge", BRIDGED[self.version])
        if not setting.exists():
            raise SkipTest("this kernel has no br_netfilter")
        setting.write_text("1")
        self.serve(0)
        await self.apply(self.service(numbers=[0, 1]))
        await self.clients_are_soon_served(self.lab.endpoints[2])
        self.assertTrue(self.mode.ejections.is_ejected(*self.target(1)))


class BridgeTests(Bridge, KernelTestCase):
    """IPv4."""


class BridgeIPv6Tests(Bridge, KernelTestCase):
    """IPv6."""

    version = 6


class OtherKernelTests(KernelTestCase):
    """Kernels and machines that lack something."""

    async def test_available(self):
        """This one has everything, in both families; asking changes nothing."""
        # What the process has of its own may still be coming.
        await self.mode.stopService()
        await self.mode.rules.remove()
        before = self.lab.node.run("nft", "list", "ruleset")
        for version in (4, 6):
            self.assertIsNone(await kernel_mode_available(Programs(reactor), version))
        self.assertEqual(before, self.lab.node.run("nft", "list", "ruleset"))

    async def test_without_nft(self):
        """It is said what is not installed."""
        self.assertIn("nft is not installed", await kernel_mode_available(FakePrograms()))

    async def test_a_kernel_without_tables_of_processes(self):
        """It is told, and refusals are kept from clients all the same."""
        await self.mode.stopService()
        self.patch(own_table, "_OWNER", 1 << 30)
        self.mode = self.new()
        with capturedLogs() as logged:
            self.mode.startService()
            self.serve(0)
            await self.apply(self.service(numbers=[0, 1]))
            await self.until(lambda: [each for each in logged if "Linux 5.12" in str(each)])
            await self.until(lambda: f"{ATTENDED:#010x}" not in self.listed("watch-reset"))
        await self.until_served_by({"0"})

    def listed(self, chain):
        """Return the rules of a chain."""
        return self.lab.node.run("nft", "list", "chain", "ip", "yurtproxy", chain)

    async def test_another_process(self):
        """A second one does not watch, and says why, until the first has ended."""
        other = self.new()
        other.startService()
        self.addCleanup(other.stopService)
        self.assertIn("another yurtproxy", other.problem)
        await self.mode.stopService()
        await self.until(lambda: other.problem is None)
        self.serve(0)
        self.mode = other
        await self.apply(self.service(numbers=[0, 1]))
        await self.until_served_by({"0"})
