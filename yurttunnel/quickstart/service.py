"""The quickstart as a service: its introduction when it is ready, the check, and the end."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IProcessTransport
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.shutdown import exit_with_error, stop_on_sighup
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.quickstart import check_requests
from yurttunnel.tunnel.reactor import IReactor

RequestHandlers = Mapping[str, Callable[..., Awaitable[object]]]
"""The handlers of the check's requests by name; each is called with the request's arguments."""


@dataclass(frozen=True, slots=True)
class CheckRun:
    """The check's arguments, and the handlers of its requests."""

    arguments: tuple[str, ...]
    handlers: RequestHandlers


REACHABLE_SECONDS = 30.0
"""The timeout until the API reaches the node through the tunnel; usually it takes less than 1 s."""

CHECK_SECONDS = 90.0
"""The timeout of the whole check; usually it takes less than 5 s."""

_PAUSE = 0.05


class LockedState(Service):
    """The state directory, for the exclusive use of this quickstart while it runs.

    Without ``path`` it is a temporary one that is removed at the end. Raises :class:`StateError`,
    also if another quickstart uses the directory.
    """

    def __init__(self, path: Path | None) -> None:
        self._resources = ExitStack()
        if path is None:
            # Also removed if the process ends before this service stops.
            made = tempfile.TemporaryDirectory(
                prefix="yurttunnel-quickstart-", ignore_cleanup_errors=True
            )
            path = Path(self._resources.enter_context(made))
        self.directory = StateDirectory.open(path)
        self._resources.callback(self.directory.acquire())

    def stopService(self) -> None:
        super().stopService()
        self._resources.close()


class RestartableService(Service):
    """A service that can be stopped for a while; ``make`` creates it at each start."""

    def __init__(self, make: Callable[[], Service]) -> None:
        self._make = make
        self._part: Service | None = None

    def startService(self) -> None:
        super().startService()
        self._part = self._make()
        self._part.startService()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self.stop_part())

    async def stop_part(self) -> None:
        """Stop it until :meth:`start_part`."""
        part, self._part = self._part, None
        if part is not None:
            await maybeDeferred(part.stopService)

    async def start_part(self) -> None:
        """Start a new one."""
        if self._part is None and self.running:
            self.startService()


class StartupMonitor(Service):
    """Waits until the node is reachable through the tunnel, and then prints the introduction.

    ``probe()`` tries it once, and returns the problem, or ``None``. Then ``introduction`` is
    printed. With a ``check``, that is run afterwards, and its result ends the process.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        probe: Callable[[], Awaitable[str | None]],
        introduction: str,
        check: CheckRun | None,
    ) -> None:
        self._reactor = reactor
        self._probe = probe
        self._introduction = introduction
        self._check_run = check
        self._check_finished = check is None
        self._running: Deferred[None] | None = None

    def startService(self) -> None:
        """Start waiting; from now on a closing terminal shuts the quickstart down gracefully."""
        super().startService()
        stop_on_sighup(self._reactor, self._stop_on_hangup)
        self._running = Deferred.fromCoroutine(self._run())

    def stopService(self) -> None:
        super().stopService()
        if self._running is not None:
            self._running.cancel()

    def _stop_on_hangup(self) -> None:
        if self._check_finished:
            self._reactor.stop()
        else:
            # Status 0 would mean that all steps have succeeded.
            sentence = "the terminal was closed before the check finished"
            exit_with_error(self._reactor, f"yurttunnel-quickstart: {sentence}")

    async def _run(self) -> None:
        try:
            await self._wait_until_reachable()
            self._print_introduction()
            if self._check_run is not None:
                await self._check(self._check_run)
        except CancelledError:
            return
        except _Failed as failed:
            exit_with_error(self._reactor, f"yurttunnel-quickstart: {failed}")
        except Exception as error:
            self._log.failure("the quickstart failed because of a defect")
            exit_with_error(self._reactor, f"yurttunnel-quickstart: internal error: {error!r}")

    def _print_introduction(self) -> None:
        try:
            # Not sys.stdout, which the log captures.
            print(self._introduction, file=sys.__stdout__, flush=True)
        except OSError as error:
            raise _Failed(f"standard output cannot be written: {error.strerror}") from None

    async def _wait_until_reachable(self) -> None:
        deadline = self._reactor.seconds() + REACHABLE_SECONDS
        while (problem := await self._probe()) is not None:
            if self._reactor.seconds() > deadline:
                raise _Failed(
                    f"the node was not reachable within {REACHABLE_SECONDS:g} s: {problem}"
                )
            await deferLater(self._reactor, _PAUSE)

    async def _check(self, run: CheckRun) -> None:
        status = await _run_check(self._reactor, run)
        if status is None:
            raise _Failed(f"the check did not finish within {CHECK_SECONDS:g} s")
        if status < 0:
            raise _Failed(f"the check was ended by signal {-status}")
        if status != 0:
            raise _Failed("the check failed: see the lines above")
        self._check_finished = True
        self._reactor.stop()


class _Failed(Exception):
    """An error that ends the quickstart; its message is one line for the user."""


async def _run_check(reactor: IReactor, run: CheckRun) -> int | None:
    """Run the check, and return its exit status, or ``None`` if it timed out.

    If a signal ended the check, the status is the signal's number, negative.
    """
    check = _CheckProcess(run.handlers)
    command = [sys.executable, "-m", "yurttunnel.quickstart.check", *run.arguments]
    # Without standard output (``>&-``) its number may belong to another file of this process.
    output = 2 if sys.__stdout__ is None else 1
    descriptors: dict[int, int | str] = {0: "w", 1: output, 2: 2, check_requests.DESCRIPTOR: "r"}
    try:
        reactor.spawnProcess(check, command[0], command, env=None, childFDs=descriptors)
    except OSError as error:
        raise _Failed(f"the check cannot be started: {error.strerror}") from None
    timer = reactor.callLater(CHECK_SECONDS, check.kill)
    try:
        status = await check.ended
        return status if timer.active() else None
    finally:
        check.kill()
        if timer.active():
            timer.cancel()


class _CheckProcess(ProcessProtocol):
    """The process of the check, which writes to the terminal itself.

    Its requests (:mod:`yurttunnel.quickstart.check_requests`) are handled as they arrive.
    """

    transport: IProcessTransport

    def __init__(self, handlers: RequestHandlers) -> None:
        self.ended: Deferred[int] = Deferred()
        self._handlers = handlers
        self._received = b""

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """Handle the requests that have arrived completely."""
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            _ = Deferred.fromCoroutine(self._handle(line.decode()))

    async def _handle(self, line: str) -> None:
        name, *arguments = line.split()
        try:
            await self._handlers[name](*arguments)
        except Exception as error:
            # Whatever the error, the check must report it.
            answer = " ".join(str(error).split()) or repr(error)
        else:
            answer = ""
        if not self.ended.called:
            self.transport.writeToChild(0, answer.encode() + b"\n")

    def processEnded(self, reason: Failure) -> None:
        """Fire with the exit status, or with the signal that ended it."""
        if not self.ended.called:
            ended: Any = reason.value
            self.ended.callback(-ended.signal if ended.exitCode is None else ended.exitCode)

    def kill(self) -> None:
        """Kill the process if it still runs."""
        try:
            self.transport.signalProcess("KILL")
        except ProcessExitedAlready:
            return
