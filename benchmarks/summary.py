"""The median and the spread of several values."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """The median, and the quartiles as the spread: half of all values are between them."""

    median: float
    low: float
    high: float


def summarize(values: Sequence[float]) -> Summary:
    """Summarize at least one value."""
    if len(values) == 1:
        return Summary(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Summary(median, low, high)
