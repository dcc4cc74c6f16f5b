"""Upgrades through the ports for requests to kubelets, as by exec, attach and port-forward."""

from __future__ import annotations

import hashlib

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPullProducer
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection
from wsproto.utilities import generate_accept_token
from zope.interface import implementer

from tests.e2e.clients import Echo, Payload, Peer, RequestClient
from tests.e2e.http_clients import ChunkedUpload
from tests.e2e.interception import Frontend, InterceptionTestCase
from tests.e2e.kubelets import HELLO, Request, hello, response_head, routes
from tests.e2e.programs import MEBIBYTE

BULK = 100_000_000
"""Bytes that an upgraded connection carries each way."""

CUT = 30_000_000
"""The same while the connection below is cut, which is three times."""

SWITCH = [(b"Connection", b"Upgrade"), (b"Upgrade", b"SPDY/3.1")]

REFUSAL = b"no upgrade for you\n" * 200_000
"""A body of several megabytes."""


@implementer(IPullProducer)
class Duplex(Peer):
    """Sends ``size`` bytes while it receives as many from the other end.

    With ``ends`` it closes its direction after sending everything; otherwise its user closes the
    connection.
    """

    def __init__(self, size: int, ends: bool = False) -> None:
        super().__init__()
        self.payload = Payload(size)
        self._size = size
        self._ends = ends
        self._hash = hashlib.sha256()
        self._waiting: list[tuple[int, Deferred[None]]] = []

    @property
    def digest(self) -> str:
        """The SHA-256 of all received data."""
        return self._hash.hexdigest()

    def connectionMade(self) -> None:
        """Begin to send."""
        super().connectionMade()
        self.transport.registerProducer(self, False)

    def dataReceived(self, data: bytes) -> None:
        """Count, hash, and notify waiters."""
        super().dataReceived(data)
        self._hash.update(data)
        while self._waiting and self.received >= self._waiting[0][0]:
            self._waiting.pop(0)[1].callback(None)

    def connectionLost(self, reason) -> None:
        """Fail the waiters."""
        super().connectionLost(reason)
        while self._waiting:
            self._waiting.pop()[1].errback(reason)

    def has_received(self, size: int | None = None) -> Deferred[None]:
        """Fire once ``size`` bytes have been received, by default all."""
        waiter: Deferred[None] = Deferred()
        size = self._size if size is None else size
        if self.received >= size:
            waiter.callback(None)
        elif self.lost_reason is not None:
            waiter.errback(self.lost_reason)
        else:
            self._waiting.append((size, waiter))
        return waiter

    def resumeProducing(self) -> None:
        """Write the next piece."""
        data = self.payload.take()
        if data:
            self.transport.write(self.encoded(data))
            return
        self.transport.unregisterProducer()
        if self._ends:
            self.transport.loseWriteConnection()

    def stopProducing(self) -> None:
        """Do nothing: ``connectionLost`` reports why."""

    def encoded(self, data: bytes) -> bytes:
        """Return the encoding of a piece of the payload."""
        return data


class WebSocketDuplex(Duplex):
    """The same in binary messages of a WebSocket."""

    def __init__(self, size: int, kind: ConnectionType) -> None:
        super().__init__(size)
        self._websocket = Connection(kind)
        self.closed = False

    def dataReceived(self, data: bytes) -> None:
        """Decode messages."""
        self._websocket.receive_data(data)
        for event in self._websocket.events():
            if isinstance(event, BytesMessage):
                super().dataReceived(bytes(event.data))
            elif isinstance(event, CloseConnection):
                self.closed = True
                if self._websocket.state.name == "REMOTE_CLOSING":
                    self.transport.write(self._websocket.send(event.response()))
                self.transport.loseConnection()

    def encoded(self, data: bytes) -> bytes:
        """Return one message."""
        return self._websocket.send(BytesMessage(data))

    def close(self) -> None:
        """Begin the closing handshake."""
        self.transport.write(self._websocket.send(CloseConnection(code=1000)))


class Leaver(Peer):
    """Resets its connection when data arrives."""

    def dataReceived(self, data: bytes) -> None:
        """Reset the connection."""
        self.drop()


