"""kubectl on the node: online the same as without the hub, and offline with cached data."""

from __future__ import annotations

import json
import os
import re
import sys

from twisted.internet.threads import deferToThread

from tests.e2e.hub.cloud import KINDS, NODE, Cloud
from tests.e2e.hub.kubectls import KubectlTestCase
from tests.e2e.hub.programs import Hub
from tests.e2e.kubectl import Kubectl
from tests.e2e.kubectl_use import ask
from tests.e2e.test_kubectl import WEB

MANIFEST = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "namespace": "default"},
    "data": {"color": "red"},
}

SHOWN = (
    ("get", "pods"),
    ("get", "pods", "-o", "wide", "--all-namespaces"),
    ("get", "pods", "-l", "app=web", "-o", "name"),
    ("get", "pod", "web", "-o", "json"),
    ("get", "nodes"),
    ("get", "services", "-o", "yaml"),
    ("get", "configmaps", "--chunk-size=1"),
    ("describe", "pod", "web"),
    ("describe", "service", "web"),
    ("api-resources",),
    ("api-versions",),
    ("version",),
    ("explain", "pods.spec"),
    ("get", "--raw", "/api/v1/namespaces/default/services"),
    ("get", "pod", "none"),
    ("get", "nonsense"),
)
"""Commands with the same output through the hub and without it."""

UNSURE = f"when the API was last reachable; node {NODE} cannot reach the Kubernetes API"
"""The offline message for an object that does not exist."""

# Versions of lists, ages, and host names.
_VARIES = re.compile(
    r'"metadata":{"resourceVersion":"\d+"'
    r"|\b(\d+m)?\d+(\.\d+)?m?s\b|\b\d+m\b|http\S+127\.0\.0\.1:\d+\S*"
)


