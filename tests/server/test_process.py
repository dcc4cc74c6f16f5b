"""What the first process of a server has, with workers and without."""

from __future__ import annotations

from types import SimpleNamespace

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.server.expectations import nothing_expected
from yurttunnel.server.cloud_end import worker_processes
from yurttunnel.server.options import Options
from yurttunnel.server.process import ServerProcess


def settings(*arguments):
    """Return what a command line says."""
    options = Options()
    options.parseOptions(["--standalone", "--state-dir=S", *arguments])
    return options.settings


class ProcessTests(SynchronousTestCase):
    """A process without sessions, on a reactor in memory."""

    def setUp(self):
        """Make it."""
        self.reactor = MemoryReactorClock()

    def test_pages(self):
        """Each of them is there, the ones that look inside too."""
        process = ServerProcess(self.reactor, settings(), dict, nothing_expected())
        process.meta.startService()
        self.addCleanup(process.meta.stopService)
        site = self.reactor.tcpServers[0][1]
        for page in (
            b"",
            b"healthz",
            b"readyz",
            b"metrics",
            b"agents",
            b"nodes",
            b"steering",
            b"debug",
        ):
            self.assertIn(page, site.root.listStaticNames())

    def test_workers(self):
        """They count in what the process shows of itself; one process has none."""
        agents = SimpleNamespace(
            process=b"p" * 16,
            identity_of=None,
            is_revoked=None,
            replicas=None,
            sessions_drain=None,
            refusals=None,
            on_revoked=[],
            on_replicas_changed=[],
        )
        for count in (1, 2):
            given = settings(f"--workers={count}")
            process = ServerProcess(self.reactor, given, dict, nothing_expected())
            made = worker_processes(self.reactor, given, process, agents, None)
            self.assertIs(made, process.workers)
            self.assertEqual(count == 1, made is None)
