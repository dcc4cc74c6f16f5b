"""Fakes without sockets: local connections, streams, and sessions of nodes.

``FakeStream`` passes the same contract tests as the real stream (``tests.tunnel.contract_stream``).
``MemoryConnection`` is Twisted's own buffering (``FileDescriptor``) without the socket.
"""

from __future__ import annotations

import datetime
from collections import deque
from ipaddress import ip_address, ip_network

from twisted.internet import main
from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.pki.identity import Identifiers
from yurttunnel.server.registry import INodeSession
from yurttunnel.tunnel.interfaces import IStream, StreamFailed
from yurttunnel.tunnel.shares import OTHER
from yurttunnel.tunnel.statistics import SessionSnapshot
from yurttunnel.tunnel.transports import IHalfCloseableTransport
from yurttunnel.wire.codes import Code


@implementer(IHalfCloseableTransport)
class MemoryConnection(FileDescriptor):
    """An accepted TCP connection without its socket.

    Data that the protocol writes stays in Twisted's buffer until :meth:`turn`, one iteration of the
    reactor; ``segments`` then has one item for each send. :meth:`receive` and :meth:`receive_end`
    simulate the peer; their data is held while the protocol has paused reading.
    """

    def __init__(self, reactor=None):
        super().__init__(reactor or MemoryReactorClock())
        self.connected = 1
        self.segments = []
        self.write_ended = False
        self.aborted = False
        self.closed_with = None
        self._incoming = deque()

    def open(self, protocol):
        """Connect ``protocol``, start reading, and return the connection."""
        self.protocol = protocol
        self.startReading()
        protocol.makeConnection(self)
        return self

    @property
    def sent(self):
        """All sent bytes."""
        return b"".join(self.segments)

    @property
    def reading(self):
        """Whether the protocol is reading."""
        return self in self.reactor.getReaders()

    def turn(self):
        """Run one iteration in which the socket is writable, if data is buffered."""
        if self in self.reactor.getWriters():
            result = self.doWrite()
            if result is not None:
                self.connectionLost(Failure(main.CONNECTION_DONE))

    def turns(self, count=4):
        """Run a few iterations of the reactor."""
        for _ in range(count):
            self.reactor.advance(0)
            self.turn()

    def receive(self, data):
        """Simulate ``data`` from the peer."""
        self._incoming.append(data)
        self._deliver()

    def receive_end(self):
        """Simulate the end of the peer's sending direction."""
        self._incoming.append(None)
        self._deliver()

    def break_off(self, reason):
        """Break the connection with the exception ``reason``."""
        self.connectionLost(Failure(reason))

    def _deliver(self):
        while self._incoming and self.reading:
            data = self._incoming[0]
            if data is None:
                # It stays in the queue: a socket that is resumed reports its end again.
                self.stopReading()
                self.protocol.readConnectionLost()
                return
            self._incoming.popleft()
            self.protocol.dataReceived(data)

    def startReading(self):
        """Start reading, beginning with held data."""
        super().startReading()
        if self._incoming:
            self.reactor.callLater(0, self._deliver)

    def writeSomeData(self, data):
        """Send the data."""
        self.segments.append(bytes(data))
        return len(data)

    def _closeWriteConnection(self):
        self.write_ended = True
        self.protocol.writeConnectionLost()

    def abortConnection(self):
        """Reset the connection."""
        if not self.disconnected:
            self.aborted = True
            self.connectionLost(Failure(ConnectionAborted()))

    def connectionLost(self, reason):
        """End the connection, and notify the protocol."""
        self.stopReading()
        self.stopWriting()
        super().connectionLost(reason)
        self.closed_with = reason.value
        self.protocol.connectionLost(reason)

    def getPeer(self):
        """Return an address."""
        return IPv4Address("TCP", "127.0.0.1", 40000)

    def getHost(self):
        """Return an address."""
        return IPv4Address("TCP", "127.0.0.1", 9000)


