"""Notifications of systemd about a process."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path
from tempfile import mkdtemp

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.filepath import FilePath
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.systemd import INTERVAL, MAX_STATUS_CHARACTERS, NotifyingService


class Part(Service):
    """A service whose stop can be delayed."""

    def __init__(self) -> None:
        self.end: Deferred[None] = Deferred()

    def stopService(self) -> Deferred[None]:
        """Stop when :attr:`end` fires."""
        super().stopService()
        return self.end


class NotifyTestCase(SynchronousTestCase):
    """A supervised service, and the notification socket of systemd."""

    def setUp(self) -> None:
        """Make a service that is ready, and a socket at a path."""
        # The directory of trial may be too deep for the path of a Unix socket.
        directory = mkdtemp(prefix="notify-")
        self.addCleanup(FilePath(directory).remove)
        self.address = os.path.join(directory, "notify")
        self.systemd = self.listen(self.address)
        self.problem: str | None = None
        self.clock = Clock()
        self.readiness = Readiness()
        self.readiness.add("listeners", lambda: self.problem)
        self.part = Part()

    def listen(self, name: str | bytes) -> socket.socket:
        """Listen like systemd."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.addCleanup(listening.close)
        listening.bind(name)
        return listening

    def start(self, serves_unready: bool = False, **environment: str) -> NotifyingService:
        """Start the service with systemd's variables from ``environment``."""
        environment.setdefault("NOTIFY_SOCKET", self.address)
        supervised = NotifyingService(
            self.clock,
            self.readiness,
            self.part,
            environment=environment,
            serves_unready=serves_unready,
        )
        supervised.startService()
        return supervised

    def sent(self) -> list[str]:
        """Return the datagrams since the last call."""
        found = []
        while True:
            try:
                found.append(self.systemd.recv(4096).decode())
            except BlockingIOError:
                return found

    def stop(self, supervised: NotifyingService) -> None:
        """Stop the service completely."""
        stopping = supervised.stopService()
        self.part.end.callback(None)
        self.assertIsNone(self.successResultOf(stopping))


class ReadinessTests(NotifyTestCase):
    """``READY=1`` and ``STATUS=``."""

    def test_ready(self) -> None:
        """READY=1 is sent once, when the reactor runs and all checks pass."""
        self.start()
        self.assertTrue(self.part.running)
        self.assertEqual([], self.sent())
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(["READY=1\nSTATUS=ready"], self.sent())

    def test_not_ready(self) -> None:
        """Before readiness, STATUS= has the failed check, and is sent whenever it changes."""
        self.problem = "--meta-port"
        self.start()
        self.clock.pump([INTERVAL] * 2)
        self.problem = "--secure-port"
        self.clock.pump([INTERVAL] * 2)
        self.problem = None
        self.clock.pump([INTERVAL] * 2)
        self.assertEqual(
            [
                "STATUS=not ready; listeners: --meta-port",
                "STATUS=not ready; listeners: --secure-port",
                "READY=1\nSTATUS=ready",
            ],
            self.sent(),
        )

    def test_serves_unready(self) -> None:
        """A service that serves before it is ready sends READY=1 at once, with a status."""
        self.problem = "no certificate"
        self.start(serves_unready=True)
        self.assertEqual([], self.sent())
        self.clock.pump([INTERVAL] * 2)
        self.problem = None
        self.clock.pump([INTERVAL] * 2)
        self.assertEqual(
            ["READY=1\nSTATUS=not ready; listeners: no certificate", "STATUS=ready"], self.sent()
        )

    def test_stopped_before_ready(self) -> None:
        """A service that is stopped at once does not send READY=1."""
        supervised = self.start(serves_unready=True)
        supervised.stopService()
        self.clock.pump([INTERVAL] * 2)
        self.assertNotIn("READY=1", "".join(self.sent()))
        self.part.end.callback(None)

    def test_no_longer_ready(self) -> None:
        """A service that is no longer ready sends only a new status."""
        self.start()
        self.clock.advance(INTERVAL)
        self.sent()
        self.problem = "the certificate has expired"
        self.clock.advance(INTERVAL)
        self.problem = None
        self.clock.advance(INTERVAL)
        self.assertEqual(
            ["STATUS=not ready; listeners: the certificate has expired", "STATUS=ready"],
            self.sent(),
        )

    def test_warnings(self) -> None:
        """The status includes failed checks that are not required."""
        self.readiness.add("Kubernetes API", lambda: "away", required=False)
        self.start()
        self.clock.advance(INTERVAL)
        self.assertEqual(["READY=1\nSTATUS=ready; Kubernetes API: away"], self.sent())

    def test_a_status_is_one_short_line(self) -> None:
        """A status is one line of limited length and cannot inject another variable."""
        self.problem = "bad\nREADY=1\n" + "x" * 10000
        self.start()
        self.clock.advance(INTERVAL)
        (sent,) = self.sent()
        self.assertTrue(sent.startswith(r"STATUS=not ready; listeners: bad\nREADY=1\nxxx"))
        self.assertNotIn("\n", sent)
        self.assertEqual(len("STATUS=") + MAX_STATUS_CHARACTERS, len(sent))


