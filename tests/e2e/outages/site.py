"""A server in a cloud and agents behind a real NAT, on a network in which a test causes faults."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from benchmarks.ports import free_ports
from tests.e2e.clients import EchoClient, Peer, Target
from tests.e2e.leaks import LeakTestCase
from tests.e2e.network.sites import Sites
from tests.e2e.outages.gateway import Gateway
from tests.e2e.programs import Agent, Program, Tunnel

SERVER, SERVER_6 = "10.77.0.21", "fd77::21"
"""The server's addresses in the cloud, which are reachable from everywhere."""

SITE = "192.168.50"
"""The prefix of the edge nodes' addresses, on their side of the NAT."""


class MachineAgent(Agent):
    """An agent on a machine of the network, for a node with the machine's name."""

    def __init__(
        self,
        network: Sites,
        machine: str,
        directory: str,
        tunnel: Tunnel,
        *extra: str,
        version: int = 4,
    ) -> None:
        server = SERVER if version == 4 else f"[{SERVER_6}]"
        super().__init__(
            reactor,
            directory,
            server_port=tunnel.server.agent_port,
            token_path=tunnel.server.token_path,
            node=machine,
            state=machine,
            extra=(
                *("--tunnelserver-addr", f"{server}:{tunnel.server.agent_port}"),
                *("--node-ip", network.addresses[machine][version == 6]),
                *("--meta-host", "127.0.0.1"),
                *("--allow-destination", "127.0.0.1"),
                *extra,
            ),
        )
        self._network = network
        self._machine = machine

    def start(self) -> None:
        """Start it on its machine."""
        with self._network.inside(self._machine):
            super().start()

    def get(self, path: str) -> Deferred[tuple[int, str]]:
        """Fetch a page of its meta server, which listens on the machine's loopback address."""
        with self._network.inside(self._machine):
            return Deferred.fromCoroutine(super().get(path))


class SiteTestCase(LeakTestCase):
    """A test case with the network, and a server in the cloud without agents."""

    server_extra: tuple[str, ...] = ()
    """Further arguments of the server."""

    version = 4
    """The version of IP between agents and the server."""

    async def setUp(self) -> None:
        """Create the network, and start the server."""
        await super().setUp()
        self.network = Sites()
        self.addCleanup(self.network.close)
        self.gateway = Gateway(self.network, self.version)
        everywhere = "0.0.0.0" if self.version == 4 else "::"
        self.tunnel = self.make_tunnel(
            server_extra=(
                *("--bind-address", everywhere, "--insecure-bind-address", "127.0.0.1"),
                *self.server_extra,
            )
        )
        self.server = self.tunnel.server
        self.prepare(self.server)
        self.server.start()
        await self.server.ready()

    def make_agent(self, machine: str, *extra: str) -> MachineAgent:
        """Prepare the agent of a machine; it is stopped and checked at the end of the test."""
        agent = MachineAgent(
            self.network, machine, self.directory, self.tunnel, *extra, version=self.version
        )
        self.prepare(agent)
        self.tunnel.others.append(agent)
        return agent

    def prepare(self, program: Program) -> None:
        """Do nothing; a subclass may change a program before its first start."""

    async def start_agent(self, machine: str, *extra: str) -> MachineAgent:
        """Start the agent of a machine, wait until it is connected, and watch both programs."""
        agent = self.make_agent(machine, *extra)
        agent.start()
        await agent.ready()
        await self.watch(self.server, agent)
        return agent

    def listen_on(self, machine: str, build) -> Target:
        """Start a target at the loopback address of a machine; it is stopped with the test."""
        with self.network.inside(machine):
            return self.listen(build, free_ports.take())

    async def status_through(self, machine: str, target: Target, peer: Peer) -> int:
        """Connect ``peer`` to a target of a machine through its agent; return the status."""
        headers = {"X-Tunnel-Proxy-Host": machine}
        authority = f"127.0.0.1:{target.port}"
        return (await self.connect(self.tunnel, authority, peer, headers)).status

    async def echo(self, machine: str, target: Target) -> EchoClient:
        """Make one successful round trip on a new stream to an echo on a machine."""
        client = EchoClient(reactor)
        self.assertEqual(await self.status_through(machine, target, client), 200)
        await self.within(10, client.round_trip(), f"an echo of {machine} answers")
        return client

    async def source_port(self, node: str) -> int:
        """Return the source port of a node's connection, as the server sees it."""
        return await source_port(self.server, node)


async def source_port(server: Program, node: str) -> int:
    """Return the source port of a node's connection, as a server sees it."""
    [port] = [
        int(entry["address"].rpartition(":")[2])
        for entry in await server.agents()
        if entry["node"] == node and entry["connected"]
    ]
    return port
