"""Pods in networks of their own, and the address at which they reach the hub."""

from __future__ import annotations

import json

from twisted.internet import reactor
from twisted.internet.utils import getProcessOutputAndValue

from tests.apiserver.bootstrap_roles import rule
from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.hub.cloud import READ
from tests.e2e.hub.node_requests import NODE_PODS, SECRETS
from tests.e2e.hub.programs import Hub
from tests.e2e.hub.support import HubTestCase
from tests.e2e.network.namespaces import run

ADDRESS = "169.254.2.1"
HOST, POD = "10.244.1.1", "10.244.1.7"
REPAIRED_SECONDS = 70.0
"""The limit of issue 14, with an allowance for a busy machine."""

INTERFACE = ("--enable-dummy-if",)
PASSWORD = f"{SECRETS}/password"


class PodTests(HubTestCase):
    """The test is in the host's network, a pod in another namespace with a route to it."""

    async def setUp(self) -> None:
        """Create both networks."""
        await super().setUp()
        network = ClusterNetwork()
        self.addCleanup(network.close)
        self.pod = network.add_machine("pod")
        network.here.link("pod", self.pod, "eth0")
        network.here.set_up("pod", HOST)
        self.pod.set_up("eth0", POD, gateways=(HOST,))

    async def from_pod(self, url: str, *extra: str) -> tuple[int, str]:
        """Send a request from the pod; return the status, 0 without a response, and the body."""
        curl = ("--silent", "--max-time", "10", "--write-out", "\n%{http_code}", *extra, url)
        with self.pod.inside():
            asking = getProcessOutputAndValue("/usr/bin/curl", curl, reactor=reactor)
        out, _, _ = await asking
        body, _, code = out.decode().rpartition("\n")
        return int(code), body

    def bearer(self, token: str) -> tuple[str, ...]:
        """Return the flags of a request with a token, from a client that is cached."""
        return ("--header", f"Authorization: Bearer {token}", "--user-agent", "coredns/1.11")

    async def furnished(self) -> tuple:
        """Start, with a Secret that the kubelet has read and one account may read."""
        cloud, hub = await self.start(*INTERFACE)
        cloud.add("secrets", "password", "default", data={"password": "c2VjcmV0"}, type="Opaque")
        cloud.using("web", secrets=["password"])
        cloud.grant("system:serviceaccounts", rule(READ, "", "secrets"))
        kubelet = self.client(hub)
        await kubelet.get(PASSWORD)
        await kubelet.get(NODE_PODS)
        return cloud, hub

    def urls(self, hub: Hub, path: str) -> tuple[tuple[str, ...], ...]:
        """Return the URLs of a path for a pod, over HTTP and over TLS."""
        return (
            (f"http://{ADDRESS}:{hub.port}{path}",),
            (f"https://{ADDRESS}:{hub.secure_port}{path}", "--insecure"),
        )

    async def test_a_pod_is_served_by_its_own_token_alone(self) -> None:
        """Over HTTP and TLS, online and offline; without a token the response is 401."""
        cloud, hub = await self.furnished()
        token = cloud.token("reader")
        for online in (True, False):
            for url in self.urls(hub, PASSWORD):
                status, body = await self.from_pod(*url, *self.bearer(token))
                self.assertEqual(status, 200, (online, url, body))
                self.assertEqual(json.loads(body)["data"], {"password": "c2VjcmV0"})
                for extra in ((), self.bearer("nonsense"), ("--user", "node:node")):
                    status, body = await self.from_pod(*url, *extra)
                    self.assertEqual(status, 401, (online, url, extra))
                    self.assertNotIn("c2VjcmV0", body)
            if online:
                await self.settled(hub)
                await self.disconnect(cloud, hub)

    async def test_a_pod_that_calls_itself_kubelet_sees_nothing_of_the_kubelets(self) -> None:
        """Its User-Agent does not determine its identity."""
        cloud, hub = await self.furnished()
        token = cloud.token("stranger")
        # The cloud accepts the token, which has no permission for these.
        for url in self.urls(hub, NODE_PODS):
            await self.from_pod(*url, *self.bearer(token), "--user-agent", "kubelet/v1.34.0")
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        for path in (NODE_PODS, PASSWORD):
            for url in self.urls(hub, path):
                for extra in ((), self.bearer(token)):
                    status, body = await self.from_pod(
                        *url, *extra, "--user-agent", "kubelet/v1.34"
                    )
                    self.assertIn(status, (401, 403, 404, 503), (path, url, body))
                    self.assertNotIn("c2VjcmV0", body)
                    self.assertNotIn('"web"', body)

    async def test_the_certificate_is_for_the_names_of_the_api(self) -> None:
        """Pods can verify it for the name of the API's Service, and for the address."""
        cloud, hub = await self.furnished()
        token = cloud.token("reader")
        for name in (ADDRESS, "kubernetes", "kubernetes.default.svc"):
            status, body = await self.from_pod(
                f"https://{name}:{hub.secure_port}{PASSWORD}",
                *("--cacert", str(cloud.identities.ca_path)),
                *("--connect-to", f"{name}:{hub.secure_port}:{ADDRESS}:{hub.secure_port}"),
                *self.bearer(token),
            )
            self.assertEqual(status, 200, (name, body))

    async def test_an_interface_that_is_removed_is_back_soon(self) -> None:
        """Pods can reach the hub again without any intervention; it is removed at the end."""
        cloud, hub = await self.furnished()
        token = cloud.token("reader")
        number, link = self.interface()
        run("ip", "link", "del", link)

        async def served() -> bool:
            url, *_ = self.urls(hub, PASSWORD)
            return (await self.from_pod(*url, *self.bearer(token)))[0] == 200

        await self.eventually(served, "pods are served again", REPAIRED_SECONDS, 1.0)
        # The kernel does not reuse the index.
        self.assertNotEqual(self.interface()[0], number)
        await hub.stop()
        self.assertEqual(self.interface(), ("", ""))

    def interface(self) -> tuple[str, str]:
        """Return the index and name of the interface with the address, empty if there is none."""
        for line in run("ip", "-oneline", "address", "show").splitlines():
            if f" {ADDRESS}/" in line:
                number, name, *_ = line.split()
                return number, name
        return "", ""
