"""kube-apiserver forwards requests of a client that may use one node, but tries to reach another.

curl acts as kube-apiserver: it dials the first node's address, presents its certificate
and forwards ``Host``, path and fields of a client (``UpgradeAwareHandler`` of k8s.io/apimachinery
pkg/util/proxy/upgradeaware.go).
"""

from __future__ import annotations

from twisted.internet import reactor

from tests.e2e.network.sites import Sites
from tests.e2e.network.witness import start_witness
from tests.e2e.steering.support import EDGE_4, EDGE_6, SteeringTestCase

OTHER_4, _ = Sites.addresses["edge-2"]
HOSTS = ("10.0.0.1:6443", "kubernetes.default", "edge-2:10250", f"{OTHER_4}:10266", "edge-2:10266")
HERE = ("edge-1", "edge-2")
READ_ONLY = 10255


class ConfusedDeputyTests(SteeringTestCase):
    """Firewall rules redirect to a server with two edge nodes."""

    async def test_original_destination_decides(self) -> None:
        """A request reaches the node and port of its original destination, or is rejected, whatever
        it contains, in both families, with TLS and without.
        """
        world = await self.steered_world(*HERE)
        for node in HERE:
            for address in Sites.addresses[node]:
                start_witness(self, reactor, self.network, node, address, READ_ONLY)
        await self.steer("--enable-iptables=true", agents=HERE)
        await self.run_pod(world, "there", "edge-2")
        for address in (EDGE_4, EDGE_6):
            await self.eventually_healthy(address)
        world.nodes["edge-2"].peers.clear()
        for address in (EDGE_4, EDGE_6):
            await self.with_tls(address)
            await self.without_tls(address)
        self.assertEqual(world.nodes["edge-2"].peers, [])

    async def with_tls(self, address: str) -> None:
        """Send requests to port 10250 of the first node."""
        for host in HOSTS:
            await self.assert_healthy(address, "--insecure", "--header", f"Host: {host}")
        for field in ("X-Tunnel-Proxy-Dest: edge-2:10250", "X-Tunnel-Proxy-Host: edge-2"):
            page = await self.ask(address, "--insecure", "--header", field)
            self.assertEqual(page.status, 403, page)
        host = f"[{address}]" if ":" in address else address
        for path in ("run", "exec", "containerLogs"):
            page = await self.curl(
                f"https://{host}:10250/{path}/default/there/main?command=id",
                *("--insecure", *self.world.caller_flags(), "--header", "Host: edge-2:10250"),
            )
            self.assertEqual(page.status, 403, page)
            self.assertIn("edge-2", page.body)

    async def without_tls(self, address: str) -> None:
        """Send requests to port 10255 of the first node, which has no authentication."""
        url = f"http://[{address}]:{READ_ONLY}/" if ":" in address else f"http://{address}:10255/"
        for host in HOSTS:
            page = await self.curl(url, "--header", f"Host: {host}")
            self.assertEqual(page.body, f"edge-1 {address}", page)
        for fields in (
            ("X-Tunnel-Proxy-Dest: edge-2:10255",),
            ("X-Tunnel-Proxy-Dest: 127.0.0.1:10266", "X-Tunnel-Proxy-Host: edge-1"),
        ):
            flags = [flag for field in fields for flag in ("--header", field)]
            page = await self.curl(url, *flags)
            self.assertEqual(page.status, 403, page)
