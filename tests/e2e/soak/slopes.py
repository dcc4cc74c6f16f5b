"""Growth over time, computed from samples."""

from __future__ import annotations

from collections.abc import Sequence

Sample = tuple[float, float]
"""A time in seconds, and the value at that time."""


def slope(samples: Sequence[Sample]) -> float:
    """Return the growth per second: the slope by the method of least squares.

    Raises `ValueError` if all samples have the same time, or if there are fewer than two.
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
