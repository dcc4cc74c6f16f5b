"""Figures of the process itself, by the names that all Prometheus clients give them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from yurttunnel.ops.families import CounterMetricFamily, GaugeMetricFamily, MetricFamily


def process_figures() -> Callable[[], Iterator[MetricFamily]]:
    """Make the function that reads the figures, which are those of the process that calls it."""
    # Once: when the clock is set the process has not begun at another time.
    started = _started()
    return lambda: _families(started)


def _families(started: float) -> Iterator[MetricFamily]:
    yield CounterMetricFamily(
        "process_cpu_seconds", "Processor time, user and system.", time.process_time()
    )
    yield GaugeMetricFamily(
        "process_start_time_seconds", "When the process began, in seconds since 1970.", started
    )
    yield GaugeMetricFamily(
        "process_max_fds",
        "How many file descriptors there can be.",
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    try:
        virtual, resident = Path("/proc/self/statm").read_bytes().split()[:2]
        descriptors = len(os.listdir("/proc/self/fd"))
    except OSError:
        # No descriptor is left to look with. The rest of the scrape is wanted then more than ever.
        return
    page = resource.getpagesize()
    yield GaugeMetricFamily("process_virtual_memory_bytes", "Virtual memory.", int(virtual) * page)
    yield GaugeMetricFamily(
        "process_resident_memory_bytes", "Resident memory.", int(resident) * page
    )
    yield GaugeMetricFamily("process_open_fds", "Open file descriptors.", descriptors)


def _started() -> float:
    """Return when this process began, in seconds since 1970 (proc(5), stat, field 22)."""
    # The name of the program, field 2, may have spaces and parentheses.
    behind_name = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2]
    after_boot = int(behind_name.split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + after_boot
