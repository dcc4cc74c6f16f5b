"""The agent behind its node's hub, which proxies the API."""

from __future__ import annotations

import json
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from tests.deploy.rendering import DEPLOY
from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import API, KUBELET_PORT, SERVERS, World
from tests.e2e.hub.programs import Hub
from tests.e2e.programs import Program

NOTICED_SECONDS = 20.0
"""In which time a hub sees that the API is away, or back."""


class BehindHubTests(ClusterTestCase):
    """The node restarts without the cloud, including its agent."""

    async def start_hub(self, world: World, node: str) -> Hub:
        """Start the hub of a node, which joins with the kubelet's certificate."""
        directory = world.identities.directory
        pem = directory / f"{node}.pem"
        pem.write_bytes(
            b"".join((directory / f"{node}.{end}").read_bytes() for end in ("crt", "key"))
        )
        hub = Hub(
            reactor,
            self.directory,
            world.url,
            extra=(
                "--bootstrap-mode=kubeletcertificate",
                f"--kubelet-client-certificate={pem}",
                f"--kubelet-ca-file={world.identities.ca_path}",
            ),
            node=node,
        )
        self.addCleanup(lambda: Deferred.fromCoroutine(hub.stop(20)) if hub.running else None)
        hub.start()
        await hub.ready(60)
        await self.sees(hub, online=True)
        return hub

    async def sees(self, hub: Hub, online: bool) -> None:
        """Wait until the hub is online, or offline."""

        async def is_noticed() -> bool:
            return await hub.online() is online

        await self.eventually(is_noticed, f"the hub sees it: {online}", NOTICED_SECONDS)

    async def start_agent_behind(self, world: World, hub: Hub) -> Program:
        """Start the agent of the hub's node, with the hub as its only API server."""
        agent = await world.agent(hub.node)
        kubeconfig = Path(agent.arguments[agent.arguments.index("--kube-config") + 1])
        content = json.loads(kubeconfig.read_text())
        content["clusters"][0]["cluster"]["server"] = hub.url
        kubeconfig.write_text(json.dumps(content))
        agent.start()
        await agent.ready(60)
        await self.connected(self.servers, [hub.node])
        return agent

    async def until_cached(self, hub: Hub) -> None:
        """Wait until the objects that the agent follows are cached."""

        async def written() -> bool:
            return (
                await hub.metric("yurthub_cache_objects_total", result="written") > 0
                and await hub.metric("yurthub_cache_waiting_bytes") == 0
            )

        await self.eventually(written, "the hub has kept what its clients see")

    async def reached(self) -> None:
        """Require that all servers reach the node's kubelet."""
        for server in SERVERS[:2]:
            answer = await self.world.request_kubelet(server, f"edge-1:{KUBELET_PORT}", "/healthz")
            self.assertEqual(answer, (200, "ok"), server)

    async def test_a_node_starts_while_all_is_silent(self) -> None:
        """While the API drops all packets, hub and agent are killed and restarted: the agent gets
        its objects from the cache, and its node is reached. When the API is back, so is everything.
        """
        self.world = world = await self.make_world()
        await world.kubectl.output("apply", "-f", str(DEPLOY / "overlays/hub/rbac.yaml"))
        await world.add_nodes("edge-1")
        await self.start_tunnel(world)
        hub = await self.start_hub(world, "edge-1")
        agent = await self.start_agent_behind(world, hub)
        await self.reached()
        await self.until_cached(hub)

        world.network.drop(API, world.api.port)
        for program in (hub, agent):
            program.kill()
            await program.ended(10)
        hub.start()
        await hub.ready(30)
        await self.sees(hub, online=False)
        agent.start()
        await agent.ready(30)
        await self.connected(self.servers, ["edge-1"])
        await self.reached()

        async def follows() -> bool:
            _, page = await agent.get("/readyz?verbose")
            return "Kubernetes API: ok" in page

        await self.eventually(follows, "the agent follows what it follows")
        listed = await hub.metric("yurthub_offline_answers_total", verb="list", status="200")
        self.assertGreater(listed, 0)

        world.network.stop_dropping(API, world.api.port)
        await self.sees(hub, online=True)
        await self.eventually(follows, "the agent still does")
        await self.reached()
