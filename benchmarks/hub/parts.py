"""The parts of the benchmark; each part starts its own hubs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks.figures import Demand, Figure
from benchmarks.hub.bench import PODS_PATH, Bench, through
from benchmarks.hub.hub import NODE_PATH, Hub
from benchmarks.processes import BenchmarkFailed
from benchmarks.run import Unit

SETTLE_SECONDS = 2.0
"""Seconds from the start until memory is measured."""

RELEASE_SECONDS = 20.0
"""Seconds from the last event until memory is measured: within 15 the hub returns freed memory to
the kernel (:mod:`yurttunnel.ops.memory`)."""

POLL_SECONDS = 0.25
"""Seconds between requests while the API does not respond."""

MAX_OUTAGE_SECONDS = 40.0
"""The timeout in seconds for a hub to detect that the API is silent, or responds again."""

_MIN_WRITTEN_MEGABYTES = 1.0
"""The minimum that caching a list writes, even if it is compressed well."""

_MEGABYTE, _MILLISECOND = 1e6, 1e3


def small(bench: Bench) -> Iterator[Figure]:
    """Measure GETs of the node, by many clients and by one."""
    most, least = {16: (4.0, 1.3), 1: (5.0, 1.4)}, 0.85
    with bench.hub() as hub:
        for clients, (cost, latency) in most.items():
            name = f"small GET, {clients} clients" if clients > 1 else "small GET, 1 client"
            rate = Figure(Demand(f"{name}: requests", Unit.RATE, least, True, True))
            p50 = Figure(Demand(f"{name}: p50", Unit.LATENCY, latency, True))
            cpu = Figure(Demand(f"{name}: CPU", Unit.LATENCY, cost, True))
            api = Figure(Demand(f"{name}: CPU of the API", Unit.LATENCY))
            for _ in range(bench.scale.repeats):
                peer = bench.requests(bench.nginx, clients)
                ours = bench.requests(through(hub), clients)
                for figure, of_peer, of_ours in (
                    (rate, peer.rate, ours.rate),
                    (p50, peer.p50 * _MILLISECOND, ours.p50 * _MILLISECOND),
                    (cpu, peer.proxy * _MILLISECOND, ours.proxy * _MILLISECOND),
                    (api, peer.api * _MILLISECOND, ours.api * _MILLISECOND),
                ):
                    figure.peer.append(of_peer)
                    figure.ours.append(of_ours)
            yield from (rate, p50, cpu, api) if clients > 1 else (p50, cpu, api)


def lists(bench: Bench) -> Iterator[Figure]:
    """Measure lists of all pods: with all of them changed, and unchanged."""
    for media, cost in (("json", 1.0), ("protobuf", 0.5)):
        with bench.hub() as hub:
            yield from _list(bench, hub, media, cost)


def _list(bench: Bench, hub: Hub, media: str, cost: float) -> Iterator[Figure]:
    name = f"list as {media}"
    seconds = Figure(Demand(f"{name}: time", Unit.SECONDS, 1.3, True))
    direct = Figure(Demand(f"{name}: time without a proxy", Unit.SECONDS))
    cpu = Figure(Demand(f"{name}: CPU with caching", Unit.SECONDS, cost))
    written = Figure(Demand(f"{name}: written", Unit.MEGABYTES))
    unchanged = Figure(Demand(f"{name}, unchanged: time", Unit.SECONDS, 1.3, True))
    unchanged_cpu = Figure(Demand(f"{name}, unchanged: CPU with caching", Unit.SECONDS, cost))
    unchanged_written = Figure(Demand(f"{name}, unchanged: written", Unit.MEGABYTES, 1.0))
    for _ in range(bench.scale.repeats):
        bench.api.change_all()
        direct.ours.append(bench.list(bench.direct, media).seconds)
        for time_of, cpu_of, bytes_of in (
            (seconds, cpu, written), (unchanged, unchanged_cpu, unchanged_written)
        ):  # fmt: skip
            time_of.peer.append(bench.list(bench.nginx, media).seconds)
            worked, wrote = hub.processor(), hub.written()
            time_of.ours.append(bench.list(through(hub), media).seconds)
            hub.finish_work()
            cpu_of.ours.append(hub.processor() - worked)
            bytes_of.ours.append((hub.written() - wrote) / _MEGABYTE)
        if written.ours[-1] < _MIN_WRITTEN_MEGABYTES:
            raise hub.failed(f"kept nothing of a list as {media} that had changed")
    yield from (direct, seconds, cpu, written, unchanged, unchanged_cpu, unchanged_written)


def watches(bench: Bench) -> Iterator[Figure]:
    """Measure events of many watches: the delay that the proxy adds."""
    p50 = Figure(Demand("watches: added p50", Unit.LATENCY, 1.0))
    p99 = Figure(Demand("watches: added p99", Unit.LATENCY, 5.0))
    cpu = Figure(Demand("watches: CPU of an event", Unit.LATENCY, 0.3))
    with bench.hub() as hub:
        for _ in range(bench.scale.repeats):
            direct = bench.watch(bench.direct)
            peer, ours = bench.watch(bench.nginx_watches), bench.watch(through(hub))
            for result, of in ((peer, "peer"), (ours, "ours")):
                getattr(p50, of).append((result.p50 - direct.p50) * _MILLISECOND)
                getattr(p99, of).append((result.p99 - direct.p99) * _MILLISECOND)
                getattr(cpu, of).append(result.proxy * _MILLISECOND)
    yield from (p50, p99, cpu)


def memory(bench: Bench) -> Iterator[Figure]:
    """Measure resident memory before and after lists and watches, and its peak in between."""
    idle = Figure(Demand("resident: idle", Unit.MEBIBYTES, 60))
    after = Figure(Demand("resident: after lists and watches", Unit.MEBIBYTES, 90))
    peak = Figure(Demand("resident: peak", Unit.MEBIBYTES, 200))
    with bench.hub() as hub:
        # Wait until the process is idle.
        time.sleep(SETTLE_SECONDS)
        idle.ours.append(hub.resident())
        for media in ("json", "protobuf"):
            for _ in range(2):
                bench.list(through(hub), media)
                hub.finish_work()
        bench.watch(through(hub))
        # Wait until the process is idle.
        time.sleep(RELEASE_SECONDS)
        after.ours.append(hub.resident())
        peak.ours.append(hub.peak())
    yield from (idle, after, peak)


def outage(bench: Bench) -> Iterator[Figure]:
    """Measure starts, online and offline; an API that does not respond, and lists meanwhile."""
    online = Figure(Demand("start to the first answer: online", Unit.SECONDS, 0.5))
    offline = Figure(Demand("start to the first answer: offline", Unit.SECONDS, 0.5))
    unhealthy = Figure(Demand("black hole: unhealthy after", Unit.SECONDS, 12))
    answered = Figure(Demand("black hole: requests before that, longest", Unit.SECONDS, 5))
    back = Figure(Demand("black hole ends: healthy after", Unit.SECONDS))
    listed = {
        media: Figure(Demand(f"list offline as {media}: time", Unit.SECONDS, 0.5))
        for media in ("json", "protobuf")
    }
    first = {
        media: Figure(Demand(f"list offline as {media}: first byte", Unit.SECONDS))
        for media in listed
    }
    for _ in range(bench.scale.starts):
        with bench.hub() as hub:
            online.ours.append(hub.first_answer)
    directory = bench.prepared()
    for _ in range(bench.scale.outages):
        with ExitStack() as stack:
            hub = stack.enter_context(bench.hub(directory))
            for media in listed:
                bench.list(through(hub), media)
            hub.finish_work()
            with bench.api.black_hole():
                fell, longest = _fall(hub)
                unhealthy.ours.append(fell)
                answered.ours.append(longest)
                for media in listed:
                    for _ in range(bench.scale.repeats):
                        result = bench.list(through(hub), media)
                        listed[media].ours.append(result.seconds)
                        first[media].ours.append(result.first)
                for _ in range(bench.scale.starts):
                    hub.kill()
                    hub = stack.enter_context(bench.hub(directory, online=False))
                    offline.ours.append(hub.first_answer)
            began = time.monotonic()
            hub.wait_until(hub.is_online, "it was online again", MAX_OUTAGE_SECONDS, interval=0.05)
            back.ours.append(time.monotonic() - began)
    yield from (online, offline, *listed.values(), *first.values(), unhealthy, answered, back)


def _fall(hub: Hub) -> tuple[float, float]:
    """Send requests until the hub has detected that the API does not respond.

    Returns how long that took, and the longest response time.
    """
    began = time.monotonic()
    taken: list[float] = []
    wrong: list[str] = []

    def ask(path: str) -> None:
        started = time.monotonic()
        try:
            status, _ = hub.ask(path)
        except OSError as error:
            wrong.append(str(error))
            return
        taken.append(time.monotonic() - started)
        if status != 200:
            wrong.append(f"{path}: answered {status} after {taken[-1]:.1f} s")

    asking: list[threading.Thread] = []
    while hub.is_online():
        if time.monotonic() - began > MAX_OUTAGE_SECONDS:
            raise hub.failed(f"takes a silent API for healthy after {MAX_OUTAGE_SECONDS:.0f} s")
        path = PODS_PATH if len(asking) % 4 == 3 else NODE_PATH
        asking.append(threading.Thread(target=ask, args=(path,)))
        asking[-1].start()
        # The requests are spread over the whole time.
        time.sleep(POLL_SECONDS)
    fell = time.monotonic() - began
    for each in asking:
        each.join()
    if wrong:
        raise BenchmarkFailed(f"{len(wrong)} requests were not answered, the first: {wrong[0]}")
    return fell, max(taken)


PARTS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "small": small,
    "lists": lists,
    "watches": watches,
    "memory": memory,
    "outage": outage,
}
"""The parts by their names on the command line, in the order in which they are measured."""
