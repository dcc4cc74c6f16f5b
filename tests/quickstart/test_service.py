"""The quickstart's messages and its end."""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
from pathlib import Path

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.pki.directory import StateError
from yurttunnel.quickstart import service
from yurttunnel.quickstart.service import (
    CHECK_SECONDS,
    REACHABLE_SECONDS,
    CheckRun,
    LockedState,
    RestartableService,
    StartupMonitor,
)


class Process:
    """A process that the test controls."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.ended = False
        self.read = []

    def writeToChild(self, number, data):
        """Record the data for its standard input."""
        self.read.append((number, data))

    def signalProcess(self, name):
        """End as if killed."""
        if self.ended:
            raise ProcessExitedAlready
        self.end(ProcessTerminated(signal=9))

    def end(self, reason):
        """End with ``reason``."""
        self.ended = True
        self.protocol.processEnded(Failure(reason))


class Reactor(MemoryReactorClock):
    """A reactor that starts no processes and records its stop."""

    def __init__(self):
        super().__init__()
        self.processes = []
        self.commands = []
        self.programs = []

    def callFromThread(self, call):
        """Call the function at once."""
        call()

    def spawnProcess(self, protocol, executable, command, **options):
        """Record the process and return a fake."""
        process = protocol.transport = Process(protocol)
        self.processes.append(process)
        self.commands.append(command)
        self.programs.append((executable, options["childFDs"]))
        return process


class GuideTests(SynchronousTestCase):
    """The monitor waits for the node, prints the introduction, and runs the check."""

    def setUp(self):
        """Prepare a monitor whose node becomes reachable when the test says so."""
        self.reactor = Reactor()
        self.problem = "nothing there"
        self.output = io.StringIO()
        self.patch(sys, "__stdout__", self.output)
        self.ends = []
        self.handlers = {}
        self.patch(signal, "signal", lambda number, handler: None)
        self.patch(service, "exit_with_error", lambda reactor, text: self.ends.append(text))

    def start(self, check=None):
        """Start the monitor until the test ends."""

        async def reached():
            return self.problem

        monitor = StartupMonitor(self.reactor, reached, "welcome", check)
        monitor.startService()
        self.addCleanup(monitor.stopService)
        return monitor

    def test_introduction(self):
        """The introduction is printed once the node is reachable, and not before."""
        self.start()
        self.reactor.pump([0.05] * 10)
        self.assertEqual(self.output.getvalue(), "")
        self.problem = None
        self.reactor.pump([0.05] * 2)
        self.assertEqual(self.output.getvalue(), "welcome\n")
        self.assertEqual(self.reactor.processes, [])

    def test_node_is_not_reached(self):
        """A node that never becomes reachable ends the process with the reason."""
        self.start()
        self.reactor.pump([1.0] * int(REACHABLE_SECONDS))
        self.assertEqual([], self.ends)
        self.reactor.advance(1.0)
        (sentence,) = self.ends
        self.assertIn("nothing there", sentence)

    def test_nobody_reads(self):
        """An introduction that cannot be written ends the process with the reason."""
        with open("/dev/full", "w") as full:
            self.patch(sys, "__stdout__", full)
            self.problem = None
            self.start()
            # Closing the file tries to write the data again, which fails.
            self.assertRaises(OSError, full.close)
        sentence = "standard output cannot be written: No space left on device"
        self.assertEqual([f"yurttunnel-quickstart: {sentence}"], self.ends)

    def test_check_succeeds(self):
        """A successful check stops the reactor, and the exit status is 0."""
        self.problem = None
        self.start(CheckRun(("config", "hub"), self.handlers))
        command = [sys.executable, "-m", "yurttunnel.quickstart.check", "config", "hub"]
        self.assertEqual([command], self.reactor.commands)
        self.assertEqual([(sys.executable, {0: "w", 1: 1, 2: 2, 3: "r"})], self.reactor.programs)
        self.reactor.processes[0].end(ProcessDone(0))
        self.assertTrue(self.reactor.hasStopped)
        self.assertEqual(self.ends, [])

    def test_check_without_output(self):
        """Without stdout the check writes to stderr, and inherits no other file."""
        self.problem = None
        self.patch(sys, "__stdout__", None)
        self.start(CheckRun(("config", "hub"), self.handlers))
        self.assertEqual([(sys.executable, {0: "w", 1: 2, 2: 2, 3: "r"})], self.reactor.programs)

    def test_check_cannot_start(self):
        """A process for the check that cannot be started ends the quickstart with the reason."""

        def spawn(*arguments, **options):
            raise OSError(errno.EMFILE, "Too many open files")

        self.problem = None
        self.patch(self.reactor, "spawnProcess", spawn)
        self.start(CheckRun(("config", "hub"), self.handlers))
        reason = "the check cannot be started: Too many open files"
        self.assertEqual([f"yurttunnel-quickstart: {reason}"], self.ends)

    def test_check_fails(self):
        """A failed check ends the process with an error."""
        self.problem = None
        self.start(CheckRun(("config", "hub"), self.handlers))
        self.reactor.processes[0].end(ProcessTerminated(exitCode=1))
        self.assertFalse(self.reactor.hasStopped)
        self.assertIn("the check failed", self.ends[0])

    def test_check_is_killed(self):
        """A check that is ended by a signal is reported with the signal."""
        self.problem = None
        self.start(CheckRun(("config", "hub"), self.handlers))
        self.reactor.processes[0].end(ProcessTerminated(signal=signal.SIGPIPE))
        self.assertEqual(["yurttunnel-quickstart: the check was ended by signal 13"], self.ends)

    def test_check_hangs(self):
        """A check that exceeds its timeout is killed."""
        self.problem = None
        self.start(CheckRun(("config", "hub"), self.handlers))
        self.reactor.advance(CHECK_SECONDS)
        self.assertTrue(self.reactor.processes[0].ended)
        self.assertIn("did not finish", self.ends[0])

    def test_orders(self):
        """A request of the check runs its handler, and is answered when the handler ends."""
        done, waiting = [], Deferred()

        async def reboot(namespace, name):
            await waiting
            done.append((namespace, name))

        async def stop():
            raise ValueError("it does not\nstop")

        self.handlers = {"reboot": reboot, "stop": stop}
        self.problem = None
        self.start(CheckRun(("config", "hub"), self.handlers))
        (process,) = self.reactor.processes
        process.protocol.childDataReceived(3, b"reboot default we")
        process.protocol.childDataReceived(3, b"b\n")
        self.assertEqual([], process.read)
        waiting.callback(None)
        self.assertEqual([("default", "web")], done)
        process.protocol.childDataReceived(3, b"stop\n")
        process.protocol.childDataReceived(3, b"other\n")
        answers = [(0, b"\n"), (0, b"it does not stop\n"), (0, b"'other'\n")]
        self.assertEqual(answers, process.read)

    def test_an_order_that_outlives_the_check(self):
        """A request that outlives the check gets no answer."""
        waiting = Deferred()

        async def reboot():
            await waiting

        self.problem = None
        self.start(CheckRun(("config", "hub"), {"reboot": reboot}))
        (process,) = self.reactor.processes
        process.protocol.childDataReceived(3, b"reboot\n")
        process.end(ProcessDone(0))
        waiting.callback(None)
        self.assertEqual([], process.read)

    def test_stopped_in_a_check(self):
        """Stopping kills the check without an error."""
        self.problem = None
        monitor = self.start(CheckRun(("config", "hub"), self.handlers))
        monitor.stopService()
        self.assertTrue(self.reactor.processes[0].ended)
        self.assertEqual(self.ends, [])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_terminal_closes(self):
        """SIGHUP stops the reactor, unless the signal is ignored."""
        handlers = {}
        self.patch(signal, "signal", handlers.__setitem__)
        self.patch(signal, "getsignal", lambda number: signal.SIG_IGN)
        self.start()
        self.assertEqual(handlers, {})
        self.patch(signal, "getsignal", lambda number: signal.SIG_DFL)
        self.start()
        handlers[signal.SIGHUP](signal.SIGHUP, None)
        self.assertTrue(self.reactor.hasStopped)
        self.assertEqual([], self.ends)

    def test_terminal_closes_in_a_check(self):
        """SIGHUP during a check ends the process with an error; after the check, without one."""
        handlers = {}
        self.patch(signal, "signal", handlers.__setitem__)
        self.patch(signal, "getsignal", lambda number: signal.SIG_DFL)
        self.problem = None
        self.start(CheckRun(("config", "hub"), self.handlers))
        handlers[signal.SIGHUP](signal.SIGHUP, None)
        self.assertEqual(1, len(self.ends))
        self.assertIn("before the check finished", self.ends.pop())
        self.start(CheckRun(("config", "hub"), self.handlers))
        self.reactor.processes[-1].end(ProcessDone(0))
        handlers[signal.SIGHUP](signal.SIGHUP, None)
        self.assertEqual([], self.ends)

    def test_defect(self):
        """An unexpected exception is logged and ends the process."""

        async def reached():
            raise ZeroDivisionError

        monitor = StartupMonitor(self.reactor, reached, "welcome", None)
        monitor.startService()
        self.addCleanup(monitor.stopService)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertIn("internal error", self.ends[0])


class ReplaceableTests(SynchronousTestCase):
    """A service that can be stopped and started again."""

    def setUp(self):
        """Make a service whose parts record their starts and stops."""
        self.events = []
        test = self

        class Part(Service):
            def startService(self):
                test.events.append("started")

            def stopService(self):
                test.events.append("stopped")

        self.service = RestartableService(Part)

    def test_stop_and_start(self):
        """The part is stopped and restarted once each, however often that is requested."""
        self.service.startService()
        for _ in range(2):
            self.successResultOf(Deferred.fromCoroutine(self.service.stop_part()))
        for _ in range(2):
            self.successResultOf(Deferred.fromCoroutine(self.service.start_part()))
        self.assertEqual(["started", "stopped", "started"], self.events)
        self.successResultOf(self.service.stopService())
        self.assertEqual("stopped", self.events[-1])

    def test_after_the_end(self):
        """A part of a stopped service is not started again."""
        self.service.startService()
        self.successResultOf(self.service.stopService())
        self.successResultOf(Deferred.fromCoroutine(self.service.start_part()))
        self.assertEqual(["started", "stopped"], self.events)


class OwnStateTests(SynchronousTestCase):
    """The state directory of a quickstart."""

    def test_removed(self):
        """Without a path a temporary directory is used, and removed at the end."""
        state = LockedState(None)
        path = state.directory.path
        self.assertEqual(path.stat().st_mode & 0o777, 0o700)
        (path / "server").mkdir()
        (path / "server" / "key").write_text("secret")
        state.startService()
        state.stopService()
        self.assertFalse(path.exists())

    def test_removed_without_service(self):
        """A temporary directory is removed even if the service never starts."""
        state = LockedState(None)
        path = state.directory.path
        del state
        gc.collect()
        self.assertFalse(path.exists())
        # Python warns about the implicit cleanup.
        self.flushWarnings()

    def test_kept(self):
        """A given directory is kept."""
        path = Path(self.mktemp())
        state = LockedState(path)
        state.startService()
        state.stopService()
        self.assertTrue(path.is_dir())

    def test_in_use(self):
        """A directory can be used by only one quickstart at a time."""
        path = Path(self.mktemp())
        first = LockedState(path)
        error = self.assertRaises(StateError, LockedState, path)
        self.assertIn(f"is in use by process {os.getpid()}", str(error))
        first.startService()
        first.stopService()
        LockedState(path).stopService()
