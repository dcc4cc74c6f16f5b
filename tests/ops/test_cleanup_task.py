"""A process that removes what others have left."""

from __future__ import annotations

import io
import sys

from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops import cleanup_task
from yurttunnel.ops.cleanup_task import CleanupTask


class Refused(Exception):
    """What an errand expects."""


class Reactor:
    """Calls what is to be called when it runs, and can be stopped."""

    stopped = False

    def callWhenRunning(self, call):
        """Run."""
        call()

    def stop(self):
        """Stop."""
        self.stopped = True


class CleanupTaskTests(SynchronousTestCase):
    """It says what it has done, and ends the process."""

    def setUp(self):
        """Catch what is said."""
        self.reactor = Reactor()
        self.screen = io.StringIO()
        self.said = []
        self.patch(sys, "__stdout__", self.screen)
        self.patch(
            cleanup_task, "exit_with_error", lambda reactor, sentence: self.said.append(sentence)
        )

    def run_task(self, done):
        """Run one to its end."""
        service = CleanupTask(self.reactor, "--cleanup", lambda: done, Refused)
        service.startService()
        return service

    def test_what_was_removed(self):
        """A line each, and a good end; also where there was nothing."""
        self.run_task(succeed(["removed a", "removed b"]))
        self.assertEqual("removed a\nremoved b\n", self.screen.getvalue())
        self.assertTrue(self.reactor.stopped)
        self.run_task(succeed([]))
        self.assertIn("there was nothing to remove", self.screen.getvalue())

    def test_what_cannot_be_removed(self):
        """The flag is named, and to whom it does not belong is told to be root."""
        self.patch(cleanup_task.os, "geteuid", lambda: 1000)
        done = Deferred()
        self.run_task(done)
        done.errback(Refused("the kernel says no"))
        self.assertEqual(["--cleanup: run it as root: the kernel says no"], self.said)
        self.assertFalse(self.reactor.stopped)

    def test_a_defect(self):
        """It ends the process, too, with its traceback in the log: nobody waits for ever."""
        self.run_task(fail(ValueError("a defect")))
        self.assertEqual(["--cleanup: internal error: ValueError('a defect')"], self.said)
        self.assertEqual(1, len(self.flushLoggedErrors(ValueError)))
        self.assertFalse(self.reactor.stopped)

    def test_nobody_reads(self):
        """It ends all the same."""
        self.screen.close()
        self.run_task(succeed(["removed a"]))
        self.assertTrue(self.reactor.stopped)

    def test_an_early_end(self):
        """What is not done yet is given up."""
        cancelled = []
        service = self.run_task(Deferred(cancelled.append))
        service.stopService()
        self.assertEqual(1, len(cancelled))
        self.assertFalse(self.reactor.stopped)
