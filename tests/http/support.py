"""Connections, handlers and receivers in memory, for the tests of HTTP."""

from __future__ import annotations

import h11
from twisted.internet.testing import MemoryReactorClock
from zope.interface import implementer

from tests.fakes import MemoryConnection
from yurttunnel.http.client import write_request
from yurttunnel.http.interfaces import IBodySink, IRequestHandler, IResponseReceiver
from yurttunnel.http.server import HTTPFactory, ServerSettings


class SecureConnection(MemoryConnection):
    """A connection as TLS gives it: an end is an end, and ending one direction destroys data."""

    def getPeerCertificate(self):
        """Return nothing; that this is here tells that it is TLS."""

    def loseWriteConnection(self):
        """Fail: Twisted passes this on to the socket below TLS."""
        raise AssertionError("a TLS connection cannot be half-closed")

    def receive_end(self):
        """End as TLS does: in both directions, after what has been written."""
        self.loseConnection()


def begin(connection, method, target, fields, receiver, *, has_body=False, upgrade=False):
    """Write a request, and begin an exchange with it."""
    written = write_request(method, target, fields, has_body=has_body, upgrade=upgrade)
    return connection.send(written, receiver)


@implementer(IRequestHandler)
class Handler:
    """Keeps the exchanges; ``answer`` is called with each, if there is one.

    What each ends with is in ``ends``, as pairs, and the status that it has then in ``statuses``.
    """

    def __init__(self):
        self.exchanges = []
        self.ends = []
        self.statuses = []
        self.answer = None

    @property
    def exchange(self):
        """The newest."""
        return self.exchanges[-1]

    def request_received(self, exchange):
        """Keep and answer."""
        self.exchanges.append(exchange)
        exchange.on_end(lambda error: self.ends.append((exchange.head.target, error)))
        exchange.on_end(lambda error: self.statuses.append(exchange.status))
        if self.answer is not None:
            self.answer(exchange)


@implementer(IBodySink)
class Sink:
    """Keeps a body."""

    def __init__(self):
        self.pieces = []
        self.trailers = None

    @property
    def body(self):
        """All that came."""
        return b"".join(self.pieces)

    @property
    def finished(self):
        """Whether the body was complete."""
        return self.trailers is not None

    def write(self, data):
        """Keep it."""
        self.pieces.append(data)

    def finish(self, trailers=()):
        """Note the end."""
        assert self.trailers is None, "finished twice"
        self.trailers = list(trailers)


@implementer(IResponseReceiver)
class Receiver:
    """Keeps what a client exchange tells; takes the body at once unless ``waits``."""

    def __init__(self, waits=False):
        self.waits = waits
        self.exchange = None
        self.informational = []
        self.head = None
        self.sink = Sink()
        self.ends = []

    def informational_received(self, head):
        """Keep it."""
        self.informational.append(head)

    def response_received(self, head):
        """Keep it and take the body."""
        self.head = head
        if not self.waits:
            self.exchange.deliver_body(self.sink)

    def exchange_ended(self, error):
        """Keep it."""
        self.ends.append(error)


class Server:
    """A factory with a handler, and the clock of both and of its connections."""

    def __init__(self, settings=None, handler=None):
        self.clock = MemoryReactorClock()
        self.handler = handler or Handler()
        self.factory = HTTPFactory(self.clock, self.handler, settings or ServerSettings())

    def connect(self, kind=MemoryConnection):
        """Connect a client, over TLS with its handshake; give the connection at the server."""
        connection = kind(self.clock).open(self.factory.buildProtocol(None))
        if connection.protocol.secure:
            connection.protocol.handshakeCompleted()
        return connection


def settle(clock, *connections):
    """Let everything be sent that can be, and calls that are due be made."""
    idle = 0
    while idle < 2:
        before = [(len(c.segments), c.write_ended, c.closed_with) for c in connections]
        clock.advance(0)
        for connection in connections:
            connection.turn()
        after = [(len(c.segments), c.write_ended, c.closed_with) for c in connections]
        idle = idle + 1 if before == after else 0


def request(target=b"/", *fields, method=b"GET", version=b"1.1", body=b"", host=b"node"):
    """Make the bytes of a request."""
    lines = [b"%b %b HTTP/%b" % (method, target, version), b"Host: " + host, *fields]
    return b"\r\n".join([*lines, b"", b""]) + body


def responses(sent, *methods, closed=False):
    """Read responses to ``methods`` with h11; give a list of (status, fields, body, trailers).

    Fields are a dict with lower-case names. Fails when anything is left over.
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
