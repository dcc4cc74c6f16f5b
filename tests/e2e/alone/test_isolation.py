"""Slow or greedy streams do not affect other streams."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.utils import getProcessOutputAndValue

from tests.e2e.alone.machine import slowness
from tests.e2e.clients import (
    Download,
    Latencies,
    Sink,
    Source,
    Stalled,
)
from tests.e2e.programs import MEBIBYTE, Tunnel
from tests.e2e.tunnel_memory import TunnelMemoryTestCase

PROBE = Path(__file__).with_name("echo_probe.py")

ECHO_P99 = 0.020
"""The maximum p99 of an interactive echo on loopback, in seconds, beside any load. The latency of
the machine is added (:data:`CONCURRENCY`), and :func:`slowness` is a factor on slow machines."""

CONCURRENCY = 3
"""The ratio of wakeups of processes through the tunnel to those of a direct echo: caller, server,
agent, target, agent, server, and caller again. The latency of the machine may be this multiple of
that of a direct echo at the same time."""

TRIES = 3
"""How often more echoes are measured until all of them together are quick: of the 200 in three
seconds beside two busy loops, the two slowest determine the p99."""

EVEN = 0.7
"""The slowest of equal bulk streams moves at least this share of what the fastest moves."""


class IsolationTests(TunnelMemoryTestCase):
    """Echoes, downloads and uploads of one agent side by side."""

    async def quick_echo(self, tunnel: Tunnel, seconds: float, what: str) -> None:
        """Require a quick interactive echo through the CONNECT socket for some seconds.

        If it is not quick, more samples are measured and added.
        """
        samples: dict[str, list[float]] = {"tunnel": [], "direct": []}
        for _ in range(TRIES):
            for path, measured in (await self.echoes(tunnel, seconds)).items():
                samples[path] += measured
            through, direct = Latencies(samples["tunnel"]), Latencies(samples["direct"])
            result = f"echo beside {what}: {through}, directly {direct}"
            print(f"\n{result}")
            allowed = ECHO_P99 * slowness() + CONCURRENCY * direct.percentile(99)
            if through.percentile(99) < allowed:
                return
        self.fail(f"the p99 is not less than {allowed * 1000:.1f} ms: {result}")

    async def echoes(self, tunnel: Tunnel, seconds: float) -> dict[str, list[float]]:
        """Return the latencies of echoes for some seconds, through the tunnel and directly."""
        output, errors, status = await getProcessOutputAndValue(
            sys.executable,
            [str(PROBE), tunnel.socket_path, str(seconds)],
            env=os.environ,
            reactor=reactor,
        )
        self.assertEqual(status, 0, errors.decode())
        measured: dict[str, list[float]] = json.loads(output)
        return measured

    async def undisturbed(self, tunnel: Tunnel, what: str, resident_before: dict) -> None:
        """Require a quick echo, a complete download and upload, and memory within the budget."""
        source = self.listen(lambda: Source(50_000_000))
        sink = self.listen(Sink)
        await self.quick_echo(tunnel, 2, what)
        download = await self.connected(tunnel, source, Download())
        await self.within(10, download.when_lost(), "a download beside stalled streams")
        self.assertEqual(download.digest, source.peers[0].payload.digest)
        upload = await self.connected(tunnel, sink, Source(50_000_000))
        await self.within(10, upload.when_read_ended(), "an upload beside stalled streams")
        self.assertEqual(upload.answer.decode(), upload.payload.digest)

        for program, prefix in self.programs(tunnel):
            await self.inside_bounds(program, prefix, resident_before[prefix], 6)

    async def test_four_stalled_readers_disturb_nobody(self) -> None:
        """A fifth client is quick and complete, and the sources of stalled streams pause."""
        endless = self.listen(lambda: Source(None, hashed=False))
        tunnel = await self.start_tunnel()
        before = {prefix: program.resident() for program, prefix in self.programs(tunnel)}
        for _ in range(4):
            await self.connected(tunnel, endless, Stalled())
        await self.undisturbed(tunnel, "four stalled readers", before)
        sent = [source.payload.sent for source in endless.peers]
        await self.pause(1)
        self.assertEqual([source.payload.sent for source in endless.peers], sent)

    async def test_four_stalled_targets_disturb_nobody(self) -> None:
        """The same if the targets read nothing."""
        tunnel = await self.start_tunnel()
        # They end before the check for remaining streams: a stream ends with its last data.
        stalled = self.listen(Stalled)
        before = {prefix: program.resident() for program, prefix in self.programs(tunnel)}
        uploads = []
        for _ in range(4):
            upload = Source(None, hashed=False)
            uploads.append(await self.connected(tunnel, stalled, upload))
        await self.undisturbed(tunnel, "four stalled targets", before)
        sent = [upload.payload.sent for upload in uploads]
        await self.pause(1)
        self.assertEqual([upload.payload.sent for upload in uploads], sent)

    async def test_eight_downloads_share_evenly_beside_a_quick_echo(self) -> None:
        """During eight bulk downloads the p99 of an echo is low, and they progress equally."""
        source = self.listen(lambda: Source(None, hashed=False))
        await self.even_and_quick(
            "downloads",
            lambda tunnel: self.connected(tunnel, source, Download(hashed=False)),
            lambda client: client.received,
        )

    async def test_eight_uploads_share_evenly_beside_a_quick_echo(self) -> None:
        """The same in the other direction."""
        sink = self.listen(lambda: Sink(hashed=False))
        await self.even_and_quick(
            "uploads",
            lambda tunnel: self.connected(tunnel, sink, Source(None, hashed=False)),
            lambda client: client.payload.sent,
        )

    async def even_and_quick(self, what: str, start, moved) -> None:
        """Run eight bulk streams and an echo for three seconds after one second of warm-up."""
        tunnel = await self.start_tunnel()
        clients = [await start(tunnel) for _ in range(8)]
        await self.pause(1)
        before = [moved(client) for client in clients]
        started = reactor.seconds()
        await self.quick_echo(tunnel, 3, f"eight {what}")
        seconds = reactor.seconds() - started
        amounts = [moved(client) - old for client, old in zip(clients, before, strict=True)]
        share = min(amounts) / max(max(amounts), 1)
        rate = sum(amounts) / seconds / MEBIBYTE
        print(f"\neight {what}: {rate:.0f} MiB/s, min/max {share:.2f}")
        self.assertGreater(min(amounts), 0)
        self.assertGreaterEqual(share, EVEN, str(amounts))
