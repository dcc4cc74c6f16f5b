"""Clients and targets that count, hash and time the data that they exchange.

Both ends use the same protocols: a test dials with one through the tunnel, and a target is a
listening port that builds another.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass, field

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IPullProducer
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from zope.interface import implementer

CHUNK = 256 * 1024
"""The number of bytes that a source writes at once."""

HEAD_BOUND = 64 * 1024
"""The maximum length in bytes of a response to CONNECT."""


class Incomplete(Exception):
    """A connection ended too early."""


@implementer(IHalfCloseableProtocol)
class Peer(Protocol):
    """The base class of all clients and targets; records when and how its connection ended."""

    def __init__(self) -> None:
        self.received = 0
        self.read_ended = False
        self.lost_reason = None
        self.made: Deferred[None] = Deferred()
        self._lost_waiters: list[Deferred] = []
        self._end_waiters: list[Deferred] = []

    def connectionMade(self) -> None:
        """Notify the waiters that the connection is established."""
        self.made.callback(None)

    def dataReceived(self, data: bytes) -> None:
        """Count the received bytes."""
        self.received += len(data)

    def readConnectionLost(self) -> None:
        """Record that the other end has finished sending."""
        self.read_ended = True
        waiters, self._end_waiters = self._end_waiters, []
        for waiter in waiters:
            waiter.callback(None)

    def writeConnectionLost(self) -> None:
        """Do nothing: this end closed its direction itself."""

    def connectionLost(self, reason) -> None:
        """Record why the connection ended, and notify all waiters."""
        self.lost_reason = reason
        waiters, self._end_waiters = self._end_waiters, []
        for waiter in waiters:
            waiter.errback(Incomplete(f"the connection ended: {reason.value}"))
        lost, self._lost_waiters = self._lost_waiters, []
        for waiter in lost:
            waiter.callback(None)

    @property
    def ended_cleanly(self) -> bool:
        """Whether the connection has ended without an error."""
        return self.lost_reason is not None and bool(self.lost_reason.check(ConnectionDone))

    def when_lost(self) -> Deferred:
        """Fire once the connection has ended; ``lost_reason`` says why."""
        waiter: Deferred = Deferred()
        if self.lost_reason is not None:
            waiter.callback(None)
        else:
            self._lost_waiters.append(waiter)
        return waiter

    def when_read_ended(self) -> Deferred:
        """Fire once the other end has finished sending; fail if the connection breaks instead."""
        waiter: Deferred = Deferred()
        if self.read_ended:
            waiter.callback(None)
        elif self.lost_reason is not None:
            waiter.errback(Incomplete(f"the connection ended: {self.lost_reason.value}"))
        else:
            self._end_waiters.append(waiter)
        return waiter

    def when_ended(self) -> Deferred:
        """Fire once the other end has finished sending or the connection has broken.

        A Unix socket reports both to its peer in the same way, as end of file.
        """
        return self.when_read_ended().addErrback(lambda reason: reason.trap(Incomplete))

    def drop(self) -> None:
        """Abort the connection."""
        if self.transport is not None and self.lost_reason is None:
            self.transport.abortConnection()


class Payload:
    """``size`` bytes in which no two chunks are equal, so that every mix-up is detected.

    A ``size`` of `None` means unlimited. ``digest`` is the SHA-256 of the bytes returned so far.
    """

    _block = os.urandom(CHUNK)

    def __init__(self, size: int | None, hashed: bool = True) -> None:
        self._left = size
        self._number = 0
        self._hash = hashlib.sha256() if hashed else None
        self.sent = 0

    def take(self) -> bytes:
        """Return the next chunk; empty at the end."""
        length = CHUNK if self._left is None else min(CHUNK, self._left)
        if length == 0:
            return b""
        self._number += 1
        chunk = (struct.pack("!Q", self._number) + self._block[8:])[:length]
        if self._left is not None:
            self._left -= length
        self.sent += length
        if self._hash is not None:
            self._hash.update(chunk)
        return chunk

    def finish(self) -> None:
        """End the payload."""
        self._left = 0

    @property
    def digest(self) -> str:
        """Return the SHA-256 of everything returned so far, in hexadecimal."""
        return self._hash.hexdigest() if self._hash is not None else ""


@implementer(IPullProducer)
class Sender(Peer):
    """Sends ``payload`` as fast as the transport accepts it, then its FIN."""

    payload: Payload

    def resumeProducing(self) -> None:
        """Write the next chunk: the last one has been sent."""
        chunk = self.payload.take()
        if chunk:
            self.transport.write(chunk)
        else:
            self.transport.unregisterProducer()
            self.transport.loseWriteConnection()

    def stopProducing(self) -> None:
        """Do nothing: the connection is lost, and ``connectionLost`` gets the reason."""


class Source(Sender):
    """Sends a payload at once."""

    def __init__(self, size: int | None = None, hashed: bool = True) -> None:
        super().__init__()
        self.payload = Payload(size, hashed)
        self.answer = b""

    def connectionMade(self) -> None:
        """Start sending."""
        super().connectionMade()
        self.transport.registerProducer(self, False)

    def dataReceived(self, data: bytes) -> None:
        """Store the response, for example the sink's digest."""
        super().dataReceived(data)
        self.answer = (self.answer + data)[:HEAD_BOUND]


