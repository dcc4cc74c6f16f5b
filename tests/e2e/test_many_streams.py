"""What many streams, and stalled ones, leave behind."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint

from tests.e2e.clients import Download, Echo, EchoClient, Source, Stalled, Target, connect_directly
from tests.e2e.programs import MEBIBYTE, Program, Tunnel
from tests.e2e.tunnel_memory import TunnelMemoryTestCase

STALLED_READERS = 200
"""The number of stalled streams in the test with many of them."""

READ_LIMIT = 2 * MEBIBYTE
"""The bytes that each of them reads before it stalls, so that its window grows if it may."""


class ManyStreamsTests(TunnelMemoryTestCase):
    """Memory, descriptors and threads of both programs."""

    async def test_many_stalled_readers_stay_inside_the_memory_of_one_session(self) -> None:
        """However many streams read a part and then stall, they share one budget."""
        endless = self.listen(lambda: Source(None, hashed=False))
        tunnel = await self.start_tunnel()
        before = {prefix: program.resident() for program, prefix in self.programs(tunnel)}
        await self.watch(tunnel.server, tunnel.agent, streams=STALLED_READERS)
        for _ in range(STALLED_READERS):
            client = await self.connected(tunnel, endless, Stalled(READ_LIMIT))
            await self.eventually(lambda client=client: client.full, "it has had enough")
        await self.at_rest(endless)
        for program, prefix in self.programs(tunnel):
            self.assertEqual(await program.metric(f"{prefix}_open_streams"), STALLED_READERS)
            await self.inside_bounds(program, prefix, before[prefix], STALLED_READERS)

    async def at_rest(self, target: Target) -> None:
        """Wait until no source of the target has sent data for half a second."""
        sent = None
        while sent != (sent := [source.payload.sent for source in target.peers]):
            await self.pause(0.5)

    async def test_a_stalled_reader_that_wakes_up_gets_everything(self) -> None:
        """A stalled stream loses no byte."""
        size = 30_000_000
        source = self.listen(lambda: Source(size))
        tunnel = await self.start_tunnel()
        download = await self.connected(tunnel, source, Download())
        download.transport.pauseProducing()
        await self.pause(1)
        self.assertLess(source.peers[0].payload.sent, size)
        download.transport.resumeProducing()
        await self.within(20, download.when_lost(), "the rest arrives")
        self.assertEqual(download.received, size)
        self.assertEqual(download.digest, source.peers[0].payload.digest)

    async def test_a_thousand_connections_leave_nothing_behind(self) -> None:
        """After many streams both programs have their initial descriptors and threads."""
        echo = self.listen(Echo)
        tunnel = await self.start_tunnel(forwards=(echo.port,))

        async def one() -> None:
            client = await self.dial_briefly(tunnel, EchoClient(reactor))
            await client.round_trip()
            client.transport.loseConnection()
            await client.when_lost()

        await one()
        for program, prefix in self.programs(tunnel):
            await self.eventually(
                lambda program=program, prefix=prefix: self.no_streams(program, prefix),
                "the first stream has ended",
            )
        before = [(p.descriptors(), p.threads()) for p, _ in self.programs(tunnel)]
        for _ in range(50):
            await gatherResults([Deferred.fromCoroutine(one()) for _ in range(20)])
        for (program, prefix), (descriptors, threads) in zip(
            self.programs(tunnel), before, strict=True
        ):
            await self.eventually(
                lambda program=program, prefix=prefix: self.no_streams(program, prefix),
                "all streams have ended",
            )
            await self.descriptors_return(program, descriptors)
            self.assertLessEqual(program.threads(), threads)

    async def no_streams(self, program: Program, prefix: str) -> bool:
        """Whether the program reports no open stream."""
        return await program.metric(f"{prefix}_open_streams") == 0

    async def dial_briefly(self, tunnel: Tunnel, client: EchoClient) -> EchoClient:
        """Connect through the forward, without a cleanup for each client."""
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", tunnel.forward_ports[0], timeout=10)
        return await connect_directly(endpoint, client)
