"""The lag of the reactor: the figure that shows that the process is overloaded."""

from __future__ import annotations

from collections import deque

from twisted.application.service import Service
from twisted.internet.interfaces import IDelayedCall, IReactorTime

_INTERVAL_SECONDS = 1.0
_MAX_KEPT = 60


class ReactorLag(Service):
    """Measures once a second how late a timer fires, and keeps the values of the last minute.

    A minute is long enough that a scrape every 15 or 30 seconds misses no stall, and that several
    scrapers see the same value.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._late: deque[float] = deque(maxlen=_MAX_KEPT)
        self._call: IDelayedCall | None = None

    def worst(self) -> float:
        """Return the greatest lag of the last minute, in seconds; 0 before a measurement."""
        return max(self._late, default=0.0)

    def latest(self) -> float:
        """Return the latest lag, in seconds; 0 before the first measurement."""
        return self._late[-1] if self._late else 0.0

    def startService(self) -> None:
        super().startService()
        self._schedule()

    def stopService(self) -> None:
        super().stopService()
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _schedule(self) -> None:
        due = self._clock.seconds() + _INTERVAL_SECONDS
        self._call = self._clock.callLater(_INTERVAL_SECONDS, self._measure, due)

    def _measure(self, due: float) -> None:
        self._late.append(max(0.0, self._clock.seconds() - due))
        self._schedule()
