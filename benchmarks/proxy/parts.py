"""The parts of the benchmark: nginx, the proxy, and no proxy, measured alternately."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.figures import Demand, Figure
from benchmarks.parts import Parts
from benchmarks.proxy.bench import Bench
from benchmarks.proxy.loads import Route
from benchmarks.run import Unit

CLIENTS = 16

DIALS, DIALS_AT_ONCE = 200, 10
"""The clients of a Service with two of three endpoints dead, in total and concurrently."""

MAX_WITH_DEAD, MAX_AFTER_EJECTION = 800.0, 5.0
"""The maximum in milliseconds with dead endpoints: before they are detected, two steps of the retry
plan, 0.25 and 0.5 s, and a response; and afterwards."""

_MEGABYTE, _MILLISECOND = 1e6, 1e3


def _many(
    work: str, title: str, least: float, most: float | None
) -> Callable[..., Iterator[Figure]]:
    """Return a part with small operations: their rate, and their median, with its requirement."""

    def part(bench: Bench) -> Iterator[Figure]:
        rate = Figure(Demand(title, Unit.RATE, least, True, True))
        p50 = Figure(Demand(f"{title}: p50", Unit.LATENCY, most, True))
        without = Figure(Demand(f"{title}, without a proxy", Unit.RATE, None, True, True))
        without_p50 = Figure(Demand(f"{title}, without a proxy: p50", Unit.LATENCY, None, True))
        for _ in range(bench.scale.repeats):
            peer = bench.many(bench.nginx, work, CLIENTS)
            for route, of_rate, of_p50 in (
                (bench.ours, rate, p50), (bench.direct, without, without_p50)
            ):  # fmt: skip
                result = bench.many(route, work, CLIENTS)
                of_rate.peer.append(peer.rate)
                of_rate.ours.append(result.rate)
                of_p50.peer.append(peer.p50 * _MILLISECOND)
                of_p50.ours.append(result.p50 * _MILLISECOND)
        yield from (rate, p50, without, without_p50)

    return part


def _bulk(work: str, streams: int, least: float) -> Callable[..., Iterator[Figure]]:
    """Return a part with downloads or uploads."""

    def part(bench: Bench) -> Iterator[Figure]:
        title = f"{work}, {streams} stream{'s' if streams > 1 else ''}"
        ours = Figure(Demand(title, Unit.THROUGHPUT, least, True, True))
        without = Figure(Demand(f"{title}, without a proxy", Unit.THROUGHPUT, None, True, True))

        def measure(route: Route) -> float:
            return bench.bulk(route, work, streams) / _MEGABYTE

        for _ in range(bench.scale.repeats):
            peer = measure(bench.nginx)
            for route, figure in ((bench.ours, ours), (bench.direct, without)):
                figure.peer.append(peer)
                figure.ours.append(measure(route))
        yield from (ours, without)

    return part


def retry(bench: Bench) -> Iterator[Figure]:
    """Measure how long clients wait while one endpoint refuses and one is a black hole."""
    first = Figure(Demand("2 of 3 dead: p99", Unit.LATENCY, MAX_WITH_DEAD))
    then = Figure(Demand("2 of 3 dead, left out: p99", Unit.LATENCY, MAX_AFTER_EJECTION))
    for _ in range(bench.scale.repeats):
        for figure, seconds in zip(
            (first, then), bench.with_dead_endpoints(DIALS, DIALS_AT_ONCE), strict=True
        ):
            figure.ours.append(sorted(seconds)[DIALS * 99 // 100] * _MILLISECOND)
    yield from (first, then)


def memory(bench: Bench) -> Iterator[Figure]:
    """Measure resident memory of the proxy, after the parts before."""
    yield Figure(Demand("resident", Unit.MEBIBYTES), [bench.resident()])


PARTS: Parts[Bench] = {
    "connections": _many("connections", f"new connections, {CLIENTS} clients", 0.5, None),
    "requests": _many("requests", f"requests, {CLIENTS} clients", 0.7, 1.5),
    "download-1": _bulk("download", 1, 1.5),
    "download-8": _bulk("download", 8, 2.0),
    "upload-1": _bulk("upload", 1, 1.0),
    "upload-8": _bulk("upload", 8, 1.3),
    "datagrams": _many("datagrams", f"UDP echoes of 64 bytes, {CLIENTS} clients", 0.5, None),
    "retry": retry,
    "memory": memory,
}
"""The parts by their names on the command line, in the order in which they are measured."""
