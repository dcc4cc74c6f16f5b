"""Metric families as text, checked against the library's own writer and parser."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.exposition import exposition


class Families(Collector):
    """A collector of the families that it is given."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Give them."""
        return self._families


class ExpositionTests(SynchronousTestCase):
    """What is written for each type, and for values that need care."""

    def test_same_as_the_library(self) -> None:
        """Counters, gauges and histograms come out exactly as prometheus_client writes them."""
        gauge = GaugeMetricFamily("g", "a \\ and\na line", labels=["node"])
        gauge.add_metric(['back\\slash "quoted"\nline'], 0.25)
        gauge.add_metric(["plain"], float("inf"))
        gauge.add_metric(["größe"], 1e20)
        counter = CounterMetricFamily("c", "counts", labels=["a", "b"])
        counter.add_metric(["1", "2"], 3.0)
        histogram = HistogramMetricFamily("h", "durations", labels=[])
        histogram.add_metric([], buckets=[("0.5", 1.0), ("+Inf", 2.0)], sum_value=1.5)
        empty = CounterMetricFamily("e", "nothing yet", labels=["a"])
        families = Families(gauge, counter, histogram, empty)
        self.assertEqual(generate_latest(families), exposition(families))

    def test_exact_counter_name(self) -> None:
        """A counter whose samples do not end in _total is announced under its own name."""
        family = Metric("failure_count", "failures", "counter")
        family.samples.append(Sample("failure_count", {"direction": "to"}, 7))
        self.assertEqual(
            b"# HELP failure_count failures\n"
            b"# TYPE failure_count counter\n"
            b'failure_count{direction="to"} 7\n',
            exposition(Families(family)),
        )

    def test_integers(self) -> None:
        """Integers of any size are written without loss."""
        family = CounterMetricFamily("c", "bytes", 2**60 + 1)
        self.assertIn(b"c_total 1152921504606846977\n", exposition(Families(family)))

    def test_truth_values(self) -> None:
        """A truth value is written as a number."""
        family = GaugeMetricFamily("g", "up")
        family.add_metric([], True)
        text = exposition(Families(family)).decode()
        [parsed] = text_string_to_metric_families(text)
        self.assertEqual(1.0, parsed.samples[0].value)

    def test_empty_registry(self) -> None:
        """A registry without collectors gives an empty text."""
        self.assertEqual(b"", exposition(CollectorRegistry()))
