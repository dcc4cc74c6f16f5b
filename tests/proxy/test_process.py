"""The parts of the service proxy together."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.long_lived import LongLived
from yurttunnel.proxy.options import Options
from yurttunnel.proxy.process import build


class ProcessTests(SynchronousTestCase):
    """What is started."""

    def test_long_lived_objects(self) -> None:
        """Thousands of Services and endpoints are not looked at by each collection of garbage."""
        options = Options()
        options.parseOptions(["--services-file", self.mktemp(), "--hostname-override", "node"])
        parts = build(reactor, options.settings)
        self.assertIn(LongLived, [type(each) for each in parts])