def create_objects(cloud: Cloud) -> None:
    """Create some objects."""
    container = {
        "name": "main",
        "image": "none",
        "command": [sys.executable, "-u", "-c", WEB],
    }
    spec = {"nodeName": NODE, "restartPolicy": "Never", "containers": [container]}
    cloud.add("pods", "web", "default", spec=spec, labels={"app": "web"})
    ports = [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    cloud.add("services", "web", "default", spec={"clusterIP": "10.96.0.9", "ports": ports})
    cloud.add("configmaps", "one", "default", data={"a": "1"})
    cloud.add("configmaps", "two", "default", data={"b": "2"})


def comparable(finished) -> tuple[int, str, str]:
    """Return the output and exit status of a kubectl, without values that vary."""
    out, error = (_VARIES.sub("_", text.decode()) for text in (finished.out, finished.error))
    return finished.status, re.sub(" +", " ", out), re.sub(" +", " ", error)


class OnlineTests(KubectlTestCase):
    """The cloud is reachable."""

    async def test_same_output_as_without_the_hub(self) -> None:
        """Objects, tables, descriptions, documents and errors are those of the API."""
        cloud, hub = await self.start()
        create_objects(cloud)
        direct, through = self.direct(cloud), self.through(cloud, hub)
        for arguments in SHOWN:
            with self.subTest(arguments=arguments):
                expected = comparable(await direct.run(*arguments))
                self.assertEqual(comparable(await through.run(*arguments)), expected)

    async def test_same_effects_as_without_the_hub(self) -> None:
        """Apply, patch, label, wait, watch and delete."""
        cloud, hub = await self.start()
        through = self.through(cloud, hub)
        watch = through.start("get", "configmaps", "--watch", "-o", "name")
        self.addCleanup(lambda: watch.kill() if watch.running else None)
        manifest = json.dumps(MANIFEST).encode()
        printed = await through.output("apply", "-f", "-", stdin=manifest)
        self.assertEqual(printed, "configmap/settings created\n")
        await watch.wait_for_output("configmap/settings\n")
        printed = await through.output("apply", "-f", "-", stdin=manifest)
        self.assertEqual(printed, "configmap/settings unchanged\n")
        await through.output("apply", "--server-side", "-f", "-", stdin=manifest, seconds=30)
        await through.output("patch", "configmap", "settings", "-p", '{"data":{"color":"blue"}}')
        await through.output("label", "configmap", "settings", "seen=yes")
        await through.output("create", "namespace", "shop")
        [found] = cloud.store.view(KINDS["configmaps"], "default")
        self.assertEqual(found["data"], {"color": "blue"})
        self.assertEqual(found["metadata"]["labels"], {"seen": "yes"})
        printed = await through.output("delete", "configmap", "settings")
        self.assertIn('configmap "settings" deleted', printed)
        self.assertEqual(cloud.names("configmaps", "default"), [])
        watch.signal("INT")
        await watch.finished(10)

    async def test_pods_are_reached(self) -> None:
        """Logs, followed too, exec with input and exit status, and forwarded ports."""
        cloud, hub = await self.start()
        create_objects(cloud)
        self.start_node(cloud)
        through = self.through(cloud, hub)
        await through.output("wait", "--for=condition=Ready", "pod/web", "--timeout=50s")
        port = re.search(r"port (\d+)\n", await through.output("logs", "web"))[1]
        follow = through.start("logs", "-f", "web")
        await follow.wait_for_output(r"tick 0\n(tick \d+\n){10}")
        follow.signal("INT")
        await follow.finished(10)
        sent = b"x" * 100_000
        done = await through.run("exec", "-i", "web", "--", "sh", "-c", "cat; exit 42", stdin=sent)
        self.assertEqual((done.out, done.status), (sent, 42))
        forward = through.start("port-forward", "web", f":{port}")
        local = int((await forward.wait_for_output(r"Forwarding from 127\.0\.0\.1:(\d+)"))[1])
        self.assertEqual(await deferToThread(ask, local, b"hello"), b"HELLO")
        forward.signal("INT")
        await forward.finished(10)


class OfflineTests(KubectlTestCase):
    """The cloud is not reachable."""

    async def start_with_cached_kubectl(self) -> tuple[Cloud, Hub, Kubectl]:
        """Start a node in whose cluster kubectl is cached."""
        cloud, hub = await self.start()
        create_objects(cloud)
        through = self.through(cloud, hub)
        # Its User-Agent has the name of its file.
        settings = {"cache_agents": os.path.basename(through.path)}
        written = await hub.metric("yurthub_cache_objects_total", result="written")
        cloud.add("configmaps", "yurt-hub-cfg", "kube-system", data=settings)

        async def is_cached() -> bool:
            await through.output("get", "pods", "-o", "json")
            now = await hub.metric("yurthub_cache_objects_total", result="written")
            # One of them is the ConfigMap itself.
            return now > written + 1

        await self.eventually(is_cached, "answers to kubectl are kept", 30)
        return cloud, hub, through

    async def test_everything_is_shown_as_before(self) -> None:
        """Requests have the same output offline as online, even after a kill of the hub."""
        cloud, hub, through = await self.start_with_cached_kubectl()
        online = {}
        for arguments in SHOWN:
            if "--raw" in arguments:
                # Unlike kube-apiserver, the API of these tests includes the kind of each item.
                continue
            online[arguments] = comparable(await through.run(*arguments))
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        await self.restart(hub)
        for arguments, (status, out, error) in online.items():
            offline = comparable(await through.run(*arguments))
            if arguments == ("get", "pod", "none"):
                error = error.replace("not found", f"not found {UNSURE}")
            self.assertEqual(offline, (status, out, error), arguments)

    async def test_a_watch_continues_when_the_cloud_is_back(self) -> None:
        """A watch of kubectl begins with cached objects, and continues when online."""
        cloud, hub, through = await self.start_with_cached_kubectl()
        await through.output("get", "configmaps", "-o", "name")
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        watch = through.start("get", "configmaps", "--watch", "-o", "name")
        self.addCleanup(lambda: watch.kill() if watch.running else None)
        await watch.wait_for_output("configmap/one\nconfigmap/two\n")
        await self.reconnect(cloud, hub)
        # It exits when its watch ends, as with an API server.
        await watch.finished(20)
        self.assertIn("configmap/one\n", await through.output("get", "configmaps", "-o", "name"))

    async def test_cached_lists_are_shown(self) -> None:
        """If kubectl is cached, its lists are available as tables and as objects."""
        cloud, hub, through = await self.start_with_cached_kubectl()
        online = json.loads(await through.output("get", "pods", "-o", "json"))
        await through.output("get", "pods")
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        table = await through.output("get", "pods")
        self.assertRegex(table, r"\ANAME .*AGE *\nweb .*\d+[smh]")
        offline = json.loads(await through.output("get", "pods", "-o", "json"))
        self.assertEqual(offline["items"], online["items"])
        self.assertIn("name: web\n", await through.output("get", "pod", "web", "-o", "yaml"))
        self.assertIn("pods", await through.output("api-resources"))

    async def test_failures_name_the_cause(self) -> None:
        """Apply, delete and logs fail soon with an error that names the cause."""
        cloud, hub = await self.start()
        create_objects(cloud)
        through = self.through(cloud, hub)
        await through.output("get", "pods")
        await through.run(
            "apply", "-f", "-", "--dry-run=server", stdin=json.dumps(MANIFEST).encode()
        )
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        manifest = json.dumps(MANIFEST).encode()
        for arguments in (("apply", "-f", "-"), ("delete", "pod", "web"), ("logs", "web")):
            done = await through.run(*arguments, stdin=manifest, seconds=60)
            self.assertNotEqual(done.status, 0, arguments)
            self.assertRegex(done.error.decode(), "cannot reach the Kubernetes API", arguments)
