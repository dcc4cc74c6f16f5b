"""The parts of the benchmark: kernel mode and no proxy, measured alternately."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from benchmarks.figures import Demand, Figure
from benchmarks.parts import Parts
from benchmarks.proxy.kernel.bench import Bench
from benchmarks.proxy.parts import CLIENTS
from benchmarks.run import Unit

MIN_RATIO = 0.95
"""The minimum fraction of the figure without a proxy."""

CLIENTS_WITH_DEAD, MAX_MILLISECONDS = 24, 1200.0
"""The clients of a Service with two of three endpoints dead, and how long they may wait: the first
packet is retransmitted after 1 s."""

BODIES = 41
"""The maximum number of bulk transfers by each contestant."""

_MEGABYTE, _MILLISECOND = 1e6, 1e3


_Measured = TypeVar("_Measured")


def _many(work: str, title: str) -> Callable[..., Iterator[Figure]]:
    """Return a part with small operations: their rate and their median."""

    def part(bench: Bench) -> Iterator[Figure]:
        rate = Figure(Demand(title, Unit.RATE, MIN_RATIO, True, True))
        p50 = Figure(Demand(f"{title}: p50", Unit.LATENCY, 1 / MIN_RATIO, True))
        for turn in range(bench.scale.repeats):
            bench.renew()
            for route, rates, p50s in _in_turn(
                turn, (bench.direct, rate.peer, p50.peer), (bench.ours, rate.ours, p50.ours)
            ):
                result = bench.many(route, work, CLIENTS)
                rates.append(result.rate)
                p50s.append(result.p50 * _MILLISECOND)
        yield from (rate, p50)

    return part


def _bulk(work: str, streams: int) -> Callable[..., Iterator[Figure]]:
    """Return a part with downloads or uploads."""

    def part(bench: Bench) -> Iterator[Figure]:
        title = f"{work}, {streams} stream{'s' if streams > 1 else ''}"
        figure = Figure(Demand(title, Unit.THROUGHPUT, MIN_RATIO, True, True))
        for turn in range(min(bench.scale.repeats, BODIES)):
            bench.renew()
            for route, values in _in_turn(
                turn, (bench.direct, figure.peer), (bench.ours, figure.ours)
            ):
                values.append(bench.bulk(route, work, streams) / _MEGABYTE)
        yield figure

    return part


def _in_turn(turn: int, direct: _Measured, ours: _Measured) -> tuple[_Measured, _Measured]:
    """Return both in alternating order, because the state of the machine differs for the second."""
    return (ours, direct) if turn % 2 else (direct, ours)


def retry(bench: Bench) -> Iterator[Figure]:
    """Measure the longest wait of clients while one endpoint refuses and one is a black hole, and
    the rate of connections once both are left out.
    """
    title = f"slowest of {CLIENTS_WITH_DEAD} clients, 2 of 3 dead"
    slowest = Figure(Demand(title, Unit.LATENCY, MAX_MILLISECONDS))
    rate = Figure(Demand("new connections, dead left out", Unit.RATE, MIN_RATIO, True, True))
    waited = []
    for turn in range(bench.scale.repeats):
        bench.renew()
        waited.append(bench.slowest_with_dead_endpoints(CLIENTS_WITH_DEAD) * _MILLISECOND)
        for route, values in _in_turn(turn, (bench.direct, rate.peer), (bench.current, rate.ours)):
            values.append(bench.many(route, "connections", CLIENTS).rate)
    # Every client has to be connected in time, so the maximum is judged.
    slowest.ours.append(max(waited))
    yield from (slowest, rate)


PARTS: Parts[Bench] = {
    "connections": _many("connections", f"new connections, {CLIENTS} clients"),
    "requests": _many("requests", f"requests, {CLIENTS} clients"),
    "download-1": _bulk("download", 1),
    "download-8": _bulk("download", 8),
    "upload-1": _bulk("upload", 1),
    "upload-8": _bulk("upload", 8),
    "datagrams": _many("datagrams", f"UDP echoes of 64 bytes, {CLIENTS} clients"),
    "retry": retry,
}
"""The parts by their names on the command line, in the order in which they are measured."""
