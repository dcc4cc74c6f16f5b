"""A TCP proxy that breaks connections in the ways networks do.

It runs in the test's own process, between an agent and its server, and is commanded by the
test: no fault happens by itself or at a random time.
"""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass

from twisted.internet.address import IPv4Address
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Factory, Protocol
from zope.interface import implementer

from benchmarks.ports import free_ports

QUEUE_BOUND = 4 * 1024 * 1024
"""Delayed bytes that a direction holds, unless told otherwise."""

SEGMENT = 1400
"""Bytes of a segment of TCP, where that is to be as on a real line."""


@dataclass
class Toxics:
    """What a direction does to the bytes that pass; the default is nothing.

    ``latency`` is in seconds, ``bandwidth`` in bytes a second, ``slice_size`` the largest
    piece in bytes that is written at once (pieces get 1 to that many bytes), ``limit`` the
    number of bytes after which the connection is reset, ``queue`` how many delayed bytes are held
    before no more is read.
    """

    latency: float = 0.0
    bandwidth: float | None = None
    slice_size: int | None = None
    limit: int | None = None
    queue: int = QUEUE_BOUND

    @property
    def idle(self) -> bool:
        """Whether bytes may pass straight through."""
        return not self.latency and self.bandwidth is None and self.slice_size is None


@implementer(IPushProducer)
class Direction:
    """One direction of a link: bytes from ``source`` to ``sink``."""

    def __init__(self, reactor, link, source, sink, toxics) -> None:
        self._reactor = reactor
        self._link = link
        self._source = source
        self._sink = sink
        self.toxics = toxics
        self.passed = 0
        self.stopped = False
        self.discarding = False
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._free_at = 0.0
        self._pending: set = set()
        self._ended = False
        self._sink_full = False

    def data(self, data: bytes) -> None:
        """Carry bytes that the source sent."""
        if self.discarding or not self._link.passes(self):
            return
        limit = self.toxics.limit
        if limit is not None and self.passed + len(data) >= limit:
            self._link.reset()
            return
        self.passed += len(data)
        if self.toxics.idle and not self._pending:
            self._sink.transport.write(data)
            return
        for piece in self._pieces(data):
            self._schedule(piece)
        if self._queued > self.toxics.queue:
            self._source.transport.pauseProducing()

    def end(self) -> None:
        """Pass the source's FIN on, behind the bytes that are still under way."""
        if self.stopped or self.discarding:
            return
        self._ended = True
        if not self._pending:
            self._sink.transport.unregisterProducer()
            self._sink.transport.loseWriteConnection()

    def stop(self) -> None:
        """Read no more and pass nothing on, without closing anything."""
        self.stopped = True
        self._cancel_all()
        self._source.transport.pauseProducing()

    def discard(self) -> None:
        """Go on reading and drop what is read: the sender believes it has been delivered."""
        self.discarding = True
        self._cancel_all()

    def pauseProducing(self) -> None:
        """Stop reading: the sink's buffer is full."""
        self._sink_full = True
        self._source.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Read again, unless the direction has been stopped."""
        self._sink_full = False
        if not self.stopped and self._queued <= self.toxics.queue:
            self._source.transport.resumeProducing()

    def stopProducing(self) -> None:
        """Drop what is under way: the sink has gone."""
        self._cancel_all()

    def _pieces(self, data: bytes):
        size = self.toxics.slice_size
        if size is None:
            yield data
            return
        position, length = 0, 1
        while position < len(data):
            yield data[position : position + length]
            position += length
            length = length % size + 1

    def _schedule(self, piece: bytes) -> None:
        now = self._reactor.seconds()
        if self.toxics.bandwidth:
            self._free_at = max(now, self._free_at) + len(piece) / self.toxics.bandwidth
        due = max(now, self._free_at) + self.toxics.latency
        self._queued += len(piece)
        self._queue.append(piece)
        call = self._reactor.callLater(due - now, self._release, ())
        # The call carries itself so that it can leave the set of pending ones.
        call.args = (call,)
        self._pending.add(call)

    def _release(self, call) -> None:
        self._pending.discard(call)
        piece = self._queue.popleft()
        self._queued -= len(piece)
        self._sink.transport.write(piece)
        if self._ended and not self._pending:
            self.end()
        elif not self._sink_full and not self.stopped and self._queued <= self.toxics.queue:
            self._source.transport.resumeProducing()

    def _cancel_all(self) -> None:
        for call in self._pending:
            call.cancel()
        self._pending.clear()
        self._queue.clear()
        self._queued = 0


@implementer(IHalfCloseableProtocol)
class _End(Protocol):
    """One of the two sockets of a link."""

    direction: Direction
    link: Link
    lost = False

    def dataReceived(self, data: bytes) -> None:
        self.direction.data(data)

    def readConnectionLost(self) -> None:
        self.direction.end()

    def writeConnectionLost(self) -> None:
        """Do nothing: the proxy ended that direction itself."""

    def connectionLost(self, reason) -> None:
        self.lost = True
        self.link.end_lost(self, reason)


class Link:
    """One proxied connection: ``up`` carries client to server, ``down`` the other way."""

    def __init__(self, reactor, client: _End, server: _End, proxy: FaultProxy) -> None:
        self.client = client
        self.server = server
        self._proxy = proxy
        self._silent = False
        self._turns = 0
        self._speaker: Direction | None = None
        self.held = False
        self.up = Direction(reactor, self, client, server, proxy.up)
        self.down = Direction(reactor, self, server, client, proxy.down)
        client.direction, server.direction = self.up, self.down
        client.link = server.link = self
        server.transport.registerProducer(self.up, True)
        client.transport.registerProducer(self.down, True)

    @property
    def works(self) -> bool:
        """Whether both sides are there and bytes pass."""
        return not (self._silent or self.client.lost or self.server.lost)

    def passes(self, direction: Direction) -> bool:
        """Whether bytes that come in a direction may pass, by :attr:`FaultProxy.turns`."""
        if direction is not self._speaker:
            self._speaker = direction
            self._turns += 1
        most = self._proxy.turns
        if most is not None and self._turns > most:
            self.held = True
        return not self.held

    def reset(self) -> None:
        """Send RST to both sides."""
        self.client.transport.abortConnection()
        self.server.transport.abortConnection()

    def black_hole(self) -> None:
        """Carry nothing more in either direction, and close nothing."""
        self._silent = True
        self.up.stop()
        self.down.stop()

    def swallow(self) -> None:
        """Like :meth:`black_hole`, but take bytes off the senders' hands and drop them."""
        self._silent = True
        self.up.discard()
        self.down.discard()

    def forget(self) -> None:
        """Do what a NAT that lost its table does: RST to the client, silence to the server."""
        self.black_hole()
        self.client.transport.abortConnection()

    def cut_off(self) -> None:
        """Do the reverse of :meth:`forget`: RST to the server, silence to the client."""
        self.black_hole()
        self.server.transport.abortConnection()

    def end_lost(self, end: _End, reason) -> None:
        """Take note that a socket has gone, and let the other follow unless silent."""
        other = self.server if end is self.client else self.client
        if not other.lost and not self._silent:
            if reason.check(ConnectionDone):
                other.transport.unregisterProducer()
                other.transport.loseConnection()
            else:
                other.transport.abortConnection()
        end.direction.stopProducing()
        if end.lost and other.lost:
            self._proxy.links.discard(self)

    def close(self) -> None:
        """End both sockets at once, at the end of a test."""
        for end in (self.client, self.server):
            end.direction.stopProducing()
            if not end.lost:
                end.transport.abortConnection()


