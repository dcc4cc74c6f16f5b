"""The details of a node, as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from yurttunnel.cli import output

_SESSION = (
    "session",
    "since",
    "rtt_seconds",
    "streams",
    "bytes_received",
    "bytes_sent",
    "resumptions",
    "address",
)
"""The fields of a session that are shown; JSON has all."""

_IDENTIFIER = 8
"""The number of characters of a session's ID, as in the log."""


def described(node: Mapping[str, object]) -> str:
    """Format an entry of ``/nodes/NAME``: a line for each value, a table for each list."""
    return "".join(f"{line}\n" for line in _lines(node))


def _lines(node: Mapping[str, object]) -> Iterator[str]:
    for key, value in node.items():
        if not isinstance(value, list):
            yield f"{_name(key)}: {_value(key, value)}"
        elif not value:
            yield f"{_name(key)}: none"
        else:
            columns = _SESSION if key == "sessions" else list(value[0])
            yield f"{_name(key)}:"
            yield from _table(columns, value)


def _table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    headings = [_name(each).upper() for each in columns]
    cells = [[_value(each, row.get(each)) for each in columns] for row in rows]
    for line in output.table(headings, cells).splitlines():
        yield f"  {line}"


def _name(key: str) -> str:
    return "round trip" if key == "rtt_seconds" else output.shown(key.replace("_", " "))


def _value(key: str, value: object) -> str:
    """Return a value for a cell; ``-`` if it is unknown."""
    match value:
        case None | "":
            return "-"
        case float() if key == "rtt_seconds":
            return f"{value * 1000:.1f}ms"
        case str() if key == "session":
            return output.shown(value[:_IDENTIFIER])
    return output.shown(value)
