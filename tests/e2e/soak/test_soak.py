"""Load under random faults, in rounds; after each no stream remains, and no resource has leaked.

``YURTTUNNEL_SOAK_SECONDS`` is the duration, and ``YURTTUNNEL_SOAK_SEED`` the seed of the faults.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import TypeVar

import treq
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.clients import Download, Echo, EchoClient, Peer, Sink, Source, Target
from tests.e2e.programs import MEBIBYTE, OTHER_GROWTH, Program
from tests.e2e.soak.faults import RandomFaults
from tests.e2e.soak.slopes import Sample, slope
from tests.e2e.support import EndToEndTestCase
from yurttunnel.ops.debug.memory import TRACED_SECONDS

SECONDS = float(os.environ.get("YURTTUNNEL_SOAK_SECONDS", "6"))
SEED = os.environ.get("YURTTUNNEL_SOAK_SEED", "1")

WORKERS = 6
TASKS = 6
"""The number of tasks of each worker in a round."""

MIN_ROUNDS = 3

WARM = 2
"""Rounds before the first sample: modules are imported, buffers grow, and the data for the page
about memory is loaded."""

SIZES = (1, 1_500_000)
ECHOES = 10

TIMEOUT = 120.0
"""The maximum duration in seconds of a round, or of the release of resources after it."""

TRACED = SECONDS < TRACED_SECONDS / 2
"""Whether the programs trace their allocations. In a short run resident memory varies by more than
a leak; in a long one tracing would end."""

REDIAL_INTERVAL = 0.5
"""The time in seconds until a dial that got 503 is repeated."""

MAX_GROWTH = 2 * MEBIBYTE if TRACED else OTHER_GROWTH
"""The maximum growth of a program in bytes over the whole time, by the slope: of traced allocations
(a hundred transfers may cause that much), or of resident memory."""

P = TypeVar("P", bound=Peer)

PREFIXES = ("yurttunnel_server", "yurttunnel_agent")


class SoakTests(EndToEndTestCase):
    """Downloads, uploads and echoes whose bytes are compared at both ends."""

    timeout = SECONDS + 2 * TIMEOUT

    async def setUp(self) -> None:
        """Start targets, and a tunnel whose connection passes through a fault proxy."""
        await super().setUp()
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self.echo = self.listen(Echo)
        self.sink = self.listen(Sink)
        self.bytes = self.tasks = self.redials = 0

        def proxied(port: int) -> int:
            self.proxy = self.fault_proxy(port)
            return self.proxy.port

        self.tunnel = await self.start_tunnel(proxied=proxied)
        self.programs = dict(zip(PREFIXES, (self.tunnel.server, self.tunnel.agent), strict=True))
        self.before = {prefix: one.descriptors() for prefix, one in self.programs.items()}

    async def test_nothing_is_lost_and_nothing_grows(self) -> None:
        """Every transfer is complete, and after each round no resources remain in use."""
        faults = RandomFaults(reactor, self.proxy, Random(SEED))
        self.addCleanup(faults.stop)
        began = reactor.seconds()
        rounds = 0
        while rounds < WARM + MIN_ROUNDS or reactor.seconds() - began < SECONDS:
            # Both ends always have a stream: without one, silence is detected much later.
            echo_client = await self.connected(self.tunnel, self.echo, EchoClient(reactor))
            faults.start()
            workers = [
                Deferred.fromCoroutine(self.work(Random(f"{SEED} {rounds} {number}")))
                for number in range(WORKERS)
            ]
            await self.within(TIMEOUT, gatherResults(workers), f"round {rounds} ends")
            faults.stop()
            await self.within(TIMEOUT, echo_client.round_trip(), "a stream outlives its round")
            echo_client.drop()
            await self.at_rest()
            rounds += 1
            if rounds == 1 and TRACED:
                await self.trace()
            if rounds >= WARM:
                await self.sample(reactor.seconds() - began)
        seconds = reactor.seconds() - began
        print(
            f"\nseed {SEED}: {rounds} rounds in {seconds:.0f} s, {self.tasks} transfers, "
            f"{self.redials} dials again, ",
            end="",
        )
        print(f"{self.bytes / MEBIBYTE:.0f} MiB, faults {dict(faults.counts)}")
        self.judge()
        self.assertGreater(faults.counts.total(), 0)

    async def work(self, random: Random) -> None:
        """Run some tasks sequentially."""
        for _ in range(TASKS):
            task = random.choice((self.download, self.upload, self.echoes))
            await task(random)
            self.tasks += 1

    async def download(self, random: Random) -> None:
        """Download a number of bytes from a new target, which sends them at once."""
        size = random.randint(*SIZES)
        source = Target(reactor, lambda: Source(size))
        try:
            client = await self.dialed(source, Download)
            await client.when_lost()
        finally:
            await source.stop()
        self.assertEqual(client.received, size)
        self.assertEqual(client.digest, source.peers[0].payload.digest)
        self.bytes += size

    async def upload(self, random: Random) -> None:
        """Upload a number of bytes to the sink, which responds with their hash."""
        size = random.randint(*SIZES)
        client = await self.dialed(self.sink, lambda: Source(size))
        await client.when_read_ended()
        self.assertEqual(client.answer.decode(), client.payload.digest)
        self.bytes += size
        client.transport.loseConnection()
        await client.when_lost()

    async def echoes(self, random: Random) -> None:
        """Make some round trips."""
        client = await self.dialed(self.echo, lambda: EchoClient(reactor))
        for _ in range(random.randint(1, ECHOES)):
            await client.round_trip()
        client.drop()
        await client.when_lost()

    async def dialed(self, target: Target, build: Callable[[], P]) -> P:
        """Connect a new peer to the target, in further dials if the agent has not reconnected.

        Dials get 503 once it has been away for 5 s. On a busy machine faults
        can keep it away for longer; a client dials again then.
        """
        peers: list[P] = []

        async def connected() -> bool:
            peers.append(build())
            answer = await self.connect(self.tunnel, f"127.0.0.1:{target.port}", peers[-1])
            if answer.status == 503:
                self.assertIn("it has not reconnected yet", answer.body)
                self.redials += 1
                return False
            self.assertEqual(answer.status, 200, answer.body)
            return True

        await self.eventually(connected, "the agent reconnects", TIMEOUT, REDIAL_INTERVAL)
        return peers[-1]

    async def at_rest(self) -> None:
        """Wait until the agent is connected, and both programs have released all streams."""

        async def resting() -> bool:
            if not any(entry["connected"] for entry in await self.tunnel.server.agents()):
                return False
            left = [
                await program.metric(f"{prefix}_{name}")
                for prefix, program in self.programs.items()
                for name in ("open_streams", "memory_budget_used_bytes")
            ]
            return not any(left)

        await self.eventually(resting, "nothing is kept of what has ended", TIMEOUT)
        for prefix, program in self.programs.items():
            await self.descriptors_return(program, self.before[prefix])

    async def trace(self) -> None:
        """Let both programs start tracing their allocations."""
        for program in self.programs.values():
            url = f"http://127.0.0.1:{program.meta_port}/debug/memory?frames=1"
            answer = await treq.post(url, persistent=False)
            self.assertEqual(answer.code, 200, await answer.text())
            await self.allocated(program)

    async def allocated(self, program: Program) -> float:
        """Return the bytes that a program has allocated since then, and not freed."""
        _, body = await program.get("/debug/memory")
        found = re.search(r"traced: (\d+\.\d) MiB now", body)
        self.assertIsNotNone(found, body)
        return float(found[1]) * MEBIBYTE

    async def sample(self, seconds: float) -> None:
        """Sample the values that must not grow."""
        for prefix, program in self.programs.items():
            used = await self.allocated(program) if TRACED else program.resident()
            self.samples[f"{prefix}: bytes"].append((seconds, used))
            self.samples[f"{prefix}: descriptors"].append((seconds, len(program.descriptors())))
            streams = await program.metric(f"{prefix}_open_streams")
            self.samples[f"{prefix}: streams"].append((seconds, streams))

    def judge(self) -> None:
        """Require that no value has grown."""
        for what, samples in self.samples.items():
            (began, first), (ended, last) = samples[0], samples[-1]
            growth = slope(samples) * (ended - began)
            print(f"{what}: {first:.0f} to {last:.0f}, by the slope {growth:+.1f}")
            limit = MAX_GROWTH if what.endswith("bytes") else 2
            self.assertLess(growth, limit, what)
