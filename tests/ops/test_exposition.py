"""Metric families as text, checked against the parser and writer of ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.exposition import exposition
from yurttunnel.ops.families import (
    CounterMetricFamily,
    GaugeMetricFamily,
    MetricFamily,
    MetricRegistry,
)
from yurttunnel.ops.histograms import duration_histogram
from yurttunnel.tunnel.statistics import Durations


class Parsed(Collector):
    """What the library's parser makes of a text."""

    def __init__(self, text: bytes) -> None:
        self._families = list(text_string_to_metric_families(text.decode()))

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


class ExpositionTests(SynchronousTestCase):
    """What is written for each type, and for values that need care."""

    def test_same_as_the_library(self) -> None:
        """What the library reads and writes again is the same, but for the form of integers."""
        gauge = GaugeMetricFamily("g", "a \\ and\na line", labels=["node"])
        gauge.add_metric(['back\\slash "quoted"\nline'], 0.25)
        gauge.add_metric(["infinite"], float("inf"))
        gauge.add_metric(["as little"], float("-inf"))
        gauge.add_metric(["no number"], float("nan"))
        gauge.add_metric(["größe"], 1e20)
        gauge.add_metric(["small"], 1.5e-7)
        counter = CounterMetricFamily("c", "counts", labels=["a", "b"])
        counter.add_metric(["1", "2"], 3.0)
        durations = Durations((0.5, 10.0))
        durations.observe(0.25)
        histogram = duration_histogram("h", "durations", durations)
        empty = CounterMetricFamily("e", "nothing yet", labels=["a"])
        text = exposition([gauge, counter, histogram, empty])
        again = (
            generate_latest(Parsed(text)).replace(b" 1.0\n", b" 1\n").replace(b" 0.0\n", b" 0\n")
        )
        self.assertEqual(again, text)

    def test_labels(self) -> None:
        """A sample has a value for each label."""
        family = CounterMetricFamily("c", "counts", labels=["a", "b"])
        self.assertRaises(ValueError, family.add_metric, ["1"], 3)

    def test_exact_counter_name(self) -> None:
        """A counter whose samples do not end in _total is announced under its own name."""
        family = MetricFamily("failure_count", "counter", "failures", labels=["direction"])
        family.add_metric(["to"], 7)
        self.assertEqual(
            b"# HELP failure_count failures\n"
            b"# TYPE failure_count counter\n"
            b'failure_count{direction="to"} 7\n',
            exposition([family]),
        )

    def test_integers(self) -> None:
        """Integers of any size are written without loss."""
        family = CounterMetricFamily("c", "bytes", 2**60 + 1)
        self.assertIn(b"c_total 1152921504606846977\n", exposition([family]))

    def test_truth_values(self) -> None:
        """A truth value is written as a number."""
        family = GaugeMetricFamily("g", "up")
        family.add_metric([], True)
        text = exposition([family]).decode()
        [parsed] = text_string_to_metric_families(text)
        self.assertEqual(1.0, parsed.samples[0].value)

    def test_empty_registry(self) -> None:
        """A registry without sources gives an empty text."""
        self.assertEqual(b"", exposition(MetricRegistry()))
