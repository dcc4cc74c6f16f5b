"""Tests of the nftables rules for user mode, with real packets."""

from __future__ import annotations

import errno
import socket
from contextlib import closing
from ipaddress import ip_address, ip_network

from twisted.internet import reactor
from twisted.internet.error import ConnectionRefusedError, TimeoutError
from twisted.trial.unittest import TestCase

from tests.proxy.kernel.lab import (
    CLIENT,
    CLUSTER,
    EXTERNAL,
    NODE,
    PODS,
    Lab,
    Server,
    connect,
    hang_up,
)
from tests.proxy.services import key, service
from yurttunnel.ops.programs import Programs
from yurttunnel.proxy.interfaces import ProxiedService
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

HOSTS = {version: ip_address(text) for version, text in NODE.items()}
LOOPBACK = {4: "127.0.0.1", 6: "::1"}
NODE_PORT = 30080
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}


class Packets:
    """Real packets, by the version of IP."""

    def setUp(self):
        """Make a proxy that listens on the node."""
        self.lab = Lab(1)
        self.addCleanup(self.lab.close)
        self.port = self.listen("proxy")

    def listen(self, name):
        """Listen on all addresses; return the port."""
        port = reactor.listenTCP(0, Server(name), interface="::")
        self.addCleanup(hang_up, port)
        return port.getHost().port

    async def apply(self, *proxied, networks=None):
        """Apply the rules."""
        networks = networks or Networks()
        tables = Tables((4, 6), user_part, HOSTS.get, networks)
        await Nftables(reactor, Programs(reactor), tables).apply(proxied)

    def proxied(self, *portals, port=None, scope=Scope.ALL, name="web", **more):
        """Make a service, by default without a socket."""
        the_key = key(name, version=self.version, scope=scope)
        return ProxiedService(service(key=the_key, portals=portals, **more), port)

    def portal(self, kind, sources=None):
        """Make a portal of a kind."""
        if kind is PortalKind.NODE_PORT:
            return Portal(kind, None, NODE_PORT)
        address = CLUSTER if kind is PortalKind.CLUSTER_IP else EXTERNAL
        return Portal(kind, ip_address(address[self.version]), 80, sources)

    async def served(self, inside, addresses, port=80):
        """Connect; return which listener serves which client."""
        found = await connect(inside, addresses[self.version], port)
        return found.server, str(ip_address(found.seen.removeprefix("::ffff:")))

    async def test_portals(self):
        """All lead to the proxy, from elsewhere, from pods and from this machine."""
        kinds = (PortalKind.CLUSTER_IP, PortalKind.EXTERNAL_IP, PortalKind.NODE_PORT)
        await self.apply(self.proxied(*map(self.portal, kinds), port=self.port))
        for inside in (self.lab.client, self.lab.endpoints[0], self.lab.node):
            for addresses, port in ((CLUSTER, 80), (EXTERNAL, 80), (NODE, NODE_PORT)):
                server, _ = await self.served(inside, addresses, port)
                self.assertEqual("proxy", server)
        found = await self.served(self.lab.client, CLUSTER)
        self.assertEqual(("proxy", CLIENT[self.version]), found)
        self.assertEqual("proxy", (await self.served(self.lab.node, LOOPBACK, NODE_PORT))[0])

    async def test_node_ports_of_some_addresses(self):
        """Other addresses of this machine have no node ports."""
        nets = tuple(ip_network(each) for each in NODE.values())
        networks = Networks(node_ports=nets)
        proxied = self.proxied(self.portal(PortalKind.NODE_PORT), port=self.port)
        await self.apply(proxied, networks=networks)
        await self.served(self.lab.client, NODE, NODE_PORT)
        refused = connect(self.lab.client, PODS[self.version], NODE_PORT)
        await self.assertFailure(refused, ConnectionRefusedError)

    async def test_no_endpoints(self):
        """Clients are refused, or get no answer."""
        kinds = PortalKind.CLUSTER_IP, PortalKind.NODE_PORT
        portals = [self.portal(kind) for kind in kinds]
        for inside in (self.lab.client, self.lab.node):
            for addresses, port in ((CLUSTER, 80), (NODE, NODE_PORT)):
                to = addresses[self.version]
                await self.apply(self.proxied(*portals))
                await self.assertFailure(connect(inside, to, port), ConnectionRefusedError)
                await self.apply(
                    self.proxied(*portals, no_endpoints_action=NoEndpointsAction.DROPPED)
                )
                await self.assertFailure(connect(inside, to, port, timeout=0.3), TimeoutError)

    async def test_no_endpoints_for_datagrams(self):
        """Clients are notified by ICMP."""
        portal = self.portal(PortalKind.CLUSTER_IP)
        the_key = key(protocol=Protocol.UDP, version=self.version)
        await self.apply(ProxiedService(service(key=the_key, portals=(portal,)), None))
        with self.lab.client.inside():
            client = socket.socket(FAMILY[self.version], socket.SOCK_DGRAM)
        with closing(client):
            client.settimeout(30)
            client.connect((CLUSTER[self.version], 80))
            client.send(b"?")
            with self.assertRaises(OSError) as refused:
                client.recv(1)
            self.assertEqual(errno.ECONNREFUSED, refused.exception.errno)

    async def test_a_portal_with_an_address_of_this_machine(self):
        """It precedes the node port of another Service, whichever of both has no endpoints."""
        balancer = Portal(
            PortalKind.LOAD_BALANCER_IP, ip_address(NODE[self.version]), NODE_PORT, None
        )
        node_port = self.portal(PortalKind.NODE_PORT)
        served, other = self.listen("balancer"), self.port
        for port, node_port_of_it in ((served, None), (served, other)):
            await self.apply(
                self.proxied(node_port, port=node_port_of_it, name="other"),
                self.proxied(balancer, port=port),
            )
            found, _ = await self.served(self.lab.client, NODE, NODE_PORT)
            self.assertEqual("balancer", found)
        await self.apply(
            self.proxied(node_port, port=other, name="other"), self.proxied(balancer, port=None)
        )
        refused = connect(self.lab.client, NODE[self.version], NODE_PORT)
        await self.assertFailure(refused, ConnectionRefusedError)
        found, _ = await self.served(self.lab.client, PODS, NODE_PORT)
        self.assertEqual("proxy", found)

    async def test_external_portals_from_within(self):
        """Packets of this machine and known pods go to the endpoints for the cluster."""
        within = self.listen("within")
        proxied = (
            self.proxied(self.portal(PortalKind.CLUSTER_IP), port=within, scope=Scope.INTERNAL),
            self.proxied(
                self.portal(PortalKind.EXTERNAL_IP),
                port=self.port,
                scope=Scope.EXTERNAL,
                keeps_source=True,
            ),
        )
        pods = ip_network("10.1.0.0/24"), ip_network("fd01::/64")
        await self.apply(*proxied, networks=Networks(pods=pods))
        for inside, name in (
            (self.lab.client, "proxy"),
            (self.lab.node, "within"),
            (self.lab.endpoints[0], "within"),
        ):
            server, _ = await self.served(inside, EXTERNAL)
            self.assertEqual(name, server)

    async def test_source_ranges(self):
        """Only clients of these networks reach a load balancer's address."""
        for address, error in ((CLIENT, None), (PODS, TimeoutError)):
            nets = (ip_network(address[self.version]),)
            portal = self.portal(PortalKind.LOAD_BALANCER_IP, nets)
            await self.apply(self.proxied(portal, port=self.port))
            if error is None:
                await connect(self.lab.client, EXTERNAL[self.version])
            else:
                connecting = connect(self.lab.client, EXTERNAL[self.version], timeout=0.3)
                await self.assertFailure(connecting, error)

    async def test_source_ranges_with_this_machine(self):
        """If the load balancer's address is its own, its packets come from there."""
        address = EXTERNAL[self.version]
        self.lab.node.run("ip", "address", "add", address, "dev", "lo")
        portal = self.portal(PortalKind.LOAD_BALANCER_IP, (ip_network(NODE[self.version]),))
        await self.apply(self.proxied(portal, port=self.port))
        self.assertEqual(("proxy", address), await self.served(self.lab.node, EXTERNAL))


class PacketsTests(Packets, TestCase):
    """IPv4."""

    version = 4


class PacketsIPv6Tests(Packets, TestCase):
    """IPv6."""

    version = 6