class Sink(Peer):
    """Hashes the data; responds with the SHA-256 in hexadecimal once the sender has finished."""

    def __init__(self, hashed: bool = True) -> None:
        super().__init__()
        self._hash = hashlib.sha256() if hashed else None

    def dataReceived(self, data: bytes) -> None:
        """Count and hash."""
        self.received += len(data)
        if self._hash is not None:
            self._hash.update(data)

    def readConnectionLost(self) -> None:
        """Respond and close."""
        self.transport.write(self.digest.encode())
        self.transport.loseConnection()
        super().readConnectionLost()

    @property
    def digest(self) -> str:
        """Return the SHA-256 of everything received so far, in hexadecimal."""
        return self._hash.hexdigest() if self._hash is not None else ""


class Download(Sink):
    """The client's end of a download: hashes the data, and closes once the sender has finished."""

    def readConnectionLost(self) -> None:
        """Close without a response."""
        self.transport.loseConnection()
        Peer.readConnectionLost(self)


class Echo(Peer):
    """Sends the received data back, and closes once the sender has finished."""

    def connectionMade(self) -> None:
        """Send without delay, as interactive programs do."""
        self.transport.setTcpNoDelay(True)
        super().connectionMade()

    def dataReceived(self, data: bytes) -> None:
        """Send the data back."""
        self.received += len(data)
        self.transport.write(data)

    def readConnectionLost(self) -> None:
        """Close once the pending data has been sent."""
        self.transport.loseConnection()
        super().readConnectionLost()


class Stalled(Peer):
    """Reads ``read_limit`` bytes at full speed, then stops reading."""

    def __init__(self, read_limit: int = 0) -> None:
        super().__init__()
        self._read_limit = read_limit

    def connectionMade(self) -> None:
        """Stop reading at once if ``read_limit`` is 0."""
        super().connectionMade()
        self._stop_when_full()

    def dataReceived(self, data: bytes) -> None:
        """Count the bytes, and stop reading at the limit."""
        super().dataReceived(data)
        self._stop_when_full()

    @property
    def full(self) -> bool:
        """Whether it has stopped reading."""
        return self.received >= self._read_limit

    def _stop_when_full(self) -> None:
        if self.full:
            self.transport.pauseProducing()


class RequestClient(Peer):
    """Sends ``text`` (with ``finish``, its FIN follows) and stores the whole response."""

    def __init__(self, text: bytes = b"", finish: bool = False) -> None:
        super().__init__()
        self._text = text
        self._finish = finish
        self.answer = b""

    def connectionMade(self) -> None:
        """Send the request."""
        super().connectionMade()
        if self._text:
            self.transport.write(self._text)
        if self._finish:
            self.transport.loseWriteConnection()

    def dataReceived(self, data: bytes) -> None:
        """Store the response."""
        super().dataReceived(data)
        self.answer = (self.answer + data)[:HEAD_BOUND]


class AnswerAfterEnd(Peer):
    """A target that sends nothing before the client's FIN, then responds and closes."""

    def __init__(self) -> None:
        super().__init__()
        self._text = b""

    def dataReceived(self, data: bytes) -> None:
        """Store the request."""
        super().dataReceived(data)
        self._text = (self._text + data)[:HEAD_BOUND]

    def readConnectionLost(self) -> None:
        """Respond."""
        self.transport.write(b"got:" + self._text)
        self.transport.loseConnection()
        super().readConnectionLost()


