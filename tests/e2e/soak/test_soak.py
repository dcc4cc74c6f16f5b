"""Load under random faults, in rounds; after each nothing is left, and nothing has grown.

``YURTTUNNEL_SOAK_SECONDS`` says for how long, ``YURTTUNNEL_SOAK_SEED`` chooses other faults.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from random import Random

import treq
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.clients import Download, Echo, EchoClient, Sink, Source, Target
from tests.e2e.programs import MEBIBYTE, OTHER_GROWTH, Program
from tests.e2e.soak.faults import RandomFaults
from tests.e2e.soak.slopes import Sample, slope
from tests.e2e.support import EndToEndTestCase
from yurttunnel.ops.debug.memory import TRACED_SECONDS

SECONDS = float(os.environ.get("YURTTUNNEL_SOAK_SECONDS", "6"))
SEED = os.environ.get("YURTTUNNEL_SOAK_SEED", "1")

WORKERS = 6
TASKS = 6
"""What each worker does in a round."""

MIN_ROUNDS = 3

WARM = 2
"""Rounds before what is held is counted: modules are imported, buffers get their size, and what
the page about memory shows is read."""

SIZES = (1, 1_500_000)
ECHOES = 10

TIMEOUT = 120.0
"""Seconds for which a round, or the rest after it, may last at most."""

TRACED = SECONDS < TRACED_SECONDS / 2
"""Whether the programs trace what they allocate. In a short run resident memory goes up and down
by more than a leak is; in a long one tracing would end."""

MAX_GROWTH = 2 * MEBIBYTE if TRACED else OTHER_GROWTH
"""Bytes by which a program may grow in the whole time, by the slope, without having a leak: of
what it has allocated, by a hundred transfers, or of its resident memory."""

PREFIXES = ("yurttunnel_server", "yurttunnel_agent")


class SoakTests(EndToEndTestCase):
    """Downloads, uploads and echoes whose bytes are compared at both ends."""

    timeout = SECONDS + 2 * TIMEOUT

    async def setUp(self) -> None:
        """Start a tunnel whose connection goes through a proxy that makes faults, and targets."""
        await super().setUp()
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self.echo = self.listen(Echo)
        self.sink = self.listen(Sink)
        self.bytes = self.tasks = 0

        def proxied(port: int) -> int:
            self.proxy = self.fault_proxy(port)
            return self.proxy.port

        self.tunnel = await self.start_tunnel(proxied=proxied)
        self.programs = dict(zip(PREFIXES, (self.tunnel.server, self.tunnel.agent), strict=True))
        self.before = {prefix: one.descriptors() for prefix, one in self.programs.items()}

    async def test_nothing_is_lost_and_nothing_grows(self) -> None:
        """Every transfer arrives whole, and after each round the programs are as they were."""
        faults = RandomFaults(reactor, self.proxy, Random(SEED))
        self.addCleanup(faults.stop)
        began = reactor.seconds()
        rounds = 0
        while rounds < WARM + MIN_ROUNDS or reactor.seconds() - began < SECONDS:
            # Both ends have a stream all the time: without one, silence is noticed much later.
            held = await self.connected(self.tunnel, self.echo, EchoClient(reactor))
            faults.start()
            workers = [
                Deferred.fromCoroutine(self.work(Random(f"{SEED} {rounds} {number}")))
                for number in range(WORKERS)
            ]
            await self.within(TIMEOUT, gatherResults(workers), f"round {rounds} ends")
            faults.stop()
            await self.within(TIMEOUT, held.round_trip(), "a stream outlives its round")
            held.drop()
            await self.at_rest()
            rounds += 1
            if rounds == 1 and TRACED:
                await self.trace()
            if rounds >= WARM:
                await self.sample(reactor.seconds() - began)
        seconds = reactor.seconds() - began
        print(
            f"\nseed {SEED}: {rounds} rounds in {seconds:.0f} s, {self.tasks} transfers, ", end=""
        )
        print(f"{self.bytes / MEBIBYTE:.0f} MiB, faults {dict(faults.counts)}")
        self.judge()
        self.assertGreater(faults.counts.total(), 0)

    async def work(self, random: Random) -> None:
        """Do some tasks, one after the other."""
        for _ in range(TASKS):
            task = random.choice((self.download, self.upload, self.echoes))
            await task(random)
            self.tasks += 1

    async def download(self, random: Random) -> None:
        """Fetch so many bytes from a target of its own, which sends them as soon as it is there."""
        size = random.randint(*SIZES)
        source = Target(reactor, lambda: Source(size))
        try:
            client = await self.connected(self.tunnel, source, Download())
            await client.when_lost()
        finally:
            await source.stop()
        self.assertEqual(client.received, size)
        self.assertEqual(client.digest, source.peers[0].payload.digest)
        self.bytes += size

    async def upload(self, random: Random) -> None:
        """Send so many bytes to the sink, which answers with their hash."""
        size = random.randint(*SIZES)
        client = await self.connected(self.tunnel, self.sink, Source(size))
        await client.when_read_ended()
        self.assertEqual(client.answer.decode(), client.payload.digest)
        self.bytes += size
        client.transport.loseConnection()
        await client.when_lost()

    async def echoes(self, random: Random) -> None:
        """Go back and forth some times."""
        client = await self.connected(self.tunnel, self.echo, EchoClient(reactor))
        for _ in range(random.randint(1, ECHOES)):
            await client.round_trip()
        client.drop()
        await client.when_lost()

    async def at_rest(self) -> None:
        """Wait until the agent is there and neither program keeps anything of what has ended."""

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
        """Have both programs trace from now on what they allocate."""
        for program in self.programs.values():
            url = f"http://127.0.0.1:{program.meta_port}/debug/memory?frames=1"
            answer = await treq.post(url, persistent=False)
            self.assertEqual(answer.code, 200, await answer.text())
            await self.allocated(program)

    async def allocated(self, program: Program) -> float:
        """Return the bytes that a program has allocated since, and not freed."""
        _, body = await program.get("/debug/memory")
        found = re.search(r"traced: (\d+\.\d) MiB now", body)
        self.assertIsNotNone(found, body)
        return float(found[1]) * MEBIBYTE

    async def sample(self, seconds: float) -> None:
        """Count what must not grow."""
        for prefix, program in self.programs.items():
            held = await self.allocated(program) if TRACED else program.resident()
            self.samples[f"{prefix}: bytes"].append((seconds, held))
            self.samples[f"{prefix}: descriptors"].append((seconds, len(program.descriptors())))
            streams = await program.metric(f"{prefix}_open_streams")
            self.samples[f"{prefix}: streams"].append((seconds, streams))

    def judge(self) -> None:
        """Require that nothing has grown."""
        for what, samples in self.samples.items():
            (began, first), (ended, last) = samples[0], samples[-1]
            growth = slope(samples) * (ended - began)
            print(f"{what}: {first:.0f} to {last:.0f}, by the slope {growth:+.1f}")
            most = MAX_GROWTH if what.endswith("bytes") else 2
            self.assertLess(growth, most, what)
