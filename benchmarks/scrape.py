"""The reactor time of a scrape of a server with many nodes, compared with ``prometheus_client``.

``python -m benchmarks.scrape`` prints both: the metrics of a server with 2,000 nodes formatted by
:mod:`yurttunnel.ops.exposition`, and by a collector of ``prometheus_client``, with the memory that
its import takes.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from tests.ops.snapshots import snapshot
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.exposition import exposition
from yurttunnel.ops.process_stats import add_process_metrics
from yurttunnel.server.process import PREFIX, server_registry
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.credit import MemoryBudget

NODES = 2_000
SCRAPES = 20

_GROWTH = """
import gc, resource
import yurttunnel.server.in_cluster
def private():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))
gc.collect()
before = private()
import prometheus_client
gc.collect()
print(private() - before)
"""


class Collected(Collector):
    """Converts ``registry`` to the library's metric families."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as a custom collector does."""
        for family in self._registry:
            metric = Metric(family.name.removesuffix("_total"), family.documentation, family.kind)
            for sample in family.samples:
                metric.add_sample(sample.name, dict(sample.labels), sample.value)
            yield metric


def main() -> None:
    """Measure, and print a line for each."""
    sessions = [dataclasses.replace(snapshot(), node=f"node-{each}") for each in range(NODES)]
    counters, memory = TunnelCounters(), MemoryBudget(1)
    registry = server_registry(counters, memory, lambda: sessions)
    add_process_metrics(registry, PREFIX, dict, float)
    library = CollectorRegistry()
    library.register(Collected(registry))
    read = seconds(lambda: list(registry))
    print(f"read {NODES} nodes: {read * 1000:.1f} ms")
    print(f"read and write them: {seconds(lambda: exposition(registry)) * 1000:.1f} ms")
    print(f"by prometheus_client: {seconds(lambda: generate_latest(library)) * 1000:.1f} ms")
    growth = subprocess.run([sys.executable, "-c", _GROWTH], capture_output=True, check=True)
    print(f"memory of prometheus_client: {int(growth.stdout)} KiB")


def seconds(scrape: Callable[[], object]) -> float:
    """Return the shortest time of several scrapes."""
    times = []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        scrape()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
