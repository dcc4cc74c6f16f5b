"""``twist yurthub`` as a process, with the API of a cluster."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import treq
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import SkipTest, TestCase

from tests.apiserver.tokens import ISSUER
from tests.e2e.hub.programs import Hub
from tests.e2e.kubectl import find_kubectls
from tests.hub.cluster import TOKEN, Cluster
from tests.yurtlab.api.support import node, pod
from yurtlab.api.resources import NODES, PODS, SERVICE_ACCOUNTS
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import FileCredentials
from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotAllowed
from yurttunnel.kube.resources import NODES as ASKED_NODES
from yurttunnel.kube.resources import PODS as ASKED_PODS
from yurttunnel.kube.resources import SERVICES as ASKED_SERVICES
from yurttunnel.pki.credentials import certificates_to_pem

ON_NODE = "spec.nodeName=edge-1"


class HubTests(TestCase):
    """The whole program, online and offline."""

    def setUp(self):
        """Start a cluster and a hub."""
        self.cluster = Cluster(reactor, self.mktemp())
        self.addCleanup(lambda: Deferred.fromCoroutine(self.end()))
        self.cluster.run_controllers()
        self.cluster.store.create(NODES, None, node("edge-1"))
        for name in ("web", "db"):
            body = pod(name, nodeName="edge-1")
            self.cluster.store.create(PODS, "default", body)
        self.directory = Path(self.mktemp()).absolute()
        self.directory.mkdir(parents=True)
        joining = (
            f"--join-token={TOKEN}",
            f"--discovery-token-ca-cert-hash=sha256:{self.cluster.pin}",
        )
        self.hub = Hub(reactor, str(self.directory), self.cluster.url, extra=joining)
        self.away = False

    async def end(self):
        """Stop everything."""
        if self.hub.running:
            await self.hub.stop()
        if not self.away:
            await self.cluster.close()

    async def cut_off(self):
        """Stop the API."""
        self.away = True
        await self.cluster.close()

    async def started(self):
        """Start the hub, and create a client."""
        self.hub.start()
        await self.hub.ready()
        client = self.hub.client()
        self.addCleanup(client.close)
        return client

    async def at_last(self, ask):
        """Repeat a request until it succeeds; return the result."""
        while True:
            try:
                answer = await ask()
            except (ApiError, ApiUnreachable):
                answer = None
            if answer is not None:
                return answer
            await deferLater(reactor, 0.1)

    def names(self, answer):
        """Return the names in a list."""
        return sorted(each["metadata"]["name"] for each in answer["items"])

    async def test_online_and_offline(self):
        """Clients get their lists while offline, also from a hub that starts offline."""
        client = await self.started()

        def pods():
            return client.list(ASKED_PODS, field_selector=ON_NODE)

        self.assertEqual(["db", "web"], self.names(await self.at_last(pods)))
        self.assertEqual("edge-1", (await client.get(ASKED_NODES, "edge-1"))["metadata"]["name"])
        self.assertEqual(["kubernetes"], self.names(await client.list(ASKED_SERVICES)))
        await self.cut_off()
        self.assertEqual(["db", "web"], self.names(await self.at_last(pods)))
        await self.hub.stop()
        client = await self.started()
        self.assertEqual(["db", "web"], self.names(await self.at_last(pods)))
        self.assertEqual("edge-1", (await client.get(ASKED_NODES, "edge-1"))["metadata"]["name"])
        with self.assertRaises(ApiError) as raised:
            await client.get(ASKED_PODS, "unknown", "default")
        self.assertIn("never received here", str(raised.exception))

    async def kubectl(self, *arguments):
        """Run kubectl on the node; return its output, or ``None`` if it fails."""
        paths = find_kubectls()
        if not paths:
            raise SkipTest("kubectl is not installed")
        path = list(paths.values())[-1]
        home = str(self.directory)
        flags = [f"--server={self.hub.url}", f"--cache-dir={home}/kubectl"]
        environment = {"HOME": home, "KUBECONFIG": "/dev/null", "PATH": os.environ["PATH"]}
        output, errors, status = await getProcessOutputAndValue(
            path, [*flags, *arguments], environment
        )
        self.said = errors.decode()
        return output.decode() if status == 0 else None

    async def test_kubectl(self):
        """Users on the node run kubectl, which reports that the cloud is not reachable."""
        await self.started()
        pods = ("get", "pods", "--all-namespaces", f"--field-selector={ON_NODE}")
        self.assertIn("web", await self.at_last(lambda: self.kubectl(*pods)))
        await self.at_last(lambda: self.kubectl("get", "node", "edge-1", "-o", "yaml"))
        self.assertIsNone(await self.kubectl("delete", "node", "edge-2"))
        await self.cut_off()
        await self.hub_is_offline()
        self.assertIsNone(await self.kubectl("delete", "pod", "web"))
        self.assertIn("cannot reach the Kubernetes API", self.said)

    async def hub_is_offline(self):
        """Wait until the hub is offline."""
        while "cloud: ok" in (await self.hub.get("/readyz"))[1]:
            await deferLater(reactor, 0.05)

    async def test_limits_are_followed(self):
        """Changes of limits in the file of ``--config`` take effect without a restart."""
        file = self.directory / "hub.toml"
        file.write_text('cache-max-bytes = "64Mi"\n')
        self.hub.arguments += ["--config", str(file)]
        client = await self.started()
        self.assertIn("of 64.0 MiB", (await self.hub.get("/"))[1])
        file.write_text('cache-max-bytes = "128Mi"\nmin-request-timeout = "1s"\n')
        while "of 128 MiB" not in (await self.hub.get("/"))[1]:
            await deferLater(reactor, 0.1)
        self.assertNotIn("needs a restart", (await self.hub.get("/readyz?verbose"))[1])
        await self.at_last(lambda: client.list(ASKED_PODS, field_selector=ON_NODE))
        await self.cut_off()
        await self.hub_is_offline()
        url = f"{self.hub.url}/api/v1/pods?watch=true&fieldSelector={ON_NODE}"
        headers = {"User-Agent": "kubelet", "Accept": "application/json"}
        watch = await treq.get(url, headers=headers, persistent=False)
        self.assertEqual(200, watch.code)
        # It ends by itself now, not only after half an hour as before.
        await watch.content()

    async def test_pods(self):
        """The hub serves the API over TLS to clients with a token, and to no others."""
        await self.started()
        authorities = certificates_to_pem([self.cluster.authority])

        def client(token=""):
            configuration = KubeConfiguration(
                f"https://127.0.0.1:{self.hub.secure_port}",
                "default",
                lambda: authorities,
                FileCredentials(token=token),
                "kubernetes.default.svc",
            )
            made = KubeClient(reactor, configuration, program="coredns")
            self.addCleanup(made.close)
            return made

        nobody = client()

        async def refused():
            try:
                await nobody.list(ASKED_SERVICES)
            except ApiUnreachable:
                # There is no certificate for pods yet.
                return None
            except ApiError as error:
                return error
            raise AssertionError("a request without a token was answered")

        self.assertEqual(401, (await self.at_last(refused)).status)
        account = {"metadata": {"name": "dns"}}
        account = self.cluster.store.create(SERVICE_ACCOUNTS, "default", account)
        token, _ = self.cluster.api.tokens.issue(account, [ISSUER], 600)
        error = await self.assertFailure(client(token).list(ASKED_SERVICES), NotAllowed)
        # The caller was the account, not the node, which may list Services.
        self.assertIn("system:serviceaccount:default:dns", str(error))

    async def test_new_token(self):
        """A hub that cannot join does so once it gets a token, without a restart."""
        self.hub.arguments = [
            each for each in self.hub.arguments if not each.startswith("--join-token")
        ]
        self.hub.start()
        await self.at_last(self._waits_for_token)
        body = json.dumps({"jointoken": TOKEN}).encode()
        url = f"http://127.0.0.1:{self.hub.meta_port}/v1/token"
        posted = await treq.post(url, body, persistent=False)
        self.assertEqual((200, True), (posted.code, (await posted.json())["joins"]))
        await self.hub.ready()

    async def _waits_for_token(self):
        try:
            _, text = await self.hub.get("/readyz")
        except Exception:
            # It is not listening yet.
            return None
        return text if "/v1/token" in text else None

    async def dump(self, target, to="| cat"):
        """Dump the cache, with the output ``to``; return what is printed, and the status."""
        command = [sys.executable, "-m", "twisted", *self.hub.arguments, f"--dump-cache={target}"]
        pipe = f'"$@" {to}; exit ${{PIPESTATUS[0]}}'
        output, errors, status = await getProcessOutputAndValue(
            "bash", ["-c", pipe, "bash", *command], os.environ
        )
        return (output + errors).decode(), status

    async def test_dump(self):
        """The cache is dumped while the hub runs, as text or as files in a new directory."""
        client = await self.started()
        await self.at_last(lambda: client.get(ASKED_PODS, "web", "default"))
        shown, status = "", 0
        while "default/web" not in shown:
            shown, status = await self.dump("-")
        self.assertEqual(0, status)
        self.assertIn("kubelet pods.v1.core json\n", shown)
        self.assertEqual(("", 128 + signal.SIGPIPE), await self.dump("-", to="| true"))
        for target in ("-", self.directory / "unsaid"):
            self.assertEqual(("", 0), await self.dump(target, to=">&-"))
        target = self.directory / "dump"
        _, status = await self.dump(target)
        self.assertEqual(0, status)
        found = target / "kubelet" / "pods.v1.core" / "default" / "web"
        self.assertEqual("web", json.loads(found.read_bytes())["metadata"]["name"])
        shown, status = await self.dump(target)
        self.assertEqual((1, True), (status, f"--dump-cache: {target}: File exists" in shown))

    async def test_no_dump(self):
        """Without a cache the dump fails with a message."""
        shown, status = await self.dump("-")
        self.assertEqual(1, status)
        self.assertIn("--disk-cache-path: the cache ", shown)
        self.assertIn(" does not exist, or is not readable: give the flags of the node's", shown)

    async def test_pages(self):
        """Its pages show the state."""
        await self.started()
        status, text = await self.hub.get("/v1/readyz")
        self.assertEqual(200, status)
        self.assertIn("certificate: ok", text)
        _, metrics = await self.hub.get("/metrics")
        self.assertIn("node_yurthub_server_healthy_status", metrics)
        status, _ = await self.hub.get("/")
        self.assertEqual(200, status)
