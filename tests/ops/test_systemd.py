"""What systemd is told of a process."""

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
    """A part whose end can be waited for."""

    def __init__(self) -> None:
        self.end: Deferred[None] = Deferred()

    def stopService(self) -> Deferred[None]:
        """Stop when :attr:`end` fires."""
        super().stopService()
        return self.end


class NotifyTestCase(SynchronousTestCase):
    """A supervised process, and the socket of its systemd."""

    def setUp(self) -> None:
        """Make one that is ready, and a socket by its path."""
        # Trial's own directory may be too deep for the path of a Unix socket.
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
        """Listen as systemd does."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.addCleanup(listening.close)
        listening.bind(name)
        return listening

    def start(self, serves_unready: bool = False, **environment: str) -> NotifyingService:
        """Start the process; the variables of systemd are ``environment``."""
        environment.setdefault("NOTIFY_SOCKET", self.address)
        supervised = NotifyingService(
            self.clock, self.readiness, environment, serves_unready=serves_unready
        )
        self.part.setServiceParent(supervised)
        supervised.startService()
        return supervised

    def told(self) -> list[str]:
        """Return the datagrams that have come since the last time."""
        found = []
        while True:
            try:
                found.append(self.systemd.recv(4096).decode())
            except BlockingIOError:
                return found

    def stop(self, supervised: NotifyingService) -> None:
        """Stop to the end."""
        stopping = supervised.stopService()
        self.part.end.callback(None)
        self.assertIsNone(self.successResultOf(stopping))


class ReadinessTests(NotifyTestCase):
    """``READY=1`` and ``STATUS=``."""

    def test_ready(self) -> None:
        """It is said once, when the reactor runs."""
        self.start()
        self.assertTrue(self.part.running)
        self.assertEqual([], self.told())
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(["READY=1\nSTATUS=ready"], self.told())

    def test_not_ready(self) -> None:
        """Until then systemd is told what is missing, each time that this is something else."""
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
            self.told(),
        )

    def test_serves_unready(self) -> None:
        """One that serves before it is ready is started; its status tells what is missing."""
        self.problem = "no certificate"
        self.start(serves_unready=True)
        self.assertEqual([], self.told())
        self.clock.pump([INTERVAL] * 2)
        self.problem = None
        self.clock.pump([INTERVAL] * 2)
        self.assertEqual(
            ["READY=1\nSTATUS=not ready; listeners: no certificate", "STATUS=ready"], self.told()
        )

    def test_ends_before_it_is_told(self) -> None:
        """Who stops does not become ready."""
        supervised = self.start(serves_unready=True)
        supervised.stopService()
        self.clock.pump([INTERVAL] * 2)
        self.assertNotIn("READY=1", "".join(self.told()))
        self.part.end.callback(None)

    def test_no_longer_ready(self) -> None:
        """For systemd a process stays ready; its status tells the rest."""
        self.start()
        self.clock.advance(INTERVAL)
        self.told()
        self.problem = "the certificate has expired"
        self.clock.advance(INTERVAL)
        self.problem = None
        self.clock.advance(INTERVAL)
        self.assertEqual(
            ["STATUS=not ready; listeners: the certificate has expired", "STATUS=ready"],
            self.told(),
        )

    def test_warnings(self) -> None:
        """What does not keep it from being ready is in the status."""
        self.readiness.add("Kubernetes API", lambda: "away", required=False)
        self.start()
        self.clock.advance(INTERVAL)
        self.assertEqual(["READY=1\nSTATUS=ready; Kubernetes API: away"], self.told())

    def test_a_status_is_one_short_line(self) -> None:
        """What is wrong cannot assign something else, nor make the datagram too long."""
        self.problem = "bad\nREADY=1\n" + "x" * 10000
        self.start()
        self.clock.advance(INTERVAL)
        (told,) = self.told()
        self.assertTrue(told.startswith("STATUS=not ready; listeners: bad READY=1 xxx"))
        self.assertNotIn("\n", told)
        self.assertEqual(len("STATUS=") + MAX_STATUS_CHARACTERS, len(told))


class WatchdogTests(NotifyTestCase):
    """``WATCHDOG=1``."""

    def setUp(self) -> None:
        """Be silent but for the watchdog."""
        super().setUp()
        self.environment = {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}

    def signs(self) -> int:
        """Count the signs of life."""
        return self.told().count("WATCHDOG=1")

    def test_sign_of_life(self) -> None:
        """It comes in half of the time that is allowed, ready or not."""
        self.problem = "not yet"
        self.start(**self.environment)
        self.clock.advance(14.9)
        self.assertEqual(0, self.signs())
        self.clock.advance(0.2)
        self.assertEqual(1, self.signs())
        self.clock.pump([15] * 3)
        self.assertEqual(3, self.signs())

    def test_drain(self) -> None:
        """It comes as long as the parts are stopping, and then no more."""
        supervised = self.start(**self.environment)
        stopping = supervised.stopService()
        self.clock.pump([15] * 2)
        self.assertEqual(2, self.signs())
        self.part.end.callback(None)
        self.successResultOf(stopping)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_of_another_process(self) -> None:
        """Variables that a parent has left are not for this process."""
        self.environment["WATCHDOG_PID"] = "1"
        self.start(**self.environment)
        self.clock.pump([15] * 3)
        self.assertEqual(0, self.signs())

    def test_switched_off(self) -> None:
        """Without the variable, or with 0, there is no watchdog."""
        for text in ("", "0", "x"):
            self.start(WATCHDOG_USEC=text)
            self.clock.pump([15] * 3)
        self.assertEqual(0, self.signs())


class EndTests(NotifyTestCase):
    """``STOPPING=1``, and what is left."""

    def test_stopping(self) -> None:
        """It is said before the parts stop; what is missing meanwhile is told, too."""
        supervised = self.start()
        self.clock.advance(INTERVAL)
        self.told()
        self.problem = "draining"
        stopping = supervised.stopService()
        self.assertEqual(["STOPPING=1"], self.told())
        self.assertFalse(self.part.running)
        self.assertNoResult(stopping)
        self.clock.advance(INTERVAL)
        self.assertEqual(["STATUS=not ready; listeners: draining"], self.told())
        self.part.end.callback(None)
        self.successResultOf(stopping)
        self.clock.advance(INTERVAL)
        self.assertEqual([], self.told())

    def test_nothing_is_left(self) -> None:
        """No timer and no descriptor."""
        before = len(os.listdir("/proc/self/fd"))
        supervised = self.start(WATCHDOG_USEC="1000000")
        self.clock.advance(INTERVAL)
        self.stop(supervised)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual(before, len(os.listdir("/proc/self/fd")))

    def test_failed_stop(self) -> None:
        """When the parts fail to stop, nothing is left either, and whoever waits is told."""
        supervised = self.start()
        stopping = supervised.stopService()
        self.part.end.errback(ZeroDivisionError())
        self.failureResultOf(stopping, ZeroDivisionError)
        self.assertEqual([], self.clock.getDelayedCalls())


class SocketTests(NotifyTestCase):
    """The socket that systemd names."""

    def test_abstract(self) -> None:
        """A name with an at sign is one of the abstract namespace."""
        name = f"yurttunnel-test-{uuid.uuid4()}"
        self.systemd = self.listen(b"\0" + name.encode())
        self.start(NOTIFY_SOCKET=f"@{name}")
        self.clock.advance(INTERVAL)
        self.assertEqual(["READY=1\nSTATUS=ready"], self.told())

    def test_no_systemd(self) -> None:
        """Without the variable the parts run, and there is nothing more."""
        for address in ("", "relative", "vsock:2:1234"):
            before = len(os.listdir("/proc/self/fd"))
            supervised = self.start(NOTIFY_SOCKET=address, WATCHDOG_USEC="1000000")
            self.assertTrue(self.part.running)
            self.assertEqual([], self.clock.getDelayedCalls())
            self.assertEqual(before, len(os.listdir("/proc/self/fd")))
            self.stop(supervised)
            self.part = Part()

    def test_full(self) -> None:
        """When systemd does not read for a while, what it has to know comes later."""
        filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.addCleanup(filler.close)
        while True:
            try:
                filler.sendto(b"X", self.address)
            except BlockingIOError:
                break
        self.start()
        self.clock.advance(INTERVAL)
        self.assertEqual({"X"}, set(self.told()))
        self.clock.advance(INTERVAL)
        self.assertEqual(["READY=1\nSTATUS=ready"], self.told())

    def test_what_is_no_utf8(self) -> None:
        """A finding that quotes the name of a file that is no UTF-8 is told."""
        self.readiness.add("files", lambda: "/x/\udcff cannot be read")
        self.start()
        self.clock.advance(INTERVAL)
        self.assertEqual(["STATUS=not ready; files: /x/\\udcff cannot be read"], self.told())

    def test_nobody_listens(self) -> None:
        """The parts run all the same; the log says it once, and systemd is told when it is back."""
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
        self.assertEqual(["READY=1\nSTATUS=ready"], self.told())
