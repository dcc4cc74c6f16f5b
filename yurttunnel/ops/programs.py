"""Running programs of the system, without a shell and without blocking."""

from __future__ import annotations

import functools
import os
import resource
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.interfaces import IReactorTime
from twisted.internet.process import Process
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface, implementer

from yurttunnel.tunnel.reactor import IReactor

PROGRAM_TIMEOUT = 20.0
"""The default timeout of a program in seconds."""

MAX_OUTPUT = 128 * 1024 * 1024
"""The maximum output of a program in bytes: ``iptables-save`` writes about 150 for each rule."""

MAX_ERRORS = 16 * 1024
"""The maximum number of bytes kept of a program's error messages; the rest is dropped."""

_MAX_SHOWN = 300
"""The maximum number of characters of them that are shown."""

_KILL_SECONDS = 5.0
"""How long to wait for a killed program to exit, which only the kernel can delay."""

SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
"""Directories of programs for root, which not every service has in its ``PATH``."""


class ProgramFailed(Exception):
    """A program did not exit by itself: it took too long, wrote too much, or was killed.

    ``errors`` is what it had written to its standard error.
    """

    errors = ""


class ProgramMissing(ProgramFailed):
    """A program is not installed."""


@dataclass(frozen=True, slots=True)
class CompletedProgram:
    """The result of a program: its exit status and both outputs."""

    status: int
    output: bytes
    errors: str


class IPrograms(Interface):
    """Runs programs of this machine.

    ``clock`` is the reactor's, with which long outputs are processed in slices.
    """

    clock: IReactorTime = Attribute("The reactor's clock.")

    def run(
        arguments: Sequence[str], stdin: bytes = b"", seconds: float = PROGRAM_TIMEOUT
    ) -> Deferred[CompletedProgram]:
        """Run the program ``arguments[0]``, and write ``stdin`` to its standard input.

        It is killed if it has not exited after ``seconds``, if it writes too much, or if the
        Deferred is cancelled. Any exit status is a result. Fails with :class:`ProgramMissing` or
        :class:`ProgramFailed`, whose texts name the program.
        """


class _Child(Process):
    """A process that inherits only its standard streams.

    Twisted looks at each descriptor of this process first, which takes 20 ms if there are 9,000.
    Python's descriptors are not inherited anyway (PEP 446), so only those that this process has
    inherited itself have to be closed.
    """

    def _trySpawnInsteadOfFork(
        self,
        path: None,
        uid: None,
        gid: None,
        executable: str,
        args: Sequence[str],
        environment: Mapping[str, str],
        kwargs: Mapping[str, Mapping[int, int]],
    ) -> bool:
        descriptors = kwargs["fdmap"]
        if min(descriptors.values()) <= max(descriptors):
            # This process has no standard streams, so their numbers are not free.
            spawned: bool = super()._trySpawnInsteadOfFork(
                path, uid, gid, executable, args, environment, kwargs
            )
            return spawned
        self.pid = os.posix_spawn(
            executable,
            list(args),
            environment,
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, own, its) for its, own in descriptors.items()),
                *((os.POSIX_SPAWN_CLOSE, inherited) for inherited in _inherited()),
            ],
            setsigdef=[
                each for each in signal.valid_signals() if signal.getsignal(each) is signal.SIG_IGN
            ],
        )
        self.status = -1
        return True