class HalfClosingTarget(Peer):
    """A target that sends a greeting and its FIN, and continues to receive."""

    def __init__(self) -> None:
        super().__init__()
        self.text = b""

    def connectionMade(self) -> None:
        """Send the greeting and the FIN."""
        super().connectionMade()
        self.transport.write(b"hello")
        self.transport.loseWriteConnection()

    def dataReceived(self, data: bytes) -> None:
        """Store the data received after this end's FIN."""
        super().dataReceived(data)
        self.text = (self.text + data)[:HEAD_BOUND]


@dataclass
class Latencies:
    """The durations of round trips in seconds."""

    samples: list[float] = field(default_factory=list)

    def percentile(self, percent: float) -> float:
        """Return the smallest sample that ``percent`` of all do not exceed; 0 without samples."""
        ordered = sorted(self.samples)
        if not ordered:
            return 0.0
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def __str__(self) -> str:
        """Return count, median, p99 and maximum in milliseconds."""
        p50, p99 = self.percentile(50) * 1000, self.percentile(99) * 1000
        worst = max(self.samples, default=0.0) * 1000
        return f"n={len(self.samples)} p50={p50:.1f} ms p99={p99:.1f} ms max={worst:.1f} ms"


class EchoClient(Peer):
    """An interactive client: sends a small message, waits for the echo, pauses, sends the next one.

    ``interval`` is the pause in seconds. Each echo must equal the message.
    """

    def __init__(self, reactor, interval: float = 0.005) -> None:
        super().__init__()
        self._reactor = reactor
        self._interval = interval
        self._number = 0
        self._expected = b""
        self._got = b""
        self._answered: Deferred[None] | None = None
        self.latencies = Latencies()

    def connectionMade(self) -> None:
        """Send without delay (Unix sockets have no such option)."""
        if hasattr(self.transport, "setTcpNoDelay"):
            self.transport.setTcpNoDelay(True)
        super().connectionMade()

    def dataReceived(self, data: bytes) -> None:
        """Collect the echo."""
        super().dataReceived(data)
        self._got += data
        if len(self._got) >= len(self._expected) and self._answered is not None:
            answered, self._answered = self._answered, None
            answered.callback(None)

    def readConnectionLost(self) -> None:
        """Fail the current round trip: a reset of a Unix socket is reported like this."""
        super().readConnectionLost()
        self._cut_off("the other end has finished")

    def connectionLost(self, reason) -> None:
        """Fail the current round trip."""
        super().connectionLost(reason)
        self._cut_off(str(reason.value))

    def _cut_off(self, reason: str) -> None:
        if self._answered is not None:
            answered, self._answered = self._answered, None
            answered.errback(Incomplete(f"the echo was cut off: {reason}"))

    async def round_trip(self) -> float:
        """Send one message, and return the seconds until the echo was complete."""
        if self.lost_reason is not None:
            raise Incomplete(f"the echo was cut off: {self.lost_reason.value}")
        if self.read_ended:
            raise Incomplete("the echo was cut off: the other end has finished")
        self._number += 1
        self._expected = struct.pack("!Q", self._number) * 8
        self._got = b""
        self._answered = Deferred()
        started = self._reactor.seconds()
        answered = self._answered
        self.transport.write(self._expected)
        await answered
        if self._got != self._expected:
            raise Incomplete(f"message {self._number} came back altered: {self._got[:64]!r}")
        return self._reactor.seconds() - started

    async def run(self, keep_going) -> Latencies:
        """Make round trips while ``keep_going()`` is true; return the latencies of all of them."""
        while keep_going():
            self.latencies.samples.append(await self.round_trip())
            await deferLater(self._reactor, self._interval)
        return self.latencies


@dataclass
class ConnectAnswer:
    """The response to a CONNECT; ``peer`` runs only after a 200."""

    status: int
    headers: dict[str, str]
    body: str
    peer: Peer | None


