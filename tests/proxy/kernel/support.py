"""A node in kernel mode with real packets: it, a client and endpoints each have a namespace."""

from __future__ import annotations

import socket
import time
from ipaddress import ip_address

from twisted.internet import reactor
from twisted.internet.defer import gatherResults
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from tests.proxy.kernel.lab import (
    CLIENT,
    CLUSTER,
    EXTERNAL,
    NODE,
    PORT,
    Echo,
    Lab,
    Resolver,
    Server,
    connect,
    hang_up,
)
from tests.proxy.services import key, service
from yurttunnel.ops.programs import Programs
from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.kernel.mode import KernelMode
from yurttunnel.proxy.kernel.parts import Masquerade
from yurttunnel.proxy.kernel.targets import Target
from yurttunnel.proxy.rules.nftables.table import FAMILIES
from yurttunnel.proxy.rules.nftables.tables import Networks
from yurttunnel.proxy.state.virtual_services import Portal, PortalKind, Protocol, Scope
from yurttunnel.steering.netlink.worker import KernelWorker

HOSTS = {version: ip_address(text) for version, text in NODE.items()}
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}


def most_retransmissions(found):
    """Return how often a client retransmitted its first packet at most: 1 takes 1 s."""
    return max(each.retransmissions for each in found)


class KernelTestCase(TestCase):
    """A node in kernel mode."""

    version = 4
    bridged = False
    masquerade = Masquerade()
    networks = Networks()

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
            self.networks,
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
        """Have all endpoints listen."""
        return [self.serve(number) for number in range(3)]

    def answer_datagrams(self):
        """Have the first endpoint answer UDP datagrams."""
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
        """Apply the rules."""
        return self.mode.rules.apply([ProxiedService(each, None) for each in services])

    def service(self, version=None, numbers=(0, 1, 2), portals=None, others=(), **more):
        """Make a service of some endpoints, by default all."""
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
        """Return an endpoint as a TCP target."""
        return Target(Protocol.TCP, self.lab.address(number, self.version))

    def clients(self, count, host, inside=None, port=80):
        """Connect many clients at once."""
        inside = inside or self.lab.client
        return gatherResults([connect(inside, host, port) for _ in range(count)])

    async def clients_are_soon_served(self, inside=None, then=None, host=None, port=80):
        """Require that clients are connected by the first packet that they send after the detection
        of dead endpoints, which is their second one: a second later. Return the results.

        ``then`` happens meanwhile. If this machine is so busy that detection takes more than a
        second, it may be a later packet, but only for that reason: the last step is to delete the
        entries of attempts at dead endpoints.
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
        """Require that a client is refused."""
        connecting = connect(inside or self.lab.client, host or CLUSTER[self.version], port)
        await self.assertFailure(connecting, ConnectionRefusedError)

    async def log_is_read(self):
        """Wait until the process has read the log of packets that have been delivered."""
        for _ in range(2):
            await deferLater(reactor, 0)

    async def until_served_by(self, servers):
        """Connect until these endpoints have served: rules follow a moment later."""
        served = set()
        while served != servers:
            served |= {each.server for each in await self.clients(8, CLUSTER[self.version])}

    def listed(self):
        """Return the rules of the family."""
        return self.lab.node.run("nft", "list", "table", FAMILIES[self.version], "yurtproxy")
