"""The metrics of the cache."""

from __future__ import annotations

from tests.hub.cache.caches import POD, PODS, item, report_list
from tests.hub.cache.test_store import CacheTestCase
from yurttunnel.hub.cache.metrics import METRICS
from yurttunnel.metrics import MetricRegistry


class MetricsTests(CacheTestCase):
    """Each metric has a value from the start."""

    def scrape(self) -> dict[tuple[str, ...], float]:
        """Return all values by names and labels."""
        registry = MetricRegistry()
        registry.add(METRICS, lambda: self.cache.stats)
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in registry
            for sample in family.samples
        }

    def test_counted(self) -> None:
        """Objects are counted by result, and the file has a size."""
        before = self.scrape()
        self.assertEqual(0, before["yurthub_cache_objects_total", "written"])
        report_list(self.cache, [item("a"), item("b")], 5)
        waiting = self.scrape()["yurthub_cache_waiting_bytes",]
        self.assertIsNotNone(self.read())
        report_list(self.cache, [item("a"), item("b")], 6)
        self.cache.store_event("/", "", b"", "")
        self.cache.upsert(PODS, POD, item("c"))
        self.assertIsNotNone(self.read())
        after = self.scrape()
        self.assertGreater(waiting, 0)
        self.assertEqual(0, after["yurthub_cache_waiting_bytes",])
        self.assertEqual(3, after["yurthub_cache_objects_total", "written"])
        self.assertEqual(2, after["yurthub_cache_objects_total", "unchanged"])
        self.assertEqual(1, after["yurthub_cache_kept_events",])
        self.assertEqual(1, after["yurthub_cache_clients",])
        self.assertGreaterEqual(after["yurthub_cache_bytes",], 4096)
        self.assertEqual(before.keys(), after.keys())
