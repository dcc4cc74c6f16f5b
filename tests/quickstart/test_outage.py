"""The outage that the check wants."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.log_levels import LogLevelFilter
from yurttunnel.quickstart.composition import SETTLE_SECONDS, Outage


class Api:
    """Notes what is done to it, and which level is shown then."""

    def __init__(self, levels):
        self._levels = levels
        self.told = []

    async def stop_part(self):
        """Go."""
        self.told.append(("away", self._levels.level))

    async def start_part(self):
        """Come back."""
        self.told.append(("back", self._levels.level))


class OutageTests(SynchronousTestCase):
    """What the log shows while the API is away."""

    def test_errors_alone_are_shown(self):
        """Warnings are hidden till all know that it is back; then the log is as it was."""
        levels = LogLevelFilter()
        levels.set(LogLevel.debug, requests=True)
        api = Api(levels)
        clock = Clock()
        outage = Outage(clock, api, levels)
        self.successResultOf(Deferred.fromCoroutine(outage.begin()))
        self.successResultOf(Deferred.fromCoroutine(outage.end()))
        clock.advance(SETTLE_SECONDS / 2)
        self.assertEqual([("away", LogLevel.error), ("back", LogLevel.error)], api.told)
        self.assertEqual(LogLevel.error, levels.level)
        clock.advance(SETTLE_SECONDS)
        self.assertEqual((LogLevel.debug, True), (levels.level, levels.requests))
