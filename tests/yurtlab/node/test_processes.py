"""Processes: pipes, terminals, exits, back-pressure and cleanup."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from tests.processes import children_of
from tests.waiting import until
from tests.yurtlab.node.support import (
    PYTHON,
    ClockedReactor,
    Ran,
    descriptors,
    is_running,
    is_stopped,
    program,
)
from yurtlab.node.processes import LINGER_SECONDS, StartFailed


class Recorder:
    """A producer that counts calls."""

    def __init__(self):
        self.paused = 0
        self.resumed = 0

    def pauseProducing(self):
        """Count."""
        self.paused += 1

    def resumeProducing(self):
        """Count."""
        self.resumed += 1

    def stopProducing(self):
        """Do nothing."""


class PipesTests(TestCase):
    """A process without a terminal."""

    async def test_outputs_are_separate(self):
        """Standard output and standard error are separate."""
        ran = Ran(program("sh", "-c", "echo out; echo err >&2"))
        self.assertEqual(await ran.ended(), 0)
        self.assertEqual((ran.stdout, ran.stderr), (b"out\n", b"err\n"))

    async def test_exit_code(self):
        """The exit code is that of the process."""
        self.assertEqual(await Ran(program("sh", "-c", "exit 42")).ended(), 42)

    async def test_signal(self):
        """A killed process has the exit code of a shell, and the signal."""
        ran = Ran(program("sh", "-c", "kill -9 $$"))
        self.assertEqual(await ran.ended(), 137)
        self.assertEqual(ran.exit.signal, signal.SIGKILL)

    async def test_input(self):
        """Input arrives complete, and so does its end."""
        ran = Ran(program("cat", stdin=True))
        data = os.urandom(1_000_000)
        ran.process.write(data)
        ran.process.end_input()
        self.assertEqual(await ran.ended(), 0)
        self.assertEqual(ran.stdout, data)

    async def test_no_input(self):
        """Without ``stdin`` the input of the process is empty."""
        self.assertEqual(await Ran(program("cat")).ended(), 0)

    async def test_all_output_before_the_end(self):
        """All output is delivered before the end is reported."""
        for _ in range(10):
            ran = Ran(program("head", "-c", "300000", "/dev/zero"))
            await ran.ended()
            self.assertEqual(len(ran.stdout), 300000)

    async def test_paused_output_waits(self):
        """While its output is paused a process waits, also after it has exited."""
        ran = Ran(program("head", "-c", "1000000", "/dev/zero"))
        ran.process.pauseProducing()
        before = len(ran.stdout)
        echo = Ran(program("echo", "other"))
        await echo.ended()
        self.assertEqual(len(ran.stdout), before)
        self.assertIsNone(ran.exit)
        ran.process.resumeProducing()
        self.assertEqual(await ran.ended(), 0)
        self.assertEqual(len(ran.stdout), 1000000)

    async def test_output_left_while_paused(self):
        """Output written before the exit is delivered, however late it is read."""
        clock = ClockedReactor()
        ran = Ran(program("sh", "-c", "echo last words; sleep 1000 &"), on=clock)
        ran.process.pauseProducing()
        await clock.until(lambda: ran.process.exit is not None, "the shell has ended")
        self.addCleanup(os.killpg, ran.process.pid, signal.SIGKILL)
        clock.advance(10 * LINGER_SECONDS)
        self.assertIsNone(ran.exit)
        ran.process.resumeProducing()
        await clock.until(lambda: ran.stdout, "its output has come")
        clock.pump([LINGER_SECONDS] * 3)
        self.assertEqual(ran.stdout, b"last words\n")
        self.assertEqual(ran.exit.code, 0)

    async def test_output_left_while_the_reactor_is_busy(self):
        """Output is delivered although the reactor had no time to read it before the exit."""
        clock = ClockedReactor()
        ran = Ran(program("sh", "-c", "echo last words; sleep 1000 &"), on=clock)
        ran.process.pauseProducing()
        await clock.until(lambda: ran.process.exit is not None, "the shell has ended")
        self.addCleanup(os.killpg, ran.process.pid, signal.SIGKILL)
        ran.process.resumeProducing()
        clock.pump([LINGER_SECONDS] * 3)
        self.assertEqual(ran.stdout, b"last words\n")
        self.assertEqual(ran.exit.code, 0)

    async def test_what_holds_the_output(self):
        """A process whose child holds its output open is reported as ended."""
        ran = Ran(program("sh", "-c", "sleep 1000 & echo $!"))
        self.assertEqual(await ran.ended(), 0)
        os.kill(int(ran.stdout), signal.SIGKILL)

    async def test_slow_reader_of_input(self):
        """The sender of input is paused while the process does not read, and resumed afterwards."""
        ran = Ran(program("sh", "-c", "read go < /dev/null; kill -STOP $$; cat", stdin=True))
        producer = Recorder()
        ran.process.register_input(producer)
        data = bytes(1_000_000)
        ran.process.write(data)
        self.assertEqual((producer.paused, producer.resumed), (1, 0))
        await until(lambda: is_stopped(ran.process.pid), "it is stopped")
        self.assertEqual(producer.resumed, 0)
        ran.process.signal(signal.SIGCONT)
        await until(lambda: producer.resumed, "the producer may go on")
        ran.process.end_input()
        await ran.ended()
        self.assertEqual(ran.stdout, data)

    async def test_input_that_nobody_reads(self):
        """Input for a process that has closed its input is dropped, without pausing the sender."""
        ran = Ran(program("sh", "-c", "exec 0<&-; echo closed; sleep 1000", stdin=True))
        producer = Recorder()
        ran.process.register_input(producer)
        await ran.wait_for_output(b"closed")
        ran.process.write(bytes(1_000_000))
        ran.process.write(b"more")
        ran.process.stop(1000)
        self.assertEqual(await ran.ended(), 143)

    async def test_name_is_kept(self):
        """The name of a program (argv[0]) is kept as given, without its directory in PATH."""
        ran = Ran(program("sh", "-c", "tr '\\0' ' ' < /proc/$$/cmdline; :"))
        await ran.ended()
        self.assertTrue(ran.stdout.startswith(b"sh -c"), ran.stdout)

    async def test_surroundings(self):
        """Directory and environment are exactly the given ones."""
        ran = Ran(program("sh", "-c", "pwd; echo $WORD; echo $HOME", directory="/usr", WORD="a b"))
        await ran.ended()
        self.assertEqual(ran.stdout, b"/usr\na b\n\n")

    async def test_no_descriptor_of_the_node(self):
        """A process inherits none of the node's descriptors."""
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        ran = Ran(program("sh", "-c", "ls /proc/$$/fd", stdin=True))
        ran.process.end_input()
        await ran.ended()
        numbers = {int(one) for one in ran.stdout.split()}
        self.assertLessEqual(numbers, {0, 1, 2, 10, 255})


