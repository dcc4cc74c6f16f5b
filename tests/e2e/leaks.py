"""What programs hold, before a fault and after it: the one look for leaks that tests share."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, replace

from twisted.internet import reactor
from twisted.internet.task import deferLater

from tests.e2e.programs import MEBIBYTE, Program, Tunnel, max_growth
from tests.e2e.support import EndToEndTestCase

TIMEOUT = 20.0
"""Seconds in which everything has to be given back on a busy machine."""

TRANSIENT_CALLS = {
    "yurttunnel.http.deadlines.Deadlines._check": 6,
    "yurttunnel.agent.client.ServerClient._attempt_connection": 1,
}
"""Delayed calls that are no leak, and the most of each. Each class of deadlines shares a timer:
once armed it stays so for its time, 10 s and more, also when nothing waits any more. An agent
tries again for as long as the server that a test has stopped is away."""

RUNNING_LOOPS = {"yurttunnel.ops.reconciler.Reconciler._pause_is_over": 1}
"""Delayed calls of which so many more are no leak: one loop that writes or reads a file may be at
work at each of the first looks, where the disk is busy, and pause at the last."""

INITIAL_SAMPLES = 3
"""What is to be called is looked at so often before the test: a loop that works at one look pauses
at the next."""


@dataclass(frozen=True, slots=True)
class ResourceCounts:
    """What a program counts of its own, and what the kernel counts; of nothing may stay more."""

    descriptors: int
    threads: int
    """Without those of the reactor's pool: they stay, as many as lookups were made at a time."""
    readers: int
    writers: int
    streams: int
    kept_bytes: int
    """What is kept of streams, by the budget of memory."""

    delayed_calls: Counter[str]
    """How often each function is to be called by the reactor."""

    def growth_since(self, before: ResourceCounts) -> dict[str, str]:
        """Return what is more than it was, by name."""
        old, new = before.counts(), self.counts()
        old |= Counter(TRANSIENT_CALLS)
        old += Counter(RUNNING_LOOPS)
        return {name: f"{old[name]} -> {new[name]}" for name in new if new[name] > old[name]}

    def counts(self) -> Counter[str]:
        """Return everything that is counted, the delayed calls by function."""
        names = ("descriptors", "threads", "readers", "writers", "streams", "kept_bytes")
        return self.delayed_calls + Counter({name: getattr(self, name) for name in names})


async def resource_counts(program: Program) -> ResourceCounts:
    """Count what a program that runs holds now, the page that is asked for included."""
    stats = json.loads(await page(program, "/debug/reactor"))
    stacks = await page(program, "/debug/stacks")
    prefix = program.arguments[0].replace("-", "_")
    # It closes the connection of a page behind its client.
    await deferLater(reactor, 0.02)
    return ResourceCounts(
        descriptors=len(program.descriptors()),
        threads=program.threads() - len(re.findall(r"(?m)^thread PoolThread-", stacks)),
        readers=sum(stats["readers"].values()),
        writers=sum(stats["writers"].values()),
        streams=int(await program.metric(f"{prefix}_open_streams")),
        kept_bytes=int(await program.metric(f"{prefix}_memory_budget_used_bytes")),
        delayed_calls=delayed_calls(stacks),
    )


async def page(program: Program, path: str) -> str:
    """Fetch one of its pages, which must be there."""
    status, body = await program.get(path)
    if status != 200:
        raise program.failed(f"{path} answered {status}: {body}")
    return body


def delayed_calls(stacks: str) -> Counter[str]:
    """Read the delayed calls by function from ``/debug/stacks``."""
    listed = re.findall(r"(?m)^ *(\d+)  next in +-?[\d.]+ s  (\S+)$", stacks)
    return Counter({function: int(count) for count, function in listed})


@dataclass(slots=True)
class _Watched:
    pid: int
    before: ResourceCounts
    resident: int
    streams: int


class LeakTestCase(EndToEndTestCase):
    """When a test ends, the programs that it has watched hold no more than they did.

    A program that was killed is not looked at: the process that comes after it holds nothing of
    it. What is looked at then is the other end, which has lived through it.
    """

    async def setUp(self) -> None:
        """Watch nothing yet."""
        await super().setUp()
        self._watched: dict[Program, _Watched] = {}

    async def start_tunnel(self, **options) -> Tunnel:
        """Start a tunnel, both ends of which are watched."""
        tunnel = await super().start_tunnel(**options)
        await self.watch(tunnel.server, tunnel.agent)
        return tunnel

    async def watch(self, *programs: Program, streams: int = 8) -> None:
        """Note what programs hold that have nothing to do; they must not hold more in the end.

        Their memory may have grown by what so many ``streams`` at a time take. The last look at a
        program counts, and none when it has been killed since.
        """
        if not self._watched:
            # Cleanups run the last one first: clients and targets have ended by then, programs run.
            self.addCleanup(self.assert_no_leaks)
        for program in programs:
            before = await resource_counts(program)
            calls = before.delayed_calls
            for _ in range(INITIAL_SAMPLES - 1):
                await deferLater(reactor, 0.1)
                calls |= delayed_calls(await page(program, "/debug/stacks"))
            before = replace(before, delayed_calls=calls)
            self._watched[program] = _Watched(program.pid, before, program.resident(), streams)

    async def assert_no_leaks(self) -> None:
        """Require that what is watched, and still runs, holds no more than it did."""
        for program, watched in self._watched.items():
            if not program.running or program.pid != watched.pid:
                continue
            await self._returned(program, watched.before)
            growth = program.resident() - watched.resident
            self.assertLess(
                growth / MEBIBYTE, max_growth(watched.streams) / MEBIBYTE, program.arguments[0]
            )

    async def _returned(self, program: Program, before: ResourceCounts) -> None:
        more: dict[str, str] = {}

        async def returned() -> bool:
            nonlocal more
            more = (await resource_counts(program)).growth_since(before)
            return not more

        try:
            await self.eventually(returned, "nothing is left", TIMEOUT, 0.1)
        except self.failureException:
            _, stacks = await program.get("/debug/stacks")
            raise program.failed(f"has more than before: {more}\n{stacks[-2000:]}") from None
