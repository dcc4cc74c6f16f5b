"""The API outage that the check requests."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.log_levels import LogLevelFilter
from yurttunnel.quickstart.composition import SETTLE_SECONDS, Outage


class Api:
    """An API that records each change and the log level at that time."""

    def __init__(self, levels):
        self._levels = levels
        self.commands = []

    async def stop_part(self):
        """Record the stop."""
        self.commands.append(("away", self._levels.level))

    async def start_part(self):
        """Record the start."""
        self.commands.append(("back", self._levels.level))


class OutageTests(SynchronousTestCase):
    """The log during an outage of the API."""

    def test_errors_alone_are_shown(self):
        """Warnings are hidden until some time after the outage; then the level is restored."""
        levels = LogLevelFilter()
        levels.set(LogLevel.debug, requests=True)
        api = Api(levels)
        clock = Clock()
        outage = Outage(clock, api, levels)
        self.successResultOf(Deferred.fromCoroutine(outage.begin()))
        self.successResultOf(Deferred.fromCoroutine(outage.end()))
        clock.advance(SETTLE_SECONDS / 2)
        self.assertEqual([("away", LogLevel.error), ("back", LogLevel.error)], api.commands)
        self.assertEqual(LogLevel.error, levels.level)
        clock.advance(SETTLE_SECONDS)
        self.assertEqual((LogLevel.debug, True), (levels.level, levels.requests))
