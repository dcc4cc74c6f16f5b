"""Declarations of Prometheus metrics: name, help text, labels and a function that reads the value.

Each metric is declared once, next to the code that it describes, in any package. Nothing is counted
in this module: a scrape reads the current values, so metrics cost the data path nothing, and a node
that disconnects is absent from the next scrape. ``prometheus_client`` would block the reactor for
twice as long and use 0.7 MiB of memory in each process (``benchmarks/scrape.py``).

Names that begin with ``konnectivity_network_proxy_`` are those of Konnectivity and yurttunnel 1.2,
so that existing dashboards keep working. All others begin with ``yurttunnel_server_`` or
``yurttunnel_agent_``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import Generic, Literal, NamedTuple, TypeVar

Source = TypeVar("Source")
Kind = Literal["counter", "gauge", "histogram"]


class Durations:
    """A histogram of durations; ``bounds`` are the upper bounds of the buckets, in seconds."""

    __slots__ = ("bounds", "buckets", "total_seconds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        # The last bucket counts the durations above all bounds.
        self.buckets = [0] * (len(bounds) + 1)
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(self.bounds, seconds)] += 1
        self.total_seconds += seconds


class Sample(NamedTuple):
    """One line of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


class MetricFamily(NamedTuple):
    """All samples of one metric in one scrape."""

    name: str
    kind: Kind
    documentation: str
    samples: Iterable[Sample]


Value = float | Durations | Iterable[tuple[str | tuple[str, ...], float]] | None
"""The value of a metric: :class:`Durations` for a histogram, pairs of label values and number for a
metric with labels, and ``None`` for a metric to be left out of the scrape."""


class Metric(NamedTuple, Generic[Source]):
    """A metric, read from a source in :class:`MetricRegistry`; ``labels`` are the label names."""

    kind: Kind
    name: str
    documentation: str
    read: Callable[[Source], Value]
    labels: tuple[str, ...] = ()

    def samples(self, source: Source) -> Iterable[Sample] | None:
        """Return the samples of ``source`` for one scrape, or ``None`` to omit the metric.

        All values are read here, but the samples are built as they are iterated, because the
        samples of many sessions are written in several iterations of the reactor.
        """
        value = self.read(source)
        if value is None:
            return None
        if isinstance(value, Durations):
            return list(_histogram(self.name, value))
        if isinstance(value, int | float):
            return [Sample(self.name, {}, value)]
        values = list(value)
        return (Sample(self.name, self._named(labels), each) for labels, each in values)

    def _named(self, values: str | tuple[str, ...]) -> dict[str, str]:
        return dict(zip(self.labels, (values,) if isinstance(values, str) else values, strict=True))


def gauge(
    name: str, documentation: str, read: Callable[[Source], Value], *labels: str
) -> Metric[Source]:
    """Declare a gauge."""
    return Metric("gauge", name, documentation, read, labels)


def counter(
    name: str, documentation: str, read: Callable[[Source], Value], *labels: str
) -> Metric[Source]:
    """Declare a counter; ``_total`` is appended to ``name``."""
    return Metric("counter", f"{name}_total", documentation, read, labels)


def histogram(name: str, documentation: str, read: Callable[[Source], Durations]) -> Metric[Source]:
    """Declare a histogram of durations."""
    return Metric("histogram", name, documentation, read)


def counts_of(values: Iterable[str], counts: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    """Return a count for each of ``values``, 0 included, so that ``rate`` sees the first event."""
    return ((value, counts.get(value, 0)) for value in values)


class MetricRegistry:
    """The families of all metrics in a scrape, in the order in which they were added."""

    def __init__(self) -> None:
        self._scrapes: list[Callable[[], Iterable[MetricFamily | None]]] = []

    def add(
        self,
        metrics: Iterable[Metric[Source]],
        source: Callable[[], Source | Generator[object, None, Source] | None],
    ) -> None:
        """Add ``metrics`` to every scrape, read from what ``source()`` returns at that time.

        They are omitted while it returns ``None``. A source that takes long is a generator: it
        yields where the reactor may run, and returns the object to read.
        """
        self._scrapes.append(partial(_scrape, tuple(metrics), source))

    def __iter__(self) -> Iterator[MetricFamily]:
        return (family for family in self.steps() if family is not None)

    def steps(self) -> Iterator[MetricFamily | None]:
        """Yield the families, and ``None`` at each point where the reactor may run."""
        for scrape in self._scrapes:
            yield from scrape()


def _scrape(
    metrics: Iterable[Metric[Source]],
    source: Callable[[], Source | Generator[object, None, Source] | None],
) -> Iterator[MetricFamily | None]:
    found = source()
    if isinstance(found, Generator):
        found = yield from _paused(found)
    if found is None:
        return
    for each in metrics:
        samples = each.samples(found)
        if samples is not None:
            yield MetricFamily(each.name, each.kind, each.documentation, samples)


def _paused(making: Generator[object, None, Source]) -> Generator[None, None, Source]:
    while True:
        try:
            next(making)
        except StopIteration as ended:
            made: Source = ended.value
            return made
        yield None


def _histogram(name: str, durations: Durations) -> Iterator[Sample]:
    # Formatted as Go does, without a trailing .0: Prometheus 2 compares bounds as text.
    bounds = [f"{bound:g}" for bound in durations.bounds] + ["+Inf"]
    total = 0
    for bound, count in zip(bounds, durations.buckets, strict=True):
        total += count
        yield Sample(f"{name}_bucket", {"le": bound}, total)
    yield Sample(f"{name}_count", {}, total)
    yield Sample(f"{name}_sum", {}, durations.total_seconds)
