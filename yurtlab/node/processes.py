"""Programs of this machine, run as processes of the node.

Each has its own session, which separates its processes from the node's. It is
started by the C code of ``subprocess`` (vfork, then exec) and not by ``reactor.spawnProcess``,
which forks the whole interpreter (20 times slower) and makes a session only for terminals. The
end of the process is detected by Twisted's own reaper.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IPushProducer
from twisted.internet.process import registerReapProcessHandler, unregisterReapProcessHandler
from twisted.logger import Logger
from zope.interface import implementer

from yurtlab.node.descriptors import Descriptor, Terminal
from yurtlab.timers import cancel

STDOUT = "stdout"
STDERR = "stderr"

LINGER_SECONDS = 0.5
"""The time for which the output of an ended process stays open for its leftovers.

Without this limit ``sh -c 'server &'`` would never seem to end."""

# Python ignores them for itself, and ``subprocess`` restores them.
_RESTORED_SIGNALS = {signal.SIGPIPE, signal.SIGXFSZ}

_END_OF_TRANSMISSION = b"\x04"


@dataclass(frozen=True, slots=True)
class Program:
    """The program to run: arguments, of which the first is looked up in PATH of ``environment``.

    ``directory`` is its working directory. Without ``stdin`` its input is empty. With ``terminal``
    it has one, of ``size`` (width and height in characters), and all output is standard output.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    stdin: bool = False
    terminal: bool = False
    size: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Exit:
    """The result of a process: ``code`` as in a shell (128 + n for the signal n)."""

    code: int
    signal: int = 0


class StartFailed(Exception):
    """A program could not be started; the message is that of container runtimes."""


@implementer(IPushProducer)
class Process:
    """A process and its pipes or terminal. It runs once this object is created.

    ``output(stream, data)`` gets its output; ``stream`` is STDOUT or STDERR. ``ended(exit)``
    is called once, after all output, with an :class:`Exit`. ``exited(pid)`` is called before that,
    when the process has ended and its leftovers may still hold its output open.

    As a producer it is the source of the output: while it is paused nothing is read, and the
    process blocks.

    ``reactor`` provides ``IReactorFDSet`` and ``IReactorTime``. Raises :class:`StartFailed`.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        program: Program,
        output: Callable[[str, bytes], object],
        ended: Callable[[Exit], object],
        exited: Callable[[int], object] = lambda pid: None,
    ) -> None:
        self._reactor = reactor
        self._ended = ended
        self._exited = exited
        self._paused = False
        self._was_paused = False
        self._linger: IDelayedCall | None = None
        self._kill: IDelayedCall | None = None
        self._outputs: list[Descriptor] = []
        self._input: Descriptor | None = None
        self._terminal: Terminal | None = None
        self.exit: Exit | None = None
        self.finished = False
        try:
            if program.terminal:
                self._start_in_terminal(program, output)
            else:
                self._start_with_pipes(program, output)
        except OSError as error:
            raise StartFailed(f"pipes for the process: {_reason(error)}") from None
        self.pid = self._popen.pid
        # It may have ended: then this calls processEnded, now.
        registerReapProcessHandler(self.pid, self)

    # Input

    def write(self, data: bytes) -> None:
        """Send ``data`` to its standard input, if that is open."""
        if self._input is not None:
            self._input.write(data)

    def end_input(self) -> None:
        """Close its standard input; in a terminal, send the end-of-file character."""
        if self._terminal is not None:
            self.write(_END_OF_TRANSMISSION)
        elif self._input is not None:
            self._input.unregisterProducer()
            self._input.loseConnection()

    def register_input(self, producer: IPushProducer) -> None:
        """Register ``producer``, which is paused while the process does not read its input."""
        if self._input is not None and self._input.connected:
            self._input.registerProducer(producer, True)

    def resize(self, width: int, height: int) -> None:
        """Set the size of its terminal, in characters."""
        if self._terminal is not None and self._outputs:
            self._terminal.resize(width, height)

    # Output

    def pauseProducing(self) -> None:
        self._paused = self._was_paused = True
        for descriptor in self._outputs:
            descriptor.pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        for descriptor in self._outputs:
            descriptor.resumeProducing()

    def stopProducing(self) -> None:
        """Do nothing: a consumer that is gone does not decide about the process."""

    # The end

    def stop(self, grace: float) -> None:
        """Send SIGTERM, and SIGKILL if it has not ended ``grace`` seconds later.

        Its process group gets the signals as well. A terminal is also hung up.
        """
        if self.exit is not None:
            return
        self.signal(signal.SIGTERM)
        if self._terminal is not None:
            # Interactive shells ignore SIGTERM, and pass SIGHUP on to their jobs.
            self.signal(signal.SIGHUP)
        cancel(self._kill)
        self._kill = self._reactor.callLater(grace, self.signal, signal.SIGKILL)

    def abandon(self, grace: float) -> None:
        """Kill it and drop its output: no consumer is left."""
        self.close_output()
        if self._input is not None:
            self._input.close()
        self.stop(grace)

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        if self.exit is not None:
            return
        try:
            # It was not waited for, so its process ID is still its own.
            os.killpg(self.pid, number)
        except PermissionError:
            self._log.warn(
                "process {pid} has become another user's: it is not stopped", pid=self.pid
            )

    def reapProcess(self) -> None:
        """Check whether it has ended: called by Twisted's reaper."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            unregisterReapProcessHandler(self.pid, self)
            self.processEnded(status)

    def processEnded(self, status: int) -> None:
        """Handle the result of ``waitpid``: called by Twisted's reaper."""
        code = os.waitstatus_to_exitcode(status)
        self.exit = Exit(code) if code >= 0 else Exit(128 - code, -code)
        # Otherwise subprocess would wait for that process ID, which may be reused by then.
        self._popen.returncode = code
        cancel(self._kill)
        self._exited(self.pid)
        self._wait_for_output()

    def _wait_for_output(self) -> None:
        """Wait a limited time for output of its leftovers; longer while output is paused."""
        if not self._outputs:
            self._finish()
            return
        self._was_paused = self._paused
        self._linger = self._reactor.callLater(LINGER_SECONDS, self._linger_over)

    def _linger_over(self) -> None:
        if self._was_paused:
            self._wait_for_output()
            return
        for descriptor in tuple(self._outputs):
            # A reactor that was busy may not have read the output yet.
            descriptor.doRead()
        self.close_output()

    def close_output(self) -> None:
        """Stop reading its output; the rest is lost."""
        for descriptor in tuple(self._outputs):
            descriptor.close()

    def _output_ended(self) -> None:
        self._outputs = [one for one in self._outputs if one.connected]
        if not self._outputs and self.exit is not None:
            self._finish()

    def _finish(self) -> None:
        if self.finished or self.exit is None:
            return
        self.finished = True
        cancel(self._linger)
        if self._input is not None:
            self._input.close()
        self._ended(self.exit)

    # The start

    def _start_with_pipes(self, program: Program, output: Callable[[str, bytes], object]) -> None:
        far: list[int] = []
        near: list[int] = []
        try:
            for _ in range(3 if program.stdin else 2):
                reading, writing = os.pipe()
                near.append(reading)
                far.append(writing)
            if program.stdin:
                # The third is for the other direction.
                near[2], far[2] = far[2], near[2]
            stdin = far[2] if program.stdin else subprocess.DEVNULL
            self._popen = _start(program, stdin, far[0], far[1])
        except BaseException:
            _close_all(near)
            raise
        finally:
            _close_all(far)
        self._read(near[0], STDOUT, output)
        self._read(near[1], STDERR, output)
        if program.stdin:
            self._input = Descriptor(self._reactor, near[2])

    def _start_in_terminal(self, program: Program, output: Callable[[str, bytes], object]) -> None:
        terminal = Terminal()
        terminal.resize(*program.size)
        try:
            far = terminal.far
            self._popen = _start(program, far, far, far, preexec_fn=terminal.take)
        except BaseException:
            terminal.close()
            raise
        finally:
            terminal.close_far()
        self._terminal = terminal
        self._read(terminal.near, STDOUT, output)
        if program.stdin:
            # Another descriptor of the same terminal: reading and writing end separately.
            self._input = Descriptor(self._reactor, os.dup(terminal.near))

    def _read(self, number: int, stream: str, output: Callable[[str, bytes], object]) -> None:
        descriptor = Descriptor(self._reactor, number, partial(output, stream), self._output_ended)
        self._outputs.append(descriptor)
        descriptor.startReading()


