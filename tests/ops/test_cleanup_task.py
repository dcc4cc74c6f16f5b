"""A process that removes what other processes left behind."""

from __future__ import annotations

import io
import sys

from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops import cleanup_task
from yurttunnel.ops.cleanup_task import CleanupTask


class Refused(Exception):
    """The expected error of a cleanup."""


class Reactor:
    """A reactor that runs calls immediately and can be stopped."""

    stopped = False

    def callWhenRunning(self, call):
        """Run ``call``."""
        call()

    def stop(self):
        """Record the stop."""
        self.stopped = True


class CleanupTaskTests(SynchronousTestCase):
    """The task reports what it removed and ends the process."""

    def setUp(self):
        """Capture the output and the errors."""
        self.reactor = Reactor()
        self.screen = io.StringIO()
        self.printed = []
        self.patch(sys, "__stdout__", self.screen)
        self.patch(
            cleanup_task, "exit_with_error", lambda reactor, sentence: self.printed.append(sentence)
        )

    def run_task(self, done):
        """Start a task with the result ``done``."""
        service = CleanupTask(self.reactor, "--cleanup", lambda: done, Refused)
        service.startService()
        return service

    def test_removed_items(self):
        """The task prints each removed item, or that there was none, and stops the reactor."""
        self.run_task(succeed(["removed a", "removed b"]))
        self.assertEqual("removed a\nremoved b\n", self.screen.getvalue())
        self.assertTrue(self.reactor.stopped)
        self.run_task(succeed([]))
        self.assertIn("there was nothing to remove", self.screen.getvalue())

    def test_removal_errors(self):
        """An error names the flag, and tells an unprivileged user to run it as root."""
        self.patch(cleanup_task.os, "geteuid", lambda: 1000)
        done = Deferred()
        self.run_task(done)
        done.errback(Refused("the kernel says no"))
        self.assertEqual(["--cleanup: run it as root: the kernel says no"], self.printed)
        self.assertFalse(self.reactor.stopped)

    def test_a_defect(self):
        """An unexpected exception ends the process and is logged with its traceback."""
        self.run_task(fail(ValueError("a defect")))
        self.assertEqual(["--cleanup: internal error: ValueError('a defect')"], self.printed)
        self.assertEqual(1, len(self.flushLoggedErrors(ValueError)))
        self.assertFalse(self.reactor.stopped)

    def test_unwritable_output(self):
        """The task ends although its output cannot be written."""
        self.screen.close()
        self.run_task(succeed(["removed a"]))
        self.assertTrue(self.reactor.stopped)

    def test_an_early_end(self):
        """Stopping the service cancels a cleanup that is in progress."""
        cancelled = []
        service = self.run_task(Deferred(cancelled.append))
        service.stopService()
        self.assertEqual(1, len(cancelled))
        self.assertFalse(self.reactor.stopped)
