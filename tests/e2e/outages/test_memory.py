"""Programs limited to the memory of their documented bounds."""

from __future__ import annotations

import resource
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import gatherResults

from tests.e2e.clients import Download, Echo, EchoClient, Source, Stalled
from tests.e2e.leaks import LeakTestCase
from tests.e2e.programs import MEBIBYTE, Program, max_growth

MAX_STREAMS = 1000
"""Stalled streams that are more than one session has memory for (limits.md)."""

AT_A_TIME = 20

READ_LIMIT = 200_000
"""Bytes that wait for the reader of each: more than a stream may have on its way."""

BULK = 30_000_000
"""Bytes of a download that stalls with all others, and then continues."""

ARENAS = 64 * MEBIBYTE
"""Addresses that the allocator keeps for another thread, mostly without memory behind them."""


class MemoryLimitTests(LeakTestCase):
    """The kernel rejects allocations above the limit."""

    def limit(self, program: Program) -> None:
        """Limit a program to the growth that that many streams may need."""
        [pages] = Path(f"/proc/{program.pid}/statm").read_text().split()[:1]
        address_space = int(pages) * resource.getpagesize() + max_growth(MAX_STREAMS) + ARENAS
        resource.prlimit(program.pid, resource.RLIMIT_AS, (address_space, address_space))

    async def test_streams_are_refused_when_there_is_no_memory_for_them(self) -> None:
        """The next stream fails with 503 and the reason; existing ones continue; later ones
        succeed."""
        filling, echo = self.listen(lambda: Source(READ_LIMIT, hashed=False)), self.listen(Echo)
        source = self.listen(lambda: Source(BULK))
        tunnel = await self.start_tunnel()
        await self.watch(tunnel.server, tunnel.agent, streams=MAX_STREAMS)
        for program in (tunnel.server, tunnel.agent):
            self.limit(program)
        old = await self.connected(tunnel, echo, EchoClient(reactor))
        download = await self.connected(tunnel, source, Download())
        download.transport.pauseProducing()

        stalled: list[Stalled] = []
        refused: list[str] = []
        while not refused:
            self.assertLess(len(stalled), MAX_STREAMS, "streams were never refused")
            for _ in range(AT_A_TIME):
                answer = await self.connect(tunnel, f"127.0.0.1:{filling.port}", Stalled())
                if answer.peer is not None:
                    stalled.append(answer.peer)
                else:
                    self.assertEqual(answer.status, 503, answer.body)
                    refused.append(answer.body)
        print(f"\n{len(stalled)} stalled streams, then: {refused[0].strip()}")
        self.assertIn("memory", refused[0])
        self.assertGreater(len(stalled), MAX_STREAMS // 4)

        await old.round_trip()
        download.transport.resumeProducing()
        await self.within(30, download.when_lost(), "the download goes on")
        self.assertEqual(download.digest, source.peers[0].payload.digest)
        for stream in stalled:
            stream.drop()
        await gatherResults([stream.when_lost() for stream in stalled])

        async def room() -> bool:
            answer = await self.connect(tunnel, f"127.0.0.1:{echo.port}", EchoClient(reactor))
            if answer.peer is None:
                return False
            await answer.peer.round_trip()
            return True

        await self.eventually(room, "there is room again")
        await old.round_trip()
