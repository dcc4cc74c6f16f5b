"""Metrics of the process, some of them under the names that all Prometheus clients use."""

from __future__ import annotations

import datetime
import os
import platform
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from yurttunnel import __version__
from yurttunnel.metrics import Metric, MetricRegistry, counter, gauge


class ProcessStats:
    """The figures of this process, read at a scrape; ``started`` is in seconds since 1970.

    ``virtual``, ``resident`` and ``descriptors`` are ``None`` if no file descriptor is free to read
    them: the rest of the scrape matters most then.
    """

    def __init__(self, started: float | None = None, reactor_lag: float = 0.0) -> None:
        self.started = started
        self.reactor_lag = reactor_lag
        self.virtual: int | None = None
        self.resident: int | None = None
        self.descriptors: int | None = None
        try:
            virtual, resident = Path("/proc/self/statm").read_bytes().split()[:2]
            descriptors = len(os.listdir("/proc/self/fd"))
        except OSError:
            return
        page = resource.getpagesize()
        self.virtual, self.resident = int(virtual) * page, int(resident) * page
        self.descriptors = descriptors


def add_process_metrics(
    registry: MetricRegistry,
    prefix: str,
    certificates: Callable[[], Mapping[str, datetime.datetime]] | None,
    reactor_lag: Callable[[], float],
) -> None:
    """Register the metrics of this process; both functions are called once for each scrape.

    ``certificates()`` returns the expiry of each certificate in use by a short fixed name
    (``server``, ``agent``, ``ca``, ``kubelet-client``); it is ``None`` for a program that has none.
    """
    # Computed once: setting the clock must not change the start of the process.
    started = _started()
    registry.add((*_own_metrics(prefix), *METRICS), lambda: ProcessStats(started, reactor_lag()))
    if certificates is not None:
        registry.add((_expiry(prefix),), certificates)


def _own_metrics(prefix: str) -> tuple[Metric[ProcessStats], ...]:
    return (
        gauge(
            f"{prefix}reactor_lag_seconds",
            "By how much the latest timer of the last minute was late. Above 0.1 every stream "
            "feels it: the process needs more CPU, or something blocks it.",
            lambda stats: stats.reactor_lag,
        ),
        gauge(
            f"{prefix}build_info",
            "Always 1; the labels have the versions.",
            lambda _: [((__version__, platform.python_version()), 1)],
            "version",
            "python",
        ),
    )


def _expiry(prefix: str) -> Metric[Mapping[str, datetime.datetime]]:
    return gauge(
        f"{prefix}certificate_expiry_timestamp_seconds",
        "Expiry of each certificate in use, in seconds since 1970. Renewal happens long before;"
        " alert when less than a week is left.",
        lambda ends: ((name, end.timestamp()) for name, end in ends.items()),
        "certificate",
    )


METRICS: tuple[Metric[ProcessStats], ...] = (
    counter(
        "process_cpu_seconds",
        "Total user and system CPU time in seconds.",
        lambda _: time.process_time(),
    ),
    gauge(
        "process_start_time_seconds",
        "Start time of the process in seconds since 1970.",
        lambda stats: stats.started,
    ),
    gauge(
        "process_max_fds",
        "Maximum number of open file descriptors.",
        lambda _: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    ),
    gauge("process_virtual_memory_bytes", "Virtual memory.", lambda stats: stats.virtual),
    gauge("process_resident_memory_bytes", "Resident memory.", lambda stats: stats.resident),
    gauge("process_open_fds", "Open file descriptors.", lambda stats: stats.descriptors),
)
"""The standard process metrics of Prometheus clients; unknown values are omitted."""


def _started() -> float:
    """Return the start time of this process, in seconds since 1970 (proc(5), stat, field 22)."""
    # The name of the program, field 2, may contain spaces and parentheses.
    behind_name = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2]
    after_boot = int(behind_name.split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + after_boot
