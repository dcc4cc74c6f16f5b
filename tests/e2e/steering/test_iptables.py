"""Firewall rules lead to edge nodes, and nowhere else: seen by what arrives, and at whom."""

from __future__ import annotations

import json

from twisted.internet import reactor

from tests.e2e.network.witness import start_witness
from tests.e2e.programs import Program
from tests.e2e.steering.support import (
    CLOUD_4,
    CLOUD_6,
    EDGE_4,
    EDGE_6,
    OTHER_4,
    OTHER_6,
    SERVER,
    SteeringTestCase,
)

KUBELET = 10250
SETS = ["YURTTUNNEL-EDGE4", "YURTTUNNEL-EDGE6"]


class MatchTests(SteeringTestCase):
    """Each way to recognise connections, with each of the kernel's firewalls."""

    async def test_ways_with_nft(self) -> None:
        """By a set of edge addresses, or by the port alone: what is meant for an edge node goes
        through the tunnel, and what is meant for a cloud node does not.
        """
        await self.use("nft")

    async def test_ways_with_legacy(self) -> None:
        """The same in the old firewall, where that is what the machine uses."""
        await self.use("legacy")

    async def use(self, backend: str) -> None:
        """Ask everybody, before, while and after the rules are there."""
        await self.steered_world("edge-1")
        self.host_uses(backend)
        for address in (OTHER_4, OTHER_6):
            start_witness(self, reactor, self.network, "other", address, KUBELET)
        for address in ("127.0.0.1", "::1"):
            start_witness(self, reactor, self.network, "cloud", address, KUBELET)
        for address in (EDGE_4, EDGE_6):
            page = await self.ask(address)
            self.assertEqual(page.exit_status, 7, page)
        before = self.all_rules()
        for match in ("edge-set", "cloud-return"):
            server = await self.steer("--enable-iptables=true", "--intercept-match", match)
            for address in (EDGE_4, EDGE_6):
                await self.eventually_healthy(address)
            await self.judge(match, backend)
            await self.assert_reported(server, match, backend)
            await server.stop(25)
            self.assertEqual(self.all_rules(), before)
            self.assertEqual(self.sets(), [])
            page = await self.ask(EDGE_4)
            self.assertEqual(page.exit_status, 7, page)

    async def judge(self, match: str, backend: str) -> None:
        """Require that everybody is reached as that way has it."""
        for program, rules in self.all_rules().items():
            self.assertEqual("TUNNEL-PORT-10250" in rules, program.endswith(backend), program)
        self.assertEqual(self.sets(), SETS if match == "edge-set" else [])
        await self.through_the_tunnel()
        await self.directly()
        for address in ("127.0.0.1", "[::1]"):
            page = await self.curl(f"http://{address}:{KUBELET}/")
            self.assertEqual(page.body.partition(" ")[0], "cloud", page)
        # F3: whatever else has such a port is hijacked, as it was by yurttunnel 1.2.
        for address in (OTHER_4, f"[{OTHER_6}]"):
            page = await self.curl(f"http://{address}:{KUBELET}/")
            self.assertEqual(page.body.startswith("other "), match == "edge-set", page)

    async def through_the_tunnel(self) -> None:
        """Require that the edge's kubelet is asked by its agent, and the server's TLS is seen."""
        peers = self.world.nodes["edge-1"].peers
        peers.clear()
        for address in (EDGE_4, EDGE_6):
            self.assertTrue((await self.assert_healthy(address)).terminated)
        # Connections to kubelets are kept, so that there need not be a new one.
        self.assertLessEqual(set(peers), {EDGE_4, EDGE_6})

    async def directly(self) -> None:
        """Require that a cloud node's kubelet is asked by the cloud's machine."""
        peers = self.world.nodes["cloud-2"].peers
        peers.clear()
        for address in (CLOUD_4, CLOUD_6):
            await self.assert_healthy(address, *self.verified())
        self.assertEqual([":" in peer for peer in peers], [False, True])
        self.assertLessEqual(set(peers), set(self.network.addresses["cloud"]))

    async def assert_reported(self, server: Program, match: str, backend: str) -> None:
        """Require that the meta port tells what is done."""
        status, body = await server.get("/steering")
        self.assertEqual(status, 200, body)
        text = json.dumps(json.loads(body))
        for part in (match, backend, EDGE_4, EDGE_6, f"{SERVER}:10263"):
            self.assertIn(part, text)
        status, body = await server.get("/")
        self.assertEqual(status, 200)
        self.assertIn(EDGE_4, body)


class PortTests(SteeringTestCase):
    """Ports come and go with the ConfigMap."""

    async def test_ports_of_the_configmap(self) -> None:
        """An exporter on an edge node is scraped from when on its port is configured, by HTTP or
        HTTPS, until it is not; a bad item does no harm.
        """
        world = await self.steered_world("edge-1")
        for address in (EDGE_4, EDGE_6):
            start_witness(self, reactor, self.network, "edge-1", address, 9100)
        await self.steer("--enable-iptables=true")
        await self.eventually_healthy(EDGE_4)
        self.assertEqual((await self.curl(f"http://{EDGE_4}:9100/")).exit_status, 7)

        await world.set_proxy_ports({"http-proxy-ports": "nonsense, 9100 ,70000"})
        await self.eventually_rules(lambda rules: "TUNNEL-PORT-9100" in rules, "9100 is led")
        await self.eventually_scraped(EDGE_4, EDGE_4)
        await self.eventually_scraped(f"[{EDGE_6}]", EDGE_6)

        async def is_reported() -> bool:
            events = await world.kubectl.output("get", "events", "-n", "kube-system", "-o", "json")
            texts = [each["message"] for each in json.loads(events)["items"]]
            return any("nonsense" in text and "70000" in text for text in texts)

        await self.eventually(is_reported, "an event says which items are bad", 20, 0.5)

        # F1: the former target would have stayed in front.
        await world.set_proxy_ports({"https-proxy-ports": "9100"})
        await self.eventually_rules(
            lambda rules: _targets(rules, 9100) == [f"{SERVER}:10263"], "9100 leads to HTTPS"
        )
        await world.set_proxy_ports({})
        await self.eventually_rules(lambda rules: "9100" not in rules, "9100 is led no longer")
        self.assertEqual((await self.curl(f"http://{EDGE_4}:9100/")).exit_status, 7)
        await self.assert_healthy(EDGE_4)

    async def eventually_scraped(self, host: str, peer: str) -> None:
        """Wait until an edge node's exporter answers its own agent."""

        async def scraped():
            return (await self.curl(f"http://{host}:9100/")).body == f"edge-1 {peer}"

        await self.eventually(scraped, f"{host}:9100 answers", 20, 0.2)


def _targets(rules: str, port: int) -> list[str]:
    """Return where a port's rules lead to."""
    lines = [line for line in rules.splitlines() if line.startswith(f"-A TUNNEL-PORT-{port} ")]
    return [line.rpartition("--to-destination ")[2] for line in lines if "DNAT" in line]
