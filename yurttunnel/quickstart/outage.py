"""The outage of the check, of which nobody need be warned: it is wanted, and soon over."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger, LogLevel

from yurttunnel.ops.log_levels import ShownLevels
from yurttunnel.quickstart.service import Replaceable

SETTLED = 3.0
"""Seconds from the return of the API until nobody speaks of its absence any more: what the hub has
parked meanwhile ends within 2 s."""

_log = Logger()


class Outage:
    """Takes ``api`` away and puts it back; till that has settled the log shows errors only."""

    def __init__(self, clock: IReactorTime, api: Replaceable, levels: ShownLevels) -> None:
        self._clock = clock
        self._api = api
        self._levels = levels
        self._usual = levels.level, levels.requests

    async def begin(self) -> None:
        """Stop the API; all that follow it would say so."""
        _log.info("the API is away for some seconds, as the check wants it")
        self._usual = self._levels.level, self._levels.requests
        self._levels.set(LogLevel.error, requests=False)
        await self._api.take_away()

    async def end(self) -> None:
        """Start the API again, and show a little later what was shown before."""
        await self._api.put_back()
        self._clock.callLater(SETTLED, self._levels.set, *self._usual)
