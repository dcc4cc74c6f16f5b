"""What workers count, added to what the first process counts: there is one set of figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters
from yurttunnel.wire.codes import Code

_NUMBERS = (
    "bytes_received",
    "bytes_sent",
    "sessions_started",
    "resumptions",
    "connections_lost",
)
_BY_CODE = ("dials", "stream_ends", "session_ends")
_BY_TEXT = ("refused",)
_DURATIONS = "dial_durations"
_SECONDS = "seconds"
_REFUSALS = "refusals"

Amounts = Mapping[str, float]
"""Figures by name; those of a table are named ``TABLE.ENTRY``."""


class Growth:
    """Tells by how much the figures of a worker have grown since they were asked for last."""

    def __init__(self, counters: TunnelCounters, refusals: Counter[str]) -> None:
        self._counters = counters
        self._refusals = refusals
        self._told: dict[str, float] = {}

    def take(self) -> dict[str, float]:
        """Return what has grown, and by how much."""
        now = dict(_amounts(self._counters, self._refusals))
        told, self._told = self._told, now
        return {
            name: amount - told.get(name, 0)
            for name, amount in now.items()
            if amount != told.get(name, 0)
        }


def add_growth(counters: TunnelCounters, refusals: Counter[str], growth: Amounts) -> None:
    """Add what :meth:`Growth.take` gave."""
    for name, amount in growth.items():
        table, _, entry = name.partition(".")
        if table == _REFUSALS:
            refusals[entry] += int(amount)
        elif table in _BY_CODE:
            getattr(counters, table)[Code[entry]] += int(amount)
        elif table in _BY_TEXT:
            getattr(counters, table)[entry] += int(amount)
        elif name == f"{_DURATIONS}.{_SECONDS}":
            counters.dial_durations.total_seconds += amount
        elif table == _DURATIONS:
            counters.dial_durations.buckets[int(entry)] += int(amount)
        else:
            setattr(counters, name, getattr(counters, name) + int(amount))


def _amounts(counters: TunnelCounters, refusals: Counter[str]) -> Iterator[tuple[str, float]]:
    for name in _NUMBERS:
        yield name, getattr(counters, name)
    for table in _BY_CODE:
        for code, amount in getattr(counters, table).items():
            yield f"{table}.{code.name}", amount
    for table in _BY_TEXT:
        for text, amount in getattr(counters, table).items():
            yield f"{table}.{text}", amount
    for number, amount in enumerate(counters.dial_durations.buckets):
        yield f"{_DURATIONS}.{number}", amount
    yield f"{_DURATIONS}.{_SECONDS}", counters.dial_durations.total_seconds
    for reason, amount in refusals.items():
        yield f"{_REFUSALS}.{reason}", amount


class SnapshotChanges:
    """Tells which sessions of a worker have changed since they were asked for last."""

    def __init__(self) -> None:
        self._told: dict[str, SessionSnapshot] = {}

    def take(self, sessions: Iterable[SessionSnapshot]) -> tuple[list[SessionSnapshot], list[str]]:
        """Return those of ``sessions`` that are new or changed, and the ids of those that ended."""
        now = {session.session_id: session for session in sessions}
        told, self._told = self._told, now
        changed = [session for name, session in now.items() if told.get(name) != session]
        return changed, [name for name in told if name not in now]