@implementer(IStream)
class FakeStream:
    """One end of a stream in memory, which delivers to the other end at once.

    A paused end buffers ``window`` bytes before it pauses the other end's producer.
    """

    window = 65536
    disconnecting = False

    def __init__(self, request_id="request"):
        self.request_id = request_id
        self.bytes_received = 0
        self.bytes_sent = 0
        self._peer = None
        self._protocol = None
        self._producer = None
        self._producer_paused = False
        self._paused = True
        self._inbox = deque()
        self._buffered = 0
        self._sent_end = False
        self._received_end = False
        self._end = None

    @classmethod
    def pair(cls, request_id="request"):
        """Return both ends of a stream."""
        near, far = cls(request_id), cls(request_id)
        near._peer, far._peer = far, near
        return near, far

    def attach(self, protocol):
        """Set the stream's user."""
        self._protocol = protocol
        protocol.makeConnection(self)
        if self._end is not None:
            self._lose_protocol()
        elif not self.disconnecting:
            self.resumeProducing()

    def write(self, data):
        """Send data to the other end."""
        if self._sent_end or self._end is not None or not data:
            return
        self.bytes_sent += len(data)
        self._peer._take(data)
        if self._full and not self._producer_paused and self._producer is not None:
            self._producer_paused = True
            self._producer.pauseProducing()

    def writeSequence(self, data):
        """Send several pieces."""
        self.write(b"".join(data))

    def loseWriteConnection(self):
        """End the sending direction."""
        if self._sent_end or self._end is not None:
            return
        self._sent_end = True
        if IHalfCloseableProtocol.providedBy(self._protocol):
            self._protocol.writeConnectionLost()
        self._peer._take(None)
        self._close_if_ended()

    def loseConnection(self):
        """End the sending direction, and discard the receiving one."""
        if self.disconnecting or self._end is not None:
            return
        self.disconnecting = True
        self._lose_protocol(Failure(ConnectionDone()))
        self.loseWriteConnection()
        self.resumeProducing()

    def abortConnection(self):
        """Reset the connection."""
        self.abort(Code.CANCELLED, "the connection was aborted")

    def abort(self, code, text):
        """Reset both directions with a reason."""
        peer = self._peer
        self._close(Failure(StreamFailed(code, text)))
        peer._close(Failure(StreamFailed(code, text)))

    def pauseProducing(self):
        """Pause delivery."""
        self._paused = True

    def resumeProducing(self):
        """Resume delivery."""
        if self._end is None:
            self._paused = False
            self._deliver()

    def stopProducing(self):
        """Pause delivery."""
        # The connectionLost of the consumer's protocol decides how the stream ends.
        self.pauseProducing()

    def registerProducer(self, producer, streaming):
        """Register a producer, which is paused while the window is full."""
        if self._producer is not None:
            raise RuntimeError("there is a producer already")
        if self._end is not None:
            producer.stopProducing()
            return
        if not streaming:
            raise NotImplementedError("the project registers push producers only")
        self._producer = producer
        if self._full:
            self._producer_paused = True
            producer.pauseProducing()

    def unregisterProducer(self):
        """Forget the producer."""
        self._producer = None
        self._producer_paused = False

    def getPeer(self):
        """Return an address."""
        return IPv4Address("TCP", "192.0.2.1", 80)

    def getHost(self):
        """Return an address."""
        return IPv4Address("TCP", "192.0.2.2", 40000)

    @property
    def _full(self):
        return self._peer._buffered >= self.window

    def _take(self, data):
        if self._end is None:
            self._inbox.append(data)
            self._buffered += len(data or b"")
            self._deliver()

    def _deliver(self):
        while self._inbox and not self._paused:
            data = self._inbox.popleft()
            if data is None:
                self._received_end = True
                self._tell_of_end()
                self._close_if_ended()
                return
            self._buffered -= len(data)
            self.bytes_received += len(data)
            self._peer._resume_producer()
            if self.disconnecting:
                self.abort(Code.CANCELLED, "the stream was closed")
            else:
                self._protocol.dataReceived(data)

    def _tell_of_end(self):
        if IHalfCloseableProtocol.providedBy(self._protocol):
            self._protocol.readConnectionLost()
        else:
            self.loseConnection()

    def _resume_producer(self):
        if self._producer_paused and not self._full:
            self._producer_paused = False
            self._producer.resumeProducing()

    def _close_if_ended(self):
        if self._sent_end and self._received_end:
            self._close(Failure(ConnectionDone()))

    def _close(self, reason):
        if self._end is not None:
            return
        self._end = reason
        producer = self._producer
        self.unregisterProducer()
        self._inbox.clear()
        if producer is not None and not reason.check(ConnectionDone):
            producer.stopProducing()
        self._lose_protocol()

    def _lose_protocol(self, reason=None):
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connectionLost(reason or self._end)


@implementer(IHalfCloseableProtocol)
class Recorder(Protocol):
    """The user of a stream's far end; records its events."""

    def __init__(self):
        self.received = b""
        self.read_ended = 0
        self.write_ended = 0
        self.ended_with = []

    def dataReceived(self, data):
        """Record the data."""
        self.received += data

    def readConnectionLost(self):
        """Count the call."""
        self.read_ended += 1

    def writeConnectionLost(self):
        """Count the call."""
        self.write_ended += 1

    def connectionLost(self, reason=connectionDone):
        """Record the reason."""
        self.ended_with.append(reason.value)


class FakeDial:
    """A stream requested from a :class:`FakeSession`."""

    def __init__(self, host, port, timeout, request_id):
        self.host = host
        self.port = port
        self.timeout = timeout
        self.request_id = request_id
        self.cancelled = False
        self.far = None
        self.opening = Deferred(self._cancel)

    def _cancel(self, opening):
        self.cancelled = True
        opening.errback(StreamFailed(Code.CANCELLED, "the dial was cancelled"))

    def succeed(self, greeting=b""):
        """Complete the dial; the far end sends ``greeting`` at once. Return its recorder."""
        near, far = FakeStream.pair(self.request_id)
        target = Recorder()
        far.attach(target)
        far.write(greeting)
        self.near = near
        self.far = far
        self.opening.callback(near)
        return target

    def fail(self, code, text):
        """Fail the dial."""
        self.opening.errback(StreamFailed(code, text))


@implementer(INodeSession)
class FakeSession:
    """The session of a node; the test answers the dials, which are stored in ``dials``."""

    def __init__(self, node, *, hosts=(), addresses=(), networks=(), default_route=False):
        self.node = node
        self.identifiers = Identifiers(
            frozenset(hosts),
            frozenset(ip_address(address) for address in addresses),
            frozenset(ip_network(network) for network in networks),
            default_route,
        )
        self.draining = False
        self.connected = True
        self.dials = []

    def __repr__(self):
        return f"<FakeSession {self.node}>"

    def open_stream(self, host, port, timeout, request_id, holder=OTHER):
        """Store the dial, for the test to answer."""
        dial = FakeDial(host, port, timeout, request_id)
        dial.holder = holder
        self.dials.append(dial)
        return dial.opening

    open_without_fallback = open_stream

    def snapshot(self):
        """Return a snapshot."""
        return SessionSnapshot(
            node=self.node,
            session_id="00",
            since=datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC),
            connected=True,
            waits_for=None,
            round_trip=None,
            streams=len(self.dials),
            bytes_received=0,
            bytes_sent=0,
            unacknowledged=0,
            resumptions=0,
            version="0",
            address="192.0.2.1",
            certificate_not_after=None,
        )
