"""kubectl through two servers and an API that reaches nodes through them."""

from __future__ import annotations

import random
import re

from twisted.internet import reactor
from twisted.internet.defer import gatherResults
from twisted.internet.threads import deferToThread

from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.kubectl import Kubectl, find_kubectls
from tests.e2e.test_kubectl import ECHO, WEB, ask, sha256

MEBIBYTE = 1024 * 1024
COPIED = 50 * MEBIBYTE


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
        await self.copy(world)

    async def use(self, world) -> None:
        """Do everything that is quick."""
        kubectl = world.kubectl
        self.assertRegex(await kubectl.output("logs", "web", "--tail=2"), r"\A(tick \d+\n){2}\Z")
        follow = self.start_kubectl(world, "logs", "-f", "web")
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
        await self.use_terminal(world)
        await self.attach(world)
        await self.forward_port(world)
        metrics = await kubectl.output("get", "--raw", "/api/v1/nodes/edge-1/proxy/metrics")
        self.assertRegex(metrics, r"(?m)^process_cpu_seconds_total ")

    async def use_terminal(self, world) -> None:
        """Use a shell in a terminal whose size changes."""
        shell = self.start_kubectl(world, "exec", "-it", "web", "--", "sh", tty=(100, 40))
        await shell.wait_for_output(r"[#$] ")
        await self.eventually(lambda: shell.reported_size("40 100"), "the shell sees its size")
        shell.resize(120, 50)
        await self.eventually(lambda: shell.reported_size("50 120"), "the shell sees the new size")
        shell.transport.write(b"exit 7\n")
        self.assertEqual((await shell.finished(10)).status, 7)

    async def attach(self, world) -> None:
        """Attach to a running program."""
        attached = self.start_kubectl(world, "attach", "-i", "echo")
        attached.transport.write(b"is anybody there\n")
        await attached.wait_for_output("heard is anybody there\n")
        await self.eventually(lambda: b"noise\n" in attached.error, "its other output is there")
        attached.signal("INT")
        await attached.finished(10)

    async def forward_port(self, world) -> None:
        """Send much data to a program that listens on a port, over several connections."""
        port = re.search(r"port (\d+)\n", await world.kubectl.output("logs", "web"))[1]
        forward = self.start_kubectl(world, "port-forward", "web", f":{port}")
        local = int((await forward.wait_for_output(r"Forwarding from 127\.0\.0\.1:(\d+)"))[1])
        questions = [random.randbytes(MEBIBYTE // 4).hex().encode() for _ in range(3)]
        requests = [deferToThread(ask, local, question) for question in questions]
        answers = await gatherResults(requests, consumeErrors=True)
        for question, answer in zip(questions, answers, strict=True):
            self.assertEqual(sha256(answer), sha256(question.upper()))
        forward.signal("INT")
        await forward.finished(10)

    async def copy(self, world) -> None:
        """Copy a large file in both directions."""
        content = random.randbytes(COPIED)
        sent, returned = world.directory / "sent", world.directory / "returned"
        sent.write_bytes(content)
        await world.kubectl.output("cp", str(sent), "web:big", seconds=90)
        remote = await world.kubectl.output("exec", "web", "--", "sha256sum", "big")
        self.assertEqual(remote.split()[0], sha256(content))
        await world.kubectl.output("cp", "web:big", str(returned), seconds=90)
        self.assertEqual(sha256(returned.read_bytes()), sha256(content))
