"""Firewall rules redirect connections to edge nodes, and no others."""

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
    """Each method of matching connections, with each of the kernel's firewalls."""

    async def test_matches_with_nft(self) -> None:
        """Connections to edge nodes use the tunnel, those to cloud nodes do not.

        Rules match a set of edge addresses, or the port only.
        """
        await self.use("nft")

    async def test_matches_with_legacy(self) -> None:
        """The same on a machine that uses legacy iptables."""
        await self.use("legacy")

    async def use(self, backend: str) -> None:
        """Send requests to all nodes before, during and after the existence of the rules."""
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
        """Require that each node is reached as expected with this matching method."""
        for program, rules in self.all_rules().items():
            self.assertEqual("TUNNEL-PORT-10250" in rules, program.endswith(backend), program)
        self.assertEqual(self.sets(), SETS if match == "edge-set" else [])
        await self.through_the_tunnel()
        await self.directly()
        for address in ("127.0.0.1", "[::1]"):
            page = await self.curl(f"http://{address}:{KUBELET}/")
            self.assertEqual(page.body.partition(" ")[0], "cloud", page)
        # F3: rules for the port alone redirect connections to other hosts, as yurttunnel 1.2 did.
        for address in (OTHER_4, f"[{OTHER_6}]"):
            page = await self.curl(f"http://{address}:{KUBELET}/")
            self.assertEqual(page.body.startswith("other "), match == "edge-set", page)

    async def through_the_tunnel(self) -> None:
        """Require that the server terminates TLS, and that the agent dials the edge's kubelet."""
        peers = self.world.nodes["edge-1"].peers
        peers.clear()
        for address in (EDGE_4, EDGE_6):
            self.assertTrue((await self.assert_healthy(address)).terminated)
        # Connections to kubelets are reused, so there may be no new one.
        self.assertLessEqual(set(peers), {EDGE_4, EDGE_6})

    async def directly(self) -> None:
        """Require that the cloud's machine connects to a cloud node's kubelet directly."""
        peers = self.world.nodes["cloud-2"].peers
        peers.clear()
        for address in (CLOUD_4, CLOUD_6):
            await self.assert_healthy(address, *self.verified())
        self.assertEqual([":" in peer for peer in peers], [False, True])
        self.assertLessEqual(set(peers), set(self.network.addresses["cloud"]))

    async def assert_reported(self, server: Program, match: str, backend: str) -> None:
        """Require that the meta port reports the matching method and the back end."""
        status, body = await server.get("/steering")
        self.assertEqual(status, 200, body)
        text = json.dumps(json.loads(body))
        for part in (match, backend, EDGE_4, EDGE_6, f"{SERVER}:10263"):
            self.assertIn(part, text)
        status, body = await server.get("/")
        self.assertEqual(status, 200)
        self.assertIn(EDGE_4, body)


class PortTests(SteeringTestCase):
    """Ports are added and removed with the ConfigMap."""

    async def test_ports_of_the_configmap(self) -> None:
        """An exporter on an edge node is reachable as long as its port is configured, for HTTP or
        HTTPS. An invalid entry does not affect the others.
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

        # F1: the rule of the previous target would still match first.
        await world.set_proxy_ports({"https-proxy-ports": "9100"})
        await self.eventually_rules(
            lambda rules: _targets(rules, 9100) == [f"{SERVER}:10263"], "9100 leads to HTTPS"
        )
        await world.set_proxy_ports({})
        await self.eventually_rules(lambda rules: "9100" not in rules, "9100 is led no longer")
        self.assertEqual((await self.curl(f"http://{EDGE_4}:9100/")).exit_status, 7)
        await self.assert_healthy(EDGE_4)

    async def eventually_scraped(self, host: str, peer: str) -> None:
        """Wait until an edge node's exporter responds to a request by its own agent."""

        async def scraped():
            return (await self.curl(f"http://{host}:9100/")).body == f"edge-1 {peer}"

        await self.eventually(scraped, f"{host}:9100 answers", 20, 0.2)


def _targets(rules: str, port: int) -> list[str]:
    """Return the targets of a port's rules."""
    lines = [line for line in rules.splitlines() if line.startswith(f"-A TUNNEL-PORT-{port} ")]
    return [line.rpartition("--to-destination ")[2] for line in lines if "DNAT" in line]
