"""What is measured, part by part: kernel mode and a connection without a proxy in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from benchmarks.figures import Demand, Figure
from benchmarks.parts import Parts
from benchmarks.proxy.kernel.bench import Bench
from benchmarks.proxy.parts import CLIENTS
from benchmarks.run import Unit

KEPT = 0.95
"""What has to be left of what there is without a proxy."""

BESIDE_DEAD, MOST_MILLISECONDS = 24, 1200.0
"""Clients of which two of three endpoints are dead, and how long they wait at the most: a first
packet is sent again after 1 s."""

BODIES = 41
"""How often bodies are carried by each way at the most."""

_MEGABYTE, _MILLISECOND = 1e6, 1e3


_Taken = TypeVar("_Taken")


def _many(work: str, title: str) -> Callable[..., Iterator[Figure]]:
    """Make the part of small operations: their rate and their middle."""

    def part(bench: Bench) -> Iterator[Figure]:
        rate = Figure(Demand(title, Unit.RATE, KEPT, True, True))
        p50 = Figure(Demand(f"{title}: p50", Unit.LATENCY, 1 / KEPT, True))
        for turn in range(bench.scale.repeats):
            bench.renew()
            for way, rates, p50s in _in_turn(
                turn, (bench.direct, rate.peer, p50.peer), (bench.ours, rate.ours, p50.ours)
            ):
                result = bench.many(way, work, CLIENTS)
                rates.append(result.rate)
                p50s.append(result.p50 * _MILLISECOND)
        yield from (rate, p50)

    return part


def _bulk(work: str, streams: int) -> Callable[..., Iterator[Figure]]:
    """Make the part of downloads or uploads."""

    def part(bench: Bench) -> Iterator[Figure]:
        title = f"{work}, {streams} stream{'s' if streams > 1 else ''}"
        figure = Figure(Demand(title, Unit.THROUGHPUT, KEPT, True, True))
        for turn in range(min(bench.scale.repeats, BODIES)):
            bench.renew()
            for way, values in _in_turn(
                turn, (bench.direct, figure.peer), (bench.ours, figure.ours)
            ):
                values.append(bench.bulk(way, work, streams) / _MEGABYTE)
        yield figure

    return part


def _in_turn(turn: int, direct: _Taken, ours: _Taken) -> tuple[_Taken, _Taken]:
    """Return what is measured first, and then: what comes second finds another machine."""
    return (ours, direct) if turn % 2 else (direct, ours)


def retry(bench: Bench) -> Iterator[Figure]:
    """How long clients wait at the most where one endpoint refuses, and one is a black hole; and
    how many there may be once those are left out.
    """
    title = f"slowest of {BESIDE_DEAD} clients, 2 of 3 dead"
    slowest = Figure(Demand(title, Unit.LATENCY, MOST_MILLISECONDS))
    rate = Figure(Demand("new connections, dead left out", Unit.RATE, KEPT, True, True))
    waited = []
    for turn in range(bench.scale.repeats):
        bench.renew()
        waited.append(bench.slowest_beside_dead(BESIDE_DEAD) * _MILLISECOND)
        for way, values in _in_turn(turn, (bench.direct, rate.peer), (bench.current, rate.ours)):
            values.append(bench.many(way, "connections", CLIENTS).rate)
    # Each one is to be connected in time.
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
