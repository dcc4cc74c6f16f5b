"""Tests of connections that the kernel sends to healthy endpoints, with real packets."""

from __future__ import annotations

import re
import socket
from collections import Counter
from ipaddress import ip_network
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.error import TimeoutError

from tests.proxy.kernel.lab import (
    CLIENT,
    CLUSTER,
    EXTERNAL,
    NODE,
    PODS,
    PORT,
    Server,
    connect,
    hang_up,
    out_of_window,
)
from tests.proxy.kernel.support import FAMILY, HOSTS, KernelTestCase, most_retransmissions
from tests.waiting import until
from yurttunnel.ops.programs import Programs
from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.kernel.connection_counts import ConnectionCounts
from yurttunnel.proxy.kernel.parts import Masquerade
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
from yurttunnel.steering.netlink.worker import KernelWorker

LOOPBACK = {4: "127.0.0.1", 6: "::1"}

_SEEN = """
table inet seen {
    counter invalid { }
    chain input {
        type filter hook input priority 0;
        ct state invalid counter name invalid
    }
}
"""
"""Counts packets to this machine that conntrack considers invalid."""

_OTHER_MARKS = """
table inet others {
    chain prerouting {
        type filter hook prerouting priority mangle;
        ct state new ct mark set 0xea6c
    }
}
"""
"""A program whose marks include our bits."""


class Carrying:
    """Healthy endpoints, by the version of IP."""

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
        """A client keeps its endpoint, and gets another one when that is removed."""
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
        """A client's timeout restarts with each connection."""
        self.serve_all()
        await self.apply(self.service(affinity=50.0))
        await self.clients(1, CLUSTER[self.version])
        first = self.seconds_of_affinity()
        # Longer than the next check takes on a busy machine.
        await until(lambda: self.seconds_of_affinity() < first - 2)
        before = self.seconds_of_affinity()
        await self.clients(1, CLUSTER[self.version])
        self.assertGreater(self.seconds_of_affinity(), before)

    async def test_affinity_gets_shorter(self):
        """A shorter timeout applies to all clients; a longer one takes no endpoint from any."""
        self.serve_all()
        for seconds, is_kept in ((100.0, True), (200.0, True), (50.0, False)):
            await self.apply(self.service(affinity=seconds))
            if seconds == 100.0:
                await self.clients(1, CLUSTER[self.version])
            listed = self.listed()
            self.assertEqual(is_kept, CLIENT[self.version] in listed)

    async def test_connections_are_counted(self):
        """Connections count once, whatever happens to endpoints, also after the process ended."""
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
        """A client counts as one connection, whatever it sends."""
        await self.apply(self.service(numbers=[0], protocol=Protocol.UDP))
        self.answer_datagrams()
        await self.resolve(10)
        self.assertEqual(10, await self.counted(protocol=Protocol.UDP))

    async def counted(self, **service):
        """Return how many connections the service has had, as another process reads it."""
        counts = ConnectionCounts(reactor, KernelWorker(reactor).run, (4, 6))
        counts.startService()
        the_service = self.service(**service)
        await until(lambda: counts.of(the_service).total is not None)
        await counts.stopService()
        return counts.of(the_service).total

    async def test_the_other_mode(self):
        """User mode takes over the table, and nothing of kernel mode remains."""
        await self.apply(self.service(affinity=60.0))
        programs = Programs(reactor)
        tables = Tables((4, 6), user_part, HOSTS.get, Networks())
        await Nftables(reactor, programs, tables).apply(
            [ProxiedService(self.service(numbers=[]), 40000)]
        )
        listed = self.listed()
        self.assertNotIn("counter", listed)
        self.assertIn(": 40000", listed)

    def seconds_of_affinity(self):
        """Return for how much longer the only client keeps its endpoint."""
        listed = self.listed()
        seconds, milliseconds = re.search(r"expires (?:(\d+)s)?(?:(\d+)ms)?", listed).groups()
        return int(seconds or 0) + int(milliseconds or 0) / 1000

    async def test_source_is_preserved_within_the_cluster(self):
        """Endpoints see the address of a client of a cluster IP."""
        self.serve_all()
        await self.apply(self.service())
        found = await self.clients(3, CLUSTER[self.version])
        self.assertEqual({CLIENT[self.version]}, self.seen(found))

    async def test_external_clients(self):
        """Endpoints see this node, to which they must reply, unless all endpoints are here."""
        self.serve_all()
        node_port = Portal(PortalKind.NODE_PORT, None, 30080)
        portals = (node_port, self.external(PortalKind.EXTERNAL_IP))
        for kept, seen in ((False, PODS), (True, CLIENT)):
            await self.apply(self.service(portals=portals, keeps_source=kept))
            found = await self.clients(3, NODE[self.version], port=30080)
            found += await self.clients(3, EXTERNAL[self.version])
            self.assertEqual({seen[self.version]}, self.seen(found))

    async def test_marks_of_others(self):
        """Others' marks have no effect: such a client is seen with its address, and refused."""
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
        """It is refused at once: no endpoint could reply to a client with such an address."""
        self.serve_all()
        await self.apply(self.service(portals=(Portal(PortalKind.NODE_PORT, None, 30080),)))
        found = await self.clients(3, NODE[self.version], self.lab.node, port=30080)
        self.assertEqual({PODS[self.version]}, self.seen(found))
        await self.is_refused(self.lab.node, LOOPBACK[self.version], 30080)

    async def test_hairpin(self):
        """An endpoint reaches itself through its service."""
        self.serve_all()
        local = frozenset([self.lab.address(0, self.version)])
        await self.apply(self.service(numbers=[0], local=local))
        found = await self.clients(3, CLUSTER[self.version], self.lab.endpoints[0])
        self.assertEqual({PODS[self.version]}, self.seen(found))

    async def test_own_packets_to_external_portals(self):
        """Own packets are served by the endpoints for clients within the cluster."""
        await self.own_packets_are_served_by(self.service(numbers=[0], scope=Scope.INTERNAL))

    async def test_own_packets_where_both_policies_are_local(self):
        """Own packets are served by all endpoints, even if both policies are ``Local``."""
        await self.own_packets_are_served_by(
            self.service(numbers=[2], scope=Scope.INTERNAL),
            self.service(numbers=[0], scope=Scope.CLUSTER, portals=()),
        )

    async def own_packets_are_served_by(self, *within):
        """Require that endpoint 0 serves packets of this machine through an external portal."""
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

    async def test_no_endpoints(self):
        """Clients are refused at once, or get nothing."""
        for inside in (self.lab.client, self.lab.node):
            await self.apply(self.service(numbers=[]))
            # Dropped packets may have been retransmitted.
            self.lab.attempts()
            await self.is_refused(inside)
            self.assertLessEqual(self.lab.attempts(), 1)
            await self.apply(
                self.service(numbers=[], no_endpoints_action=NoEndpointsAction.DROPPED)
            )
            await self.assertFailure(
                connect(inside, CLUSTER[self.version], timeout=0.3), TimeoutError
            )

    async def test_source_ranges(self):
        """Only clients in the source ranges reach a load balancer's address."""
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
        """Services that the kernel cannot carry are redirected to their proxy port."""
        server = Server("proxy")
        port = reactor.listenTCP(0, server, interface="::")
        self.addCleanup(hang_up, port)
        proxied = ProxiedService(self.service(numbers=[]), port.getHost().port)
        await self.mode.rules.apply([proxied])
        for inside in (self.lab.client, self.lab.node):
            found = await self.clients(3, CLUSTER[self.version], inside)
            self.assertEqual({"proxy"}, {each.server for each in found})


