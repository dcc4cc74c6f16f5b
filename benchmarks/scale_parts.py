"""The parts of the benchmark of a server with many agents; each part starts its own server."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.crowd import NODE_NAME
from benchmarks.load import Backend, Clients, build
from benchmarks.processes import peak_resident, processor_seconds, resident
from benchmarks.tunnel import ManyAgents, Server, Settings

ENROLLING = 200
"""The number of agents that enroll with the token; certificates for the others are signed directly.
"""

RATE = 250.0
"""The maximum number of agents that connect each second in the part ``growth``."""

SETTLE_SECONDS = 2.0
"""Seconds from the last event until memory is measured."""

PINGS = 10.0
"""The seconds for which an idle server is measured: the interval of PINGs."""

TIMEOUT = 180.0
"""The timeout in seconds for any number of agents to connect."""

MAX_MEMORY = 100.0
"""The maximum memory of the server per agent in KiB (design, table of figures)."""

MAX_RECONNECT_SECONDS = 20.0
"""The maximum seconds until all agents have reconnected after a restart of the server."""

MAX_PEAK_MEMORY = 2.0
"""The maximum ratio of the server's peak memory during reconnection to its idle memory before."""

PAGES = ("/metrics", "/agents", "/")
PAGE_REQUESTS = 3
"""How often each page is fetched."""

STREAMS = (1, 10, 100, 500)
"""The numbers of streams to one agent; one caller may use half of those that an agent accepts."""

SOME_STREAMS = 10
"""A number of streams that share iterations of the reactor; a single stream shares none."""

OPENING = 0.003
"""The additional warm-up in seconds for each stream."""

