"""Connections, handlers and receivers in memory."""

from __future__ import annotations

import h11
from twisted.internet.testing import MemoryReactorClock
from zope.interface import implementer

from tests.fakes import MemoryConnection
from yurttunnel.http.client import write_request
from yurttunnel.http.interfaces import IBodySink, IRequestHandler, IResponseReceiver
from yurttunnel.http.server import HTTPFactory, ServerSettings


class SecureConnection(MemoryConnection):
    """A connection like TLS: it has no half-close, and ending one direction destroys data."""

    def getPeerCertificate(self):
        """Return ``None``; the presence of this method marks the transport as TLS."""

    def loseWriteConnection(self):
        """Fail: Twisted passes this on to the socket below TLS."""
        raise AssertionError("a TLS connection cannot be half-closed")

    def receive_end(self):
        """End like TLS: in both directions, once written data is sent."""
        self.loseConnection()


def begin(connection, method, target, fields, receiver, *, has_body=False, upgrade=False):
    """Serialize a request, and start an exchange with it."""
    written = write_request(method, target, fields, has_body=has_body, upgrade=upgrade)
    return connection.send(written, receiver)


@implementer(IRequestHandler)
class Handler:
    """Stores the exchanges, and calls ``answer`` with each, if it is set.

    ``ends`` has pairs of target and error for the end of each, and ``statuses`` its status then.
    """

    def __init__(self):
        self.exchanges = []
        self.ends = []
        self.statuses = []
        self.answer = None

    @property
    def exchange(self):
        """The newest exchange."""
        return self.exchanges[-1]

    def request_received(self, exchange):
        """Store the exchange, and call ``answer``."""
        self.exchanges.append(exchange)
        exchange.on_end(lambda error: self.ends.append((exchange.head.target, error)))
        exchange.on_end(lambda error: self.statuses.append(exchange.status))
        if self.answer is not None:
            self.answer(exchange)


@implementer(IBodySink)
class Sink:
    """A sink that stores the body."""

    def __init__(self):
        self.pieces = []
        self.trailers = None

    @property
    def body(self):
        """The received data."""
        return b"".join(self.pieces)

    @property
    def finished(self):
        """Whether the body was complete."""
        return self.trailers is not None

    def write(self, data):
        """Store the data."""
        self.pieces.append(data)

    def finish(self, trailers=()):
        """Record the end."""
        assert self.trailers is None, "finished twice"
        self.trailers = list(trailers)


@implementer(IResponseReceiver)
class Receiver:
    """Stores the events of a client exchange; reads the body at once unless ``waits``."""

    def __init__(self, waits=False):
        self.waits = waits
        self.exchange = None
        self.informational = []
        self.head = None
        self.sink = Sink()
        self.ends = []

    def informational_received(self, head):
        """Store the response."""
        self.informational.append(head)

    def response_received(self, head):
        """Store the response and read its body."""
        self.head = head
        if not self.waits:
            self.exchange.deliver_body(self.sink)

    def exchange_ended(self, error):
        """Store the end."""
        self.ends.append(error)


class Server:
    """A factory with a handler, and the clock for both and its connections."""

    def __init__(self, settings=None, handler=None):
        self.clock = MemoryReactorClock()
        self.handler = handler or Handler()
        self.factory = HTTPFactory(self.clock, self.handler, settings or ServerSettings())

    def connect(self, kind=MemoryConnection):
        """Connect a client, over TLS with its handshake; return the connection at the server."""
        connection = kind(self.clock).open(self.factory.buildProtocol(None))
        if connection.protocol.secure:
            connection.protocol.handshakeCompleted()
        return connection


def settle(clock, *connections):
    """Send all pending data, and make all due calls."""
    idle = 0
    while idle < 2:
        before = [(len(c.segments), c.write_ended, c.closed_with) for c in connections]
        clock.advance(0)
        for connection in connections:
            connection.turn()
        after = [(len(c.segments), c.write_ended, c.closed_with) for c in connections]
        idle = idle + 1 if before == after else 0


def request(target=b"/", *fields, method=b"GET", version=b"1.1", body=b"", host=b"node"):
    """Build the bytes of a request."""
    lines = [b"%b %b HTTP/%b" % (method, target, version), b"Host: " + host, *fields]
    return b"\r\n".join([*lines, b"", b""]) + body


def responses(sent, *methods, closed=False):
    """Parse responses to ``methods`` with h11; return a list of (status, fields, body, trailers).

    Fields are a dict with lower-case names. Fails if anything is left over.
    """
    found = []
    for method in methods:
        parser = h11.Connection(h11.CLIENT)
        asked = h11.Request(method=method, target="/", headers=[("Host", "node")])
        parser.send(asked)
        parser.send(h11.EndOfMessage())
        parser.receive_data(sent)
        if closed and method is methods[-1]:
            parser.receive_data(b"")
        status, fields, body = None, {}, b""
        while True:
            event = parser.next_event()
            if isinstance(event, h11.InformationalResponse):
                found.append((event.status_code, dict(event.headers), b"", {}))
            elif isinstance(event, h11.Response):
                status, fields = event.status_code, dict(event.headers)
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                found.append((status, fields, body, dict(event.headers)))
                break
            else:
                raise AssertionError(f"incomplete: {event} in {sent!r}")
        sent = parser.trailing_data[0]
    assert not sent, f"left over: {sent!r}"
    return found
