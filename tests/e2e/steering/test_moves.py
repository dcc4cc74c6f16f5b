"""Nodes that move to or from the edge, callers elsewhere, and the server's own connections."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ClientEndpoint

from tests.e2e.clients import Peer, connect_directly
from tests.e2e.cluster.world import World
from tests.e2e.network.witness import start_witness
from tests.e2e.steering.support import CLOUD_4, EDGE_4, EDGE_6, SERVER, SteeringTestCase

PORT = 9100


class Asker(Peer):
    """Sends requests on one connection; ``answers`` has all received data."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.answers = b""
        self._request = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()

    def ask(self) -> None:
        """Send another request."""
        self.transport.write(self._request)

    def dataReceived(self, data: bytes) -> None:
        """Store received data."""
        super().dataReceived(data)
        self.answers += data


class MoveTests(SteeringTestCase):
    """A node's label changes while connections to it are open."""

    async def test_node_moves_to_the_edge_and_back(self) -> None:
        """A direct connection is reset, and a new one uses the tunnel. When the node moves back,
        the reverse happens. Connections to other nodes continue.
        """
        world = await self.start_with_port(agents=("edge-1", "cloud-2"))
        start_witness(self, reactor, self.network, "edge-1", EDGE_4, PORT)
        start_witness(self, reactor, self.network, "cloud-2", CLOUD_4, PORT)
        untouched = await self.asker(EDGE_4, b"edge-1 " + EDGE_4.encode())

        direct = await self.asker(CLOUD_4, b"cloud-2 10.77.0.1")
        await world.relabel("cloud-2", "true")
        await self.eventually_cut(direct)
        tunneled = await self.asker(CLOUD_4, b"cloud-2 " + CLOUD_4.encode())
        self.assertTrue((await self.assert_healthy(CLOUD_4)).terminated)

        await world.relabel("cloud-2", "false")
        await self.eventually_cut(tunneled)
        await self.asker(CLOUD_4, b"cloud-2 10.77.0.1")
        self.assertFalse((await self.assert_healthy(CLOUD_4, *self.verified())).terminated)
        await self.answered(untouched, b"edge-1 " + EDGE_4.encode())

    async def test_connection_that_only_listens(self) -> None:
        """A connection on which only the node sends, such as a followed log, is reset as well: its
        packets must not create the conntrack entry again.
        """
        world = await self.start_with_port(agents=("edge-1",))
        witness = start_witness(self, reactor, self.network, "cloud-2", CLOUD_4, PORT)
        log = await self.asker(CLOUD_4, b"cloud-2 10.77.0.1")
        witness.talk(log.transport.getHost().port)
        await self.eventually(lambda: log.answers.endswith(b"tick\n"), "the node speaks")
        await world.relabel("cloud-2", "true")
        await self.eventually(lambda: log.lost_reason, "the connection is cut", 20, 0.1)
        self.assertFalse(log.ended_cleanly, log.lost_reason)

    async def start_with_port(self, agents: tuple[str, ...]) -> World:
        """Start everything, with one more redirected port besides the kubelet's."""
        world = await self.steered_world("edge-1")
        await world.set_proxy_ports({"http-proxy-ports": str(PORT)})
        await self.steer("--enable-iptables=true", agents=agents)
        await self.eventually_rules(lambda rules: f"TUNNEL-PORT-{PORT}" in rules, "9100 is led")
        return world

    async def asker(self, address: str, expected: bytes) -> Asker:
        """Open a connection, and require that a particular peer responds."""
        endpoint = TCP4ClientEndpoint(reactor, address, PORT)
        asker = Asker(f"{address}:{PORT}")
        await connect_directly(endpoint, asker)
        self.addCleanup(asker.drop)
        await self.answered(asker, expected)
        return asker

    async def answered(self, asker: Asker, expected: bytes) -> None:
        """Send a request, and wait for a response with this ending."""
        before = len(asker.answers)
        asker.ask()
        await self.eventually(
            lambda: asker.answers[before:].endswith(expected) or asker.lost_reason,
            f"{expected!r} is the answer, not {asker.answers!r}",
        )
        self.assertIsNone(asker.lost_reason)

    async def eventually_cut(self, asker: Asker) -> None:
        """Send requests until the connection is reset."""

        def cut():
            if asker.lost_reason is None:
                asker.ask()
            return asker.lost_reason is not None

        await self.eventually(cut, "the connection is cut", 20, 0.1)
        self.assertFalse(asker.ended_cleanly, asker.lost_reason)


