"""Histograms of durations, as Prometheus takes them."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily

from yurttunnel.tunnel.statistics import Durations


def duration_histogram(name: str, help_text: str, durations: Durations) -> Metric:
    """Make a histogram without labels of ``durations``."""
    # Written as Go writes them, without a trailing .0: Prometheus 2 compares them as text.
    bounds = [f"{bound:g}" for bound in durations.bounds] + ["+Inf"]
    buckets, total = [], 0
    for bound, count in zip(bounds, durations.buckets, strict=True):
        total += count
        buckets.append((bound, total))
    family = HistogramMetricFamily(name, help_text, labels=[])
    family.add_metric([], buckets=buckets, sum_value=durations.total_seconds)
    return family
