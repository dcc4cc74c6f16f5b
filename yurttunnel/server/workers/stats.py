"""What workers count, added to what the first process counts: there is one set of figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from yurttunnel.tunnel.statistics import Amounts, SessionSnapshot, TunnelCounters

_REFUSALS = "refusals"


class Growth:
    """Tells by how much the figures of a worker have grown since they were asked for last."""

    def __init__(self, counters: TunnelCounters, refusals: Counter[str]) -> None:
        self._counters = counters
        self._refusals = refusals
        self._told: Amounts = {}

    def take(self) -> Amounts:
        """Return what has grown, and by how much."""
        now = {**self._counters.amounts(), _REFUSALS: dict(self._refusals)}
        told, self._told = self._told, now
        grown = {}
        for table, amounts in now.items():
            before = told.get(table, {})
            more = {name: amount - before.get(name, 0) for name, amount in amounts.items()}
            if any(more.values()):
                grown[table] = {name: amount for name, amount in more.items() if amount}
        return grown


def add_growth(counters: TunnelCounters, refusals: Counter[str], growth: Amounts) -> None:
    """Add what :meth:`Growth.take` gave."""
    counters.add(growth)
    refusals.update(growth.get(_REFUSALS, {}))


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
