"""Restarts of servers and agents under load."""

from __future__ import annotations

import random
import signal

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import SERVERS
from tests.e2e.kubectl_use import sha256

MEBIBYTE = 1024 * 1024
COPIED = 8 * MEBIBYTE
"""So much is copied within the drain timeout on a slow machine too."""

DRAIN_SECONDS = 10.0
"""The --drain-timeout of servers."""

AGENT_DRAIN_SECONDS = 10.0
"""The --drain-timeout of agents. A command that begins in its first half ends within it."""

RESTARTED = 5.0
"""Seconds in which streams of a process that was killed end, once its successor is connected: it
has to find the other server behind its address, too. The resume window is 30 s."""


class RestartTests(ClusterTestCase):
    """Streams continue, and new ones work."""

    async def roll(self, world, index: int) -> None:
        """Replace one server as in a rolling update: the new one starts when the old one has
        ended.
        """
        old = self.servers[index]
        old.signal(signal.SIGTERM)
        await old.ended(20)
        self.servers[index] = new = await world.server(SERVERS[index])
        new.start()
        await new.ready(30)
        await self.connected([new], self.agents)

    async def carries(self, index: int, streams: int) -> None:
        """Wait until a server has at least that many streams."""

        async def carried():
            return sum(each["streams"] for each in await self.servers[index].agents()) >= streams

        await self.eventually(carried, f"server {index} carries {streams} streams")

    async def test_rolling_restart(self):
        """A copied file arrives, commands that end in time complete, a log is followed until the
        drain timeout, and new commands work at once."""
        world = await self.start_cluster("edge-1", "edge-2")
        await self.run_pod(world, "web", "edge-1")
        content = random.randbytes(COPIED)
        sent = world.directory / "sent"
        sent.write_bytes(content)
        for index in (0, 1):
            # The API prefers the server that ends, and uses its connections.
            world.servers = [SERVERS[index], SERVERS[1 - index]]
            follow = self.start_kubectl(world.kubectl, "logs", "-f", "web")
            await follow.wait_for_output(r"tick 0\n(tick \d+\n){20}")
            command = self.start_kubectl(
                world.kubectl,
                *("exec", "web", "--", "sh", "-c", "echo begun; sleep 5; echo done; exit 5"),
                "exec",
                "web",
                "--",
                "sh",
                "-c",
                "echo begun; sleep 5; echo done; exit 5",
            )
            await command.wait_for_output("begun")
            copying = self.start_kubectl(world.kubectl, "cp", str(sent), f"web:copy-{index}")
            await self.eventually(
                lambda name=f"copy-{index}": any(world.directory.rglob(name)), "it arrives"
            )
            await self.carries(index, 2)
            followed = Deferred.fromCoroutine(follow.finished(40))
            followed.addCallback(lambda finished: (finished.out, reactor.seconds()))
            began = reactor.seconds()
            await self.roll(world, index)
            finished = await command.finished(20)
            self.assertEqual((finished.out, finished.status), (b"begun\ndone\n", 5), finished)
            copied = await copying.finished(30)
            self.assertEqual(copied.status, 0, copied)
            # With which status it ends is the API's affair: a real one hides that it was cut.
            output, ended = await followed
            self.assert_complete_log(output)
            self.assertGreater(ended - began, DRAIN_SECONDS - 1)
            remote = await world.kubectl.output("exec", "web", "--", "sha256sum", f"copy-{index}")
            self.assertEqual(remote.split()[0], sha256(content))
            again = self.start_kubectl(world.kubectl, "logs", "-f", "web")
            await again.wait_for_output(r"tick 0\n(tick \d+\n){20}")
            again.kill()

    async def test_new_work_during_a_drain(self):
        """While one server drains, and after its end, every new command works."""
        world = await self.start_cluster("edge-1")
        await self.run_pod(world, "web", "edge-1")
        open_command = self.start_kubectl(
            world.kubectl, "exec", "web", "--", "sh", "-c", "echo on; sleep 4"
        )
        await open_command.wait_for_output("on")
        self.servers[0].signal(signal.SIGTERM)
        for _ in range(8):
            self.assertRegex(await self.logs(world, "web"), r"tick \d+")
        self.assertEqual((await open_command.finished(10)).status, 0)
        await self.servers[0].ended(20)
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")

    async def test_an_agent_is_replaced(self):
        """As in a DaemonSet, with a followed log: new commands work until the old agent has ended,
        and again when the next one has started, through either server."""
        world = await self.start_cluster("edge-1")
        await self.run_pod(world, "web", "edge-1")
        follow = self.start_kubectl(world.kubectl, "logs", "-f", "web")
        await follow.wait_for_output(r"tick 0\n(tick \d+\n){20}")
        old = self.agents["edge-1"]
        began = reactor.seconds()
        old.signal(signal.SIGTERM)
        commands = 0
        while reactor.seconds() - began < AGENT_DRAIN_SECONDS / 2:
            world.servers.reverse()
            self.assertRegex(await self.logs(world, "web"), r"tick \d+")
            commands += 1
        self.assertGreater(commands, 1)
        await old.ended(20)
        self.assertGreater(reactor.seconds() - began, AGENT_DRAIN_SECONDS - 0.5)
        await follow.finished(10)
        self.agents["edge-1"] = new = await world.agent("edge-1")
        new.start()
        await new.ready(30)
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")

    async def test_a_killed_agent_is_restarted(self):
        """Logs followed through either server end when the new process has connected."""
        world = await self.start_cluster("edge-1")
        await self.run_pod(world, "web", "edge-1")
        follows = []
        for index in (0, 1):
            world.servers.reverse()
            follows.append(self.start_kubectl(world.kubectl, "logs", "-f", "web"))
            await follows[-1].wait_for_output(r"tick 0\n(tick \d+\n){20}")
            await self.carries(1 - index, 1)
        self.agents["edge-1"].kill()
        self.agents["edge-1"] = new = await world.agent("edge-1")
        new.start()
        await new.ready(30)
        began = reactor.seconds()
        for follow in follows:
            await follow.finished(RESTARTED)
        print(f"\nended {reactor.seconds() - began:.1f} s after the new agent was ready")
