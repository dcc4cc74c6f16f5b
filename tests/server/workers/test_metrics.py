"""What a scrape shows of the further processes of a server."""

from __future__ import annotations

import os

from twisted.trial.unittest import SynchronousTestCase

from tests.ops.scrapes import families
from yurttunnel.server.workers.service import METRICS, Resources, WorkerStats, resources_of


class FamilyTests(SynchronousTestCase):
    """The families."""

    def test_samples(self) -> None:
        """Each worker is shown by its number, unless it has just ended."""
        resources = {1: Resources(1.5, 4096), 2: None, 3: Resources(0.5, 8192)}
        stats = WorkerStats(ready=2, restarts=7, resources=resources)
        self.assertEqual(
            {
                ("yurttunnel_server_workers_ready", None): 2,
                ("yurttunnel_server_worker_restarts_total", None): 7,
                ("yurttunnel_server_worker_cpu_seconds_total", "1"): 1.5,
                ("yurttunnel_server_worker_cpu_seconds_total", "3"): 0.5,
                ("yurttunnel_server_worker_resident_memory_bytes", "1"): 4096,
                ("yurttunnel_server_worker_resident_memory_bytes", "3"): 8192,
            },
            {
                (sample.name, sample.labels.get("worker")): sample.value
                for family in families(METRICS, stats)
                for sample in family.samples
            },
        )


class ResourcesTests(SynchronousTestCase):
    """What a process has used."""

    def test_own(self) -> None:
        """Those of this process are what the kernel tells it by other ways."""
        before = sum(os.times()[:2])
        found = resources_of(os.getpid())
        assert found is not None
        self.assertLess(before - 0.1, found.cpu_seconds)
        self.assertLess(found.cpu_seconds, sum(os.times()[:2]) + 0.1)
        self.assertGreater(found.resident_bytes, 1 << 20)
        self.assertEqual(0, found.resident_bytes % os.sysconf("SC_PAGE_SIZE"))

    def test_ended(self) -> None:
        """Nothing is known of one that has ended, or was never started."""
        self.assertIsNone(resources_of(None))
        self.assertIsNone(resources_of(1 << 30))
