"""Routes from a server to a node: changing addresses, and sibling servers."""

from __future__ import annotations

import signal

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from tests.e2e.cluster.real_api import assets
from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import (
    AGENT_META_PORT,
    AGENT_PORT,
    KUBELET_PORT,
    NODES,
    SERVERS,
    SPARE_ADDRESS,
    World,
    loopback,
)
from tests.e2e.stopwatch import Stopwatch

REMOTE_NODES = "yurttunnel_server_remote_nodes"
DRAIN_SECONDS = 10.0
"""The --drain-timeout of servers."""
OTHER_PORT = 10251
"""Where the second kubelet of an address listens."""


class RoutingTests(ClusterTestCase):
    """Requests reach their node."""

    async def indirect_cluster(self) -> World:
        """Start a cluster whose API prefers the first server, while the agent is connected to the
        second only, with a running pod."""
        world = await self.make_world()
        await world.add_nodes("edge-1")
        self.servers = [await world.server(address) for address in SERVERS[:2]]
        await world.publish_servers()
        agent = await world.agent("edge-1", "--tunnelserver-addr", f"{SERVERS[1]}:{AGENT_PORT}")
        self.agents = {"edge-1": agent}
        for program in (*self.servers, agent):
            program.start()
        for program in (*self.servers, agent):
            await program.ready(60)
        await self.run_pod(world, "web", "edge-1")
        await self.eventually(
            lambda: self.reaches_remotely(0), "the first server knows the node by its sibling", 20
        )
        return world

    async def reaches_remotely(self, index: int) -> bool:
        """Whether a server reaches one node through its sibling."""
        return await self.servers[index].metric(REMOTE_NODES) == 1

    async def test_server_without_the_session(self):
        """A server without the agent's session uses its sibling."""
        world = await self.indirect_cluster()
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")
        echoed = await world.kubectl.run("exec", "-i", "web", "--", "cat", stdin=b"there and back")
        self.assertEqual(echoed.out, b"there and back")
        self.assertEqual(await self.servers[0].agents(), [])

    async def test_sibling_that_drains(self):
        """Streams through a draining sibling continue until its drain timeout."""
        world = await self.indirect_cluster()
        follow = self.start_kubectl(world.kubectl, "logs", "-f", "web")
        await follow.wait_for_output(r"tick 0\n(tick \d+\n){20}")
        followed = Deferred.fromCoroutine(follow.finished(40))
        followed.addCallback(lambda finished: (finished.out, reactor.seconds()))
        command = self.start_kubectl(
            world.kubectl, "exec", "web", "--", "sh", "-c", "echo begun; sleep 5; echo done; exit 5"
        )
        await command.wait_for_output("begun")
        began = reactor.seconds()
        self.servers[1].signal(signal.SIGTERM)
        finished = await command.finished(20)
        self.assertEqual((finished.out, finished.status), (b"begun\ndone\n", 5), finished)
        await self.servers[1].ended(20)
        output, ended = await followed
        self.assert_complete_log(output)
        self.assertGreater(ended - began, DRAIN_SECONDS - 1)
        self.servers[1] = again = await world.restarted(self.servers[1])
        again.start()
        await again.ready(30)
        await self.connected([again], ["edge-1"])
        await self.eventually(lambda: self.reaches_remotely(0), "the node is known again", 20)
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")

    async def test_server_that_drains(self):
        """Streams through a sibling continue for the drain timeout of the server that has the
        caller."""
        world = await self.indirect_cluster()
        command = self.start_kubectl(
            world.kubectl, "exec", "web", "--", "sh", "-c", "echo begun; sleep 7; echo done; exit 5"
        )
        await command.wait_for_output("begun")
        self.servers[0].signal(signal.SIGTERM)
        finished = await command.finished(20)
        self.assertEqual((finished.out, finished.status), (b"begun\ndone\n", 5), finished)
        await self.servers[0].ended(20)

    async def test_sibling_that_hangs(self):
        """A request through a hanging sibling fails soon, with that server's name."""
        world = await self.indirect_cluster()
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")
        self.servers[1].signal(signal.SIGSTOP)
        try:
            watch = Stopwatch(reactor)
            failed = await world.kubectl.run("logs", "web")
            self.assertLess(watch.seconds(), 15)
            self.assertNotEqual(failed.status, 0)
            # The egress selector of a real kube-apiserver passes on the status and no sentence.
            if assets() is None:
                self.assertIn(f"the server {SERVERS[1]} at {SERVERS[1]}:{AGENT_PORT}", str(failed))
                self.assertIn("cannot be reached", str(failed))
        finally:
            self.servers[1].signal(signal.SIGCONT)

    async def test_fewer_connections_than_servers(self):
        """With ``--server-connections 1`` an agent has a session with one server, through which the
        other one reaches it, and moves to the other in time when that server drains."""
        world = await self.make_world()
        await world.add_nodes("edge-1")
        self.servers = [await world.server(address) for address in SERVERS[:2]]
        await world.publish_servers()
        agent = await world.agent("edge-1", "--server-connections", "1")
        for program in (*self.servers, agent):
            program.start()
        for program in (*self.servers, agent):
            await program.ready(60)
        await self.run_pod(world, "web", "edge-1")
        direct = await self.eventually(self.servers_with_session, "one server has the session", 20)
        [index] = direct
        await self.eventually(
            lambda: self.reaches_remotely(1 - index), "the other one knows the node by it", 20
        )
        world.servers = [SERVERS[1 - index], SERVERS[index]]
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")
        follow = self.start_kubectl(world.kubectl, "logs", "-f", "web")
        await follow.wait_for_output(r"tick 0\n(tick \d+\n){20}")
        self.servers[index].signal(signal.SIGTERM)
        await self.connected([self.servers[1 - index]], ["edge-1"])
        self.assertTrue(self.servers[index].running)
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")
        await self.servers[index].ended(20)
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")

    async def servers_with_session(self) -> list[int] | None:
        """List the servers with a session, if it is one."""
        counts = [len(await server.agents()) for server in self.servers]
        holders = [index for index, count in enumerate(counts) if count]
        return holders if len(holders) == 1 else None

    async def test_service_address_changes(self):
        """Agents follow the address in the Service, without a restart."""
        world = await self.start_cluster("edge-1")
        moved = await world.server(SPARE_ADDRESS)
        world.servers = [SPARE_ADDRESS]
        await world.publish_servers()
        moved.start()
        await moved.ready(60)
        await self.connected([moved], ["edge-1"])
        for server in self.servers:
            await server.stop(20)
        await self.run_pod(world, "web", "edge-1")
        self.assertRegex(await self.logs(world, "web"), r"tick \d+")

    async def test_ports_of_the_loopback_address(self):
        """Ports in ``localhost-proxy-ports`` are reached at the node's loopback address as soon as
        they are configured."""
        world = await self.make_world()
        await world.add_nodes("edge-1")
        self.servers = []
        for address in world.servers:
            # Callers of port 10264 that select a node by address must be on the server's machine.
            server = await world.server(address, "--insecure-bind-address", loopback(address))
            server.meta_host = loopback(address)
            self.servers.append(server)
        await world.publish_servers()
        # The available port is the agent's own, which it opens to others only if allowed.
        allowed = [f"{host}:{AGENT_META_PORT}" for host in ("127.0.0.1", NODES["edge-1"])]
        agent = await world.agent(
            *("edge-1", "--meta-host", "127.0.0.1"),
            *(word for target in allowed for word in ("--allow-destination", target)),
        )
        agent.meta_host = "127.0.0.1"
        for program in (*self.servers, agent):
            program.start()
        for program in (*self.servers, agent):
            await program.ready(60)
        await self.connected(self.servers, ["edge-1"])
        authority = f"{NODES['edge-1']}:{AGENT_META_PORT}"

        async def ask():
            return [
                await world.request_node(server, authority, "/healthz") for server in SERVERS[:2]
            ]

        well = [(200, "ok\n")] * 2
        self.assertEqual(await ask(), well)
        await world.set_proxy_ports({"localhost-proxy-ports": "10267"})

        async def refused():
            return all(status == 502 for status, _ in await ask())

        await self.eventually(refused, "nothing listens at the node's own address", 20, 0.2)
        await world.set_proxy_ports({"localhost-proxy-ports": "10267, 10266"})

        async def is_recovered():
            return await ask() == well

        await self.eventually(is_recovered, "the port is one of those again", 20, 0.2)

    async def test_two_nodes_with_one_address(self):
        """Requests to an address of two nodes are rejected with both names; by name, and by a pod's
        name, each node is reached."""
        world = await self.make_world()
        shared = NODES["edge-1"]
        await world.add_nodes("edge-1")
        await world.add_node("edge-2", shared, OTHER_PORT)
        self.servers = [await world.server(address) for address in world.servers]
        await world.publish_servers()
        agents = [
            await world.agent("edge-1"),
            await world.agent(
                *("edge-2", "--node-ip", shared, "--allow-destination", f"{shared}:{OTHER_PORT}")
            ),
        ]
        for program in (*self.servers, *agents):
            program.start()
        for program in (*self.servers, *agents):
            await program.ready(60)
        await self.connected(self.servers, ["edge-1", "edge-2"])
        for server in SERVERS[:2]:
            for port in (KUBELET_PORT, OTHER_PORT):
                status, body = await world.request_kubelet(
                    server, f"{shared}:{port}", "/metrics", admin=True
                )
                self.assertEqual(status, 400, body)
                self.assertIn("edge-1, edge-2", body)
            for name, port in (("edge-1", KUBELET_PORT), ("edge-2", OTHER_PORT)):
                status, body = await world.request_kubelet(server, f"{name}:{port}", "/pods")
                self.assertEqual(status, 200, body)
        await self.run_pod(world, "web", "edge-2")

        async def log(server):
            path = "/containerLogs/default/web/main?tailLines=1"
            return await world.request_kubelet(server, f"{shared}:{KUBELET_PORT}", path, admin=True)

        for server in SERVERS[:2]:

            async def found(server=server):
                status, body = await log(server)
                return status == 200 and body.startswith("tick")

            await self.eventually(found, f"{server} knows the node by the pod", 20, 0.2)