class ForwardedTrafficTests(Carrying, KernelTestCase):
    """IPv4."""


class ForwardedTrafficIPv6Tests(Carrying, KernelTestCase):
    """IPv6."""

    version = 6


class OutOfWindow:
    """Packets that conntrack considers invalid, by the version of IP."""

    async def test_they_do_not_break_connections(self):
        """They are not forwarded untranslated to clients, which would reset the connection."""
        await self.apply(self.service(numbers=[0]))
        self.connection_survives()
        self.assertIn("ct state invalid drop", self.listed())

    async def test_those_for_this_machine(self):
        """Invalid packets for this machine reach it: only forwarding is blocked."""
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
        await until(lambda: "packets 1" in self.lab.node.run("nft", "list", "counters", "inet"))

    async def test_where_conntrack_is_liberal(self):
        """With liberal conntrack they belong to the connection, and no rule is needed; a sync
        detects the change.
        """
        await self.apply(self.service(numbers=[0]))
        Path("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal").write_text("1")
        await self.apply(self.service(numbers=[0]))
        self.assertNotIn("invalid", self.listed())
        self.connection_survives()

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


class MasqueradeTests(KernelTestCase):
    """Masquerading of clients of cluster IPs."""

    masquerade = Masquerade(pods=(ip_network("10.5.0.0/24"), ip_network("fd01::/64")))

    async def test_clients_of_other_machines(self):
        """The client is in a pod network with IPv4, and keeps its address; with IPv6 it is not."""
        self.serve_all()
        for version, seen in ((4, CLIENT), (6, PODS)):
            await self.apply(self.service(version))
            found = await self.clients(3, CLUSTER[version])
            self.assertEqual({seen[version]}, self.seen(found))
