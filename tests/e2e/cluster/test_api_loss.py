"""Outages of the Kubernetes API."""

from __future__ import annotations

from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import API, KUBELET_PORT, SERVERS, World
from tests.e2e.programs import Program
from yurttunnel.kube.errors import ApiError, ApiUnreachable

NOTICED_SECONDS = 75.0
"""In which time a program notices that an open connection carries nothing any more."""
READY_SECONDS = 60.0
"""The timeout of the readiness of a server without a response of the API, in seconds."""


class ApiLossTests(ClusterTestCase):
    """The tunnel works without the API."""

    async def test_refused(self):
        """While the API refuses connections the tunnel works, also an agent that is restarted."""
        world = await self.start_cluster("edge-1")
        world.network.remove(API)
        await self.pause(5)
        for server in self.servers:
            self.assertEqual((await server.get("/readyz"))[0], 200)
        await self.restart_agent(world, "edge-1")
        world.network.add(API)
        await self.run_pod(world, "web", "edge-1")
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")

    async def test_silent(self):
        """While all packets to the API are dropped, nodes are reached and restarted programs
        reconnect; afterwards everything works as before."""
        world = await self.start_cluster("edge-1", "edge-2")
        await self.run_pod(world, "web", "edge-1")
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")
        before = {one: forbidden_log_lines(one) for one in (self.servers[1], self.agents["edge-2"])}
        world.network.drop(API, world.api.port)
        await self.restart_agent(world, "edge-1")
        await self.reached(world)
        await self.restart_server(world, 0)
        await self.reached(world)
        await self.eventually(
            lambda: all(forbidden_log_lines(program) > count for program, count in before.items()),
            "those that were not restarted notice it",
            NOTICED_SECONDS,
            1,
        )
        for program in (*self.servers, *self.agents.values()):
            self.assertEqual((await program.get("/readyz"))[0], 200)
        await self.reached(world)
        world.network.stop_dropping(API, world.api.port)
        await self.know_new_things(world)

    async def restart_agent(self, world: World, node: str) -> None:
        """Restart an agent, and wait until all servers have it."""
        await self.agents[node].stop()
        self.agents[node] = again = await world.restarted(self.agents[node])
        again.start()
        await again.ready(30)
        await self.connected(self.servers, [node])

    async def restart_server(self, world: World, index: int) -> None:
        """Restart a server, and wait until it has all agents."""
        await self.servers[index].stop(20)
        self.servers[index] = again = await world.restarted(self.servers[index])
        again.start()
        # It waits for the API for a while, so that clients are not sent to it if another server
        # has more data.
        await again.ready(READY_SECONDS)
        await self.connected([again], self.agents)

    async def reached(self, world: World) -> None:
        """Require that both servers reach both nodes, as requests of kube-apiserver would."""
        for server in SERVERS[:2]:
            for node in self.agents:
                status, body = await world.request_kubelet(
                    server, f"{node}:{KUBELET_PORT}", "/healthz"
                )
                self.assertEqual((status, body), (200, "ok"), (server, node))
            log = "/containerLogs/default/web/main?tailLines=1"
            status, body = await world.request_kubelet(server, f"edge-1:{KUBELET_PORT}", log)
            self.assertEqual(status, 200, body)
            self.assertRegex(body, r"\Atick \d+\n\Z")

    async def know_new_things(self, world: World) -> None:
        """Require that all programs learn about new objects in the cluster."""

        async def takes_pods():
            try:
                await world.add_agent_pod("nowhere", None)
            except (ApiError, ApiUnreachable):
                return False
            return True

        # An idle connection may be dead without a reset, and a POST is not retried.
        await world.reconnect()
        # A real kube-apiserver is its own client at this address, and must reconnect to itself.
        await self.eventually(takes_pods, "the API takes pods again", 60, 1)
        await world.add_nodes("edge-3")
        self.agents["edge-3"] = new = await world.agent("edge-3")
        new.start()
        await new.ready(90)
        await self.connected(self.servers, ["edge-3"])
        await self.run_pod(world, "new", "edge-3")
        self.assertRegex(await self.logs(world, "new"), r"tick \d+")
        for server in SERVERS[:2]:
            # Only the pod shows that the request is for another node than the one in Host.
            async def found(server=server):
                path = "/containerLogs/default/new/main?tailLines=1"
                status, body = await world.request_kubelet(
                    server, f"edge-1:{KUBELET_PORT}", path, admin=True
                )
                return status == 200 and body.startswith("tick")

            await self.eventually(found, f"{server} knows of the new pod", 60, 0.5)


def forbidden_log_lines(program: Program) -> int:
    """Count the log lines of a program about the missing API."""
    return program.log.count("watch failed")
