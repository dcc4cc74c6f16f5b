"""Tests of the rules of iptables, with real packets."""

from __future__ import annotations

import errno
import select
import shutil
import socket
from ipaddress import ip_address, ip_network

from twisted.internet import reactor
from twisted.trial.unittest import SkipTest, TestCase

from tests.e2e.network.namespaces import run
from tests.steering.firewall.machines import BASES, use_own_lock
from tests.steering.firewall.networks import Networks
from yurttunnel.ops.programs import Programs
from yurttunnel.proxy.host_address import host_address
from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.rules.iptables.rules import IptablesRules
from yurttunnel.proxy.sockets.local_address import (
    SPACE,
    enable_local_address,
    from_local_address,
    local_address,
)
from yurttunnel.proxy.state.virtual_services import (
    Key,
    NoEndpointsAction,
    Portal,
    PortalKind,
    Protocol,
    Scope,
    ServicePortName,
    VirtualService,
)

PODS = {4: ("10.9.0.1", "10.9.0.2"), 6: ("fd09::1", "fd09::2")}
OUTSIDE = {4: ("10.8.0.1", "10.8.0.2"), 6: ("fd08::1", "fd08::2")}
"""Networks of pods, and of the default route: this machine's address, and the other's."""

PREFIXES = {4: "10.96.0.", 6: "fd96::"}
LOOPBACK = {4: "127.0.0.1", 6: "::1"}

CLUSTER, EXTERNAL, OWN_EXTERNAL, BALANCER, OWN_BALANCER = range(1, 6)
"""The last parts of addresses of portals; the own ones are addresses of this machine, too."""

PORT, NODE_PORT, PROXY_PORT, OTHER_PROXY_PORT = 80, 30080, 4000, 4001

NO_ANSWER_SECONDS = 0.3
"""How long to wait for an answer that must not arrive; a refusal takes less than 1 ms."""