def _start(
    program: Program, stdin: int, stdout: int, stderr: int, **given: Any
) -> subprocess.Popen[bytes]:
    """Start it. Raises :class:`StartFailed`."""
    name = program.arguments[0]
    _inherit_no_ignored_signals()
    try:
        return subprocess.Popen(
            program.arguments,
            executable=_executable(name, program),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=program.directory,
            env=program.environment,
            start_new_session=True,
            **given,
        )
    except OSError as error:
        if error.filename == program.directory:
            text = f'chdir to cwd ("{program.directory}") failed: {_reason(error)}'
            raise StartFailed(text) from None
        raise StartFailed(f'exec: "{name}": {_reason(error)}') from None
    except (ValueError, UnicodeError, subprocess.SubprocessError) as error:
        # A NUL or a lone surrogate in an argument.
        raise StartFailed(f'exec: "{name}": {error}') from None


def _inherit_no_ignored_signals() -> None:
    """Handle the signals that the node ignores with a function that does nothing.

    A new program resets handled signals to the default, but inherits ignored ones. Under nohup or
    in the background of a script the node ignores some, and then Ctrl-C would not work in its
    terminals.
    """
    for number in signal.valid_signals() - _RESTORED_SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Ignore a signal."""


def _executable(name: str, program: Program) -> str:
    """Return the path of ``name`` for the process; errors are those of Go's ``exec.LookPath``."""
    if "/" in name:
        return name
    for directory in program.environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(program.directory, directory, name)
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(mode) and mode & 0o111:
            return path
    raise StartFailed(f'exec: "{name}": executable file not found in $PATH')


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or errno.EIO).lower()


def _close_all(numbers: Sequence[int]) -> None:
    for number in numbers:
        os.close(number)
