"""Programs of the system, run without a shell and without blocking."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure
from zope.interface import Interface, implementer

from yurttunnel.tunnel.reactor import IReactor

SECONDS = 20.0
"""How long a program may take, unless its caller says otherwise."""

MAX_OUTPUT = 128 * 1024 * 1024
"""Bytes that a program may write: ``iptables-save`` writes some 150 for each rule of anybody."""

MAX_ERRORS = 16 * 1024
"""Bytes that are kept of what a program complains about; what comes after them is dropped."""

_MAX_SAID = 300
"""Characters of that which are shown."""

_DEATH_SECONDS = 5.0
"""How long a killed program may take to be gone, which only the kernel can hold up."""

_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where programs for root are: not every service has these directories in its ``PATH``."""


class ProgramFailed(Exception):
    """A program has not come to an end of its own: it took too long, wrote too much, or died."""


class ProgramMissing(ProgramFailed):
    """A program is not installed."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program has left: its exit status, and what it has written to both outputs."""

    status: int
    output: bytes
    errors: str


class IPrograms(Interface):
    """Runs programs of this machine."""

    def run(
        arguments: Sequence[str], given: bytes = b"", seconds: float = SECONDS
    ) -> Deferred[Finished]:
        """Run the program that ``arguments`` begin with, and write ``given`` to its input.

        It is killed if it is still there after ``seconds``, if it writes too much, and if the
        Deferred is cancelled. Any exit status is an answer. Fails with :class:`ProgramMissing`
        or :class:`ProgramFailed`, whose texts name the program.
        """


@implementer(IPrograms)
class Programs:
    """Runs programs as children of this process, by ``IReactorProcess`` and ``IReactorTime``."""

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor

    def run(
        self, arguments: Sequence[str], given: bytes = b"", seconds: float = SECONDS
    ) -> Deferred[Finished]:
        """Run one; what it writes does not depend on this process's language."""
        return _Run(self._reactor, arguments, given, seconds).finished


def one_line(said: str) -> str:
    """Return what a program has said, for a sentence."""
    return " ".join(said.split())[:_MAX_SAID]


def spent() -> float:
    """Return the seconds of a processor that the programs have taken which have ended.

    They are those of this process's children in turn, too, and of all it has started by other ways.
    """
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class _Run(ProcessProtocol):
    """One run of a program."""

    transport: Any

    def __init__(
        self, reactor: IReactor, arguments: Sequence[str], given: bytes, seconds: float
    ) -> None:
        self._reactor = reactor
        self._name = arguments[0]
        self._given = given
        self._output: list[bytes] = []
        self._size = 0
        self._errors = b""
        self._problem: ProgramFailed | None = None
        self.finished: Deferred[Finished] = Deferred(self._cancelled)
        self._deadline = reactor.callLater(
            seconds, self._give_up, f"it took longer than {seconds:g} s"
        )
        path = f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PATH}"
        program = shutil.which(self._name, path=path)
        if program is None:
            self._fail(ProgramMissing(f"{self._name} is not installed"))
            return
        environment = {**os.environ, "PATH": path, "LC_ALL": "C"}
        try:
            reactor.spawnProcess(self, program, list(arguments), env=environment)
        except OSError as error:
            self._fail(ProgramFailed(f"{self._name} cannot be started: {error.strerror}"))

    def connectionMade(self) -> None:
        self.transport.write(self._given)
        self.transport.closeStdin()

    def outReceived(self, data: bytes) -> None:
        if self._problem is not None or self.finished.called:
            return
        self._output.append(data)
        self._size += len(data)
        if self._size > MAX_OUTPUT:
            self._give_up(f"it wrote more than {MAX_OUTPUT} bytes")

    def errReceived(self, data: bytes) -> None:
        """Keep the beginning of what it complains about."""
        self._errors = (self._errors + data)[:MAX_ERRORS]

    def processEnded(self, reason: Failure) -> None:
        ending = reason.value
        assert isinstance(ending, (ProcessDone, ProcessTerminated))
        status = ending.exitCode
        if self._problem is not None:
            self._fail(self._problem)
        elif status is None:
            self._fail(ProgramFailed(f"{self._name} died of signal {ending.signal}"))
        elif not self.finished.called:
            self._deadline.cancel()
            errors = self._errors.decode("utf-8", "replace")
            self.finished.callback(Finished(status, b"".join(self._output), errors))

    def _give_up(self, why: str) -> None:
        # It is told when the program is gone, so that no two of them work at the same time.
        self._problem = ProgramFailed(f"{self._name} was ended: {why}")
        if self._deadline.active():
            self._deadline.cancel()
        self._deadline = self._reactor.callLater(_DEATH_SECONDS, self._fail, self._problem)
        self._kill()

    def _cancelled(self, _: Deferred[Finished]) -> None:
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
        # Its end is told when its outputs are closed, which its children may have inherited.
        self.transport.loseConnection()

    def _fail(self, error: ProgramFailed) -> None:
        if self.finished.called:
            return
        if self._deadline.active():
            self._deadline.cancel()
        self.finished.errback(error)