class UpgradeTests(InterceptionTestCase):
    """Upgraded connections are relayed unchanged, whatever the protocol."""

    async def test_a_raw_upgrade_carries_a_hundred_megabytes_each_way(self) -> None:
        """Both directions at once, through both ports, with the same SHA-256 at both ends."""
        far: dict[bool, Duplex] = {}

        async def raw(request: Request) -> None:
            await request.ended()
            secure = request.connection.is_secure
            far[secure] = Duplex(BULK, ends=not secure)
            request.switch(far[secure], SWITCH)

        tunnel, frontends = await self.start_with_frontends(raw)
        before = self.descriptors_of(tunnel)
        for door in frontends:
            client = await door.client()
            near = Duplex(BULK, ends=not door.secure)
            answer = await client.upgrade("/exec/a/b/c?command=sh", near).whole()
            self.assertEqual(answer.status, 101, answer.text)
            self.assertEqual(answer.values(b"upgrade"), [b"SPDY/3.1"])
            self.assertEqual([v.lower() for v in answer.values(b"connection")], [b"upgrade"])
            await self.carries(door, near, far[door.secure])
            if not door.secure:
                # Both ends have ended their direction, each when it had sent everything.
                await self.within(5, near.when_read_ended(), "the kubelet's end has come")
                await self.within(5, far[False].when_read_ended(), "the client's end has come")
                far[False].transport.loseConnection()
            client.transport.loseConnection()
            await self.within(5, far[door.secure].when_lost(), "the kubelet's connection ends")
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def carries(self, door: Frontend, near: Duplex, far: Duplex) -> None:
        """Require that everything arrives as it was sent."""
        started = reactor.seconds()
        await self.within(25, near.has_received(), f"{door.name}: the client has everything")
        await self.within(25, far.has_received(), f"{door.name}: the kubelet has everything")
        self.assertEqual((near.received, far.received), (BULK, BULK), door.name)
        self.assertEqual(near.digest, far.payload.digest, door.name)
        self.assertEqual(far.digest, near.payload.digest, door.name)
        rate = 2 * BULK / MEBIBYTE / (reactor.seconds() - started)
        print(f"\n{door.name}: {type(near).__name__} at {rate:.0f} MiB/s, both ways together")

    async def test_a_websocket_carries_a_hundred_megabytes_each_way(self) -> None:
        """Binary messages in both directions through both ports, and the closing handshake."""
        far: dict[bool, WebSocketDuplex] = {}

        async def websocket(request: Request) -> None:
            await request.ended()
            (key,) = request.values(b"sec-websocket-key")
            protocols = request.values(b"sec-websocket-protocol")
            peer = far[request.connection.is_secure] = WebSocketDuplex(BULK, ConnectionType.SERVER)
            fields = [
                (b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"),
                (b"Sec-WebSocket-Accept", generate_accept_token(key)),
                (b"Sec-WebSocket-Protocol", protocols[0].split(b",")[0]),
            ]  # fmt: skip
            request.switch(peer, fields)

        tunnel, frontends = await self.start_with_frontends(websocket)
        before = self.descriptors_of(tunnel)
        key = b"dGhlIHNhbXBsZSBub25jZQ=="
        fields = [
            (b"Sec-WebSocket-Key", key), (b"Sec-WebSocket-Version", b"13"),
            (b"Sec-WebSocket-Protocol", b"v5.channel.k8s.io,v4.channel.k8s.io"),
        ]  # fmt: skip
        for door in frontends:
            client = await door.client()
            near = WebSocketDuplex(BULK, ConnectionType.CLIENT)
            upgrading = client.upgrade("/exec/a/b/c", near, b"websocket", fields, method="GET")
            answer = await upgrading.whole()
            self.assertEqual(answer.status, 101, answer.text)
            self.assertEqual(answer.values(b"sec-websocket-accept"), [generate_accept_token(key)])
            self.assertEqual(answer.values(b"sec-websocket-protocol"), [b"v5.channel.k8s.io"])
            await self.carries(door, near, far[door.secure])
            near.close()
            await self.within(5, near.when_lost(), "the client's connection ends")
            await self.within(5, far[door.secure].when_lost(), "the kubelet's connection ends")
            self.assertTrue(near.closed and far[door.secure].closed)
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def test_early_bytes_half_close_and_leaving(self) -> None:
        """Data after either head arrives; over TCP each direction is closed separately."""

        async def echo(request: Request) -> None:
            await request.ended()
            request.switch(Echo(), SWITCH, b"early answer, ")

        async def leave(request: Request) -> None:
            await request.ended()
            request.switch(Leaver(), SWITCH)

        tunnel, frontends = await self.start_with_frontends(routes(echo=echo, leave=leave))
        before = self.descriptors_of(tunnel)
        for door in frontends:
            client = await door.client()
            near = RequestClient()
            upgrading = client.upgrade("/echo", near, early=b"early question")
            self.assertEqual((await upgrading.whole()).status, 101)
            expected = b"early answer, early question"
            await self.eventually(lambda n=near, e=expected: n.answer == e, "early bytes arrive", 5)
            if not door.secure:
                # The response after the end of the client's direction still arrives.
                near.transport.write(b", late question")
                near.transport.loseWriteConnection()
                await self.within(5, near.when_read_ended(), "the kubelet's end has come")
                self.assertEqual(near.answer, expected + b", late question")
                await self.eventually(
                    lambda d=door: not d.kubelet.open, "the kubelet has closed", 2
                )
            # The kubelet's connection is closed with the client's.
            client.drop()
            client = await door.client()
            await client.upgrade("/echo", RequestClient()).whole()
            open_connections = door.kubelet.open
            client.drop()
            for connection in open_connections:
                await self.within(2, connection.when_lost(), "the kubelet's connection ends")
            # And the other way around.
            client = await door.client()
            near = RequestClient(b"go away")
            self.assertEqual((await client.upgrade("/leave", near).whole()).status, 101)
            await self.within(2, near.when_lost(), f"{door.name}: the client's connection ends")
            self.assertFalse(
                near.ended_cleanly, f"{door.name}: what breaks off does not look complete"
            )
            client.drop()
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def test_a_rejected_upgrade_is_complete(self) -> None:
        """A 403 with its body, in any framing, is a response; the connection stays usable."""

        async def refuse(request: Request) -> None:
            await request.ended()
            request.answer(403, b"you may not exec\n", [(b"X-Why", b"rbac")])

        async def refuse_at_length(request: Request) -> None:
            await request.ended()
            request.answer(403, REFUSAL)

        async def refuse_and_close(request: Request) -> None:
            await request.ended()
            request.send(response_head(403, [(b"Connection", b"close")]) + REFUSAL)
            request.finish_and_close()

        async def refuse_at_once(request: Request) -> None:
            request.answer(400, b"no such container\n")
            await request.ended()

        tunnel, frontends = await self.start_with_frontends(
            routes(
                refuse=refuse, refuse_at_length=refuse_at_length,
                refuse_and_close=refuse_and_close, refuse_at_once=refuse_at_once, hello=hello,
            )
        )  # fmt: skip
        before = self.descriptors_of(tunnel)
        for door in frontends:
            client = await door.client()
            for target, status, size in (
                ("/refuse", 403, 17),
                ("/refuse-at-length", 403, len(REFUSAL)),
                ("/refuse-and-close", 403, len(REFUSAL)),
                ("/refuse-at-once", 400, 18),
            ):
                named = f"{door.name}: {target}"
                peer = RequestClient()
                upgrading = client.upgrade(target, peer)
                answer = await self.within(5, upgrading.whole(), named)
                self.assertEqual((answer.status, answer.size), (status, size), named)
                if size == len(REFUSAL):
                    self.assertEqual(answer.digest, hashlib.sha256(REFUSAL).hexdigest(), named)
                self.assertIsNone(peer.transport, named)
                answer = await self.within(5, client.ask("/hello").whole(), named)
                self.assertEqual(answer.body, HELLO, named)
            self.assertEqual(client.unexpected, b"")
            client.drop()
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def test_cuts_of_the_agents_connection_lose_nothing(self) -> None:
        """After three resets an upgraded connection continues where it was."""
        far: list[Duplex] = []

        async def raw(request: Request) -> None:
            await request.ended()
            far.append(Duplex(CUT))
            request.switch(far[-1], SWITCH)

        async def download(request: Request) -> None:
            await request.ended()
            request.send(response_head(200, [(b"Transfer-Encoding", b"chunked")]))
            uploads.append(ChunkedUpload(request.connection.transport, CUT))

        uploads: list[ChunkedUpload] = []
        proxies = []

        def proxied(port: int) -> int:
            proxies.append(self.fault_proxy(port))
            return proxies[0].port

        tunnel, frontends = await self.start_with_frontends(
            routes(raw=raw, download=download), proxied=proxied
        )
        secure, plain = frontends
        before = self.descriptors_of(tunnel)
        client, other = await secure.client(), await plain.client()
        near = Duplex(CUT)
        self.assertEqual((await client.upgrade("/raw", near).whole()).status, 101)
        downloading = other.ask("/download")
        for part in (1, 2, 3):
            await self.within(20, near.has_received(part * CUT // 4), "the transfer goes on")
            accepted = proxies[0].accepted
            # Data that the server has already received arrives even without a connection.
            await self.eventually(
                lambda: proxies[0].for_all("reset") == 1, "one connection was there to cut"
            )
            await self.eventually(lambda n=accepted: proxies[0].accepted > n, "the agent is back")
        await self.within(20, near.has_received(), "the client has everything")
        await self.within(20, far[0].has_received(), "the kubelet has everything")
        self.assertEqual(near.digest, far[0].payload.digest)
        self.assertEqual(far[0].digest, near.payload.digest)
        answer = await self.within(20, downloading.whole(), "the download is complete")
        self.assertEqual((answer.size, answer.digest), (CUT, uploads[0].payload.digest))
        client.drop()
        other.drop()
        await self.assert_no_leftovers(tunnel, frontends, before)
