"""The output of commands: tables and JSON, without control characters for the terminal."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence

from yurttunnel.ops.printable import printable


def shown(text: object) -> str:
    r"""Return ``text`` with unprintable characters as ``\xNN``: it may contain peers' data."""
    return printable(str(text))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with columns as wide as their contents."""
    cells = [list(headings), *([shown(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def as_json(value: object) -> str:
    """Return ``value`` as JSON for people and programs."""
    return json.dumps(value, indent=2) + "\n"


def ago(moment: str | None, now: datetime.datetime) -> str:
    """Return how long ago a time in RFC 3339 was, as ``kubectl`` shows ages; ``-`` for none."""
    if moment is None:
        return "-"
    seconds = (now - datetime.datetime.fromisoformat(moment)).total_seconds()
    return age(max(0, int(seconds)))


def age(seconds: int) -> str:
    """Format a duration in its two largest units."""
    for size, unit, part, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{unit}{rest}{smaller}" if rest else f"{seconds // size}{unit}"
    return f"{seconds}s"


def now() -> datetime.datetime:
    """Return the time of day."""
    return datetime.datetime.now(datetime.UTC)
