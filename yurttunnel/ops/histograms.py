"""Histograms of durations, as Prometheus takes them."""

from __future__ import annotations

from yurttunnel.ops.families import MetricFamily, Sample
from yurttunnel.tunnel.statistics import Durations


def duration_histogram(name: str, help_text: str, durations: Durations) -> MetricFamily:
    """Make a histogram without labels of ``durations``."""
    # Written as Go writes them, without a trailing .0: Prometheus 2 compares them as text.
    bounds = [f"{bound:g}" for bound in durations.bounds] + ["+Inf"]
    family = MetricFamily(name, "histogram", help_text)
    total = 0
    for bound, count in zip(bounds, durations.buckets, strict=True):
        total += count
        family.samples.append(Sample(f"{name}_bucket", {"le": bound}, total))
    family.samples.append(Sample(f"{name}_count", {}, total))
    family.samples.append(Sample(f"{name}_sum", {}, durations.total_seconds))
    return family
