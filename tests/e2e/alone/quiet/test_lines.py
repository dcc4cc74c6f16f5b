"""Slow lines: an interactive stream beside a bulk copy over the same connection."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.clients import Download, Echo, EchoClient, Latencies, Source
from tests.e2e.faults import FaultProxy
from tests.e2e.leaks import LeakTestCase
from tests.e2e.programs import FIRST_WINDOW, Tunnel

ALLOWED = 0.2
"""The maximum seconds by which the p99 of an echo exceeds the round trip of the line."""

TYPISTS = 4
"""The number of concurrent echoes, for enough samples in a short time."""

KILOBIT = 1000 / 8


class LineTests(LeakTestCase):
    """A line between agent and server with a rate, a delay and a short queue.

    The round trip of a full line is its delay in both directions and the time for which a byte
    waits in its queue: no program can send faster than that.
    """

    async def line(self, rate: float, delay: float, queue: int) -> Tunnel:
        """Start a tunnel over a line of ``rate`` bytes/s from the edge.

        ``delay`` is one way in seconds, ``queue`` in bytes; the direction to the edge has a delay
        only.
        """
        # Half of it is in the kernel, which doubles the requested size, and has this minimum.
        buffer = max(queue // 4, 2048)

        def proxied(port: int) -> int:
            self.proxy = FaultProxy(reactor, port)
            self.proxy.start(buffer)
            self.addCleanup(lambda: Deferred.fromCoroutine(self._stop_proxy(self.proxy)))
            return self.proxy.port

        tunnel = await self.start_tunnel(proxied=proxied)
        # Only now, so that the session has measured a shorter round trip, as when a route changes.
        self.proxy.up.latency = self.proxy.down.latency = delay
        self.proxy.up.bandwidth = rate
        self.proxy.up.queue = int(rate * delay) + queue - 2 * buffer
        return tunnel

    async def judge(
        self, tunnel: Tunnel, what: str, round_trip: float, size: int, allowed: float
    ) -> float:
        """Require quick echoes during a copy of that many bytes; return the copy's bytes/s."""
        echo, source = self.listen(Echo), self.listen(lambda: Source(size))
        typists = [await self.connected(tunnel, echo, EchoClient(reactor)) for _ in range(TYPISTS)]
        began = reactor.seconds()
        copy = await self.connected(tunnel, source, Download())
        await gatherResults(
            [
                Deferred.fromCoroutine(typist.run(lambda: copy.lost_reason is None))
                for typist in typists
            ]
        )
        rate = size / (reactor.seconds() - began)
        samples = [sample for typist in typists for sample in typist.latencies.samples]
        latencies = Latencies(samples)
        print(f"\n{what}, round trip {round_trip * 1000:.0f} ms: copy {rate / 1000:.0f} kB/s,")
        print(f"echo {latencies}")
        self.assertEqual(copy.digest, source.peers[0].payload.digest)
        self.assertLess(latencies.percentile(99), round_trip + allowed, str(latencies))
        [session] = await tunnel.server.agents()
        self.assertEqual(session["resumptions"], 0)
        return rate

    async def test_a_thin_line(self) -> None:
        """At 256 kbit/s an echo waits for at most one initial window of the copy.

        That much is sent before the line's rate is measured.
        """
        rate, queue = 256 * KILOBIT, 6_400
        window = FIRST_WINDOW / rate
        tunnel = await self.line(rate, 0.0, queue)
        moved = await self.judge(tunnel, "256 kbit/s", queue / rate, 300_000, window + ALLOWED)
        self.assertGreater(moved, 0.7 * rate)

    async def test_a_long_line(self) -> None:
        """At a round trip of 600 ms, unknown to the session, an echo takes two round trips."""
        rate, delay, queue = 1_000_000.0, 0.3, 100_000
        tunnel = await self.line(rate, delay, queue)
        moved = await self.judge(tunnel, "8 Mbit/s", 2 * delay + queue / rate, 5_000_000, 2 * delay)
        self.assertGreater(moved, 0.5 * rate)
