"""The check for leaks that tests share: the resources of programs before a fault and after it."""

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
"""Seconds within which all resources must be released on a busy machine."""

TRANSIENT_CALLS = {
    "yurttunnel.http.deadlines.Deadlines._check": 6,
    "yurttunnel.agent.client.ServerClient._attempt_connection": 1,
}
"""Delayed calls that are no leak, and their maximum numbers. Each class of deadlines shares a
timer: once started it runs for its whole time, 10 s and more, even when nothing waits any more. An
agent retries for as long as the server that a test has stopped is down."""

RUNNING_LOOPS = {"yurttunnel.ops.reconciler.Reconciler._pause_is_over": 1}
"""Delayed calls of which that many more are no leak: on a busy disk, a loop that writes or reads a
file may be running at each of the first samples, and pausing at the last one."""

INITIAL_SAMPLES = 3
"""The number of samples of delayed calls before the test: a loop that runs at one sample pauses at
the next."""


@dataclass(frozen=True, slots=True)
class ResourceCounts:
    """The counts of a program and of the kernel, none of which may have grown."""

    descriptors: int
    threads: int
    """The threads outside the reactor's pool, which keeps a thread for each concurrent lookup."""
    readers: int
    writers: int
    streams: int
    kept_bytes: int
    """The buffered bytes of streams, by the memory budget."""

    delayed_calls: Counter[str]
    """The number of the reactor's delayed calls of each function."""

    def growth_since(self, before: ResourceCounts) -> dict[str, str]:
        """Return the counts that have grown, by name."""
        old, new = before.counts(), self.counts()
        old |= Counter(TRANSIENT_CALLS)
        old += Counter(RUNNING_LOOPS)
        return {name: f"{old[name]} -> {new[name]}" for name in new if new[name] > old[name]}

    def counts(self) -> Counter[str]:
        """Return all counts, the delayed calls by function."""
        names = ("descriptors", "threads", "readers", "writers", "streams", "kept_bytes")
        return self.delayed_calls + Counter({name: getattr(self, name) for name in names})


async def resource_counts(program: Program) -> ResourceCounts:
    """Count the resources of a running program, including the connection of the requested page."""
    stats = json.loads(await page(program, "/debug/reactor"))
    stacks = await page(program, "/debug/stacks")
    prefix = program.arguments[0].replace("-", "_")
    # It closes the connection of a page after its client.
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
    """Fetch one of its pages, which must exist."""
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
    """A test case that checks the watched programs for leaks at its end.

    A killed program is not checked, because its successor is a new process. The other end, which
    survives, is checked.
    """

    async def setUp(self) -> None:
        """Start without watched programs."""
        await super().setUp()
        self._watched: dict[Program, _Watched] = {}

    async def start_tunnel(self, **options) -> Tunnel:
        """Start a tunnel, and watch both ends."""
        tunnel = await super().start_tunnel(**options)
        await self.watch(tunnel.server, tunnel.agent)
        return tunnel

    async def watch(self, *programs: Program, streams: int = 8) -> None:
        """Record the resources of idle programs, which must not have grown at the end of the test.

        Their memory may have grown by the needs of that many concurrent ``streams``. A later call
        for a program replaces an earlier one, and a killed program is not checked.
        """
        if not self._watched:
            # Cleanups run in reverse order: clients and targets have ended, and programs still run.
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
        """Require that no watched program that still runs holds more than before."""
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
