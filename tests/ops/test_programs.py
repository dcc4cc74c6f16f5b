"""Tests of running programs, with limits of time and output."""

from __future__ import annotations

import os
import socket
import sys

from twisted.internet import process, reactor
from twisted.internet.defer import CancelledError
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.steering.firewall.fakes import FakePrograms
from yurttunnel.ops.programs import (
    MAX_ERRORS,
    CompletedProgram,
    ProgramFailed,
    ProgramMissing,
    Programs,
    child_cpu_seconds,
)


class ProgramsContract:
    """The contract of programs, for the real ones and those of the fake."""

    async def test_output(self):
        """A program gets its input, and its output is returned."""
        stdin = bytes(range(256)) * 4000
        self.assertEqual(CompletedProgram(0, stdin, ""), await self.programs.run(["cat"], stdin))

    async def test_status(self):
        """Any exit status is a result, with the error messages."""
        finished = await self.programs.run(["sh", "-c", "echo a; echo b >&2; exit 3"])
        self.assertEqual(CompletedProgram(3, b"a\n", "b\n"), finished)

    async def test_missing(self):
        """A missing program is reported as such."""
        running = self.programs.run(["yurttunnel-no-such-program", "-x"])
        error = await self.assertFailure(running, ProgramMissing)
        self.assertEqual("yurttunnel-no-such-program is not installed", str(error))

    async def test_died(self):
        """A program that is killed has no result."""
        running = self.programs.run(["sh", "-c", "kill -9 $$"])
        error = await self.assertFailure(running, ProgramFailed)
        self.assertEqual("sh was terminated by signal 9", str(error))


class FakeProgramsTests(ProgramsContract, TestCase):
    """The fake."""

    def setUp(self):
        """Simulate the programs of the contract."""
        self.programs = FakePrograms()
        self.programs.programs = {
            "cat": lambda _, stdin: CompletedProgram(0, stdin, ""),
            "sh": self.shell,
        }

    def shell(self, arguments, stdin):
        """Do what the contract's scripts do."""
        if "kill" in arguments[1]:
            raise ProgramFailed("sh was terminated by signal 9")
        return CompletedProgram(3, b"a\n", "b\n")


class ProgramsTests(ProgramsContract, TestCase):
    """Real programs."""

    def setUp(self):
        """Run them here."""
        self.programs = Programs(reactor)

    async def test_input_not_read(self):
        """A program need not read its input."""
        self.assertEqual(0, (await self.programs.run(["true"], b"x" * 1_000_000)).status)

    async def test_spent(self):
        """The processor time of programs is known when they have ended."""
        taken = []
        for program in ("sleep 0.5", "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done"):
            before = child_cpu_seconds()
            await self.programs.run(["sh", "-c", program])
            taken.append(child_cpu_seconds() - before)
        self.assertLess(taken[0], 0.25)
        self.assertGreater(taken[1], 0.1)

    async def test_no_shell(self):
        """Arguments are passed on as they are."""
        finished = await self.programs.run(["printf", "%s|", "a b", "$HOME", ";"])
        self.assertEqual(b"a b|$HOME|;|", finished.output)

    async def test_environment(self):
        """Programs for root are found, and print English, in any environment of this process."""
        self.patch(os, "environ", {"PATH": "/usr/bin:/bin", "LC_ALL": "de_DE.UTF-8", "X": "y"})
        finished = await self.programs.run(["sh", "-c", "echo $LC_ALL $X; echo $PATH"])
        self.assertEqual(b"C y\n/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin\n", finished.output)

    async def test_own_environment(self):
        """A given environment is the program's whole environment, in which it is looked for."""
        environment = {"PATH": os.environ["PATH"], "X": "y"}
        finished = await self.programs.run(["env"], environment=environment)
        self.assertEqual(
            {f"{name}={value}" for name, value in environment.items()},
            set(finished.output.decode().splitlines()),
        )
        await self.assertFailure(
            self.programs.run(["env"], environment={"PATH": "/nonexistent"}), ProgramMissing
        )

    async def test_argument_that_cannot_be(self):
        """A program cannot get an argument with a NUL."""
        error = await self.assertFailure(self.programs.run(["cat", "a\0b"]), ProgramFailed)
        self.assertEqual("cat cannot be started: embedded null byte", str(error))

    async def test_errors_of_a_killed_program(self):
        """What a program wrote before it was killed may tell why it did not end."""
        running = self.programs.run(["sh", "-c", "echo login >&2; exec sleep 60"], seconds=0.5)
        error = await self.assertFailure(running, ProgramFailed)
        self.assertEqual("login\n", error.errors)

    async def test_descriptors(self):
        """A program inherits no descriptors, and its start does not search those of this process,
        of which there may be thousands.
        """
        self.patch(process, "_listOpenFDs", lambda: self.fail("it searches all descriptors"))
        with socket.socket() as opened:
            finished = await self.programs.run(["sh", "-c", f"ls /proc/$$/fd/{opened.fileno()}"])
        self.assertIn("No such file", finished.errors)

    async def test_inherited_descriptors(self):
        """A program does not inherit what this process has inherited either."""
        await self.assert_from_process(
            "os.dup2(os.pipe()[0], 77, inheritable=True)",
            ["sh", "-c", "ls /proc/$$/fd/77"],
            "'No such file' in finished.errors",
        )

    async def test_signals(self):
        """Signals that this process ignores end a program."""
        error = await self.assertFailure(
            self.programs.run(["sh", "-c", "kill -PIPE $$"]), ProgramFailed
        )
        self.assertEqual("sh was terminated by signal 13", str(error))

    async def test_without_standard_streams(self):
        """Programs also run if this process has been started without standard streams."""
        await self.assert_from_process(
            "for number in range(3): os.close(number)",
            ["sh", "-c", "cat; echo y >&2"],
            "finished.output == b'x' and finished.errors == 'y\\n'",
        )

    async def assert_from_process(self, prepare, command, condition):
        """Check the result of a command that a process runs after ``prepare``, with input x."""
        script = (
            f"import os\n{prepare}\n"
            "from twisted.internet import reactor\n"
            "from yurttunnel.ops.programs import Programs\n"
            "def ended(finished):\n"
            f"    os._exit({condition})\n"
            f"Programs(reactor).run({command!r}, b'x').addCallback(ended)\n"
            "reactor.run()\n"
        )
        finished = await self.programs.run([sys.executable, "-c", script])
        self.assertEqual((1, ""), (finished.status, finished.errors))

    async def test_too_long(self):
        """A program that never ends is killed."""
        running = self.programs.run(["sleep", "1000"], seconds=0.05)
        error = await self.assertFailure(running, ProgramFailed)
        self.assertEqual("sleep was killed: it took longer than 0.05 s", str(error))

    async def test_children(self):
        """A program's children are not waited for."""
        running = self.programs.run(["sh", "-c", "sleep 3 & wait"], seconds=0.05)
        await self.assertFailure(running, ProgramFailed)

    async def test_too_much(self):
        """A program that writes without end is killed."""
        running = self.programs.run(["yes"], max_output=100_000)
        error = await self.assertFailure(running, ProgramFailed)
        self.assertEqual("yes was killed: it wrote more than 100000 bytes", str(error))


