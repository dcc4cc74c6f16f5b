"""Tests of the composition of the service proxy."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.test_options import parse
from yurttunnel.proxy import process
from yurttunnel.proxy.data_path import DataPath
from yurttunnel.proxy.process import ProxyProcess
from yurttunnel.proxy.rules.none import NoRules
from yurttunnel.proxy.settings import Mode

FLAGS = ("--services-file=/services", "--proxy-backend=none")


class NotedTable:
    """Records the timeouts of UDP clients."""

    def __init__(self, settings):
        self.seconds = settings.udp.first, settings.udp.idle

    def set_timeouts(self, before_reply, after_reply):
        """Record them."""
        self.seconds = before_reply, after_reply


class SettingsFileTests(SynchronousTestCase):
    """Changes of the settings file while the machine is being examined."""

    def setUp(self):
        """Delay the examination."""
        self.finding = Deferred()
        self.table = None

        async def select_data_path(reactor, settings, run, node, source):
            self.table = NotedTable(settings)
            await self.finding
            nothing = NoRules()
            return DataPath(Mode.USER, None, self.table, nothing, nothing, nothing)

        self.patch(process, "select_data_path", select_data_path)
        self.proxy = ProxyProcess(MemoryReactorClock(), parse(*FLAGS), None)
        self.found = Deferred.fromCoroutine(self.proxy._select())

    def use(self, *flags):
        """Change the file."""
        self.proxy._use(parse(*FLAGS, *flags))

    def test_times_of_udp(self):
        """They apply, and so do later ones."""
        self.use("--udp-timeout=7m", "--udp-first-timeout=9s")
        self.finding.callback(None)
        self.assertIsNone(self.successResultOf(self.found))
        self.assertEqual((9.0, 420.0), self.table.seconds)
        self.use("--udp-timeout=8m")
        self.assertEqual((5.0, 480.0), self.table.seconds)
