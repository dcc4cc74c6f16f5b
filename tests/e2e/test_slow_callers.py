"""Callers that take the last of a stream slowly get all of it."""

from __future__ import annotations

import hashlib
import os
import signal
from functools import partial
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.threads import deferToThread

from tests.e2e.clients import Download, Peer, Source, Target, connect
from tests.e2e.programs import Tunnel, free_ports
from tests.e2e.support import EndToEndTestCase, TwistedTransports
from tests.e2e.tls_callers import RECEIVE_BUFFER, tls_download
from yurttunnel.server.frontends.connect import LINGER

STEP = 48 * 1024
"""Bytes that a target sends at a time. So many wait in the server, and pause nothing yet."""


class Stepwise(Peer):
    """A target that sends when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self._hash = hashlib.sha256()
        self.sent = 0

    def step(self) -> None:
        """Send a little."""
        data = os.urandom(STEP)
        self._hash.update(data)
        self.sent += len(data)
        self.transport.write(data)

    @property
    def digest(self) -> str:
        """The SHA-256 of everything sent, in hexadecimal."""
        return self._hash.hexdigest()


class PausedDownload(Download):
    """A caller that ends its direction at once, as ``nc -N`` does, and reads when told to."""

    def connectionMade(self) -> None:
        """End this direction."""
        super().connectionMade()
        self.transport.pauseProducing()
        self.transport.loseWriteConnection()

    @property
    def queued(self) -> int:
        """Bytes for it in the kernel, not acknowledged or not read (/proc/net/tcp)."""
        own, server = self.transport.getHost().port, self.transport.getPeer().port
        queued = 0
        for line in Path("/proc/net/tcp").read_text().splitlines():
            fields = line.split()
            if fields[1].endswith(f":{own:04X}") and fields[2].endswith(f":{server:04X}"):
                queued += int(fields[4].split(":")[1], 16)
            elif fields[2].endswith(f":{own:04X}") and fields[1].endswith(f":{server:04X}"):
                queued += int(fields[4].split(":")[0], 16)
        return queued


class StoppingTests(EndToEndTestCase):
    """A server that is told to stop, and whose streams end in time, loses nothing of them."""

    async def test_a_forward(self) -> None:
        """The stream has ended, and its caller has still to take the last of it."""
        target = self.listen(Stepwise)
        tunnel = await self.start_tunnel(forwards=(target.port,), drain=20)
        download = await self.dial(tunnel.forward_ports[0], PausedDownload())
        await self.stopped(tunnel, target, download)

    async def test_connect(self) -> None:
        """The same by CONNECT."""
        target = self.listen(Stepwise)
        port = free_ports.take()
        tunnel = await self.start_tunnel(
            server_extra=("--connect-endpoint", f"tcp:{port}"), drain=20
        )
        download = PausedDownload()
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", port)
        answer = await connect(endpoint, f"127.0.0.1:{target.port}", download)
        self.assertEqual(answer.status, 200, answer.body)
        self._end_peer_with_test(download)
        await self.stopped(tunnel, target, download)

    async def stopped(self, tunnel: Tunnel, target: Target, download: PausedDownload) -> None:
        """Have the stream end while the server holds some of it, the server stop, and read."""
        await self.eventually(lambda: target.peers, "the target is reached")
        (source,) = target.peers
        while await self.is_taken_by_the_kernel(source, download):
            source.step()
        source.transport.loseConnection()
        await self.eventually(partial(no_stream, tunnel), "the stream has ended")
        tunnel.server.signal(signal.SIGTERM)
        await self.pause(1)
        self.assertTrue(tunnel.server.running)
        download.transport.resumeProducing()
        await self.within(15, download.when_lost(), "the download ends")
        self.assertTrue(download.clean, download.lost_reason)
        self.assertEqual((download.received, download.digest), (source.sent, source.digest))
        self.assertIn(await tunnel.server.ended(10), (0, -signal.SIGTERM))

    async def is_taken_by_the_kernel(self, source: Stepwise, download: PausedDownload) -> bool:
        """Whether all that was sent soon waits for the caller in the kernel, outside the server."""
        for _ in range(100):
            if download.queued == source.sent:
                return True
            await self.pause(0.01)
        return False


async def no_stream(tunnel: Tunnel) -> bool:
    """Whether the server has no stream any more."""
    return await tunnel.server.metric("yurttunnel_server_open_streams") == 0


class TwistedStoppingTests(TwistedTransports, StoppingTests):
    """The same over Twisted's own transports."""


class TlsTests(EndToEndTestCase):
    """By CONNECT over TLS, where the end of the target closes the connection."""

    async def test_a_caller_that_pauses_gets_everything(self) -> None:
        """It may pause for longer than it may take to close."""
        size = 6 * RECEIVE_BUFFER
        source = self.listen(lambda: Source(size))
        port = free_ports.take()
        tunnel = await self.start_tunnel(server_extra=("--connect-endpoint", f"ssl:{port}"))
        download = partial(tls_download, tunnel.server.state, port, source.port, LINGER + 2)
        digest = await self.within(30, deferToThread(download), "the download")
        self.assertEqual(digest, source.peers[0].payload.digest)


class TwistedTlsTests(TwistedTransports, TlsTests):
    """The same over Twisted's own transports."""
