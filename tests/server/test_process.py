"""The parts of a server process before anybody can connect."""

from __future__ import annotations

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.server.expectations import nothing_expected
from yurttunnel.server.options import Options
from yurttunnel.server.process import ServerProcess


def settings(*arguments):
    """Return the settings of a command line."""
    return Options().settings_of("--standalone", "--state-dir=S", *arguments)


class ProcessTests(SynchronousTestCase):
    """A process without sessions, on a reactor in memory."""

    def setUp(self):
        """Create it."""
        self.reactor = MemoryReactorClock()

    def test_pages(self):
        """All pages exist, including the debug pages."""
        process = ServerProcess(self.reactor, settings(), dict, nothing_expected())
        process.meta.startService()
        self.addCleanup(process.meta.stopService)
        site = self.reactor.tcpServers[0][1]
        for page in ("", "healthz", "readyz", "metrics", "agents", "nodes", "steering", "debug"):
            self.assertIn(f"/{page}", site.pages)
