"""Scrapes of single metrics."""

from __future__ import annotations

from collections.abc import Iterable

from yurttunnel.metrics import Metric, MetricFamily, MetricRegistry, Source


def families(metrics: Iterable[Metric[Source]], source: Source | None) -> list[MetricFamily]:
    """Return the metric families of a scrape of ``source``."""
    registry = MetricRegistry()
    registry.add(metrics, lambda: source)
    return list(registry)