class FaultProxy:
    """Listens on a loopback port and carries connections to ``target_port``.

    ``up`` and ``down`` are the :class:`Toxics` of connections, shared by all of them and
    changeable at any time. ``turns`` is how often the two sides may take turns in speaking on a
    connection: what comes after is dropped, so that its handshake stays where it is, while the
    end of one side still reaches the other. ``None`` is without end.
    """

    def __init__(self, reactor, target_port: int) -> None:
        self._reactor = reactor
        self._target_port = target_port
        self.up = Toxics()
        self.down = Toxics()
        self.turns: int | None = None
        self.links: set[Link] = set()
        self.accepted = 0
        self._listener = None
        self._half_open: set = set()
        # While it is closed, an outgoing connection may take a port that the kernel has chosen.
        self.port = free_ports.take()

    def start(self, receive_buffer: int | None = None) -> None:
        """Listen, always on the same port.

        With ``receive_buffer`` the kernel keeps about twice as many bytes of each accepted
        connection that have not been read, where it otherwise keeps up to some MiB, and these come
        in segments of the size that networks have.
        """
        factory = Factory.forProtocol(_End)
        factory.buildProtocol = self._build
        self._listener = self._reactor.listenTCP(self.port, factory, interface="127.0.0.1")
        if receive_buffer is not None:
            listener = self._listener.socket
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            # On loopback a segment may be larger than the whole buffer, and waits for room then.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)

    async def refuse(self) -> None:
        """Close the listening port, so that new connections are refused."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.stopListening()

    async def stop(self) -> None:
        """Close everything and wait until each socket has gone."""
        await self.refuse()
        for attempt in list(self._half_open):
            attempt.cancel()
        for link in list(self.links):
            link.close()

    def for_all(self, fault: str) -> int:
        """Apply the named method of :class:`Link` to each link that works; how many there were."""
        live = [link for link in self.links if link.works]
        for link in live:
            getattr(link, fault)()
        return len(live)

    def _build(self, address: IPv4Address) -> _End:
        self.accepted += 1
        return _Accepted(self)

    def join(self, client: _End) -> None:
        """Connect the other half for ``client``, which stays paused until then."""
        endpoint = TCP4ClientEndpoint(self._reactor, "127.0.0.1", self._target_port)
        attempt = endpoint.connect(Factory.forProtocol(_End))
        self._half_open.add(attempt)

        def connected(server: _End) -> None:
            if client.lost:
                server.link = _Detached()
                server.transport.abortConnection()
                return
            self.links.add(Link(self._reactor, client, server, self))
            client.transport.resumeProducing()

        def failed(reason) -> None:
            reason.trap(Exception)
            if not client.lost:
                client.transport.abortConnection()

        def done(result):
            self._half_open.discard(attempt)
            return result

        attempt.addBoth(done)
        attempt.addCallbacks(connected, failed)


class _Detached:
    """Stands in for the link of a socket that has no partner."""

    def end_lost(self, end, reason) -> None:
        reason.trap(ConnectionDone, ConnectionLost, Exception)


class _Accepted(_End):
    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self.link = _Detached()

    def connectionMade(self) -> None:
        self.transport.pauseProducing()
        self._proxy.join(self)


class FullQueue:
    """A port whose connections nobody takes: who connects hears nothing until there is room."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port = self._listener.getsockname()[1]
        # A queue of 0 has room for one.
        self._filler = socket.create_connection(("127.0.0.1", self.port), 5)

    def make_room(self) -> None:
        """Take what has waited, so that one more connection is made, in a few seconds at most."""
        accepted, _ = self._listener.accept()
        accepted.close()

    def close(self) -> None:
        """Close the port; who still tries to connect is refused."""
        self._filler.close()
        self._listener.close()