class SignalTests(TestCase):
    """The initial signal handling of a process."""

    async def test_ignored(self):
        """Signals that the node ignores are not ignored by a process."""
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
            signal.signal(number, signal.SIG_IGN)
        for terminal in (False, True):
            script = "grep SigIgn /proc/self/status"
            ran = Ran(program("sh", "-c", script, terminal=terminal))
            await ran.ended()
            # Without 32 and 33: they are glibc's own, and no program can set them.
            self.assertEqual(int(ran.stdout.split()[1], 16) & ~(0b11 << 31), 0)
        os.kill(os.getpid(), signal.SIGHUP)


class StartTests(TestCase):
    """Programs that cannot be started."""

    def failure(self, *arguments, **given):
        """Return the error message."""
        before = descriptors()
        error = self.assertRaises(StartFailed, Ran, program(*arguments, **given))
        self.assertEqual(descriptors(), before)
        return str(error)

    def test_unknown_name(self):
        """A name that is not in PATH gives the message that Kubernetes users know."""
        expected = 'exec: "no-such": executable file not found in $PATH'
        for given in ({}, {"stdin": True}, {"terminal": True}):
            self.assertEqual(self.failure("no-such", **given), expected)

    def test_unknown_path(self):
        """A missing path gives an error."""
        self.assertEqual(self.failure("/no/such"), 'exec: "/no/such": no such file or directory')

    def test_not_executable(self):
        """A file that is not a program gives an error."""
        self.assertEqual(self.failure("/etc/passwd"), 'exec: "/etc/passwd": permission denied')

    def test_no_descriptors(self):
        """If the node has no free descriptors, that is the error, and nothing leaks."""
        self.patch(os, "pipe", self.no_pipe)
        self.assertIn("too many open files", self.failure("true"))

    def no_pipe(self):
        """Fail like the kernel."""
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def test_directory_in_path(self):
        """Directories within PATH's directories are not programs."""
        self.assertIn("not found in $PATH", self.failure("share", PATH="/usr"))

    def test_working_directory(self):
        """A missing working directory gives an error."""
        text = self.failure("true", directory="/no/such")
        self.assertEqual(text, 'chdir to cwd ("/no/such") failed: no such file or directory')

    def test_zero_byte(self):
        """An argument with a zero byte gives an error."""
        self.assertIn('exec: "echo":', self.failure("echo", "a\0b"))

    def test_empty_name(self):
        """An empty name gives an error."""
        self.assertIn("not found", self.failure(""))


