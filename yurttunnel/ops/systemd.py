"""Notification of systemd (sd_notify(3)): ready, status, watchdog, stopping.

It is active only if systemd asks for it: with ``Type=notify``, ``NOTIFY_SOCKET`` names a socket.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

from twisted.application.service import IService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.readiness import Finding, Readiness
from yurttunnel.ops.services import StoppedInReverse

INTERVAL = 0.5
"""The interval between two checks of the readiness, in seconds."""

MAX_STATUS_CHARACTERS = 500
"""The maximum length of a status: ``systemctl status`` shows it on one line, and systemd rejects
datagrams of more than a page."""


class NotifySocket:
    """The notification socket of systemd; sending never blocks.

    ``address`` is the path of a Unix datagram socket, or, after an at sign, its name in Linux's
    abstract namespace (unix(7)).
    """

    _log = Logger()

    def __init__(self, address: str) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._error_logged = False

    def send(self, *assignments: str) -> bool:
        """Send ``NAME=value`` assignments in one datagram; return whether it was delivered.

        If systemd is busy or restarting it was not, and the caller should retry.
        """
        # A status may quote file names, which need not be valid UTF-8.
        data = "\n".join(assignments).encode("utf-8", "backslashreplace")
        try:
            self._socket.sendto(data, self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._error_logged:
                self._error_logged = True
                self._log.warn(
                    "systemd cannot be notified of this process ($NOTIFY_SOCKET): {error}",
                    error=error.strerror or str(error),
                )
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class NotifyingService(StoppedInReverse):
    """The ``parts`` of a process, which notify systemd of its state if systemd asks for it.

    ``READY=1`` is sent when ``readiness`` is first healthy, or, for a process that
    ``serves_unready``, when the parts have started: systemd stops a process that is not ready in
    time. ``STATUS=`` has the failed checks, and is sent when they change. ``WATCHDOG=1`` is sent
    twice in the time that systemd allows (``WatchdogSec=``), as long as the reactor runs, until the
    drain has ended. ``STOPPING=1`` is sent when the parts are about to stop.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        readiness: Readiness,
        *parts: IService | None,
        environment: Mapping[str, str] = os.environ,
        serves_unready: bool = False,
    ) -> None:
        super().__init__(*parts)
        self._clock = clock
        self._readiness = readiness
        self._environment = environment
        self._serves_unready = serves_unready
        self._systemd: NotifySocket | None = None
        self._ready = False
        self._status = ""
        self._calls: list[LoopingCall] = []

    def startService(self) -> None:
        """Start the parts, and begin to send notifications."""
        super().startService()
        address = self._environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return
        self._systemd = NotifySocket(address)
        self._repeat(INTERVAL, self._notify, self._systemd)
        seconds = _watchdog_seconds(self._environment)
        if seconds is not None:
            self._repeat(seconds / 2, self._systemd.send, "WATCHDOG=1")

    def stopService(self) -> Deferred[None]:
        """Send ``STOPPING=1``, stop the parts, and then end the notifications."""
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
        # Not at once: no request is served before the reactor runs.
        _ = call.start(seconds, now=False).addErrback(self._defect)

    def _notify(self, systemd: NotifySocket) -> None:
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
        self._log.failure("Defect: systemd is no longer notified of this process", failure)


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Return the interval within which systemd expects ``WATCHDOG=1`` (sd_watchdog_enabled(3))."""
    text = environment.get("WATCHDOG_USEC", "")
    whose = environment.get("WATCHDOG_PID", "")
    if not text.isdecimal() or int(text) == 0 or whose not in ("", str(os.getpid())):
        return None
    return int(text) / 1e6


def _status(findings: list[Finding], missing: list[Finding]) -> str:
    """Return in one line the failed required checks, or else the warnings."""
    told = missing or [each for each in findings if each.problem is not None]
    problems = "; ".join(f"{each.name}: {each.problem}" for each in told)
    text = "not ready" if missing else "ready"
    # A line break would start another assignment: findings have none.
    return (f"{text}; {problems}" if problems else text)[:MAX_STATUS_CHARACTERS]
