"""Floods by a node that has a good certificate, against a real server that serves another node."""

from __future__ import annotations

import os

from twisted.internet import reactor

from tests.e2e.certificates import authority_of, connect_with_tls, identity_of
from tests.e2e.clients import Echo, EchoClient, RequestClient
from tests.e2e.programs import Tunnel
from tests.e2e.support import EndToEndTestCase
from yurttunnel.wire import frames as F
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import OpenRequest
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits

MIB = 1 << 20

FRAMES = 3_000_000
"""How many a flood has: thirty times as many as are allowed in a second. The server reads a million
in a second where it has a processor to itself. One second in which it gets a tenth of that is
enough to tell."""

OPENINGS = 10_000
"""Streams, of which a node may open none."""

TOO_MANY = "too many frames without data"


def openings() -> bytes:
    """Write streams that are opened and reset at once."""
    request = OpenRequest("127.0.0.1", 80, 1000, "flood")
    return b"".join(
        F.open_frame(number, request) + F.coded_frame(F.RESET, number, Code.CANCELLED, "")
        for number in range(2, 2 * OPENINGS, 2)
    )


class FloodTests(EndToEndTestCase):
    """More of something than an honest node needs costs that node its session, nobody else."""

    async def attack(self, tunnel: Tunnel, node: str, flood: bytes) -> RequestClient:
        """Enroll ``node``, and flood the server in its place; give the attacker."""
        agent = tunnel.another_agent(node=node, state=f"state-{node}")
        agent.start()
        await agent.ready()
        await agent.stop()
        hello = Hello(
            Limits(), NO_SESSION, os.urandom(16), properties={"identifiers": f"host={node}"}
        )
        return await connect_with_tls(
            reactor,
            tunnel.server.agent_port,
            RequestClient(hello.encode() + flood),
            authority_of(tunnel.server.state).certificate,
            identity_of(agent.state),
        )

    async def survives(self, flood: bytes, reason: str, text: str) -> None:
        """Require that another node is served under the flood, and that it ends for ``reason``."""
        tunnel = await self.start_tunnel()
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        before = tunnel.server.resident()
        attacker = await self.attack(tunnel, "edge-2", flood)
        self._end_peer_with_test(attacker)
        for _ in range(20):
            await self.within(20, client.round_trip(), "the other node is served")
        await self.within(40, attacker.when_lost(), "the flood is ended")

        async def counted() -> bool:
            name = "yurttunnel_server_session_ends_total"
            return await tunnel.server.metric(name, reason=reason) == 1

        await self.eventually(counted, "the end of the session is counted")
        await self.eventually(lambda: text in tunnel.server.log, "the log says why")
        self.assertEqual([entry["node"] for entry in await tunnel.server.agents()], ["edge-1"])
        self.assertLess(tunnel.server.resident() - before, 64 * MIB)
        await self.within(20, client.round_trip(), "the other node is served")

    async def test_pings(self) -> None:
        """PING: the newest one is answered at most, none is kept, and too many are a flood."""
        await self.survives(F.offset_frame(F.PING, 0, 1) * FRAMES, "flood", TOO_MANY)

    async def test_credit(self) -> None:
        """CREDIT for the session, which changes nothing."""
        await self.survives(F.offset_frame(F.CREDIT, 0, 1) * FRAMES, "flood", TOO_MANY)

    async def test_openings_that_are_reset(self) -> None:
        """OPEN and RESET, the rapid reset of HTTP/2 (CVE-2023-44487).

        Nodes open no streams, so the first one is one too many. What an end does that would have to
        dial is in tests.wire.test_hostile.
        """
        await self.survives(openings(), "protocol", "the server opens no connections")

    async def test_empty_data(self) -> None:
        """DATA without a byte, which costs the sender nothing, is not allowed at all."""
        await self.survives(F.frame(F.DATA, 2) * 100_000, "protocol", "a DATA frame is empty")
