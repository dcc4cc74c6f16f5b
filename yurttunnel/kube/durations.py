"""Durations in the format of ``kubectl``."""

from __future__ import annotations

import datetime

UNKNOWN = "<unknown>"


def duration(seconds: float) -> str:
    """Format a duration as HumanDuration of k8s.io/apimachinery pkg/util/duration does."""
    whole = int(seconds)
    if whole < 0:
        # Clocks may differ slightly.
        return "0s" if whole == -1 else "<invalid>"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def since(moment: object, now: float) -> str:
    """Format the time since a ``metav1.Time``."""
    seconds = seconds_of(moment)
    return UNKNOWN if seconds is None else duration(now - seconds)


def seconds_of(moment: object) -> float | None:
    """Parse a ``metav1.Time`` or ``MicroTime`` to seconds since 1970, ``None`` if it is invalid."""
    if not isinstance(moment, str):
        return None
    try:
        return datetime.datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError):
        return None


def _two(first: int, first_unit: str, second: int, second_unit: str) -> str:
    return f"{first}{first_unit}{second}{second_unit}" if second else f"{first}{first_unit}"
