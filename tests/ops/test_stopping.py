"""Being told to stop more than once."""

from __future__ import annotations

from twisted.internet.error import ReactorNotRunning
from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.stopping import stop_once


class Reactor:
    """Can be stopped once."""

    stopped = 0

    def stop(self) -> None:
        """Stop, as Twisted's reactors do it."""
        if self.stopped:
            raise ReactorNotRunning("Can't stop reactor that isn't running.")
        self.stopped += 1


class StopOnceTests(SynchronousTestCase):
    """:func:`stop_once`."""

    def test_later_ones_are_logged(self) -> None:
        """The first one stops the reactor; a further one does no harm."""
        reactor = Reactor()
        stop_once(reactor)
        events = []
        globalLogPublisher.addObserver(events.append)
        self.addCleanup(globalLogPublisher.removeObserver, events.append)
        reactor.stop()
        self.assertEqual((1, []), (reactor.stopped, events))
        reactor.stop()
        self.assertEqual(1, reactor.stopped)
        (event,) = events
        self.assertIn("stops already", event["log_format"])
