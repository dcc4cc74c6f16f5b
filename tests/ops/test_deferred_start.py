"""A part of a program that is made when its prerequisite is available."""

from __future__ import annotations

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from yurttunnel.ops import deferred_start
from yurttunnel.ops.deferred_start import DeferredStart
from yurttunnel.ops.listen import CannotListen


class Made(Service):
    """A service that takes time to stop."""

    def __init__(self):
        self.ended = Deferred()

    def stopService(self):
        """Stop when ``ended`` fires."""
        super().stopService()
        return self.ended


class DeferredStartTests(TestCase):
    """The part is made and started when its prerequisite is available."""

    def setUp(self):
        """Make a deferred start that waits for ``self.ready``."""
        self.ready = Deferred()
        self.made = Made()
        self.problem = None
        self.messages = []
        self.patch(
            deferred_start,
            "exit_with_error",
            lambda reactor, sentence: self.messages.append(sentence),
        )
        self.service = DeferredStart(
            object(), "yurttunnel-server", "no certificates yet", self.wait, self.make
        )

    async def wait(self):
        """Wait for ``self.ready``."""
        await self.ready

    def make(self):
        """Return the service, or raise ``self.problem``."""
        if self.problem is not None:
            raise self.problem
        self.service.not_accepting = lambda: None
        return self.made

    def test_life(self):
        """A deferred start is reported as waiting, starts its part, and stops after it."""
        self.service.startService()
        self.assertIn("certificates", self.service.problem())
        self.ready.callback(None)
        self.assertTrue(self.made.running)
        self.assertIsNone(self.service.problem())
        stopped = self.service.stopService()
        self.assertNoResult(stopped)
        self.made.ended.callback(None)
        self.successResultOf(stopped)
        self.assertFalse(self.made.running)

    def test_stopped_while_waiting(self):
        """Stopping cancels the wait, and the service is not made."""
        cancelled = []
        self.ready = Deferred(lambda _: cancelled.append(True))
        self.service.startService()
        self.successResultOf(self.service.stopService())
        self.assertEqual([True], cancelled)
        self.assertFalse(self.made.running)
        self.assertEqual([], self.messages)

    def test_port_in_use(self):
        """A port that cannot be bound ends the process with an error message."""
        self.problem = CannotListen("--secure-port", "another process listens there")
        self.service.startService()
        self.ready.callback(None)
        self.assertEqual(["--secure-port: another process listens there"], self.messages)
        self.successResultOf(self.service.stopService())

    def test_defect(self):
        """An unexpected exception ends the process and is logged with its traceback."""
        self.problem = KeyError("missing")
        self.service.startService()
        self.ready.callback(None)
        self.assertIn("internal error: KeyError('missing')", self.messages[0])
        self.assertEqual(1, len(self.flushLoggedErrors(KeyError)))
