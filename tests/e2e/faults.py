"""A TCP proxy that breaks connections in the ways that networks do.

It runs in the process of the test, between an agent and its server. The test controls all faults:
none happens by itself or at a random time.
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
"""The default maximum of delayed bytes in a direction."""

SEGMENT = 1400
"""The size in bytes of a TCP segment as on a real network."""


@dataclass
class Toxics:
    """The faults of a direction; the default is none.

    ``latency`` is in seconds, ``bandwidth`` in bytes a second, ``slice_size`` the largest
    piece in bytes that is written at once (pieces get 1 to that many bytes), ``limit`` the
    number of bytes after which the connection is reset, ``queue`` the number of delayed bytes at
    which reading is paused.
    """

    latency: float = 0.0
    bandwidth: float | None = None
    slice_size: int | None = None
    limit: int | None = None
    queue: int = QUEUE_BOUND

    @property
    def idle(self) -> bool:
        """Whether bytes may pass unchanged."""
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
        """Forward bytes that the source sent."""
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
        """Forward the source's FIN, behind the delayed bytes."""
        if self.stopped or self.discarding:
            return
        self._ended = True
        if not self._pending:
            self._sink.transport.unregisterProducer()
            self._sink.transport.loseWriteConnection()

    def stop(self) -> None:
        """Stop reading and forwarding, without closing anything."""
        self.stopped = True
        self._cancel_all()
        self._source.transport.pauseProducing()

    def discard(self) -> None:
        """Continue to read, and drop the data: TCP acknowledges it to the sender."""
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
        """Drop the delayed bytes: the sink is closed."""
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
        # The call is its own argument, so that it can be removed from the pending ones.
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
    """One proxied connection: ``up`` is the direction to the server, ``down`` the other one."""

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
        """Whether both sides are connected and bytes pass."""
        return not (self._silent or self.client.lost or self.server.lost)

    def passes(self, direction: Direction) -> bool:
        """Return whether bytes from a direction may pass, by :attr:`FaultProxy.turns`."""
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
        """Stop forwarding in both directions, without closing anything."""
        self._silent = True
        self.up.stop()
        self.down.stop()

    def swallow(self) -> None:
        """Like :meth:`black_hole`, but read and drop what the senders send."""
        self._silent = True
        self.up.discard()
        self.down.discard()

    def forget(self) -> None:
        """Behave like a NAT that lost its table: RST to the client, silence to the server."""
        self.black_hole()
        self.client.transport.abortConnection()

    def cut_off(self) -> None:
        """Do the reverse of :meth:`forget`: RST to the server, silence to the client."""
        self.black_hole()
        self.server.transport.abortConnection()

    def end_lost(self, end: _End, reason) -> None:
        """Record that a socket is closed, and close the other one unless this link is silent."""
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
        """Abort both sockets at the end of a test."""
        for end in (self.client, self.server):
            end.direction.stopProducing()
            if not end.lost:
                end.transport.abortConnection()


class FaultProxy:
    """Listens on a loopback port, and forwards connections to ``target_port``.

    ``up`` and ``down`` are the :class:`Toxics` of connections, shared by all of them and
    changeable at any time. ``turns`` is how often the sending side of a connection may alternate:
    later data is dropped, so that a handshake stops there, while the end of one side still reaches
    the other. ``None`` means unlimited.
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
        # While it is closed, an outgoing connection might take a port from the ephemeral range.
        self.port = free_ports.take()

    def start(self, receive_buffer: int | None = None) -> None:
        """Listen; the port stays the same.

        With ``receive_buffer`` the kernel buffers about twice as many unread bytes of each accepted
        connection, instead of some MiB, and they arrive in segments of the size that networks have.
        """
        factory = Factory.forProtocol(_End)
        factory.buildProtocol = self._build
        self._listener = self._reactor.listenTCP(self.port, factory, interface="127.0.0.1")
        if receive_buffer is not None:
            listener = self._listener.socket
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            # On loopback a segment may be larger than the whole buffer, and is delayed then.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)

    async def refuse(self) -> None:
        """Close the listening port, so that new connections are refused."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.stopListening()

    async def stop(self) -> None:
        """Close everything, and wait until all sockets are closed."""
        await self.refuse()
        for attempt in list(self._half_open):
            attempt.cancel()
        for link in list(self.links):
            link.close()

    def for_all(self, fault: str) -> int:
        """Call the named method on each working :class:`Link`; return their number."""
        live = [link for link in self.links if link.works]
        for link in live:
            getattr(link, fault)()
        return len(live)

    def _build(self, address: IPv4Address) -> _End:
        self.accepted += 1
        return _Accepted(self)

    def join(self, client: _End) -> None:
        """Connect to the target for ``client``, which is paused until then."""
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
    """The link of a socket that has no partner."""

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
    """A port with a full backlog: connection attempts stay unanswered until there is room."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port = self._listener.getsockname()[1]
        # A backlog of 0 has room for one.
        self._filler = socket.create_connection(("127.0.0.1", self.port), 5)

    def make_room(self) -> None:
        """Accept the queued connection, so that another one succeeds within a few seconds."""
        accepted, _ = self._listener.accept()
        accepted.close()

    def close(self) -> None:
        """Close the port; pending connection attempts are refused."""
        self._filler.close()
        self._listener.close()