class ElsewhereTests(SteeringTestCase):
    """Callers on other machines, and the server's own connections."""

    async def test_pods(self) -> None:
        """Forwarded connections are redirected to the server only with ``--intercept-pods``; the
        server listens on all addresses here, so no rule contains one (F6).
        """
        await self.steered_world("edge-1")
        self.route_through_the_cloud()
        everywhere = ("--enable-iptables=true", "--bind-address", "::")
        server = await self.steer(*everywhere)
        for address in (EDGE_4, EDGE_6):
            await self.eventually_healthy(address)
            page = await self.ask(address, machine="other")
            self.assertEqual(page.exit_status, 7, page)
        for program in ("iptables", "ip6tables"):
            rules = self.rules(program)
            self.assertIn("REDIRECT --to-ports 10263", rules)
            self.assertNotIn("TUNNEL-PODS", rules)
        await server.stop(25)
        await self.steer(*everywhere, "--intercept-pods")
        for address in (EDGE_4, EDGE_6):
            await self.eventually_healthy(address, machine="other")
            await self.assert_healthy(address)
        self.assertIn("TUNNEL-PODS", self.rules())

    def route_through_the_cloud(self) -> None:
        """Route the packets of ``other`` to the site through the server's machine."""
        for family, network, gateway in (
            ("-4", "192.168.50.0/24", SERVER),
            ("-6", "fd50::/64", "fd77::21"),
        ):
            self.network.run("other", "ip", family, "route", "add", network, "via", gateway)
        self.network.machines["cloud"].forward()

    async def test_servers_own_connections(self) -> None:
        """The server's own connections are not redirected, even if the API's port is intercepted.

        Here no connection to the API is redirected, since the API is on this machine; otherwise the
        mark excludes those of the server
        (tests.steering.firewall.test_packets).
        """
        world = await self.steered_world("edge-1")
        server = await self.steer("--enable-iptables=true", "--intercept-match", "cloud-return")
        await self.eventually_healthy(EDGE_4)
        port = world.api.port
        await world.set_proxy_ports({"https-proxy-ports": str(port)})
        await self.eventually_rules(
            lambda rules: f"TUNNEL-PORT-{port}" in rules, "the port of the API is intercepted"
        )
        page = await self.curl(f"https://10.77.0.1:{port}/healthz", "--insecure")
        self.assertFalse(page.terminated, page)
        own = self.network.run("cloud", "ss", "-tnep", "dst", f"10.77.0.1:{port}")
        marks = [line for line in own.splitlines() if f"pid={server.pid}," in line]
        self.assertTrue(marks, own)
        self.assertEqual([], [line for line in marks if "fwmark:0x59" not in line])
        # Existing connections would continue as long as the API sends data on them.
        self.network.run("cloud", "ss", "--kill", "dst", f"10.77.0.1:{port}")
        await world.set_proxy_ports({"https-proxy-ports": str(port), "http-proxy-ports": "9100"})
        await self.eventually_rules(
            lambda rules: "TUNNEL-PORT-9100" in rules, "the server still follows the API"
        )
        await self.assert_healthy(EDGE_4)
        self.assertEqual(len(await server.agents()), 1)

    async def test_every_machine_has_its_own_server(self) -> None:
        """Rules apply to the programs of one machine, which reach edge nodes through the server on
        it, whichever server the agents are connected to (F8).
        """
        await self.steered_world("edge-1")
        await self.eventually_refused(EDGE_4, machine="cloud-2")
        self.world.servers = [SERVER, CLOUD_4]
        first = await self.world.server(SERVER, "--enable-iptables=true")
        second = await self.world.server(CLOUD_4, "--enable-iptables=true")
        await self.world.publish_servers()
        agent = await self.edge_agent("edge-1", "--server-connections", "1")
        for program in (first, second, agent):
            program.start()
        for program in (first, second, agent):
            await program.ready(60)
        await self.eventually_healthy(EDGE_4)
        await self.eventually_healthy(EDGE_4, machine="cloud-2")
        await second.stop(25)
        await self.eventually_refused(EDGE_4, machine="cloud-2")
        await self.eventually_healthy(EDGE_4)
