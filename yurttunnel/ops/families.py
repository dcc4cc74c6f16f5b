"""Metric families as Prometheus has them: a name, a type, a help text, and samples.

They are made when somebody scrapes. The package ``prometheus_client`` is for figures that live
on; with what it serves them by (``http.server``, ``wsgiref``) it takes 1.1 MiB of each process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple


class Sample(NamedTuple):
    """One line of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


class MetricFamily:
    """All samples of one name; ``labels`` are the names of their labels."""

    def __init__(
        self,
        name: str,
        kind: Literal["counter", "gauge", "histogram"],
        documentation: str,
        labels: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.kind = kind
        self.documentation = documentation
        self.samples: list[Sample] = []
        self._labels = labels

    def add_metric(self, labels: Sequence[str], value: float) -> None:
        """Add a sample with these values of the labels."""
        named = dict(zip(self._labels, labels, strict=True))
        self.samples.append(Sample(self.name, named, value))


class GaugeMetricFamily(MetricFamily):
    """What goes up and down; ``value`` is that of the only sample where there are no labels."""

    def __init__(
        self,
        name: str,
        documentation: str,
        value: float | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__(name, "gauge", documentation, labels)
        if value is not None:
            self.add_metric((), value)


class CounterMetricFamily(MetricFamily):
    """What only goes up; its full name is ``name`` with ``_total`` behind it."""

    def __init__(
        self,
        name: str,
        documentation: str,
        value: float | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__(f"{name}_total", "counter", documentation, labels)
        if value is not None:
            self.add_metric((), value)


class MetricRegistry:
    """What a scrape shows: the families of all sources, in the order of their addition."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[MetricFamily]]] = []

    def add(self, families: Callable[[], Iterable[MetricFamily]]) -> None:
        """Have every scrape show what ``families()`` gives, too."""
        self._sources.append(families)

    def __iter__(self) -> Iterator[MetricFamily]:
        for families in self._sources:
            yield from families()
