"""What grows with time, from samples."""

from __future__ import annotations

from collections.abc import Sequence

Sample = tuple[float, float]
"""Seconds, and what was counted then."""


def slope(samples: Sequence[Sample]) -> float:
    """Return the growth each second: the slope of the line with the least squares of distances.

    Raises `ValueError` for samples that are all of one time, as for fewer than two.
    """
    count = len(samples)
    if count < 2:
        raise ValueError(f"{count} samples have no slope")
    middle = sum(when for when, _ in samples) / count
    mean = sum(value for _, value in samples) / count
    width = sum((when - middle) ** 2 for when, _ in samples)
    if width == 0:
        raise ValueError("all samples are of one time")
    return sum((when - middle) * (value - mean) for when, value in samples) / width
