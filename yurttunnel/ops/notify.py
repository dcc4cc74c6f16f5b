"""Telling systemd how the process fares (sd_notify(3)): ready, what is missing, alive, stopping.

Only where systemd asks for it: with ``Type=notify`` it names a socket in ``NOTIFY_SOCKET``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.readiness import Finding, Readiness
from yurttunnel.ops.services import StoppedInTurn

INTERVAL = 0.5
"""Seconds between two looks at the readiness."""

MOST_STATUS_CHARACTERS = 500
"""``systemctl status`` shows a line; systemd refuses datagrams of more than a page."""


class NotifySocket:
    """The socket of systemd; sending never waits.

    ``address`` is the path of a Unix datagram socket, or, after an at sign, the name of one in
    Linux's abstract namespace (unix(7)).
    """

    _log = Logger()

    def __init__(self, address: str) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._told = False

    def send(self, *assignments: str) -> bool:
        """Send ``NAME=value`` assignments together; say whether systemd has them.

        When systemd is behind, or away for a moment, it has not, and it is to be tried again.
        """
        # A status may quote names of files, which need not be UTF-8.
        data = "\n".join(assignments).encode("utf-8", "backslashreplace")
        try:
            self._socket.sendto(data, self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._told:
                self._told = True
                self._log.warn(
                    "systemd cannot be notified of this process ($NOTIFY_SOCKET): {error}",
                    error=error.strerror or str(error),
                )
            return False
        return True

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


class Supervised(StoppedInTurn):
    """The parts of a process, of which systemd is told if it wants to know.

    ``READY=1`` when ``readiness`` is healthy for the first time, or, of a process that
    ``serves_unready``, when the parts have started: systemd stops one that it has to wait for too
    long. ``STATUS=`` what is missing, whenever that changes. ``WATCHDOG=1`` in half of the time
    that systemd allows (``WatchdogSec=``), as long as the reactor turns, to the end of the drain.
    ``STOPPING=1`` when the parts are about to stop.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        readiness: Readiness,
        environment: Mapping[str, str] = os.environ,
        *,
        serves_unready: bool = False,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._readiness = readiness
        self._environment = environment
        self._serves_unready = serves_unready
        self._systemd: NotifySocket | None = None
        self._ready = False
        self._status = ""
        self._calls: list[LoopingCall] = []

    def startService(self) -> None:
        """Start the parts, and begin to tell of them."""
        super().startService()
        address = self._environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return
        self._systemd = NotifySocket(address)
        self._repeat(INTERVAL, self._tell, self._systemd)
        seconds = _watchdog_seconds(self._environment)
        if seconds is not None:
            self._repeat(seconds / 2, self._systemd.send, "WATCHDOG=1")

    def stopService(self) -> Deferred[None]:
        """Notify systemd that the end begins, stop the parts, and then notify no more."""
        return Deferred.fromCoroutine(self._end())

    async def _end(self) -> None:
        if self._systemd is not None:
            self._systemd.send("STOPPING=1")
        try:
            await super().stopService()
        finally:
            calls, self._calls = self._calls, []
            for call in calls:
                if call.running:
                    call.stop()
            if self._systemd is not None:
                self._systemd.close()
                self._systemd = None

    def _repeat(self, seconds: float, function: Callable[..., object], *arguments: object) -> None:
        call = LoopingCall(function, *arguments)
        call.clock = self._clock
        self._calls.append(call)
        # Not at once: nobody is served before the reactor runs.
        _ = call.start(seconds, now=False).addErrback(self._defect)

    def _tell(self, systemd: NotifySocket) -> None:
        findings = self._readiness.findings()
        missing = [each for each in findings if each.problem is not None and each.required]
        status = _status(findings, missing)
        is_ready = self._serves_unready or not missing
        becomes_ready = bool(self.running) and not self._ready and is_ready
        assignments = ["READY=1"] if becomes_ready else []
        if status != self._status:
            assignments.append(f"STATUS={status}")
        if assignments and systemd.send(*assignments):
            self._ready = self._ready or becomes_ready
            self._status = status

    def _defect(self, failure: Failure) -> None:
        self._log.failure("Defect: systemd is not told of this process any longer", failure)


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Return the time that systemd allows between two signs of life (sd_watchdog_enabled(3))."""
    text = environment.get("WATCHDOG_USEC", "")
    whose = environment.get("WATCHDOG_PID", "")
    if not text.isdecimal() or int(text) == 0 or whose not in ("", str(os.getpid())):
        return None
    return int(text) / 1e6


def _status(findings: list[Finding], missing: list[Finding]) -> str:
    """Return in one line what is missing, or what there is to say though nothing is."""
    told = missing or [each for each in findings if each.problem is not None]
    problems = "; ".join(f"{each.name}: {each.problem}" for each in told)
    text = "not ready" if missing else "ready"
    # A line break would begin another assignment.
    line = " ".join((f"{text}; {problems}" if problems else text).split())
    return line[:MOST_STATUS_CHARACTERS]
