"""The admin socket of a process: permitted users, pages, and the socket file."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.ops.admin_sites import AdminSite
from tests.ops.test_http_site import TcpTransport
from yurttunnel import __version__
from yurttunnel.ops.admin_socket import (
    RETRY_SECONDS,
    SOCKET,
    AdminSocket,
    admin_pages,
    process_page,
)
from yurttunnel.ops.debug.pages import Page, as_json, text
from yurttunnel.ops.readiness import Readiness
from yurttunnel.tunnel.direct.reactor import with_transports


def page(body: str) -> Page:
    """Return a page that responds with ``body``, and to a change with ``body changed``."""
    return Page(lambda parameters: text(body), lambda parameters: text(f"{body} changed"))


class AdminPagesTests(SynchronousTestCase):
    """The pages of the admin socket, and the users that may request them."""

    def setUp(self) -> None:
        """Make the site of a process with one page of each kind."""
        meta = {"/readyz": page("ready\n"), "/debug": page("that of the meta port")}
        debug = {"/debug": page("debug"), "/debug/log-level": page("info")}
        self.own = {"tokens/revoke": page("revoked"), "tokens": page("tokens")}
        self.site = AdminSite(MemoryReactorClock(), admin_pages(meta, debug, self.own))

    def test_pages(self) -> None:
        """The socket serves the meta port's pages, /debug, and its own pages below /v1."""
        for target, method, body in (
            ("/readyz", "GET", b"ready\n"),
            ("/debug", "GET", b"debug"),
            ("/debug/log-level", "POST", b"info changed"),
            ("/v1/tokens", "GET", b"tokens"),
            ("/v1/tokens/revoke", "POST", b"revoked changed"),
        ):
            answer = self.site.ask(target, method)
            self.assertEqual((200, body), (answer.status, answer.body), target)

    def test_list(self) -> None:
        """The first page lists the paths below /v1; unknown paths are answered with 404."""
        for target in ("/", "/v1"):
            listed = json.loads(self.site.ask(target).body)
            self.assertEqual({"paths": ["/v1/tokens", "/v1/tokens/revoke"]}, listed)
        for target in ("/v2", "/v1/nothing", "/v1/tokens/nothing", "/tokens"):
            self.assertEqual(404, self.site.ask(target).status, target)

    def test_users(self) -> None:
        """Only the process's user and root are served; other users get 403 for every request."""
        other = os.geteuid() + 4711
        for user in (os.geteuid(), 0):
            self.assertEqual(200, self.site.ask("/v1/tokens", user=user).status)
        for target in ("/", "/readyz", "/debug/log-level", "/v1/tokens", "/nothing"):
            for method in ("GET", "POST", "DELETE"):
                answer = self.site.ask(target, method, other)
                self.assertEqual(403, answer.status)
                self.assertIn(b"user id %d is not allowed" % other, answer.body)

    def test_no_unix_socket(self) -> None:
        """A TCP client is rejected with 403, since its user is unknown."""
        transport = TcpTransport(peerAddress=IPv4Address("TCP", "127.0.0.1", 40000))
        channel = self.site.site.buildProtocol(None)
        channel.makeConnection(transport)
        channel.dataReceived(b"GET /v1/tokens HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertIn(b" 403 ", transport.value().partition(b"\r\n")[0])


class ProcessPageTests(SynchronousTestCase):
    """The page that describes the process."""

    def test_process(self) -> None:
        """The page has the process's identity, start time and checks; a warning leaves it ready."""
        clock, readiness = MemoryReactorClock(), Readiness()
        readiness.add("listeners", lambda: None)
        readiness.add("disk", lambda: "it is full", required=False)
        site = AdminSite(
            clock,
            admin_pages(
                {},
                {},
                {"process": process_page(clock, "program", readiness, {"node": "edge-1"})},
            ),
        )
        answer = json.loads(site.ask("/v1/process").body)
        self.assertEqual(
            {
                "program": "program",
                "version": __version__,
                "pid": os.getpid(),
                "since": "1970-01-01T00:00:00Z",
                "ready": True,
                "checks": [
                    {"name": "listeners", "problem": None, "required": True},
                    {"name": "disk", "problem": "it is full", "required": False},
                ],
                "node": "edge-1",
            },
            answer,
        )
        readiness.add("certificate", lambda: "it has expired")
        self.assertFalse(json.loads(site.ask("/v1/process").body)["ready"])


class AdminSocketTests(TestCase):
    """The socket file, on the real reactor."""

    def setUp(self) -> None:
        """Make a directory with a short path, since the paths of Unix sockets are limited."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.path = self.directory / SOCKET

    def make(self, directory: Path | None = None) -> AdminSocket:
        """Make a socket that is closed after the test."""
        pages = admin_pages({}, {}, {"x": Page(lambda given: as_json(1))})
        made = AdminSocket(with_transports(reactor, "direct"), directory or self.directory, pages)
        self.addCleanup(made.stopService)
        return made

    def refused(self, made: AdminSocket) -> str:
        """Start a socket that cannot listen; return the logged message."""
        with capturedLogs() as events:
            made.startService()
        [message] = [formatEvent(event) for event in events]
        self.assertEqual(
            f"the command yurttunnel cannot reach this process: {made.problem}", message
        )
        return message

    async def test_mode(self) -> None:
        """The socket file has mode 0600 and is removed when the service stops."""
        made = self.make()
        made.startService()
        status = os.stat(self.path)
        self.assertTrue(stat.S_ISSOCK(status.st_mode))
        self.assertEqual(0o600, stat.S_IMODE(status.st_mode))
        self.assertIsNone(made.problem)
        await made.stopService()
        self.assertFalse(self.path.exists())

    def test_stale(self) -> None:
        """The socket of a killed process is replaced."""
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(self.path))
            killed.listen()
        made = self.make()
        made.startService()
        self.assertIsNone(made.problem)
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(self.path))

    def test_living(self) -> None:
        """A socket on which another process listens is left alone; the service runs without one."""
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(self.path))
            other.listen()
            self.assertIn("another process listens", self.refused(self.make()))
        self.assertTrue(self.path.exists())

    def test_no_socket(self) -> None:
        """A file that is not a socket is left alone, and a path that is too long is reported."""
        self.path.write_text("something else")
        self.assertIn("is not a socket", self.refused(self.make()))
        self.assertEqual("something else", self.path.read_text())
        deep = self.directory / ("d" * 100)
        deep.mkdir()
        self.assertIn("shorten the path", self.refused(self.make(deep)))

    def test_later(self) -> None:
        """If the directory appears later, the socket does; either is logged once."""
        clock = MemoryReactorClock()
        made = AdminSocket(clock, self.directory / "later", {})
        self.assertIn("does not exist", self.refused(made))
        with capturedLogs() as events:
            clock.advance(RETRY_SECONDS)
        self.assertEqual([], events)
        (self.directory / "later").mkdir()
        with capturedLogs() as events:
            clock.advance(RETRY_SECONDS)
        self.assertEqual(
            ["listening for commands succeeded"],
            [text for text in map(formatEvent, events) if "LimitedSite" not in text],
        )
        self.assertIsNone(made.problem)
        self.assertTrue((self.directory / "later" / SOCKET).is_socket())
        stopped = made.stopService()
        clock.advance(0)
        self.successResultOf(stopped)
        self.assertEqual([], clock.getDelayedCalls())
