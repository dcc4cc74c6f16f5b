"""kubectl through two servers and an API that reaches nodes through them."""

from __future__ import annotations

import random
import re

from twisted.internet import reactor

from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.kubectl import Kubectl, find_kubectls
from tests.e2e.kubectl_use import MEBIBYTE
from tests.e2e.test_kubectl import ECHO, WEB


class KubectlTests(ClusterTestCase):
    """Every installed version of kubectl with one cluster."""

    async def test_every_kubectl(self):
        """Logs, input and output, exit codes, terminals, attach, forwarded ports, copies and
        metrics work."""
        world = await self.start_cluster("edge-1", "edge-2")
        await self.run_pod(world, "web", "edge-2", WEB)
        await self.run_pod(world, "echo", "edge-1", ECHO)
        for version, path in find_kubectls().items():
            world.kubectl = Kubectl(reactor, path, world)
            with self.subTest(version=version):
                await self.use(world)
        await self.copy(world.kubectl, "web")

    async def use(self, world) -> None:
        """Do everything that is quick."""
        kubectl = world.kubectl
        self.assertRegex(await kubectl.output("logs", "web", "--tail=2"), r"\A(tick \d+\n){2}\Z")
        follow = self.start_kubectl(world.kubectl, "logs", "-f", "web")
        await follow.wait_for_output(r"tick 0\n(tick \d+\n){20}")
        follow.signal("INT")
        await follow.finished(5)
        self.assert_complete_log(bytes(follow.out))
        stdin_text = random.randbytes(100_000).hex().encode()
        script = "cat; echo wrong >&2; exit 42"
        finished = await kubectl.run(
            "exec", "-i", "web", "--", "sh", "-c", script, stdin=stdin_text
        )
        self.assertEqual((finished.out, finished.status), (stdin_text, 42))
        self.assertIn(b"wrong\n", finished.error)
        shell = await self.open_terminal(kubectl, "web")
        shell.transport.write(b"exit 7\n")
        self.assertEqual((await shell.finished(10)).status, 7)
        await self.attach(kubectl, "echo")
        port = re.search(r"port (\d+)\n", await kubectl.output("logs", "web"))[1]
        await self.forward_port(kubectl, "web", port, 3, MEBIBYTE // 2)
        metrics = await kubectl.output("get", "--raw", "/api/v1/nodes/edge-1/proxy/metrics")
        self.assertRegex(metrics, r"(?m)^process_cpu_seconds_total ")
