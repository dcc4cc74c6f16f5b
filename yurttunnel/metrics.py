"""Metrics as Prometheus has them, each declared once: name, help text, labels, and how it is read.

A declaration stands beside what it describes, in any room, and nothing is counted here: a scrape
reads what is there, so the data path pays nothing for metrics, and a node that leaves is gone from
the next scrape. ``prometheus_client`` would hold the reactor for twice as long, and take 0.7 MiB
of each process (``benchmarks/scrape.py``).

Names that begin with ``konnectivity_network_proxy_`` are those of Konnectivity and of yurttunnel
1.2, so that their dashboards go on working. The rest begins with ``yurttunnel_server_`` or
``yurttunnel_agent_``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, NamedTuple, TypeVar

Source = TypeVar("Source")
Kind = Literal["counter", "gauge", "histogram"]


class Durations:
    """A histogram of how long something took; ``bounds`` are upper bounds in seconds."""

    __slots__ = ("bounds", "buckets", "total_seconds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        # The last one has what is above all bounds.
        self.buckets = [0] * (len(bounds) + 1)
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
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
"""What a metric is read as: a histogram as durations, one with labels as values by those of its
labels, and ``None`` leaves it out of a scrape."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """A metric of what :class:`MetricRegistry` has as its source; ``labels`` are their names."""

    kind: Kind
    name: str
    documentation: str
    read: Callable[[Source], Value]
    labels: tuple[str, ...] = ()

    def samples(self, source: Source) -> Iterable[Sample] | None:
        """Return what a scrape shows of ``source``, ``None`` for nothing at all.

        All is read here, and made into samples while they are asked for: what many sessions have
        to show is written in several turns of the reactor.
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
    """Declare what goes up and down."""
    return Metric("gauge", name, documentation, read, labels)


def counter(
    name: str, documentation: str, read: Callable[[Source], Value], *labels: str
) -> Metric[Source]:
    """Declare what only goes up; its full name is ``name`` with ``_total`` behind it."""
    return Metric("counter", f"{name}_total", documentation, read, labels)


def histogram(name: str, documentation: str, read: Callable[[Source], Durations]) -> Metric[Source]:
    """Declare how durations are distributed."""
    return Metric("histogram", name, documentation, read)


def counts_of(values: Iterable[str], counts: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    """Return counts by labels, all of them from the start, so that ``rate`` sees the first one."""
    return ((value, counts.get(value, 0)) for value in values)


class MetricRegistry:
    """What a scrape shows: the families of all metrics, in the order of their addition."""

    def __init__(self) -> None:
        self._scrapes: list[Callable[[], Iterable[MetricFamily | None]]] = []

    def add(
        self,
        metrics: Iterable[Metric[Source]],
        source: Callable[[], Source | Generator[object, None, Source] | None],
    ) -> None:
        """Have every scrape show ``metrics`` of what ``source()`` gives then, if it does.

        One that looks at much is a generator, which returns that, and yields pauses before.
        """
        self._scrapes.append(partial(_scrape, tuple(metrics), source))

    def __iter__(self) -> Iterator[MetricFamily]:
        return (family for family in self.steps() if family is not None)

    def steps(self) -> Iterator[MetricFamily | None]:
        """Go through the families, with ``None`` where the reactor may turn."""
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
    # Written as Go writes them, without a trailing .0: Prometheus 2 compares them as text.
    bounds = [f"{bound:g}" for bound in durations.bounds] + ["+Inf"]
    total = 0
    for bound, count in zip(bounds, durations.buckets, strict=True):
        total += count
        yield Sample(f"{name}_bucket", {"le": bound}, total)
    yield Sample(f"{name}_count", {}, total)
    yield Sample(f"{name}_sum", {}, durations.total_seconds)
