"""Servers behind one address or name: agents connect to each as soon as it is published."""

from __future__ import annotations

import itertools
from pathlib import Path

from twisted.internet import reactor
from twisted.protocols.portforward import ProxyFactory

from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import AGENT_PORT, SERVERS, SPARE_ADDRESS
from tests.e2e.support import which

NOTICED_SECONDS = 15.0
"""Seconds from the update of the EndpointSlices: agents check them within five seconds, and again
if the balancer connects them to a server to which they are already connected."""

NAME = "tunnel.example"


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

    async def test_both_addresses_of_a_name_are_found(self):
        """An agent connects to both servers of one name, whose addresses have a fixed order."""
        world = await self.make_world()
        await world.add_nodes("edge-1")
        names = ("--cert-dns-names", NAME)
        self.servers = [await world.server(address, *names) for address in SERVERS[:2]]
        await world.write_slice(*SERVERS[:2])
        hosts = world.directory / "hosts"
        entries = "".join(f"{address} {NAME}\n" for address in SERVERS[:2])
        hosts.write_text(Path("/etc/hosts").read_text() + entries)
        agent = await world.agent("edge-1", "--tunnelserver-addr", f"{NAME}:{AGENT_PORT}")
        mount = f'{which("mount")} --bind {hosts} /etc/hosts && exec "$@"'
        agent.run_under(which("unshare"), "--mount", "sh", "-c", mount, "sh")
        for program in (*self.servers, agent):
            program.start()
        for program in (*self.servers, agent):
            await program.ready(60)
        await self.connected(self.servers, ["edge-1"])
