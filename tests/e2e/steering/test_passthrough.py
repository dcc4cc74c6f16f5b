"""Connections that the server passes through without terminating TLS."""

from __future__ import annotations

from tests.e2e.steering.support import EDGE_4, EDGE_6, SERVER, SteeringTestCase

PORT = "10270"


class PassThroughTests(SteeringTestCase):
    """``--passthrough-port`` together with firewall rules."""

    async def test_caller_verifies_the_kubelet(self) -> None:
        """At an edge node's address a caller gets the certificate of its kubelet, in both families;
        on other ports the server terminates TLS. Connections to the listener's own address are
        routed by the name in the ClientHello, or else served as on ``--secure-port``.
        """
        world = await self.steered_world("edge-1")
        await self.steer("--enable-iptables=true", "--passthrough-port", PORT)
        for address in (EDGE_4, EDGE_6):
            await self.eventually_healthy(address)
            page = await self.assert_healthy(address, *self.verified())
            self.assertFalse(page.terminated, page)
            # Only the kubelet rejects an unknown client certificate.
            page = await self.ask(address, *self.verified(), caller=False)
            self.assertNotEqual(page.status, 200, page)
        peers = world.nodes["edge-1"].peers
        self.assertLessEqual(set(peers), {EDGE_4, EDGE_6})
        page = await self.curl(f"http://{EDGE_4}:10255/healthz")
        self.assertEqual(page.status, 502, page)

        await self.assert_no_loops()

    async def assert_no_loops(self) -> None:
        """Require that connections to the listener's address are routed by name, or closed."""
        page = await self.ask(
            SERVER, "--insecure", "--header", "Host: edge-1:10250", port=int(PORT)
        )
        self.assertEqual((page.status, page.terminated), (403, True), page)
        self.assertIn("no node can be determined", page.body)
        page = await self.by_name("edge-9", SERVER, int(PORT))
        self.assertEqual(page.status, 0, page)
        self.assertIn("alert", page.complaints)
        page = await self.by_name("edge-1", SERVER, int(PORT), *self.verified())
        self.assertEqual((page.status, page.body), (200, "ok"), page)
