"""No node can get or use the identity of another node."""

from __future__ import annotations

import os
import socket
import ssl

from twisted.internet.threads import deferToThread

from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import AGENT_PORT, SERVERS
from yurttunnel.kube.resources import CERTIFICATE_SIGNING_REQUESTS, NODES
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits

LEFT_ALONE = "yurttunnel_server_certificate_requests_left_alone_total"
REFUSED = "yurttunnel_server_refused_agents_total"


class IdentityTests(ClusterTestCase):
    """A node that impersonates another one."""

    async def test_another_nodes_certificate(self):
        """Its request is not approved, with an event, a log line and a count; no server accepts
        it.
        """
        world = await self.start_cluster("edge-1", "edge-2")
        impostor = await world.agent("edge-2", pod_of="edge-1")
        impostor.start()

        async def counted():
            counts = [await server.metric(LEFT_ALONE, kind="agent") for server in self.servers]
            return sum(counts) > 0

        await self.eventually(counted, "the request was looked at", 20)
        requests = await world.client.list(CERTIFICATE_SIGNING_REQUESTS)
        waiting = [one for one in requests["items"] if not one.get("status", {}).get("conditions")]
        self.assertEqual(len(waiting), 1)
        name = waiting[0]["metadata"]["name"]

        async def rejection():
            described = await world.kubectl.output("describe", "csr", name)
            return described if "NotApproved" in described else None

        self.assertIn("edge-2", await self.eventually(rejection, "an event says why", 20, 0.5))
        # The approver logs it once, also if another server becomes the approver.
        lines = [
            [
                line
                for line in server.log.splitlines()
                if "not approved" in line and "edge-2" in line and "yurt-tunnel-agent" in line
            ]
            for server in self.servers
        ]
        self.assertEqual(max(map(len, lines)), 1, lines)
        self.assertIn("approve", (await impostor.get("/readyz"))[1])

    async def test_another_nodes_name(self):
        """A HELLO with the other's name is rejected, with a log line and a count."""
        world = await self.start_cluster("edge-1", "edge-2")
        certificate = world.directory / "pki-edge-1" / "yurttunnel-agent-current.pem"
        answer = await deferToThread(
            claim, SERVERS[0], str(certificate), str(world.identities.ca_path), "host=edge-2"
        )
        self.assertIn(b"the certificate of node edge-1 does not cover host=edge-2", answer)
        await self.eventually(
            lambda: self.servers[0].log.count("node edge-1 does not cover host=edge-2") == 1,
            "the log has one line of it",
        )
        self.assertEqual(await self.servers[0].metric(REFUSED, reason="not_authorized"), 1)
        await self.connected(self.servers, ["edge-1", "edge-2"])

    async def test_deleted_node(self):
        """A node that is deleted from the cluster loses its sessions, and is rejected."""
        world = await self.start_cluster("edge-1", "edge-2")
        await world.client.delete(NODES, "edge-1")

        async def refused():
            return [await server.metric(REFUSED, reason="revoked") for server in self.servers]

        async def cut_off():
            return all(await refused())

        await self.eventually(cut_off, "both servers refuse it", 30)
        for server in self.servers:
            self.assertEqual(["edge-2"], [entry["node"] for entry in await server.agents()])

    async def test_without_a_certificate(self):
        """Without a certificate the handshake fails before HELLO."""
        world = await self.start_cluster("edge-1")
        with self.assertRaises(ssl.SSLError):
            await deferToThread(
                claim, SERVERS[0], None, str(world.identities.ca_path), "host=edge-1"
            )


def claim(server: str, certificate: str | None, authority: str, identifiers: str) -> bytes:
    """Send a HELLO with these identifiers to a server; return the response until it closes."""
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["yurttunnel/1"])
    if certificate is not None:
        context.load_cert_chain(certificate)
    hello = Hello(
        limits=Limits(),
        session=NO_SESSION,
        process=os.urandom(16),
        properties={"identifiers": identifiers, "software": "test"},
    )
    with (
        socket.create_connection((server, AGENT_PORT), timeout=10) as connection,
        context.wrap_socket(connection, server_hostname=server) as secured,
    ):
        secured.sendall(hello.encode())
        answer = b""
        while data := secured.recv(65536):
            answer += data
        return answer
