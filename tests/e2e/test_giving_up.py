"""Connections aborted by a living end, and dials to a disconnected node."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.clients import Download, Echo, EchoClient, RequestClient, Source
from tests.e2e.programs import Tunnel
from tests.e2e.support import TwistedTransports
from tests.e2e.test_resumption import CutTunnelTestCase
from yurttunnel.server.node_session import RECONNECT_TIMEOUT

DETECTION = 7.5
"""Seconds in which a side without received data closes, with streams open (protocol.md)."""

RETURN_GRACE = 0.8
"""The grace period of streams after the apparent death of the agent, in seconds."""

SLACK = 10.0
"""Additional seconds on a loaded machine."""

BULK = 30_000_000
"""Bytes of a download that is under way, more than any window."""

AT_ONCE = 1.0
"""Seconds within which a dial fails that waits for nothing."""


class GivingUpTests(CutTunnelTestCase):
    """An agent that receives nothing resets the connection, and the reset arrives."""

    async def deafen(self, tunnel: Tunnel) -> None:
        """Drop all data to the agent until it aborts, and delay its return."""
        (link,) = self.proxy.links
        await self.proxy.refuse()
        link.down.discard()

        async def has_given_up() -> bool:
            return await tunnel.agent.metric("yurttunnel_agent_connections_lost_total") > 0

        await self.eventually(has_given_up, "the agent gives the connection up", DETECTION + SLACK)

    async def test_streams_survive_an_agent_that_gives_up(self) -> None:
        """It is not considered dead: streams wait longer than the grace period, and continue."""
        source = self.listen(lambda: Source(BULK))
        echo = self.listen(Echo)
        tunnel = await self.start_cut_tunnel(server_extra=("--return-grace", f"{RETURN_GRACE}s"))
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        download = await self.connected(tunnel, source, Download())
        await self.eventually(lambda: download.received, "the download begins")

        await self.deafen(tunnel)
        answer = Deferred.fromCoroutine(client.round_trip())
        await self.eventually(lambda: self.is_disconnected(tunnel), "the server has seen the reset")
        await self.pause(3 * RETURN_GRACE)
        self.proxy.start()
        await self.within(SLACK, answer, "the echo goes on")
        await self.within(30, download.when_lost(), "the download ends")
        self.assertEqual(download.received, BULK)
        self.assertEqual(download.digest, source.peers[0].payload.digest)
        self.assertEqual(await tunnel.server.metric("yurttunnel_server_resumptions_total"), 1)

    async def is_disconnected(self, tunnel: Tunnel) -> bool:
        """Whether the server reports that the session has no connection."""
        return not any(entry["connected"] for entry in await tunnel.server.agents())


class TwistedGivingUpTests(TwistedTransports, GivingUpTests):
    """The same over Twisted's own transports."""


class DisconnectedTests(CutTunnelTestCase):
    """Dials while the session of a node waits for its agent."""

    async def test_dials_wait_for_an_agent_that_returns_soon(self) -> None:
        """Dials during a short disconnection succeed."""
        echo = self.listen(Echo)
        tunnel = await self.start_cut_tunnel()
        await self.lose(tunnel)
        clients = [EchoClient(reactor) for _ in range(20)]
        dials = [Deferred.fromCoroutine(self.connected(tunnel, echo, one)) for one in clients]
        self.proxy.start()
        await self.within(RECONNECT_TIMEOUT + SLACK, gatherResults(dials), "each dial succeeds")
        await gatherResults([Deferred.fromCoroutine(one.round_trip()) for one in clients])

    async def test_dials_fail_soon_while_it_is_gone_and_succeed_after_its_return(self) -> None:
        """Pending dials fail after some seconds, later ones at once, and none after the return."""
        echo = self.listen(Echo)
        tunnel = await self.start_cut_tunnel()
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        await self.lose(tunnel)
        began = reactor.seconds()
        waiting = [Deferred.fromCoroutine(self.answer(tunnel, echo.port)) for _ in range(5)]
        for status, _ in await self.within(
            RECONNECT_TIMEOUT + SLACK, gatherResults(waiting), "dials that wait fail"
        ):
            self.assertEqual(status, 503)
        print(f"\ndials that wait fail after {reactor.seconds() - began:.1f} s")
        status, text = await self.within(
            AT_ONCE, self.answer(tunnel, echo.port), "a later dial fails at once"
        )
        self.assertEqual(status, 503)
        self.assertRegex(text, r"node edge-1 was lost \d+ s ago")

        self.proxy.start()
        await self.within(30, client.round_trip(), "the stream goes on")
        for _ in range(20):
            again = await self.connected(tunnel, echo, EchoClient(reactor))
            await again.round_trip()

    async def lose(self, tunnel: Tunnel) -> None:
        """Disconnect the agent, until the server has noticed."""
        await self.proxy.refuse()
        self.proxy.for_all("reset")

        async def lost() -> bool:
            return not any(entry["connected"] for entry in await tunnel.server.agents())

        await self.eventually(lost, "the server misses the agent")

    async def answer(self, tunnel: Tunnel, port: int) -> tuple[int, str]:
        """Make a dial; return its status and body."""
        answer = await self.connect(tunnel, f"127.0.0.1:{port}", RequestClient())
        return answer.status, answer.body
