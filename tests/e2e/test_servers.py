"""One agent with several servers, which stop and return."""

from __future__ import annotations

import signal
from functools import partial

from twisted.internet import reactor
from twisted.internet.endpoints import UNIXClientEndpoint

from tests.e2e.clients import Echo, EchoClient, RequestClient, connect
from tests.e2e.leaks import LeakTestCase
from tests.e2e.programs import UNLIMITED_DRAIN, Server, Tunnel
from tests.e2e.stopwatch import Stopwatch
from tests.e2e.support import EndToEndTestCase, copy_state

DIALS = 5
"""New dials after a server was killed."""

NEW_DIALS = 1.0
"""Seconds within which all of them have succeeded."""

BACK = 10.0
"""Seconds from the moment a server is ready again until the agent has a session with it."""


class SeveralServersTests(LeakTestCase):
    """An agent keeps a session with each server of ``--tunnelserver-addr``."""

    async def start_pair(self, **options) -> tuple[Tunnel, Server]:
        """Start an agent with two servers of one authority; all are ready."""
        tunnel = self.make_tunnel(**options)
        second = tunnel.another_server(state="S2")
        servers = f"127.0.0.1:{tunnel.server.agent_port},127.0.0.1:{second.agent_port}"
        arguments = tunnel.agent.arguments
        arguments[arguments.index("--tunnelserver-addr") + 1] = servers
        tunnel.server.start()
        await tunnel.server.ready()
        copy_state(tunnel.server.state, second.state)
        second.start()
        await second.ready()
        tunnel.agent.start()
        await tunnel.agent.ready()
        for server in (tunnel.server, second):
            await self.eventually(server.agents, "each server has the agent")
        await self.watch(tunnel.agent, tunnel.server, second)
        return tunnel, second

    async def status_through(self, server: Server, port: int) -> int:
        """Return the status of a CONNECT to the agent's machine through ``server``."""
        answer = await connect(
            UNIXClientEndpoint(reactor, server.socket_path), f"edge-1:{port}", RequestClient()
        )
        if answer.peer is not None:
            self._end_peer_with_test(answer.peer)
            answer.peer.drop()
        return answer.status

    async def test_the_node_is_reached_through_each_server(self) -> None:
        """Both servers have the node; when one is killed the other is not affected."""
        tunnel, second = await self.start_pair()
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        self.assertEqual(await self.status_through(second, echo.port), 200)
        second.kill()
        await client.round_trip()
        self.assertEqual(await self.status_through(tunnel.server, echo.port), 200)
        # While a server is missing, the agent retries.
        second.start()
        await second.ready()
        await self.eventually(second.agents, "the agent is back", 20)

    async def test_kill_9_of_one_of_two_costs_new_dials_less_than_a_second(self) -> None:
        """Every dial through the other server succeeds, and the agent reconnects soon after a
        restart."""
        tunnel, second = await self.start_pair()
        echo = self.listen(Echo)
        for killed, other in ((second, tunnel.server), (tunnel.server, second)):
            killed.kill()
            watch = Stopwatch(reactor)
            for _ in range(DIALS):
                self.assertEqual(await self.status_through(other, echo.port), 200)
            slowest = watch.seconds()
            self.assertLess(slowest, NEW_DIALS)

            killed.start()
            await killed.ready()
            began = reactor.seconds()
            await self.eventually(
                partial(self.reaches, killed, echo.port), "the agent is back", BACK
            )
            back = reactor.seconds() - began
            print(f"\n{DIALS} dials in {slowest:.3f} s after a kill, back in {back:.1f} s", end="")

    async def reaches(self, server: Server, port: int) -> bool:
        """Whether a dial through a server succeeds."""
        return await self.status_through(server, port) == 200

    async def test_a_returning_server_is_found(self) -> None:
        """After a restart with the same state the agent reconnects by itself."""
        tunnel, second = await self.start_pair()
        echo = self.listen(Echo)
        await second.stop()
        second.start()
        await second.ready()

        await self.eventually(partial(self.reaches, second, echo.port), "the agent is back", 20)
        self.assertEqual(await self.status_through(tunnel.server, echo.port), 200)

    async def test_a_draining_server_keeps_its_streams_and_the_other_takes_the_new(self) -> None:
        """SIGTERM to one of two servers: its stream completes, new ones use the other."""
        tunnel, second = await self.start_pair(drain=UNLIMITED_DRAIN)
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        tunnel.server.signal(signal.SIGTERM)
        await client.round_trip()
        self.assertEqual(await self.status_through(second, echo.port), 200)
        client.transport.loseConnection()
        self.assertIn(await tunnel.server.ended(10), (0, -signal.SIGTERM))


class OneServerTests(EndToEndTestCase):
    """Two addresses in ``--tunnelserver-addr`` that lead to one server process."""

    async def test_two_names_of_one_server_settle_on_one_session(self) -> None:
        """The sessions do not replace each other repeatedly: one stays, with its stream."""
        tunnel = self.make_tunnel()
        port = tunnel.server.agent_port
        arguments = tunnel.agent.arguments
        index = arguments.index("--tunnelserver-addr") + 1
        arguments[index] = f"127.0.0.1:{port},localhost:{port}"
        await tunnel.start()
        await self.eventually(lambda: "standing by" in tunnel.agent.log, "one stands by")

        async def one_session() -> bool:
            return len(await tunnel.server.agents()) == 1

        # The one that was begun second makes the first one end, but not at once.
        await self.eventually(one_session, "the other session has ended")
        [session] = await tunnel.server.agents()
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        # Longer than a client waits before it replaces the other, if it does at all.
        await self.pause(5)
        await client.round_trip()
        [later] = await tunnel.server.agents()
        self.assertEqual(later["session"], session["session"])
        self.assertEqual((await tunnel.agent.get("/readyz"))[0], 200)