class StopTests(TestCase):
    """Stopping processes."""

    async def test_asked(self):
        """SIGTERM is sent first, to all processes of the session."""
        script = "trap 'echo bye; exit 3' TERM; sleep 1000 & echo ready $!; wait"
        ran = Ran(program("sh", "-c", script))
        await ran.wait_for_output(b"\n")
        child = int(ran.stdout.split()[1])
        # Until then it has the shell's own trap.
        await until(lambda: _has_child(ran.process.pid, "sleep"), "sleep runs")
        ran.process.stop(1000)
        self.assertEqual(await ran.ended(), 3)
        self.assertIn(b"bye", ran.stdout)
        await until(lambda: not is_running(child), "its child has ended")

    async def test_made(self):
        """A process that ignores it is killed after the grace period, not before."""
        clock = ClockedReactor()
        ran = Ran(program("sh", "-c", "trap '' TERM; echo ready; sleep 1000; echo on"), on=clock)
        await ran.wait_for_output(b"ready")
        ran.process.stop(7)
        clock.advance(6.9)
        self.assertTrue(is_running(ran.process.pid))
        clock.advance(0.1)
        await clock.until(lambda: ran.exit, "it has ended")
        self.assertEqual(ran.exit.code, 137)
        self.assertEqual(clock.getDelayedCalls(), [])

    async def test_shorter(self):
        """The grace period can be shortened later."""
        clock = ClockedReactor()
        ran = Ran(program("sh", "-c", "trap '' TERM; echo ready; sleep 1000"), on=clock)
        await ran.wait_for_output(b"ready")
        ran.process.stop(1000)
        ran.process.stop(1)
        clock.advance(1)
        await clock.until(lambda: ran.exit, "it has ended")

    async def test_abandoned(self):
        """An abandoned process ends, although it writes continuously."""
        ran = Ran(program("yes"))
        await ran.wait_for_output(b"y\ny\n")
        ran.process.abandon(1000)
        await ran.ended()

    async def test_nothing_is_left(self):
        """Many processes leave no descriptor, no child and no timer behind."""
        # The reactor opens something of its own when it begins to run.
        await Ran(program("true")).ended()
        before = descriptors()
        timers = reactor.getDelayedCalls()
        for batch in range(20):
            given = {"stdin": batch % 2 == 0, "terminal": batch % 5 == 0}
            several = [Ran(program("true", **given)) for _ in range(5)]
            for ran in several:
                self.assertEqual(await ran.ended(), 0)
        self.assertEqual(descriptors(), before)
        self.assertRaises(ChildProcessError, os.waitpid, -1, os.WNOHANG)
        self.assertEqual(reactor.getDelayedCalls(), timers)


class TerminalTests(TestCase):
    """A process with a terminal."""

    def shell(self):
        """An interactive shell."""
        what = program("sh", "-i", stdin=True, terminal=True, PS1="> ", TERM="xterm")
        ran = Ran(what)
        self.addCleanup(ran.process.stop, 0)
        return ran

    async def end(self, ran):
        """End a shell as with Ctrl-D at a keyboard."""
        ran.process.end_input()
        return await ran.ended()

    async def test_is_a_terminal(self):
        """All three streams are one terminal, which controls the session."""
        script = "tty; test -t 0 && test -t 1 && test -t 2 && echo all; : > /dev/tty && echo own"
        ran = Ran(program("sh", "-c", script, stdin=True, terminal=True))
        self.assertEqual(await ran.ended(), 0)
        self.assertRegex(bytes(ran.stdout), rb"/dev/pts/\d+\r\nall\r\nown\r\n")

    async def test_size(self):
        """The process has the initial size, and gets each change at once by SIGWINCH."""
        # Not a handler: it could run within a print of the program, which then fails to print.
        script = (
            "import fcntl, signal, struct, termios\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
            "print('ready', flush=True)\n"
            "while signal.sigwait([signal.SIGWINCH]):\n"
            "    size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))\n"
            "    print(struct.unpack('4H', size), flush=True)\n"
        )
        ran = Ran(program(PYTHON, "-c", script, stdin=True, terminal=True))
        await ran.wait_for_output(b"ready")
        ran.process.resize(132, 43)
        await ran.wait_for_output(b"(43, 132, 0, 0)")
        ran.process.resize(80, 24)
        await ran.wait_for_output(b"(24, 80, 0, 0)")
        ran.process.resize(10**9, -1)
        await ran.wait_for_output(b"(0, 65535, 0, 0)")
        ran.process.stop(0)
        await ran.ended()

    async def test_interrupt(self):
        """Ctrl-C interrupts the foreground process, and the shell continues."""
        ran = self.shell()
        await ran.wait_for_output(b"> ")
        ran.process.write(b"sleep 1000\n")
        await until(lambda: _has_child(ran.process.pid, "sleep"), "sleep runs")
        ran.process.write(b"\x03")
        ran.process.write(b"echo still $((1 + 1))\n")
        await ran.wait_for_output(b"still 2")
        await self.end(ran)

    async def test_end_of_input(self):
        """The end of the input is sent as Ctrl-D."""
        ran = self.shell()
        await ran.wait_for_output(b"> ")
        self.assertEqual(await self.end(ran), 0)

    async def test_exit_code(self):
        """The exit code is also reported with a terminal."""
        ran = self.shell()
        ran.process.write(b"exit 42\n")
        self.assertEqual(await ran.ended(), 42)

    async def test_hung_up(self):
        """A shell that ignores SIGTERM ends with its terminal, long before it is killed."""
        ran = self.shell()
        await ran.wait_for_output(b"> ")
        ran.process.abandon(1000)
        await ran.ended()

    async def test_size_after_the_end(self):
        """A size after the end is ignored."""
        ran = Ran(program("true", stdin=True, terminal=True))
        await ran.ended()
        ran.process.resize(80, 24)
        ran.process.write(b"late")
        ran.process.end_input()


def _has_child(parent, name):
    for child in children_of(parent):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{child}/comm").read_text().strip() == name:
                return True
    return False
