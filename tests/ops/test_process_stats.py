"""Process metrics, compared with the values of the kernel and of the test."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import time

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.process_stats import add_process_metrics


def stats() -> dict[str, float]:
    """Return the values of this process by sample name."""
    return values_in(registry())


def registry() -> MetricRegistry:
    """Return a registry with the metrics of this process."""
    registry = MetricRegistry()
    add_process_metrics(registry, "test_", dict, float)
    return registry


def values_in(registry: MetricRegistry) -> dict[str, float]:
    """Scrape; return the values by sample name."""
    return {sample.name: sample.value for family in registry for sample in family.samples}


class ProcessMetricsTests(SynchronousTestCase):
    """The metrics of the test process."""

    def setUp(self) -> None:
        """Free the garbage of other tests, so that it is not freed during the measurement."""
        gc.collect()

    def test_memory(self) -> None:
        """Resident memory grows with written pages; virtual memory is larger."""
        # The test maps pages of its own, since an allocator may reuse freed ones.
        size = 32 * 2**20
        block = mmap.mmap(-1, size)
        self.addCleanup(block.close)
        before = stats()
        block.write(b"x" * size)
        after = stats()
        growth = after["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
        self.assertGreater(growth, size - 2**20)
        self.assertGreater(
            after["process_virtual_memory_bytes"], after["process_resident_memory_bytes"]
        )

    def test_descriptors(self) -> None:
        """Open descriptors are counted, and the limit is the soft limit."""
        before = stats()
        opened = os.open("/dev/null", os.O_RDONLY)
        self.addCleanup(os.close, opened)
        after = stats()
        self.assertEqual(1, after["process_open_fds"] - before["process_open_fds"])
        self.assertEqual(resource.getrlimit(resource.RLIMIT_NOFILE)[0], after["process_max_fds"])

    def test_time(self) -> None:
        """The start time is in the past, and processor time grows only with work."""
        before = stats()
        self.assertLess(before["process_start_time_seconds"], time.time())
        self.assertGreater(before["process_start_time_seconds"], time.time() - 86_400)
        while time.process_time() < before["process_cpu_seconds_total"] + 0.01:
            sum(range(1000))
        used = stats()["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
        self.assertGreaterEqual(used, 0.01)
        self.assertLess(used, 10)

    def test_start_when_the_clock_is_set(self) -> None:
        """The start time is unaffected by changes of the wall clock, which would trigger alerts."""
        read = registry()
        name = "process_start_time_seconds"
        before = values_in(read)[name]
        now = time.time()
        self.patch(time, "time", lambda: now + 3600)
        self.assertEqual(before, values_in(read)[name])

    def test_no_descriptor_left(self) -> None:
        """When no descriptor is left, the other metrics are still reported."""

        def exhausted(path: str) -> list[str]:
            raise OSError(24, "Too many open files", path)

        self.patch(os, "listdir", exhausted)
        left = stats()
        self.assertIn("process_cpu_seconds_total", left)
        self.assertIn("process_max_fds", left)
        self.assertNotIn("process_open_fds", left)
