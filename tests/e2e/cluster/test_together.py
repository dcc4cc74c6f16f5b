"""Servers that start together behind one address: agents connect to each when it is published."""

from __future__ import annotations

import itertools

from twisted.internet import reactor
from twisted.protocols.portforward import ProxyFactory

from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import AGENT_PORT, SERVERS, SPARE_ADDRESS

NOTICED_SECONDS = 15.0
"""Seconds from the update of the EndpointSlices: agents check them within five seconds, and again
if the balancer connects them to a server to which they are already connected."""


class RoundRobin(ProxyFactory):
    """A round-robin balancer: each connection goes to the next server."""

    noisy = False

    def __init__(self) -> None:
        super().__init__(None, AGENT_PORT)
        self._hosts = itertools.cycle(SERVERS[:2])

    def buildProtocol(self, addr):
        """Choose the server."""
        self.host = next(self._hosts)
        return super().buildProtocol(addr)


class TogetherTests(ClusterTestCase):
    """Two servers whose EndpointSlice is written one endpoint after the other."""

    async def test_the_second_server_is_found_at_once(self):
        """It is found at once, not at the next probe minutes later."""
        world = await self.make_world()
        await world.add_nodes("edge-1")
        with world.network.at(SPARE_ADDRESS):
            balancer = reactor.listenTCP(AGENT_PORT, RoundRobin(), interface=SPARE_ADDRESS)
        self.addCleanup(balancer.stopListening)
        await world.write_slice()
        await world.announce(f"{SPARE_ADDRESS}:{AGENT_PORT}")
        first = await world.server(SERVERS[0])
        agent = await world.agent("edge-1")
        first.start()
        agent.start()
        await first.ready(60)
        await agent.ready(60)
        _, page = await agent.get("/readyz?verbose")
        self.assertRegex(page, r"every server: connected to 1 of 2 servers")
        await world.write_slice(SERVERS[0])
        await self.eventually(lambda: self.has_all(agent), "it has the one that is known", 20)
        second = await world.server(SERVERS[1])
        second.start()
        await second.ready(60)
        self.assertEqual([], await second.agents())
        await world.write_slice(*SERVERS[:2])
        await self.eventually(second.agents, "it is found", NOTICED_SECONDS)
        await self.eventually(lambda: self.has_all(agent), "it has both")

    async def has_all(self, agent) -> bool:
        """Whether the agent reports sessions with all servers."""
        _, page = await agent.get("/readyz?verbose")
        return "every server: ok" in page
