"""Invalid bytes on every port give an error, and neither a crash nor a leak."""

from __future__ import annotations

import os

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, UNIXClientEndpoint
from twisted.internet.error import ConnectError

from tests.e2e.certificates import authority_of, connect_with_tls, identity_of
from tests.e2e.clients import Echo, RequestClient, connect_directly
from tests.e2e.hostile import HostileTestCase

DEADLINE = 10.0
"""Seconds for TLS handshake and HELLO, and for a CONNECT head."""


class GarbageTests(HostileTestCase):
    """Invalid bytes on every port."""

    async def test_garbage_on_every_port_is_survived(self) -> None:
        """Noise, HTTP to TLS, TLS to HTTP, nothing at all: answered or closed, never a crash."""
        tunnel = await self.start_tunnel(forwards=(1,))
        await self.still_serves(tunnel)
        before = [(p, p.descriptors()) for p in (tunnel.server, tunnel.agent)]
        noise = [
            b"",
            bytes(range(256)) * 256,
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            bytes.fromhex("160301020001000200030303") + os.urandom(500),
            b"\x00" * 70000,
            b"CONNECT edge-1:80 HTTP/1.1\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
            b"CONNECT " + b"e" * 70_000 + b":80 HTTP/1.1\r\n\r\n",
            b"CONNECT edge-1:80\x00 HTTP/1.1\r\n\r\n",
            b"CONNECT edge-1:80 HTTP/1.1\r\nX-Tunnel-Proxy-Host: a\rb\r\n\r\n",
            b"connect edge-1:80 HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]
        unix = UNIXClientEndpoint(reactor, tunnel.socket_path)
        frontends = [unix] + [
            TCP4ClientEndpoint(reactor, "127.0.0.1", port)
            for port in (
                tunnel.server.agent_port,
                tunnel.server.meta_port,
                tunnel.agent.meta_port,
                tunnel.forward_ports[0],
            )
        ]
        for door in frontends:
            for text in noise:
                try:
                    peer = await connect_directly(door, RequestClient(text, finish=True))
                except ConnectError:
                    # The forward has no destination: its reset may arrive before the client knows
                    # that it is connected.
                    self.assertIs(door, frontends[-1])
                    continue
                self._end_peer_with_test(peer)
                await self.within(
                    DEADLINE + 5, peer.when_ended(), f"{text[:40]!r} is answered or closed"
                )
                self.assertNotIn(b" 200 Connection", peer.answer)
                peer.drop()
                await peer.when_lost()
        await self.still_serves(tunnel)
        for program, descriptors in before:
            await self.descriptors_return(program, descriptors)

    async def test_garbage_after_the_handshake_ends_that_connection_only(self) -> None:
        """A peer with a valid certificate that sends invalid frames loses its connection."""
        tunnel = await self.start_tunnel()
        trusted = authority_of(tunnel.server.state).certificate
        identity = identity_of(tunnel.agent.state)
        for text in (os.urandom(5000), b"\xff" * 5000, b"\x00" * 5000):
            peer = await connect_with_tls(
                reactor, tunnel.server.agent_port, RequestClient(text), trusted, identity
            )
            self._end_peer_with_test(peer)
            await self.within(DEADLINE + 5, peer.when_lost(), "the connection ends")
        await self.still_serves(tunnel)

    async def test_a_burst_of_half_done_requests_leaves_nothing(self) -> None:
        """Five hundred callers that disconnect in the middle of CONNECT leave no descriptor."""
        tunnel = await self.start_tunnel()
        echo = self.listen(Echo)
        await self.still_serves(tunnel)
        before = [(p, p.descriptors()) for p in (tunnel.server, tunnel.agent)]
        request = f"CONNECT 127.0.0.1:{echo.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        unix = UNIXClientEndpoint(reactor, tunnel.socket_path)

        async def vanish(number: int) -> None:
            text = request[: number % (len(request) + 1)] if number % 2 else request
            peer = await connect_directly(unix, RequestClient(text))
            peer.drop()
            await peer.when_lost()

        for batch in range(10):
            numbers = range(batch * 50, batch * 50 + 50)
            await gatherResults([Deferred.fromCoroutine(vanish(n)) for n in numbers])
        await self.still_serves(tunnel)
        for program, descriptors in before:
            await self.descriptors_return(program, descriptors)