class WatchdogTests(NotifyTestCase):
    """``WATCHDOG=1``."""

    def setUp(self) -> None:
        """Set the watchdog's variables."""
        super().setUp()
        self.environment = {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}

    def signs(self) -> int:
        """Return the number of watchdog notifications."""
        return self.sent().count("WATCHDOG=1")

    def test_sign_of_life(self) -> None:
        """A notification is sent after half of the watchdog's timeout, whether ready or not."""
        self.problem = "not yet"
        self.start(**self.environment)
        self.clock.advance(14.9)
        self.assertEqual(0, self.signs())
        self.clock.advance(0.2)
        self.assertEqual(1, self.signs())
        self.clock.pump([15] * 3)
        self.assertEqual(3, self.signs())

    def test_drain(self) -> None:
        """Notifications continue while the service stops, and then end."""
        supervised = self.start(**self.environment)
        stopping = supervised.stopService()
        self.clock.pump([15] * 2)
        self.assertEqual(2, self.signs())
        self.part.end.callback(None)
        self.successResultOf(stopping)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_of_another_process(self) -> None:
        """Variables for another process are ignored."""
        self.environment["WATCHDOG_PID"] = "1"
        self.start(**self.environment)
        self.clock.pump([15] * 3)
        self.assertEqual(0, self.signs())

    def test_switched_off(self) -> None:
        """There is no watchdog without the variable, or if it is 0 or invalid."""
        for text in ("", "0", "x"):
            self.start(WATCHDOG_USEC=text)
            self.clock.pump([15] * 3)
        self.assertEqual(0, self.signs())


class EndTests(NotifyTestCase):
    """``STOPPING=1``, and cleanup."""

    def test_stopping(self) -> None:
        """STOPPING=1 is sent before the service stops; status changes are still sent."""
        supervised = self.start()
        self.clock.advance(INTERVAL)
        self.sent()
        self.problem = "draining"
        stopping = supervised.stopService()
        self.assertEqual(["STOPPING=1"], self.sent())
        self.assertFalse(self.part.running)
        self.assertNoResult(stopping)
        self.clock.advance(INTERVAL)
        self.assertEqual(["STATUS=not ready; listeners: draining"], self.sent())
        self.part.end.callback(None)
        self.successResultOf(stopping)
        self.clock.advance(INTERVAL)
        self.assertEqual([], self.sent())

    def test_nothing_is_left(self) -> None:
        """Stopping leaves no timer and no descriptor."""
        before = len(os.listdir("/proc/self/fd"))
        supervised = self.start(WATCHDOG_USEC="1000000")
        self.clock.advance(INTERVAL)
        self.stop(supervised)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual(before, len(os.listdir("/proc/self/fd")))

    def test_failed_stop(self) -> None:
        """A failed stop leaves no timer, and its failure is returned."""
        supervised = self.start()
        stopping = supervised.stopService()
        self.part.end.errback(ZeroDivisionError())
        self.failureResultOf(stopping, ZeroDivisionError)
        self.assertEqual([], self.clock.getDelayedCalls())


class SocketTests(NotifyTestCase):
    """The notification socket."""

    def test_abstract(self) -> None:
        """A name that starts with an at sign is in the abstract namespace."""
        name = f"yurttunnel-test-{uuid.uuid4()}"
        self.systemd = self.listen(b"\0" + name.encode())
        self.start(NOTIFY_SOCKET=f"@{name}")
        self.clock.advance(INTERVAL)
        self.assertEqual(["READY=1\nSTATUS=ready"], self.sent())

    def test_no_systemd(self) -> None:
        """Without a usable socket the service runs, and nothing else is started."""
        for address in ("", "relative", "vsock:2:1234"):
            before = len(os.listdir("/proc/self/fd"))
            supervised = self.start(NOTIFY_SOCKET=address, WATCHDOG_USEC="1000000")
            self.assertTrue(self.part.running)
            self.assertEqual([], self.clock.getDelayedCalls())
            self.assertEqual(before, len(os.listdir("/proc/self/fd")))
            self.stop(supervised)
            self.part = Part()

    def test_full(self) -> None:
        """A notification is sent again when the socket's buffer was full."""
        filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.addCleanup(filler.close)
        while True:
            try:
                filler.sendto(b"X", self.address)
            except BlockingIOError:
                break
        self.start()
        self.clock.advance(INTERVAL)
        self.assertEqual({"X"}, set(self.sent()))
        self.clock.advance(INTERVAL)
        self.assertEqual(["READY=1\nSTATUS=ready"], self.sent())

    def test_invalid_utf8(self) -> None:
        """A file name that is not UTF-8 is escaped in the status."""
        self.readiness.add("files", lambda: "/x/\udcff cannot be read")
        self.start()
        self.clock.advance(INTERVAL)
        self.assertEqual(["STATUS=not ready; files: /x/\\udcff cannot be read"], self.sent())

    def test_nobody_listens(self) -> None:
        """While nobody listens, the service runs and logs one warning; READY=1 is sent later."""
        Path(self.address).unlink()
        self.systemd.close()
        with capturedLogs() as events:
            self.start()
            self.clock.pump([INTERVAL] * 3)
        self.assertEqual(
            [
                "systemd cannot be notified of this process ($NOTIFY_SOCKET): No such file or"
                " directory"
            ],
            [formatEvent(event) for event in events],
        )
        self.systemd = self.listen(self.address)
        self.clock.advance(INTERVAL)
        self.assertEqual(["READY=1\nSTATUS=ready"], self.sent())
