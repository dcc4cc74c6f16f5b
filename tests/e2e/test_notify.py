"""A real program notifies systemd of its readiness, its status, and its stop."""

from __future__ import annotations

import os
import signal
import socket

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from tests.e2e.hub.programs import Hub
from tests.e2e.support import EndToEndTestCase


class NotifyTests(EndToEndTestCase):
    """The socket that systemd would listen on."""

    async def setUp(self) -> None:
        """Listen."""
        await super().setUp()
        self.address = os.path.join(self.directory, "notify")
        self.systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.addCleanup(self.systemd.close)
        self.systemd.bind(self.address)
        self.received: list[str] = []

    def has_received(self, text: str) -> bool:
        """Return whether a datagram with that text has been received."""
        while True:
            try:
                self.received.append(self.systemd.recv(4096).decode())
            except BlockingIOError:
                return any(text in each for each in self.received)

    async def test_agent(self) -> None:
        """It is ready when a server can reach its node, and not before."""
        tunnel = await self.start_tunnel()
        await tunnel.agent.stop()
        await tunnel.server.stop()
        variables = (f"NOTIFY_SOCKET={self.address}", "WATCHDOG_USEC=1000000")
        # It is enrolled, so that it waits for its server.
        agent = tunnel.another_agent(token_path=None, prefix=("env", *variables))
        agent.start()
        await self.eventually(
            lambda: self.has_received("STATUS=not ready; servers: "), "what is missing is told", 30
        )
        await self.eventually(lambda: self.has_received("WATCHDOG=1"), "it gives a sign of life")
        status, _ = await agent.get("/readyz")
        self.assertEqual(503, status)
        self.assertFalse(self.has_received("READY=1"), self.received)
        tunnel.server.start()
        await self.eventually(lambda: self.has_received("READY=1\nSTATUS=ready"), "it is ready", 30)
        self.assertEqual(
            (200, False), ((await agent.get("/readyz"))[0], self.has_received("STOPPING"))
        )
        agent.signal(signal.SIGTERM)
        await self.eventually(lambda: self.has_received("STOPPING=1"), "it says that it stops")
        self.assertEqual(-signal.SIGTERM, await agent.ended(10))
        self.assertEqual(1, sum("READY=1" in each for each in self.received))

    async def test_server(self) -> None:
        """It is ready when it listens; a drain is in its status."""
        tunnel = self.make_tunnel()
        server = tunnel.another_server(state="S2", prefix=("env", f"NOTIFY_SOCKET={self.address}"))
        server.start()
        await self.eventually(lambda: self.has_received("READY=1\nSTATUS=ready"), "it is ready", 30)
        self.assertEqual(200, (await server.get("/readyz"))[0])
        await server.stop()
        self.assertTrue(self.has_received("STOPPING=1"))

    async def test_hub(self) -> None:
        """It is started when it responds, even without a certificate; its status says so."""
        prefix = ("env", f"NOTIFY_SOCKET={self.address}")
        # Nobody listens there.
        hub = Hub(reactor, self.directory, "https://127.0.0.1:1", prefix=prefix)
        self.addCleanup(lambda: Deferred.fromCoroutine(hub.stop()))
        hub.start()
        await self.eventually(
            lambda: self.has_received("READY=1\nSTATUS=not ready; certificate: "),
            "it is started",
            30,
        )
        self.assertEqual(503, (await hub.get("/v1/readyz"))[0])
        self.assertEqual(1, sum("READY=1" in each for each in self.received))