@implementer(IHalfCloseableProtocol)
class _Connecting(Protocol):
    """Requests a tunnel, and passes the connection to ``peer`` once it is established."""

    def __init__(self, request: bytes, peer: Peer, early: bytes) -> None:
        self._request = request
        self._peer = peer
        self._early = early
        self._head = b""
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body: bytes | None = None
        self.answered: Deferred[ConnectAnswer] = Deferred()

    def connectionMade(self) -> None:
        self.transport.write(self._request + self._early)

    def dataReceived(self, data: bytes) -> None:
        if self._body is not None:
            self._body = (self._body + data)[:HEAD_BOUND]
            self._finish_if_complete()
            return
        self._head += data
        head, separator, rest = self._head.partition(b"\r\n\r\n")
        if not separator:
            if len(self._head) > HEAD_BOUND:
                self.transport.abortConnection()
            return
        lines = head.decode("latin-1").split("\r\n")
        self._status = int(lines[0].split(" ")[1])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self._headers[name.strip().lower()] = value.strip()
        if 200 <= self._status < 300:
            self._switch(rest)
        else:
            self._body = rest
            self._finish_if_complete()

    def readConnectionLost(self) -> None:
        self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        pass  # nothing follows: this end closed its direction itself

    def connectionLost(self, reason) -> None:
        if self._body is not None:
            self._finish()
        elif not self.answered.called:
            self.answered.errback(Incomplete(f"no answer to CONNECT: {reason.value}"))

    def _finish_if_complete(self) -> None:
        length = self._headers.get("content-length")
        if length is not None and len(self._body or b"") >= int(length):
            self._finish()
            self.transport.loseConnection()

    def _finish(self) -> None:
        if not self.answered.called:
            body = (self._body or b"").decode("utf-8", "replace")
            self.answered.callback(ConnectAnswer(self._status, self._headers, body, None))

    def _switch(self, rest: bytes) -> None:
        peer = self._peer
        self.transport.protocol = peer
        peer.makeConnection(self.transport)
        if rest:
            peer.dataReceived(rest)
        self.answered.callback(ConnectAnswer(self._status, self._headers, "", peer))


async def connect(
    endpoint, authority: str, peer: Peer, headers: dict[str, str] | None = None, early: bytes = b""
) -> ConnectAnswer:
    """Send ``CONNECT authority`` to ``endpoint``; ``peer`` takes the connection after a 200.

    ``early`` is sent together with the head, before any response. Raises :class:`Incomplete`
    if the connection ends without a response.
    """
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    request = ("\r\n".join(lines) + "\r\n\r\n").encode()
    asking = await endpoint.connect(Factory.forProtocol(lambda: _Connecting(request, peer, early)))
    return await asking.answered


async def connect_directly(endpoint, peer: Peer) -> Peer:
    """Connect ``peer`` to a TCP port, for example that of a forward."""
    await endpoint.connect(Factory.forProtocol(lambda: peer))
    return peer


class Target:
    """A listening port that builds a peer for each connection, and stores all of them."""

    def __init__(self, reactor, build, port: int = 0, address: str = "127.0.0.1") -> None:
        self.peers: list[Peer] = []
        self._build = build
        self._arrivals: list[Deferred[Peer]] = []
        factory = Factory.forProtocol(self._accept)
        self._listener = reactor.listenTCP(port, factory, interface=address)
        self.port = self._listener.getHost().port

    def _accept(self) -> Peer:
        peer = self._build()
        self.peers.append(peer)
        arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            arrival.callback(peer)
        return peer

    async def stop(self) -> None:
        """Close the port and all connections, and wait until they are closed."""
        await self._listener.stopListening()
        for peer in self.peers:
            if peer.transport is not None and peer.lost_reason is None:
                peer.drop()
                await peer.when_lost()


class HttpTarget(Peer):
    """A minimal HTTP server: responds to each request head with ``hello from the edge``."""

    BODY = b"hello from the edge\n"

    def __init__(self) -> None:
        super().__init__()
        self._head = b""

    def dataReceived(self, data: bytes) -> None:
        """Respond once the head is complete, and close."""
        super().dataReceived(data)
        self._head = (self._head + data)[:HEAD_BOUND]
        if b"\r\n\r\n" in self._head:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(self.BODY), self.BODY)
            )
            self.transport.loseConnection()

    def readConnectionLost(self) -> None:
        """Close after the client."""
        self.transport.loseConnection()
        super().readConnectionLost()


def is_broken(peer: Peer) -> bool:
    """Whether the peer's connection ended with an error and not with a FIN."""
    return peer.lost_reason is not None and bool(peer.lost_reason.check(ConnectionLost))
