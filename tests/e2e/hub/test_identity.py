"""How a hub gets its node's identity, and keeps it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from tests.e2e.guides import DOCS, Guide
from tests.e2e.hub.cloud import KINDS, NODE, Cloud
from tests.e2e.hub.node_requests import ALL_PODS, NODE_PATH
from tests.e2e.hub.programs import Hub
from tests.e2e.hub.support import HubTestCase
from yurttunnel.pki.credentials import certificates_from_pem, certificates_to_pem, pin_of

TOKEN = "abcdef.0123456789abcdef"
NEW_TOKEN = "fedcba.fedcba9876543210"

SHORT = 12.0
"""The lifetime in seconds of a certificate that expires during a test."""


class IdentityTests(HubTestCase):
    """Joining, renewal, and recovery."""

    def publish(self, cloud: Cloud, token: str = TOKEN, seconds: float = 3600.0) -> None:
        """Prepare the cloud for nodes that join with a token."""
        tokens = cloud.api.api.bootstrap_tokens
        authority = cloud.identities.authority.certificate
        tokens.publish(
            f"https://127.0.0.1:{cloud.servers[0].port}", certificates_to_pem([authority])
        )
        tokens.create(token, seconds)

    def joining(self, cloud: Cloud, token: str = TOKEN) -> tuple[str, ...]:
        """Return the flags of a hub that joins."""
        path = os.path.join(self.directory, "bootstrap.conf")
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": cloud.urls.split(",")[0]}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        Path(path).write_text(json.dumps(content))
        os.chmod(path, 0o600)
        pin = f"sha256:{pin_of(cloud.identities.authority.certificate)}"
        return ("--bootstrap-file", path, "--discovery-token-ca-cert-hash", pin)

    def serial(self, hub: Hub) -> int:
        """Return the serial number of a hub's current certificate."""
        pem = Path(hub.state, "pki", "yurthub-current.pem").read_bytes()
        return certificates_from_pem(pem)[0].serial_number

    async def test_a_node_joins_with_a_token(self) -> None:
        """It then has certificates of its own, and the file with the token is removed."""
        cloud = await self.start_cloud()
        self.publish(cloud)
        flags = self.joining(cloud)
        hub = await self.start_hub(cloud, *flags)
        await self.wait_for_state(hub, online=True)
        await self.client(hub).get(NODE_PATH)
        self.assertFalse(os.path.exists(flags[1]))
        users = {name for name, what, _ in cloud.requests if what.resource == "nodes"}
        self.assertEqual(users, {f"system:node:{NODE}"})
        self.assertIn("openyurt:yurthub", " ".join(cloud.signer.signed))
        self.assertNotIn(TOKEN.partition(".")[2], hub.log)

    async def test_a_node_joins_through_a_name_with_a_silent_address(self) -> None:
        """The attempt after one that had no response dials another address of the API's name."""
        cloud = await self.start_cloud()
        self.publish(cloud)
        url, prefix = self.name_with_a_silent_address(cloud)
        flags = (*self.joining(cloud), "--server-addr", url)
        hub = self.make_hub(cloud, *flags, prefix=prefix)
        hub.start()
        await hub.ready(100)
        await self.wait_for_state(hub, online=True)

    async def test_certificates_are_renewed_and_nobody_notices(self) -> None:
        """Requests and watches continue across renewals."""
        cloud = await self.start_cloud()
        cloud.signer.seconds = SHORT
        hub = await self.start_hub(cloud)
        first = self.serial(hub)
        client = self.client(hub, "flanneld")
        await client.get(ALL_PODS)

        async def renewed() -> bool:
            await client.get(ALL_PODS)
            return self.serial(hub) != first

        await self.eventually(renewed, "there is another certificate", 3 * SHORT)
        cloud.add_pod("new")
        self.assertEqual(len((await client.get(ALL_PODS))["items"]), 1)

    async def test_a_new_token_brings_back_a_node_whose_certificate_has_ended(self) -> None:
        """Certificate and token have expired; the operator posts a token to the running hub."""
        cloud = await self.start_cloud()
        self.publish(cloud)
        cloud.signer.seconds = 2.0
        hub = self.make_hub(cloud, *self.joining(cloud))
        cloud.join(hub.state)
        expires = reactor.seconds() + 3.0
        cloud.signer.seconds = 3600.0
        secret = f"bootstrap-token-{TOKEN.partition('.')[0]}"
        cloud.store.remove(KINDS["secrets"], "kube-system", secret)
        await self.eventually(lambda: reactor.seconds() > expires, "the certificate has ended", 10)
        hub.start()

        await self.eventually(lambda: self.listens(hub), "the hub runs", 20)
        self.assertNotEqual((await hub.get("/readyz"))[0], 200)
        self.publish(cloud, NEW_TOKEN)
        replacements = {"10267": str(hub.meta_port), "abcdef.0123456789abcdef": NEW_TOKEN}
        guide = Guide(DOCS / "hub.md", os.environ, replacements)
        await guide.run_next(Path(self.directory))
        self.assertTrue(guide.finished)
        await hub.ready(40)
        await self.wait_for_state(hub, online=True)
        await self.client(hub).get(NODE_PATH)

    async def test_a_hub_with_another_clusters_address_reports_the_fix(self) -> None:
        """With only another ``--server-addr`` it continues as a node of its own cluster."""
        cloud, hub = await self.start()
        kubelet = self.client(hub)
        node = await kubelet.get(NODE_PATH)
        await self.settled(hub)
        await hub.stop()
        path = os.path.join(self.directory, "other")
        os.mkdir(path)
        other = Cloud(reactor, path)
        self.addCleanup(lambda: Deferred.fromCoroutine(other.stop()))
        await other.start()
        hub = self.make_hub(cloud, "--server-addr", other.urls)
        hub.start()
        await hub.ready()
        kubelet = self.client(hub)
        self.assertEqual(await kubelet.get(NODE_PATH), node)

        async def is_reported() -> bool:
            _, page = await hub.get("/readyz?verbose")
            return "If --server-addr leads to another cluster now, stop the hub" in str(page)

        await self.eventually(is_reported, "it says so")
        self.assertFalse(other.names("leases", "kube-node-lease"))

    async def test_an_invalid_token_is_rejected_with_a_message(self) -> None:
        """The hub continues with its current identity."""
        _, hub = await self.start()
        for body in ("{}", "x", json.dumps({"jointoken": "no token"})):
            out, _, _ = await self.run_command(
                *("curl", "--silent", "--max-time", "10", "--write-out", "\n%{http_code}"),
                *("--data", body, f"http://127.0.0.1:{hub.meta_port}/v1/token"),
            )
            text, _, code = out.decode().rpartition("\n")
            self.assertEqual(code, "400")
            self.assertTrue(text)
        await self.client(hub).get(NODE_PATH)

    async def test_a_damaged_certificate_is_no_end_of_the_node(self) -> None:
        """A truncated certificate is requested again with the token; the cache is served."""
        cloud = await self.start_cloud()
        self.publish(cloud)
        hub = await self.start_hub(cloud, *self.joining(cloud))
        await self.wait_for_state(hub, online=True)
        kubelet = self.client(hub)
        node = await kubelet.get(NODE_PATH)
        await self.settled(hub)
        await hub.stop()
        path = Path(hub.state, "pki", "yurthub-current.pem")
        path.resolve().write_bytes(path.read_bytes()[:100])
        self.joining(cloud)
        hub.start()
        await hub.ready(40)
        await self.wait_for_state(hub, online=True)
        self.assertEqual((await kubelet.get(NODE_PATH))["metadata"]["uid"], node["metadata"]["uid"])
        self.assertGreater(len(certificates_from_pem(path.read_bytes())), 0)
