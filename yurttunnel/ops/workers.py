"""What a scrape shows of the further processes of a server (``--workers``)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from yurttunnel.ops.families import CounterMetricFamily, GaugeMetricFamily, MetricFamily

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a process has used: CPU seconds, and resident bytes now."""

    cpu_seconds: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """How many workers are ``ready``, what they use by their numbers, and ``restarts``."""

    ready: int
    restarts: int
    resources: Mapping[int, Resources | None]


def resources_of(pid: int | None) -> Resources | None:
    """Read what a process has used (proc(5)); ``None`` when it has just ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the name, in parentheses; it may hold anything.
    fields = text.rpartition(")")[2].split()
    user, system, resident = fields[11], fields[12], fields[21]
    return Resources((int(user) + int(system)) / _TICKS, int(resident) * _PAGE)


def worker_families(stats: WorkerStats) -> Iterator[MetricFamily]:
    """Yield the families of metrics."""
    yield GaugeMetricFamily(
        "yurttunnel_server_workers_ready",
        "Further processes of this server (--workers) that take connections. Fewer than one less "
        "than --workers means that the nodes of one cannot be reached: the log says why it ended.",
        stats.ready,
    )
    yield CounterMetricFamily(
        "yurttunnel_server_worker_restarts",
        "Workers that have ended by themselves and were started again. Each took the streams of "
        "its nodes with it; please report what the log says of it.",
        stats.restarts,
    )
    cpu = CounterMetricFamily(
        "yurttunnel_server_worker_cpu_seconds",
        "CPU time of each worker since it was started. Near one second a second it is what limits "
        "its nodes; process_cpu_seconds_total is the same of the first process.",
        labels=["worker"],
    )
    resident = GaugeMetricFamily(
        "yurttunnel_server_worker_resident_memory_bytes",
        "Resident memory of each worker; process_resident_memory_bytes is the same of the first "
        "process.",
        labels=["worker"],
    )
    for number, used in stats.resources.items():
        if used is not None:
            cpu.add_metric([str(number)], used.cpu_seconds)
            resident.add_metric([str(number)], used.resident_bytes)
    yield cpu
    yield resident