class PacketsContract(Networks):
    """A machine with a network of pods, and one outside, to which the default route leads."""

    def setUp(self):
        """Make all three, with a listener outside at the external address of another machine."""
        for base in BASES.values():
            if shutil.which(f"{base}-{self.back_end}") is None:
                raise SkipTest(f"{base}-{self.back_end} is not installed")
        use_own_lock(self)
        self.enter()
        self.add([self.address(OWN_EXTERNAL), self.address(OWN_BALANCER)])
        self.listeners = {port: self.listen(port) for port in (PROXY_PORT, OTHER_PROXY_PORT)}
        with self.neighbour("outside", *OUTSIDE[self.version]):
            self.add([self.address(EXTERNAL)])
            self.listeners["outside"] = self.listen(PORT)
            self.outsiders = [self.socket() for _ in range(8)]
        run("ip", "route", "add", "default", "via", OUTSIDE[self.version][1])
        with self.neighbour("pods", *PODS[self.version]):
            self.pods = [self.socket() for _ in range(16)]
            self.udp_pods = [self.socket(socket.SOCK_DGRAM) for _ in range(4)]
        # For this back end and family only: detection is tested elsewhere.
        run(*f"{BASES[4]}-{self.back_end} -w 20 -t mangle -N KUBE-IPTABLES-HINT".split())
        self.rules = IptablesRules(reactor, Programs(reactor), host_address)

    def address(self, last):
        """Return an address of a portal."""
        return f"{PREFIXES[self.version]}{last}"

    def portals(self, *kinds_and_lasts, sources=None):
        """Return portals by kind and the last part of their address."""
        return tuple(
            Portal(kind, ip_address(self.address(last)), PORT, sources)
            for kind, last in kinds_and_lasts
        )

    def proxied(
        self, *portals, port=PROXY_PORT, protocol=Protocol.TCP, scope=Scope.ALL, name="web", **more
    ):
        """Place a virtual service."""
        key = Key(ServicePortName("shop", name, ""), self.version, protocol, scope)
        return ProxiedService(VirtualService(key, portals, (), **more), port)

    def all_portals(self):
        """Return one portal of each kind, and those at addresses of this machine."""
        return (
            *self.portals(
                (PortalKind.CLUSTER_IP, CLUSTER),
                (PortalKind.EXTERNAL_IP, EXTERNAL),
                (PortalKind.EXTERNAL_IP, OWN_EXTERNAL),
                (PortalKind.LOAD_BALANCER_IP, BALANCER),
                (PortalKind.LOAD_BALANCER_IP, OWN_BALANCER),
            ),
            Portal(PortalKind.NODE_PORT, None, NODE_PORT),
        )

    def way(self, client, address, port=PORT):
        """Return the port of the listener that a new connection reaches, -1 if none does."""
        client.settimeout(NO_ANSWER_SECONDS)
        try:
            client.connect((address, port))
        except TimeoutError:
            return -1
        except ConnectionRefusedError:
            return errno.ECONNREFUSED
        (took,), _, _ = select.select(list(self.listeners.values()), [], [], 20)
        connection, _ = took.accept()
        self.addCleanup(connection.close)
        return next(name for name, each in self.listeners.items() if each is took)

    def from_pod(self, address, port=PORT):
        """Connect from a pod."""
        return self.way(self.pods.pop(), address, port)

    def from_outside(self, address, port=PORT):
        """Connect from a machine that is not a node."""
        return self.way(self.outsiders.pop(), address, port)

    def from_here(self, address, port=PORT):
        """Connect from a program of this machine."""
        return self.way(self.socket(), address, port)

    async def test_led(self):
        """Each portal leads to the proxy port: from pods, from outside, and from this machine."""
        await self.rules.apply([self.proxied(*self.all_portals())])
        lasts = CLUSTER, OWN_EXTERNAL, BALANCER, OWN_BALANCER
        for where in (self.from_pod, self.from_here):
            found = [where(self.address(last)) for last in lasts]
            self.assertEqual([PROXY_PORT] * 4, found)
            for address in (PODS[self.version][0], OUTSIDE[self.version][0]):
                self.assertEqual(PROXY_PORT, where(address, NODE_PORT))
        self.assertEqual(PROXY_PORT, self.from_here(LOOPBACK[self.version], NODE_PORT))
        self.assertEqual(PROXY_PORT, self.from_outside(OUTSIDE[self.version][0], NODE_PORT))
        self.assertEqual(PROXY_PORT, self.from_outside(self.address(CLUSTER)))

    async def test_external_ip_elsewhere(self):
        """Incoming packets are redirected; this machine itself reaches the other machine."""
        await self.rules.apply([self.proxied(*self.all_portals())])
        self.assertEqual(PROXY_PORT, self.from_pod(self.address(EXTERNAL)))
        self.assertEqual("outside", self.from_here(self.address(EXTERNAL)))

    async def test_nothing_else(self):
        """Other ports of the addresses, and node ports at other machines, are not redirected."""
        await self.rules.apply([self.proxied(*self.all_portals())])
        self.assertEqual(errno.ECONNREFUSED, self.from_pod(PODS[self.version][0], PORT + 1))
        self.assertEqual(errno.ECONNREFUSED, self.from_pod(OUTSIDE[self.version][1], NODE_PORT))

    async def test_balancer_before_node_port(self):
        """A load balancer's address of this machine takes precedence over a node port."""
        balancer = Portal(
            PortalKind.LOAD_BALANCER_IP, ip_address(self.address(OWN_BALANCER)), NODE_PORT
        )
        other = self.proxied(
            Portal(PortalKind.NODE_PORT, None, NODE_PORT), port=OTHER_PROXY_PORT, name="a"
        )
        await self.rules.apply([other, self.proxied(balancer)])
        for where in (self.from_pod, self.from_here):
            self.assertEqual(PROXY_PORT, where(self.address(OWN_BALANCER), NODE_PORT))
            self.assertEqual(OTHER_PROXY_PORT, where(PODS[self.version][0], NODE_PORT))

    async def test_policy_drop(self):
        """Node ports are reachable if the machine's policy drops packets."""
        prefix = f"{BASES[self.version]}-{self.back_end} -w 20"
        run(*f"{prefix} -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT".split())
        if self.version == 6:
            run(*f"{prefix} -A INPUT -p ipv6-icmp -j ACCEPT".split())
        run(*f"{prefix} -P INPUT DROP".split())
        await self.rules.apply([self.proxied(*self.all_portals())])
        self.assertEqual(PROXY_PORT, self.from_outside(OUTSIDE[self.version][0], NODE_PORT))
        await self.rules.apply([self.proxied(*self.all_portals()[:-1])])
        self.assertEqual(-1, self.from_outside(OUTSIDE[self.version][0], NODE_PORT))

    async def test_datagrams(self):
        """Datagrams take the same paths, and replies come from the address they were sent to."""
        server = self.socket(socket.SOCK_DGRAM)
        server.bind(("", PROXY_PORT))
        enable_local_address(server)
        await self.rules.apply([self.proxied(*self.all_portals(), protocol=Protocol.UDP)])
        for make in (self.udp_pods.pop, lambda: self.socket(socket.SOCK_DGRAM)):
            for address, port in (
                (self.address(CLUSTER), PORT),
                (PODS[self.version][0], NODE_PORT),
            ):
                client = make()
                client.connect((address, port))
                client.send(b"question")
                question, ancillary, _, source = server.recvmsg(100, SPACE)
                answer_from = from_local_address(local_address(ancillary))
                server.sendmsg([b"answer"], answer_from, 0, source)
                self.assertEqual((b"question", b"answer"), (question, client.recv(100)))

    async def test_refused(self):
        """Portals without endpoints are refused at once, even though a socket claims their port."""
        self.listeners[NODE_PORT] = self.listen(NODE_PORT)
        self.assertEqual(NODE_PORT, self.from_pod(PODS[self.version][0], NODE_PORT))
        await self.rules.apply([self.proxied(*self.all_portals(), port=None)])
        for where in (self.from_pod, self.from_here):
            for last in (CLUSTER, OWN_EXTERNAL, BALANCER, OWN_BALANCER):
                self.assertEqual(errno.ECONNREFUSED, where(self.address(last)), last)
            self.assertEqual(errno.ECONNREFUSED, where(PODS[self.version][0], NODE_PORT))
        self.assertEqual(errno.ECONNREFUSED, self.from_pod(self.address(EXTERNAL)))
        self.assertEqual("outside", self.from_here(self.address(EXTERNAL)))
        await self.rules.apply([self.proxied(*self.all_portals())])
        self.assertEqual(PROXY_PORT, self.from_pod(self.address(CLUSTER)))

    async def test_datagrams_refused(self):
        """Datagrams without endpoints are rejected; for programs of this machine at once."""
        await self.rules.apply(
            [self.proxied(*self.all_portals(), protocol=Protocol.UDP, port=None)]
        )
        pod, own = self.udp_pods.pop(), self.socket(socket.SOCK_DGRAM)
        for client in (pod, own):
            client.connect((self.address(CLUSTER), PORT))
        pod.send(b"question")
        self.assertRaises(ConnectionRefusedError, pod.recv, 100)
        self.assertRaises(PermissionError, own.send, b"question")

    async def test_local_policy(self):
        """Without local endpoints external clients get no answer; programs of the node do."""
        internal, *_, balancer, node_port = self.all_portals()
        await self.rules.apply(
            [
                self.proxied(internal, scope=Scope.INTERNAL),
                self.proxied(
                    balancer,
                    node_port,
                    scope=Scope.EXTERNAL,
                    port=None,
                    no_endpoints_action=NoEndpointsAction.DROPPED,
                    keeps_source=True,
                ),
            ]
        )
        self.assertEqual(-1, self.from_outside(str(balancer.address)))
        self.assertEqual(-1, self.from_outside(OUTSIDE[self.version][0], NODE_PORT))
        self.assertEqual(PROXY_PORT, self.from_here(str(balancer.address)))
        self.assertEqual(PROXY_PORT, self.from_here(PODS[self.version][0], NODE_PORT))
        self.assertEqual(PROXY_PORT, self.from_pod(str(internal.address)))

    async def test_external_portals_from_within(self):
        """Packets of this machine and known pods go to the endpoints for the cluster."""
        internal, *_, balancer, node_port = self.all_portals()
        bits = 24 if self.version == 4 else 64
        pods = ip_network(f"{PODS[self.version][0]}/{bits}", strict=False)
        rules = IptablesRules(reactor, Programs(reactor), host_address, pods=[pods])
        await rules.apply(
            [
                self.proxied(internal, scope=Scope.INTERNAL),
                self.proxied(
                    balancer,
                    node_port,
                    scope=Scope.EXTERNAL,
                    port=OTHER_PROXY_PORT,
                    keeps_source=True,
                ),
            ]
        )
        node = OUTSIDE[self.version][0]
        for address, port in ((str(balancer.address), PORT), (node, NODE_PORT)):
            self.assertEqual(OTHER_PROXY_PORT, self.from_outside(address, port))
            self.assertEqual(PROXY_PORT, self.from_here(address, port))
            self.assertEqual(PROXY_PORT, self.from_pod(address, port))

    async def test_source_ranges(self):
        """Clients outside the source ranges never reach a load balancer's address, others do."""
        bits = 24 if self.version == 4 else 64
        pods = ip_network(f"{PODS[self.version][0]}/{bits}", strict=False)
        for last in (BALANCER, OWN_BALANCER):
            restricted = self.portals((PortalKind.LOAD_BALANCER_IP, last), sources=(pods,))
            node_port = Portal(PortalKind.NODE_PORT, None, NODE_PORT)
            await self.rules.apply([self.proxied(*restricted, node_port)])
            self.assertEqual(PROXY_PORT, self.from_pod(self.address(last)))
            self.assertEqual(-1, self.from_outside(self.address(last)))
            self.assertEqual(-1, self.from_here(self.address(last)))
            self.assertEqual(PROXY_PORT, self.from_outside(OUTSIDE[self.version][0], NODE_PORT))
            await self.rules.apply([self.proxied(*restricted, port=None)])
            self.assertEqual(errno.ECONNREFUSED, self.from_pod(self.address(last)))
            self.assertEqual(-1, self.from_outside(self.address(last)))

    async def test_source_ranges_with_this_machine(self):
        """This machine is allowed if a range includes it, also from the load balancer's address."""
        here = ip_network(OUTSIDE[self.version][0])
        lasts = BALANCER, OWN_BALANCER
        restricted = self.portals(
            *((PortalKind.LOAD_BALANCER_IP, last) for last in lasts), sources=(here,)
        )
        await self.rules.apply([self.proxied(*restricted)])
        self.assertEqual([PROXY_PORT] * 2, [self.from_here(self.address(last)) for last in lasts])
        self.assertEqual(-1, self.from_pod(self.address(BALANCER)))

    async def test_connections_go_on(self):
        """Established connections are not disturbed by other services, nor by the removal of rules.

        This requires that other rules keep connection tracking active, as in Kubernetes.
        """
        prefix = f"{BASES[self.version]}-{self.back_end} -w 20"
        run(*f"{prefix} -A INPUT -m conntrack --ctstate RELATED -j ACCEPT".split())
        await self.rules.apply([self.proxied(*self.all_portals())])
        client = self.pods.pop()
        client.connect((self.address(CLUSTER), PORT))
        server, _ = self.listeners[PROXY_PORT].accept()
        self.addCleanup(server.close)
        other = self.proxied(Portal(PortalKind.NODE_PORT, None, NODE_PORT + 1), name="other")
        server.settimeout(5)
        for step in (
            lambda: self.rules.apply([self.proxied(*self.all_portals()), other]),
            lambda: self.rules.apply([other]),
            self.rules.remove,
        ):
            await step()
            client.send(b"still here")
            self.assertEqual(b"still here", server.recv(100))

    async def test_host_address(self):
        """It is the address of the default route's interface, or none without a default route."""
        self.assertEqual(ip_address(OUTSIDE[self.version][0]), host_address(self.version))
        run("ip", f"-{self.version}", "route", "del", "default")
        self.assertIsNone(host_address(self.version))
        await self.rules.apply([self.proxied(*self.all_portals())])
        self.assertEqual(PROXY_PORT, self.from_here(PODS[self.version][0], NODE_PORT))


class NftIPv4Tests(PacketsContract, TestCase):
    """The newer back end."""

    version, back_end = 4, "nft"


class NftIPv6Tests(PacketsContract, TestCase):
    """The newer back end."""

    version, back_end = 6, "nft"


class LegacyIPv4Tests(PacketsContract, TestCase):
    """The older back end."""

    version, back_end = 4, "legacy"


class LegacyIPv6Tests(PacketsContract, TestCase):
    """The older back end."""

    version, back_end = 6, "legacy"
