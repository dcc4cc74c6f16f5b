"""Tests of a tunnel that is attacked and must continue to serve, and the crowds of connections."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import struct

from twisted.internet import reactor
from twisted.trial.unittest import SkipTest

from tests.e2e.clients import Echo, EchoClient, Target
from tests.e2e.programs import Tunnel
from tests.e2e.support import EndToEndTestCase

SLOW_CALLERS = 1000
"""The number of concurrent slow connections to each port."""

DESCRIPTORS = 12_000
"""The limit of file descriptors that the test and the server need for all slow callers."""


class HostileTestCase(EndToEndTestCase):
    """A test case with a tunnel that must continue to serve."""

    async def still_serves(self, tunnel: Tunnel) -> None:
        """Require that both programs run, report health, and carry a round trip."""
        for program in (tunnel.server, tunnel.agent):
            status, body = await program.get("/readyz")
            self.assertEqual(status, 200, body)
        echo = self.listen(Echo)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        client.transport.loseConnection()
        await client.when_lost()


class CrowdTestCase(HostileTestCase):
    """A test case with a tunnel and crowds of connections."""

    async def setUp(self) -> None:
        """Raise the limit of file descriptors, for the programs too."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= hard < DESCRIPTORS:
            raise SkipTest(f"a process may have only {hard} file descriptors (ulimit -Hn)")
        if 0 <= soft < DESCRIPTORS:
            resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
            self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        await super().setUp()

    def crowd(
        self, where: int | str, start: bytes, context=None, size: int = SLOW_CALLERS
    ) -> SlowCrowd:
        """Connect a crowd, which is closed at the end of the test."""
        crowd = SlowCrowd(where, start, context, size)
        self.addCleanup(crowd.close)
        return crowd

    async def asked(self, tunnel: Tunnel, web: Target) -> bytes:
        """Request a page of ``web`` through the port for requests, and return the status."""
        output, errors, status = await self.run_command(
            *("curl", "-sS", "--noproxy", "*", "--max-time", "10", "-o", "/dev/null"),
            *("-w", "%{http_code}", "-H", f"Host: 127.0.0.1:{web.port}"),
            f"http://127.0.0.1:{tunnel.server.insecure_port}/",
        )
        self.assertEqual(status, 0, errors)
        return output


class SlowCrowd:
    """Connections to a loopback port or a Unix socket that send ``start`` first.

    Each :meth:`drip` sends one more byte. With ``context`` they use TLS. Each needs a file
    descriptor in the test and one in the program.
    """

    def __init__(
        self, where: int | str, start: bytes, context: ssl.SSLContext | None, size: int
    ) -> None:
        self._where, self._start, self._context, self._size = where, start, context, size
        self._open: set[socket.socket] = set()
        self.fill()

    def fill(self) -> None:
        """Replace the connections that have ended."""
        for _ in range(self._size - self.open):
            try:
                connection = _connected(self._where)
            except ConnectionResetError:
                # It was reset before this process noticed that it was connected.
                continue
            if self._context is not None:
                connection = self._context.wrap_socket(connection)
            # It may have been reset already.
            with contextlib.suppress(ConnectionError):
                connection.sendall(self._start)
            connection.setblocking(False)
            self._open.add(connection)

    @property
    def open(self) -> int:
        """The number of connections that have not ended."""
        for connection in tuple(self._open):
            try:
                ended = not connection.recv(4096)
            except (BlockingIOError, ssl.SSLWantReadError):
                ended = False
            except OSError:
                ended = True
            if ended:
                connection.close()
                self._open.discard(connection)
        return len(self._open)

    def drip(self) -> None:
        """Send a byte on each open connection."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.send(b"x")

    def close(self) -> None:
        """Close the remaining connections."""
        for connection in self._open:
            connection.close()
        self._open.clear()


def _connected(where: int | str) -> socket.socket:
    if isinstance(where, int):
        return socket.create_connection(("127.0.0.1", where), timeout=20)
    connection = socket.socket(socket.AF_UNIX)
    # While the backlog is full, connect(2) of a non-blocking Unix socket fails with EAGAIN
    # (unix(7)), and Python's timeouts make a socket non-blocking.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 20, 0))
    connection.connect(where)
    return connection
