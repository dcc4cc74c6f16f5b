"""The path of kube-apiserver's egress selector: HTTP CONNECT to the server, then the kubelet."""

from __future__ import annotations

from twisted.internet import reactor

from tests.e2e.cluster.balancer import Balancer
from tests.e2e.steering.support import EDGE_4, EDGE_6, SERVER, SteeringTestCase

TLS_PORT = 10268
RELAY_PORT = 3128


class EgressTests(SteeringTestCase):
    """CONNECT by the Unix socket, and by TCP with mutual TLS."""

    async def test_connect_reaches_the_kubelet(self) -> None:
        """Addresses of both families, and the name, lead to the kubelet, whose certificate the
        caller verifies; an unknown destination gets an error response.
        """
        await self.steered_world("edge-1")
        await self.steer("--connect-endpoint", f"ssl:{TLS_PORT}:interface={SERVER}")
        # curl does not support a proxy on a Unix socket.
        relay = Balancer(reactor, lambda: [self.world.socket_path(SERVER)])
        port = reactor.listenTCP(RELAY_PORT, relay, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        proof = dict(zip(("--cert", "--key"), self.world.caller_flags()[1::2], strict=True))
        by_socket = ("--proxy", f"http://127.0.0.1:{RELAY_PORT}")
        by_tls = (
            *("--proxy", f"https://x-tunnel-server-svc.kube-system.svc:{TLS_PORT}"),
            *("--resolve", f"x-tunnel-server-svc.kube-system.svc:{TLS_PORT}:{SERVER}"),
            *("--proxy-cert", proof["--cert"], "--proxy-key", proof["--key"]),
            *("--proxy-cacert", str(self.world.identities.ca_path)),
        )
        for way in (by_socket, by_tls):
            for host in (EDGE_4, EDGE_6, "edge-1"):
                page = await self.assert_healthy(host, "--proxytunnel", *way, *self.verified())
                self.assertFalse(page.terminated, page)
                self.assertIn("< HTTP/1.1 200 ", page.complaints)
            page = await self.ask("192.0.2.9", "--proxytunnel", *way, *self.verified())
            self.assertEqual(page.exit_status, 56, page)
            self.assertRegex(page.complaints, "< HTTP/1.1 (400|503) ")
