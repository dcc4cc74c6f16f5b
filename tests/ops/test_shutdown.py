"""Ending a process with an error, and repeated requests to stop."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

from twisted.internet.error import ReactorNotRunning
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from yurttunnel.ops.shutdown import (
    STATUS,
    ignore_repeated_stops,
    stop_on_early_signals,
    stop_on_sighup,
)

_PROGRAM = """
import atexit, sys
from twisted.internet import reactor
from yurttunnel.ops.shutdown import exit_with_error

atexit.register(print, "an earlier exit handler")
reactor.addSystemEventTrigger("before", "shutdown", print, "services stop")
{body}
reactor.callLater(20, reactor.stop)
reactor.run()
print("the reactor has ended")
"""


class ExitWithErrorTests(SynchronousTestCase):
    """The exit status and output; each test ends a process of its own."""

    def end(self, body, error="the token has expired\n"):
        """Run a program that ends itself; return its lines of stdout."""
        program = [sys.executable, "-c", _PROGRAM.format(body=body)]
        result = subprocess.run(program, capture_output=True, text=True, timeout=15, check=False)
        self.assertEqual(70, STATUS)
        self.assertEqual(STATUS, result.returncode, result.stderr)
        self.assertEqual(error, result.stderr)
        return result.stdout.splitlines()

    def test_while_running(self):
        """The reactor is stopped gracefully; the status is 70 and the error is on stderr."""
        out = self.end("reactor.callLater(0, exit_with_error, reactor, 'the token has expired')")
        self.assertEqual(["services stop", "the reactor has ended"], out)

    def test_before_the_reactor_runs(self):
        """An error before the reactor runs has the same effect."""
        out = self.end("exit_with_error(reactor, 'the token has expired')")
        self.assertEqual(["services stop", "the reactor has ended"], out)

    def test_captured_output(self):
        """The error is written although twist has replaced stderr."""
        out = self.end(
            "import io; sys.stderr = io.StringIO()\n"
            "exit_with_error(reactor, 'the token has expired')"
        )
        self.assertIn("services stop", out)

    def test_broken_output(self):
        """The status is 70 although stdout is a broken pipe."""
        out = self.end(
            "import os; r, w = os.pipe(); os.close(r); sys.stdout = open(w, 'w')\n"
            "exit_with_error(reactor, 'the token has expired')"
        )
        self.assertEqual([], out)

    def test_sentence_that_cannot_be_written(self):
        """The process ends although stderr is on a full disk, a broken pipe, or closed."""
        for broken in (
            "sys.__stderr__ = open('/dev/full', 'w')",
            "import os; r, w = os.pipe(); os.close(r); sys.__stderr__ = open(w, 'w')",
            "sys.__stderr__ = open('/dev/null', 'w'); sys.__stderr__.close()",
        ):
            out = self.end(f"{broken}\nexit_with_error(reactor, 'the token has expired')", error="")
            self.assertEqual(["services stop", "the reactor has ended"], out)

    def test_twice(self):
        """A second call during the shutdown has no effect."""
        self.end(
            "reactor.callLater(0, exit_with_error, reactor, 'the token has expired')\n"
            "def again():\n"
            "    sys.__stderr__ = open('/dev/null', 'w')\n"
            "    exit_with_error(reactor, 'again')\n"
            "reactor.addSystemEventTrigger('before', 'shutdown', again)"
        )


class Reactor:
    """A reactor that can be stopped once."""

    stopped = 0

    def __init__(self) -> None:
        self.turns: list[Callable[[], object]] = []

    def callFromThread(self, call: Callable[[], object]) -> None:
        """Schedule ``call`` for a later turn."""
        self.turns.append(call)

    def stop(self) -> None:
        """Stop, or raise an exception like Twisted's reactors."""
        if self.stopped:
            raise ReactorNotRunning("Can't stop reactor that isn't running.")
        self.stopped += 1


class SighupTests(SynchronousTestCase):
    """:func:`stop_on_sighup`."""

    def setUp(self) -> None:
        """Replace the process's signal handlers."""
        self.handlers: dict[int, Any] = {}
        self.patch(signal, "signal", self.handlers.__setitem__)
        self.usual: Any = signal.SIG_DFL
        self.patch(signal, "getsignal", lambda number: self.usual)

    def test_stops_the_program(self) -> None:
        """SIGHUP calls the given function in a turn of the reactor."""
        reactor = Reactor()
        stop_on_sighup(reactor, reactor.stop)
        self.handlers[signal.SIGHUP](signal.SIGHUP, None)
        self.assertEqual(0, reactor.stopped)
        (turn,) = reactor.turns
        turn()
        self.assertEqual(1, reactor.stopped)

    def test_ignored_signal(self) -> None:
        """SIGHUP stays ignored in a process that was started by nohup."""
        self.usual = signal.SIG_IGN
        stop_on_sighup(Reactor(), self.fail)
        self.assertEqual({}, self.handlers)


class EarlySignalTests(SynchronousTestCase):
    """:func:`stop_on_early_signals`."""

    def test_handlers(self) -> None:
        """SIGTERM and SIGINT are the reactor's; an ignored SIGINT stays ignored."""
        reactor = Mock()
        handlers: dict[int, Any] = {}
        self.patch(signal, "signal", handlers.__setitem__)
        for former, left in ((signal.SIG_DFL, reactor.sigInt), (signal.SIG_IGN, None)):
            handlers.clear()
            self.patch(signal, "getsignal", Mock(return_value=former))
            stop_on_early_signals(reactor)
            self.assertEqual(
                (reactor.sigTerm, left),
                (handlers[signal.SIGTERM], handlers.get(signal.SIGINT)),
            )


class IgnoreRepeatedStopsTests(SynchronousTestCase):
    """:func:`ignore_repeated_stops`."""

    def test_later_ones_are_logged(self) -> None:
        """The first stop stops the reactor; further ones are logged."""
        reactor = Reactor()
        ignore_repeated_stops(reactor)
        logged = Logged(self)
        reactor.stop()
        self.assertEqual((1, []), (reactor.stopped, logged))
        reactor.stop()
        self.assertEqual(1, reactor.stopped)
        (event,) = logged.events
        self.assertIn("already stopping", event["log_format"])
