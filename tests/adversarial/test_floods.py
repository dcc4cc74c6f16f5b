"""Floods by a node that has a good certificate, against a real server that serves another node."""

from __future__ import annotations

import os

from twisted.internet import reactor

from tests.e2e.certificates import authority_of, connect_with_tls, identity_of
from tests.e2e.clients import Echo, EchoClient, Question
from tests.e2e.programs import Tunnel
from tests.e2e.support import EndToEndTestCase
from yurttunnel.wire import frames as F
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import OpenRequest
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits

MIB = 1 << 20

PINGS = F.offset_frame(F.PING, 0, 1) * 200_000
CREDITS = F.offset_frame(F.CREDIT, 0, 1) * 200_000


def openings() -> bytes:
    """Write streams that are opened and reset at once."""
    request = OpenRequest("127.0.0.1", 80, 1000, "flood")
    return b"".join(
        F.open_frame(number, request) + F.coded_frame(F.RESET, number, Code.CANCELLED, "")
        for number in range(2, 20_000, 2)
    )


class FloodTests(EndToEndTestCase):
    """More of something than an honest node needs costs that node its session, nobody else."""

    timeout = 120

    async def attack(self, tunnel: Tunnel, node: str, flood: bytes) -> Question:
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
            Question(hello.encode() + flood),
            authority_of(tunnel.server.state).certificate,
            identity_of(agent.state),
        )

    async def survives(self, flood: bytes, reason: str | None) -> None:
        """Require that another node is served under the flood, and that it ends for ``reason``.

        Without a reason it may also be taken: a slow machine reads no more frames in a second
        than are allowed. Then it ends when the attacker is told to go, or answers no PING.
        """
        tunnel = await self.start_tunnel()
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        before = tunnel.server.resident()
        attacker = await self.attack(tunnel, "edge-2", flood)
        self._end_peer_with_test(attacker)
        for _ in range(20):
            await self.within(20, client.round_trip(), "the other node is served")
        if reason is not None:
            await self.within(40, attacker.when_lost(), "the flood is ended")
            await self.eventually(lambda: reason in tunnel.server.log, "the server says why")
        self.assertLess(tunnel.server.resident() - before, 64 * MIB)
        await self.within(20, client.round_trip(), "the other node is served")

    async def test_pings(self) -> None:
        """PING: the newest one is answered at most, and none is kept."""
        await self.survives(PINGS, None)

    async def test_credit(self) -> None:
        """CREDIT for the session, which changes nothing."""
        await self.survives(CREDITS, None)

    async def test_openings_that_are_reset(self) -> None:
        """OPEN and RESET, the rapid reset of HTTP/2 (CVE-2023-44487).

        Nodes open no streams, so each is refused at once. What an end does that would have to dial
        is in tests.wire.test_hostile.
        """
        await self.survives(openings(), None)

    async def test_empty_data(self) -> None:
        """DATA without a byte, which costs the sender nothing, is not allowed at all."""
        await self.survives(F.frame(F.DATA, 2) * 100_000, "a DATA frame is empty")
