"""Kernel mode with real packets: a client, a node and endpoints, each in a namespace."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address

from twisted.internet import reactor
from twisted.internet.defer import gatherResults
from twisted.trial.unittest import TestCase

from tests.proxy.kernel.lab import CLUSTER, NODE, PORT, Lab, Server, connect
from tests.proxy.services import key, service
from yurttunnel.proxy.interfaces import Placed
from yurttunnel.proxy.kernel.mode import KernelMode
from yurttunnel.proxy.kernel.parts import Masquerade
from yurttunnel.proxy.rules.nftables.tables import Networks
from yurttunnel.proxy.state.virtual_services import Portal, PortalKind
from yurttunnel.steering.netlink.worker import KernelWorker
from yurttunnel.steering.programs import Programs

HOSTS = {version: ip_address(text) for version, text in NODE.items()}
NOT_RETRIED = 0.9
"""Seconds: a client's first packet is sent again after 1 s."""
MOST = 1.2
"""Seconds for the first packet that is sent again."""


class KernelTestCase(TestCase):
    """A node in kernel mode."""

    endpoints = 3
    masquerade = Masquerade()

    def setUp(self):
        """Make the network, and start."""
        self.lab = Lab(self.endpoints)
        self.addCleanup(self.lab.close)
        self.worker = KernelWorker(reactor)
        self.mode = KernelMode(
            reactor,
            Programs(reactor),
            self.worker.run,
            (4, 6),
            HOSTS.get,
            Networks(),
            self.masquerade,
        )
        self.mode.startService()
        self.addCleanup(self.mode.stopService)
        self.assertIsNone(self.mode.problem)
        self.servers = {}

    def serve(self, number):
        """Have an endpoint listen, in both families."""
        server = Server(str(number))
        with self.lab.endpoints[number].inside():
            port = reactor.listenTCP(PORT, server, interface="::")
        self.addCleanup(port.stopListening)
        self.servers[number] = server
        return port

    def apply(self, *services):
        """Make the rules."""
        return self.mode.rules.apply([Placed(each, None) for each in services])

    def service(self, version=4, numbers=None, portals=None, **more):
        """Make a service of some endpoints, of all where it is not said which."""
        numbers = range(self.endpoints) if numbers is None else numbers
        cluster = Portal(PortalKind.CLUSTER_IP, ip_address(CLUSTER[version]), 80)
        return service(
            [self.lab.address(number, version) for number in numbers],
            key=key(version=version),
            portals=portals or (cluster,),
            **more,
        )

    def clients(self, count, host, inside=None, port=80):
        """Connect many at once."""
        inside = inside or self.lab.client
        return gatherResults([connect(inside, host, port) for _ in range(count)])


class CarryingTests(KernelTestCase):
    """All endpoints are well."""

    async def test_all_serve(self):
        """Connections from elsewhere and from this node are spread, at once, in both families."""
        for number in range(3):
            self.serve(number)
        await self.apply(self.service(4), self.service(6))
        for version in (4, 6):
            for inside in (self.lab.client, self.lab.node):
                found = await self.clients(60, CLUSTER[version], inside)
                self.assertEqual(3, len(Counter(each.server for each in found)))
                self.assertLess(max(each.seconds for each in found), NOT_RETRIED)


class RetryTests(KernelTestCase):
    """Endpoints that are dead."""

    async def check_two_of_three_dead(self, version):
        """Have one be a black hole, and one refuse."""
        self.serve(0)
        self.lab.drop(1)
        await self.apply(self.service(version))
        found = await self.clients(24, CLUSTER[version])
        self.assertEqual({"0"}, {each.server for each in found})
        self.assertLess(max(each.seconds for each in found), MOST)
        found = await self.clients(24, CLUSTER[version])
        self.assertLess(max(each.seconds for each in found), NOT_RETRIED)

    async def test_two_of_three_dead(self):
        """All clients are served, at the latest by what they send after a second."""
        await self.check_two_of_three_dead(4)

    async def test_two_of_three_dead_by_ipv6(self):
        """So it is there."""
        await self.check_two_of_three_dead(6)