class Process:
    """A process that runs until the test ends it."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.signals = []
        self.written = b""
        self.is_closed = False
        self.is_lost = False

    def write(self, data):
        """Store input."""
        self.written += data

    def closeStdin(self):
        """Record the end of the input."""
        self.is_closed = True

    def loseConnection(self):
        """Record that its output is closed."""
        self.is_lost = True

    def signalProcess(self, signal):
        """Record a signal."""
        self.signals.append(signal)

    def end(self, reason):
        """Stop."""
        self.protocol.processEnded(Failure(reason))


class Reactor(MemoryReactorClock):
    """Keeps processes."""

    failure = None

    def spawn(self, reactor, protocol, program, arguments, environment):
        """Keep a process."""
        if self.failure is not None:
            raise self.failure
        self.process = Process(protocol)
        protocol.makeConnection(self.process)


class ProgramsInMemoryTests(SynchronousTestCase):
    """The end of programs, as the reactor reports it."""

    def setUp(self):
        """Run a program."""
        self.reactor = Reactor()
        self.running = Programs(self.reactor, self.reactor.spawn).run(["sh"], b"x")

    def tearDown(self):
        """Check that nothing is left."""
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_input(self):
        """Its input ends after the given data."""
        process = self.reactor.process
        self.assertEqual((b"x", True), (process.written, process.is_closed))
        process.end(ProcessDone(0))
        self.assertEqual(CompletedProgram(0, b"", ""), self.successResultOf(self.running))

    def test_deadline(self):
        """At its deadline it is killed, and reported when it has ended."""
        self.reactor.advance(20)
        self.assertEqual([9], self.reactor.process.signals)
        self.assertTrue(self.reactor.process.is_lost)
        self.reactor.process.protocol.outReceived(b"late")
        self.assertNoResult(self.running)
        self.reactor.process.end(ProcessTerminated(signal=9))
        self.failureResultOf(self.running, ProgramFailed)

    def test_not_killed(self):
        """The wait for a program that the kernel does not let die is limited."""
        self.reactor.advance(20)
        self.reactor.advance(4.9)
        self.assertNoResult(self.running)
        self.reactor.advance(0.1)
        self.failureResultOf(self.running, ProgramFailed)
        self.reactor.process.end(ProcessTerminated(signal=9))

    def test_cancelled(self):
        """It is killed when its Deferred is cancelled."""
        self.running.cancel()
        self.failureResultOf(self.running, CancelledError)
        self.assertEqual([9], self.reactor.process.signals)
        self.reactor.process.end(ProcessTerminated(signal=9))

    def test_complaints(self):
        """The beginning of its error messages is kept."""
        process = self.reactor.process
        process.protocol.errReceived(b"a" * (MAX_ERRORS - 1))
        process.protocol.errReceived(b"bc")
        process.end(ProcessTerminated(exitCode=2))
        finished = self.successResultOf(self.running)
        self.assertEqual((2, "a" * (MAX_ERRORS - 1) + "b"), (finished.status, finished.errors))

    def test_not_started(self):
        """A program that the system does not start has failed."""
        self.reactor.process.end(ProcessDone(0))
        self.successResultOf(self.running)
        self.reactor.failure = OSError(12, "Cannot allocate memory")
        failed = Programs(self.reactor, self.reactor.spawn).run(["sh"])
        error = self.failureResultOf(failed, ProgramFailed).value
        self.assertEqual("sh cannot be started: Cannot allocate memory", str(error))
