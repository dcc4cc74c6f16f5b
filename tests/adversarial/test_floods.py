"""Floods by a node with a valid certificate, against a real server that serves another node."""

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
"""The number of frames in a flood: thirty times the limit per second. The server reads a million
frames in a second where it has a processor to itself. One second in which it gets a tenth of that
is enough to reach the limit."""

OPENINGS = 10_000
"""The number of streams that the flood opens; a node may open none."""

TOO_MANY = "too many frames without data"


def openings() -> bytes:
    """Return frames that open streams and reset them at once."""
    request = OpenRequest("127.0.0.1", 80, 1000, "flood")
    return b"".join(
        F.open_frame(number, request) + F.coded_frame(F.RESET, number, Code.CANCELLED, "")
        for number in range(2, 2 * OPENINGS, 2)
    )


class FloodTests(EndToEndTestCase):
    """A flood ends the session of the node that sends it, and affects no other node."""

    async def attack(self, tunnel: Tunnel, node: str, flood: bytes) -> RequestClient:
        """Enroll ``node``, and flood the server in its name. Return the attacker's connection."""
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
        """Assert that another node is served during the flood, which ends for ``reason``."""
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
        """PING: only the newest is answered, none is buffered, and too many are a flood."""
        await self.survives(F.offset_frame(F.PING, 0, 1) * FRAMES, "flood", TOO_MANY)

    async def test_credit(self) -> None:
        """CREDIT for the session, which has no effect."""
        await self.survives(F.offset_frame(F.CREDIT, 0, 1) * FRAMES, "flood", TOO_MANY)

    async def test_openings_that_are_reset(self) -> None:
        """OPEN and RESET, the rapid reset of HTTP/2 (CVE-2023-44487).

        Nodes open no streams, so the first OPEN ends the session. tests.wire.test_hostile
        has the test of an end that would have to dial.
        """
        await self.survives(openings(), "protocol", "the server opens no connections")

    async def test_empty_data(self) -> None:
        """DATA without a byte, which would use no credit of the sender, is a protocol error."""
        await self.survives(F.frame(F.DATA, 2) * 100_000, "protocol", "a DATA frame is empty")
