"""Support for the tests in a cluster: the tunnel, running pods, and kubectl."""

from __future__ import annotations

import json
import re
import sys

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.cluster.world import NODES, World
from tests.e2e.kubectl_use import KubectlTestCase
from tests.e2e.programs import Program

TICKER = """
import itertools, time
for number in itertools.count():
    print(f"tick {number}", flush=True)
    time.sleep(0.05)
"""


class ClusterTestCase(KubectlTestCase):
    """A test case with a cluster, which is removed at its end."""

    """Additional flags of the servers."""

    async def make_world(self, **options) -> World:
        """Start the cluster, without nodes and without the tunnel."""
        world = World(reactor, self.directory, **options)
        self.addCleanup(lambda: Deferred.fromCoroutine(world.stop()))
        await world.start()
        return world

    async def start_tunnel(self, world: World, *nodes: str) -> None:
        """Start the servers and the agents of ``nodes``, and wait until all are ready."""
        self.servers = [await world.server(address) for address in world.servers]
        await world.publish_servers()
        self.agents = {name: await world.agent(name) for name in nodes}
        everyone = [*self.servers, *self.agents.values()]
        for program in everyone:
            program.start()
        await gatherResults([Deferred.fromCoroutine(one.ready(60)) for one in everyone])
        await self.connected(self.servers, nodes)

    async def connected(self, servers: list[Program], nodes) -> None:
        """Wait until each of the servers has the agents of all ``nodes``."""
        desired = set(nodes)

        async def complete():
            found = [{entry["node"] for entry in await server.agents()} for server in servers]
            return all(names >= desired for names in found)

        await self.eventually(complete, f"all servers have {sorted(desired)}", 40)

    async def start_cluster(self, *nodes: str, **options) -> World:
        """Start a cluster, with the tunnel."""
        world = await self.make_world(**options)
        names = nodes or tuple(NODES)
        await world.add_nodes(*names)
        await self.start_tunnel(world, *names)
        return world

    async def run_pod(self, world: World, name: str, node: str, program: str = TICKER) -> None:
        """Run a Python program in a pod on ``node``, and wait until it runs."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "main",
                        "image": "none",
                        "command": [sys.executable, "-u", "-c", program],
                        "stdin": True,
                    }
                ],
            },
        }
        await world.kubectl.output("apply", "-f", "-", stdin=json.dumps(pod).encode())
        await world.kubectl.output("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=50s")

    async def logs(self, world: World, name: str) -> str:
        """Return the end of a pod's log."""
        return await world.kubectl.output("logs", name, "--tail=1")

    def assert_complete_log(self, output: bytes) -> None:
        """Require that a followed log has all lines of its program once and in order."""
        numbers = [int(number) for number in re.findall(rb"tick (\d+)\n", output)]
        self.assertEqual(numbers, list(range(len(numbers))))
