"""Durations, sizes and times in a form for people."""

from __future__ import annotations

import datetime
from typing import NamedTuple

from yurttunnel.ops.clocks import timestamp
from yurttunnel.ops.status.markup import Markup, element

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

DAY = 86_400.0
"""In seconds."""


class PeerTerms(NamedTuple):
    """The terms for the peers of sessions: ``peer`` is one, ``peers`` are several.

    ``waiting`` describes a peer that has lost its connection; ``page`` is the query parameter for
    the page of one peer, empty if there is none.
    """

    peer: str
    peers: str
    waiting: str
    page: str = ""


def duration(seconds: float) -> str:
    """Format a duration with its two greatest units: ``3 d 4 h``, ``12 min 5 s``, ``0 s``."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for name, size in _UNITS:
        count, left = divmod(left, size)
        if count or (name == "s" and not parts):
            parts.append(f"{count} {name}")
        elif parts:
            # A smaller unit after a zero would only pretend precision.
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def round_trip(seconds: float | None) -> str:
    """Format a round-trip time with two or three digits: ``0.42 ms``, ``61 ms``, ``1.3 s``."""
    if seconds is None:
        return "not measured yet"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.2f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def size(amount: float) -> str:
    """Format a number of bytes: ``512 B``, ``1.4 MiB``, ``23 GiB``."""
    for unit in _SIZES:
        if amount < 1000 or unit == _SIZES[-1]:
            break
        amount /= 1024
    return f"{amount:.1f} {unit}" if unit != "B" and amount < 99.95 else f"{amount:.0f} {unit}"


def rate(bytes_per_second: float) -> str:
    """Format a rate: ``1.4 MiB/s``."""
    return f"{size(bytes_per_second)}/s"


def per_second(number: float) -> str:
    """Format a number of events per second: ``0/s``, ``0.25/s``, ``1,200/s``."""
    return f"{number:,.0f}/s" if number >= 10 or not number else f"{number:.2g}/s"


def counted(number: int, singular: str) -> str:
    """Format a number of things: ``1 node``, ``2,000 nodes``."""
    return f"{number:,} {singular}{'' if number == 1 else 's'}"


def moment(when: datetime.datetime, text: str) -> Markup:
    """Return a ``time`` element that shows ``text`` and has the exact time."""
    exact = timestamp(when.timestamp())
    return element("time", text, datetime=exact, title=exact)


def ago(when: datetime.datetime, now: datetime.datetime) -> Markup:
    """Return how long ago something was."""
    return moment(when, f"{duration((now - when).total_seconds())} ago")


def at(seconds: float) -> datetime.datetime:
    """Return the time that is ``seconds`` after the epoch."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
