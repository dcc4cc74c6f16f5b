"""Metric families as text, checked against the parser and writer of ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric as ParsedMetric
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.scrapes import families
from yurttunnel.metrics import Durations, Metric, MetricRegistry, counter, gauge, histogram
from yurttunnel.ops.exposition import exposition


class Parsed(Collector):
    """The metric families that the library parses from a text."""

    def __init__(self, text: bytes) -> None:
        self._families = list(text_string_to_metric_families(text.decode()))

    def collect(self) -> Iterable[ParsedMetric]:
        """Return the families."""
        return self._families


class ExpositionTests(SynchronousTestCase):
    """The output for each type of metric, and for special values."""

    def test_same_as_the_library(self) -> None:
        """The library parses and rewrites the output unchanged, but for the form of integers."""
        values = {
            'back\\slash "quoted"\nline': 0.25,
            "infinite": float("inf"),
            "as little": float("-inf"),
            "no number": float("nan"),
            "größe": 1e20,
            "small": 1.5e-7,
        }
        durations = Durations((0.5, 10.0))
        durations.observe(0.25)
        metrics = [
            gauge("g", "a \\ and\na line", lambda _: values.items(), "node"),
            counter("c", "counts", lambda _: [(("1", "2"), 3.0)], "a", "b"),
            histogram("h", "durations", lambda _: durations),
            counter("e", "nothing yet", lambda _: (), "a"),
        ]
        text = exposition(families(metrics, self))
        again = (
            generate_latest(Parsed(text)).replace(b" 1.0\n", b" 1\n").replace(b" 0.0\n", b" 0\n")
        )
        self.assertEqual(again, text)

    def test_labels(self) -> None:
        """A sample without a value for each label is an error."""
        metric = counter("c", "counts", lambda _: [("1", 3)], "a", "b")
        self.assertRaises(ValueError, exposition, families([metric], self))

    def test_absent(self) -> None:
        """A metric whose value is None is left out, and so are all metrics of a missing source."""
        self.assertEqual([], families([gauge("g", "one", lambda _: None)], self))
        self.assertEqual([], families([gauge("g", "one", lambda _: 1)], None))

    def test_exact_counter_name(self) -> None:
        """A counter whose samples do not end in _total is announced under its exact name."""
        failures = Metric(
            "counter", "failure_count", "failures", lambda _: [("to", 7)], ("direction",)
        )
        self.assertEqual(
            b"# HELP failure_count failures\n"
            b"# TYPE failure_count counter\n"
            b'failure_count{direction="to"} 7\n',
            exposition(families([failures], self)),
        )

    def test_integers(self) -> None:
        """Integers of any size are written without loss."""
        metric = counter("c", "bytes", lambda _: 2**60 + 1)
        self.assertIn(b"c_total 1152921504606846977\n", exposition(families([metric], self)))

    def test_truth_values(self) -> None:
        """A Boolean is written as a number."""
        text = exposition(families([gauge("g", "up", lambda _: True)], self)).decode()
        [parsed] = text_string_to_metric_families(text)
        self.assertEqual(1.0, parsed.samples[0].value)

    def test_empty_registry(self) -> None:
        """A registry without sources produces an empty text."""
        self.assertEqual(b"", exposition(MetricRegistry()))