@functools.cache
def _inherited() -> tuple[int, ...]:
    """Return the descriptors after the standard streams that programs would inherit.

    This process opens no such descriptors itself, so they are the same at each start.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        # That of the search is closed again.
        with suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return tuple(found)


Spawn = Callable[[IReactor, ProcessProtocol, str, Sequence[str], Mapping[str, str]], object]
"""Starts a program with arguments and an environment. Raises ``OSError``."""


def spawn(
    reactor: IReactor,
    protocol: ProcessProtocol,
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> None:
    """Start the program, as ``IReactorProcess`` does."""
    _Child(reactor, program, arguments, environment, None, protocol)


@implementer(IPrograms)
class Programs:
    """Runs programs as children of this process, started by ``spawn``."""

    def __init__(self, reactor: IReactor, spawn: Spawn = spawn) -> None:
        self.clock = self._reactor = reactor
        self._spawn = spawn
        # This process has only few descriptors yet.
        _inherited()

    def run(
        self,
        arguments: Sequence[str],
        stdin: bytes = b"",
        seconds: float = PROGRAM_TIMEOUT,
        *,
        max_output: int = MAX_OUTPUT,
        environment: Mapping[str, str] | None = None,
    ) -> Deferred[CompletedProgram]:
        """Run a program, which may write up to ``max_output`` bytes.

        By default it is found in the directories for root, too, and its output does not depend on
        the locale of this process.
        """
        if environment is None:
            path = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"
            environment = {**os.environ, "PATH": path, "LC_ALL": "C"}
        run = _Run(self._reactor, arguments[0], stdin, seconds, max_output)
        run.start(self._spawn, arguments, environment)
        return run.finished


def one_line(text: str) -> str:
    """Return the output of a program on one line, for a message."""
    return " ".join(text.split())[:_MAX_SHOWN]


def child_cpu_seconds() -> float:
    """Return the processor time in seconds that finished programs have used.

    It includes their children, and all other children of this process.
    """
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class _Run(ProcessProtocol):
    """One run of a program."""

    transport: Any

    def __init__(
        self, reactor: IReactor, name: str, stdin: bytes, seconds: float, max_output: int
    ) -> None:
        self._reactor = reactor
        self._name = name
        self._stdin = stdin
        self._max_output = max_output
        self._output: list[bytes] = []
        self._size = 0
        self._errors = b""
        self._problem: ProgramFailed | None = None
        self.finished: Deferred[CompletedProgram] = Deferred(self._cancelled)
        self._deadline = reactor.callLater(
            seconds, self._abort, f"it took longer than {seconds:g} s"
        )

    def start(self, spawn: Spawn, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the program."""
        program = shutil.which(self._name, path=environment.get("PATH"))
        if program is None:
            self._fail(ProgramMissing(f"{self._name} is not installed"))
            return
        try:
            spawn(self._reactor, self, program, arguments, environment)
        except OSError as error:
            self._fail(ProgramFailed(f"{self._name} cannot be started: {error.strerror}"))
        except ValueError as error:
            # An argument contains a NUL.
            self._fail(ProgramFailed(f"{self._name} cannot be started: {error}"))

    def connectionMade(self) -> None:
        self.transport.write(self._stdin)
        self.transport.closeStdin()

    def outReceived(self, data: bytes) -> None:
        if self._problem is not None or self.finished.called:
            return
        self._output.append(data)
        self._size += len(data)
        if self._size > self._max_output:
            self._abort(f"it wrote more than {self._max_output} bytes")

    def errReceived(self, data: bytes) -> None:
        """Keep the beginning of the error messages."""
        self._errors = (self._errors + data)[:MAX_ERRORS]

    def processEnded(self, reason: Failure) -> None:
        ending = reason.value
        assert isinstance(ending, (ProcessDone, ProcessTerminated))
        status = ending.exitCode
        if self._problem is not None:
            self._fail(self._problem)
        elif status is None:
            self._fail(ProgramFailed(f"{self._name} was terminated by signal {ending.signal}"))
        elif not self.finished.called:
            self._deadline.cancel()
            output = b"".join(self._output)
            self.finished.callback(CompletedProgram(status, output, self._error_text()))

    def _abort(self, why: str) -> None:
        # Report it when the program has exited, so that no two run at the same time.
        self._problem = ProgramFailed(f"{self._name} was killed: {why}")
        if self._deadline.active():
            self._deadline.cancel()
        self._deadline = self._reactor.callLater(_KILL_SECONDS, self._fail, self._problem)
        self._kill()

    def _cancelled(self, _: Deferred[CompletedProgram]) -> None:
        # The Deferred itself then fails with CancelledError.
        self._deadline.cancel()
        self._kill()

    def _kill(self) -> None:
        self._output.clear()
        try:
            self.transport.signalProcess(signal.SIGKILL)
        except ProcessExitedAlready:
            # Only one of its children is left, or nothing.
            pass
        # Its exit is reported when its outputs are closed, which its children may have inherited.
        self.transport.loseConnection()

    def _fail(self, error: ProgramFailed) -> None:
        if self.finished.called:
            return
        if self._deadline.active():
            self._deadline.cancel()
        error.errors = self._error_text()
        self.finished.errback(error)

    def _error_text(self) -> str:
        return self._errors.decode("utf-8", "replace")
