"""Callers that read the end of a stream slowly get all of it."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import struct
from functools import partial
from typing import NamedTuple

from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.threads import deferToThread

from benchmarks.ports import free_ports
from tests.e2e.clients import Download, Peer, Source, Target, connect
from tests.e2e.programs import UNLIMITED_DRAIN, Tunnel
from tests.e2e.support import EndToEndTestCase, TwistedTransports
from tests.e2e.tls_callers import RECEIVE_BUFFER, tls_download
from yurttunnel.server.frontends.connect import LINGER
from yurttunnel.steering.netlink.messages import raw_request
from yurttunnel.steering.netlink.netlink_socket import GET, NetlinkSocket
from yurttunnel.steering.netlink.sock_diag import NETLINK_SOCK_DIAG

STEP = 48 * 1024
"""Bytes that a target sends at a time. That many wait in the server without pausing the stream."""


PROBE_TIMER = 4
"""The timer of a socket that waits to probe a window."""

SOCK_DIAG_BY_FAMILY = 20
"""The request for one socket (linux/sock_diag.h)."""

_INET_DIAG_MSG = struct.Struct("=2xBx4s48xII")
"""The timer, both ports, and the receive and send queues (linux/inet_diag.h)."""


class KernelSocket(NamedTuple):
    """Bytes in a socket's send and receive queues, and the number of its active timer."""

    unacknowledged: int
    unread: int
    timer: int


class Stepwise(Peer):
    """A target that sends on command."""

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
    """A caller that ends its direction at once, as ``nc -N`` does, and reads on command."""

    def connectionMade(self) -> None:
        """End this direction."""
        super().connectionMade()
        self.transport.pauseProducing()
        self.transport.loseWriteConnection()

    @property
    def queued(self) -> int:
        """Return the unacknowledged and unread bytes for it in the kernel.

        Bytes that are in flight count twice.
        """
        unacknowledged = kernel_socket(self._peer, self._own).unacknowledged
        return unacknowledged + kernel_socket(self._own, self._peer).unread

    @property
    def is_probed(self) -> bool:
        """Whether the kernel has more data than the window allows, and sends window probes."""
        return kernel_socket(self._peer, self._own).timer == PROBE_TIMER

    @property
    def _own(self) -> int:
        return int(self.transport.getHost().port)

    @property
    def _peer(self) -> int:
        return int(self.transport.getPeer().port)

    @property
    def arrived(self) -> tuple[int, int]:
        """Return the received bytes and segments (struct tcp_info of linux/tcp.h)."""
        info = self.transport.getHandle().getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 144)
        data, _sent, segments = struct.unpack_from("=QII", info, 128)
        return data, segments


class StoppingTests(EndToEndTestCase):
    """A stopping server whose streams end in time loses no data."""

    async def test_a_forward(self) -> None:
        """The stream has ended, and its caller has not read the last part."""
        target = self.listen(Stepwise)
        tunnel = await self.start_tunnel(forwards=(target.port,), drain=UNLIMITED_DRAIN)
        download = await self.dial(tunnel.forward_ports[0], PausedDownload())
        await self.stopped(tunnel, target, download)

    async def test_connect(self) -> None:
        """The same by CONNECT."""
        target = self.listen(Stepwise)
        port = free_ports.take()
        tunnel = await self.start_tunnel(
            server_extra=("--connect-endpoint", f"tcp:{port}"), drain=UNLIMITED_DRAIN
        )
        download = PausedDownload()
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", port)
        answer = await connect(endpoint, f"127.0.0.1:{target.port}", download)
        self.assertEqual(answer.status, 200, answer.body)
        self._end_peer_with_test(download)
        await self.stopped(tunnel, target, download)

    async def stopped(self, tunnel: Tunnel, target: Target, download: PausedDownload) -> None:
        """Let the stream end while the server buffers data, stop the server, and read."""
        await self.eventually(lambda: target.peers, "the target is reached")
        (source,) = target.peers
        while await self.is_in_the_kernel(tunnel, source, download):
            source.step()
        source.transport.loseConnection()
        await self.eventually(tunnel.has_no_stream, "the stream has ended")
        tunnel.server.signal(signal.SIGTERM)
        await self.pause(1)
        self.assertTrue(tunnel.server.running)
        download.transport.resumeProducing()
        await self.within(15, download.when_lost(), "the download ends")
        self.assertTrue(download.ended_cleanly, download.lost_reason)
        self.assertEqual((download.received, download.digest), (source.sent, source.digest))
        self.assertIn(await tunnel.server.ended(10), (0, -signal.SIGTERM))

    async def is_in_the_kernel(
        self, tunnel: Tunnel, source: Stepwise, download: PausedDownload
    ) -> bool:
        """Whether all sent data is in the kernel, outside the server.

        If not it never will be: after the kernel has seen a closed window its buffer does not grow.
        """

        async def received() -> bool:
            name = "yurttunnel_server_bytes_total"
            return await tunnel.server.metric(name, direction="received") == source.sent

        await self.eventually(received, "the server has got what was sent")
        full = download.arrived

        def settled() -> str:
            nonlocal full
            if download.queued == source.sent:
                return "taken"
            data, segments = download.arrived
            if data != full[0] or not download.is_probed:
                full = data, segments
            # Two window probes have arrived: segments without data. One could be a bare
            # acknowledgement while the window still has room.
            return "full" if segments >= full[1] + 2 else ""

        what = "the kernel has taken all, or has a closed window"
        if await self.eventually(settled, what, 60) == "taken":
            return True
        # After two responses it has written all that the kernel accepts.
        await received()
        await received()
        return download.queued == source.sent


def kernel_socket(port: int, peer: int) -> KernelSocket:
    """Return the kernel's data about the socket at ``port`` (sock_diag(7)).

    In ``/proc/net/tcp`` it would be one of thousands, most of them closed ones of other tests.
    """
    head = struct.pack("=BBxxI", socket.AF_INET, socket.IPPROTO_TCP, 0xFFFFFFFF)
    ports, address = struct.pack("!HH", port, peer), socket.inet_aton("127.0.0.1").ljust(16, b"\0")
    request = head + ports + address + address + struct.pack("=Iq", 0, -1)
    with NetlinkSocket(NETLINK_SOCK_DIAG) as netlink:
        found = netlink.get(raw_request(request, SOCK_DIAG_BY_FAMILY, GET))
    timer, found_ports, unread, unacknowledged = _INET_DIAG_MSG.unpack_from(found)
    # Without a connection it is the listening socket.
    if found_ports != ports:
        raise AssertionError(f"no connection between the ports {port} and {peer}")
    return KernelSocket(unacknowledged, unread, timer)


class TwistedStoppingTests(TwistedTransports, StoppingTests):
    """The same over Twisted's own transports."""


class TlsTests(EndToEndTestCase):
    """CONNECT over TLS, where the end of the target closes the connection."""

    async def test_a_caller_that_pauses_gets_everything(self) -> None:
        """It may pause for longer than the timeout of closing."""
        size = 6 * RECEIVE_BUFFER
        source = self.listen(lambda: Source(size))
        port = free_ports.take()
        tunnel = await self.start_tunnel(server_extra=("--connect-endpoint", f"ssl:{port}"))
        download = partial(tls_download, tunnel.server.state, port, source.port, LINGER + 2)
        digest = await self.within(30, deferToThread(download), "the download")
        self.assertEqual(digest, source.peers[0].payload.digest)


class TwistedTlsTests(TwistedTransports, TlsTests):
    """The same over Twisted's own transports."""