FLAT = 1.25
"""The maximum ratio of the cost of a request with the most agents, or streams, to the fewest."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure with a number of agents; ``most`` is its maximum, if there is one."""

    name: str
    agents: int
    value: float
    unit: str
    most: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the requirement is met; empty if there is none."""
        if self.most is None:
            return ""
        return "holds" if self.value <= self.most else "misses"


@dataclass(frozen=True, slots=True)
class Work:
    """The duration of the load: ``seconds`` of measured requests, after ``warm_up``."""

    seconds: float
    warm_up: float


class World:
    """A server, and ``count`` unconnected agents with certificates; ends with ``stack``."""

    def __init__(self, stack: ExitStack, directory: Path, settings: Settings, count: int) -> None:
        self.authority = Authority(directory)
        self.server = stack.enter_context(Server(directory, settings, self.authority.certificate))
        self.at_rest = self.memory()
        self.agents = stack.enter_context(
            ManyAgents(directory, settings, self.server, count, ENROLLING)
        )
        before = self.processor()
        self.agents.have_certificates(TIMEOUT)
        self.enrolling = self.processor() - before

    def connect(self, count: int) -> None:
        """Connect agents until ``count`` are connected."""
        self.agents.connect(count, RATE, TIMEOUT)

    def memory(self) -> int:
        """Return the memory of the idle server in bytes."""
        # Wait until the process is idle.
        time.sleep(SETTLE_SECONDS)
        return resident(self.server.pid)

    def processor(self) -> float:
        """Return the CPU seconds that the server has used."""
        return processor_seconds(self.server.pid)


def growth(directory: Path, settings: Settings, steps: Sequence[int]) -> Iterator[Figure]:
    """Connect an increasing number of agents, and measure the server while they are idle."""
    with ExitStack() as stack:
        world = World(stack, directory, settings, steps[-1])
        enrolled = world.agents.stats()
        count = enrolled["enrolled"]
        yield Figure("enrolments", count, count / enrolled["enrolment_seconds"], "/s")
        yield Figure("CPU of an enrolment", count, world.enrolling / count * 1e3, "ms")
        connected, first = 0, 0
        for step in steps:
            before = world.processor()
            world.connect(step)
            cost = (world.processor() - before) / (step - connected)
            yield Figure("CPU of a new session", step, cost * 1e3, "ms")
            memory = world.memory()
            if not connected:
                first = memory
            else:
                each = (memory - first) / (step - steps[0]) / 1024
                yield Figure("memory of an idle agent", step, each, "KiB", MAX_MEMORY)
            yield Figure("memory of the server", step, memory / 2**20, "MiB")
            connected = step
            yield Figure("CPU at idle", step, _idle_share(world) * 100, "% of a core")
            for page in PAGES:
                yield Figure(f"GET {page}", step, _page_seconds(world, page) * 1e3, "ms")


def _idle_share(world: World) -> float:
    """Return the CPU utilization of the server while only PINGs are exchanged."""
    before, began = world.processor(), time.monotonic()
    # Within this time each session exchanges its PINGs.
    time.sleep(PINGS)
    return (world.processor() - before) / (time.monotonic() - began)


def _page_seconds(world: World, page: str) -> float:
    """Return the CPU time of a page of the meta port, for which it blocks everything else."""
    before = world.processor()
    for _ in range(PAGE_REQUESTS):
        world.server.get(page)
    return (world.processor() - before) / PAGE_REQUESTS


def restarts(directory: Path, settings: Settings, count: int) -> Iterator[Figure]:
    """Restart the server with ``count`` agents connected, which then reconnect."""
    with ExitStack() as stack:
        world = World(stack, directory, settings, count)
        world.connect(count)
        calm = world.memory()
        for name, end in (("SIGKILL", world.server.kill), ("SIGTERM", world.server.stop)):
            failed = world.agents.stats()["failed_attempts"]
            ended = time.time()
            end()
            world.server.restart()
            world.agents.all_connected(TIMEOUT)
            stats = world.agents.stats()
            since = [moment - ended for moment in stats["connected_since"]]
            most = Counter(int(moment) for moment in since).most_common(1)[0][1]
            peak = peak_resident(world.server.pid)
            cost = world.processor() / count
            tried = (stats["failed_attempts"] - failed) / count
            yield Figure(f"{name}: ready again", count, world.server.seconds, "s")
            yield Figure(f"{name}: half are back", count, statistics.median(since), "s")
            yield Figure(f"{name}: all are back", count, max(since), "s", MAX_RECONNECT_SECONDS)
            yield Figure(f"{name}: most in one second", count, most, "agents")
            yield Figure(f"{name}: attempts in vain", count, tried, "each")
            yield Figure(f"{name}: CPU, start included", count, cost * 1e3, "ms each")
            yield Figure(f"{name}: peak memory", count, peak / 2**20, "MiB")
            yield Figure(f"{name}: peak to calm before", count, peak / calm, "", MAX_PEAK_MEMORY)
            world.memory()


def requests(
    directory: Path, settings: Settings, counts: Sequence[int], work: Work
) -> Iterator[Figure]:
    """Send small requests through one agent, and through all, with ``counts`` connected."""
    with ExitStack() as stack:
        world = World(stack, directory, settings, counts[-1])
        identity = world.authority.issue("backend")
        program = build(directory)
        clients = stack.enter_context(Clients(program))
        backend = stack.enter_context(Backend(program, identity))
        costs: dict[tuple[int, int], float] = {}
        for agents in counts:
            world.connect(agents)
            load = Load(world, clients, backend, work, idle=_idle_share(world))
            for streams in STREAMS:
                cost = costs[agents, streams] = load.cost(streams, 1)
                name = f"CPU of a request, {streams} streams to one agent"
                yield Figure(name, agents, cost * 1e6, "us")
            if agents > 1:
                streams = max(*STREAMS, agents)
                cost = load.cost(streams, agents)
                name = f"CPU of a request, {streams} streams to all agents"
                yield Figure(name, agents, cost * 1e6, "us")
        fewest, most = counts[0], counts[-1]
        for streams in STREAMS:
            ratio = costs[most, streams] / costs[fewest, streams]
            name = f"the same, {most} : {fewest} agents, {streams} streams"
            yield Figure(name, most, ratio, "", FLAT)
        for agents in counts:
            ratio = costs[agents, max(STREAMS)] / costs[agents, SOME_STREAMS]
            name = f"the same, {max(STREAMS)} : {SOME_STREAMS} streams"
            yield Figure(name, agents, ratio, "", FLAT)


@dataclass(frozen=True, slots=True)
class Load:
    """Clients that repeatedly send small requests, each in its own stream.

    ``idle`` is the CPU utilization of the server without them.
    """

    world: World
    clients: Clients
    backend: Backend
    work: Work
    idle: float

    def cost(self, streams: int, hosts: int) -> float:
        """Return the CPU seconds of the server per request, without its idle utilization.

        There are ``streams`` streams, distributed over ``hosts`` agents.
        """
        server = self.world.server
        # Streams of the last run count until they have ended.
        server.streams_end(TIMEOUT)
        result = self.clients.run(
            {
                "work": "requests",
                "way": {
                    "kind": "connect",
                    "address": str(server.socket),
                    "host": f"{NODE_NAME}:{self.backend.plain_port}",
                },
                "clients": streams,
                "hosts": hosts,
                "seconds": self.work.seconds,
                # Opening many streams takes time.
                "warm_up": self.work.warm_up + streams * OPENING,
                "tested": [server.pid],
            },
            self.backend,
        )
        used = float(result["tested_cpu"][str(server.pid)])
        idle = self.idle * float(result["seconds"])
        return (used - idle) / float(result["operations"])
