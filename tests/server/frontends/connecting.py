"""The CONNECT front end and connections of its callers in memory, for the tests of that."""

from __future__ import annotations

import socket

from twisted.internet.interfaces import ISSLTransport
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.fakes import FakeSession, MemoryConnection
from yurttunnel.server.frontends.calls import DialSettings
from yurttunnel.server.frontends.connect import ConnectFactory
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.request_ids import RequestIds

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def connect(target="edge-1:10250", *fields):
    """Build the head of a CONNECT as kube-apiserver sends it, with more fields."""
    lines = [f"CONNECT {target} HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


class HalfClosingConnection(MemoryConnection):
    """A connection whose peer, when it ends its direction, still reads."""

    def getHandle(self):
        """Return a Unix socket whose peer has done what this one's has."""
        self.own, self.peer = socket.socketpair()
        self.end(self.peer)
        return self.own

    def end(self, peer):
        """End one direction."""
        peer.shutdown(socket.SHUT_WR)


class ConnectTestCase(SynchronousTestCase):
    """A front end in front of one node."""

    limits: dict[str, object] = {}
    dials: dict[str, object] = {}

    def setUp(self):
        """Connect edge-1, which is also 192.0.2.1."""
        self.reactor = MemoryReactorClock()
        self.reactor.advance(1000)
        self.registry = SessionRegistry(self.reactor)
        self.session = FakeSession("edge-1", addresses=["192.0.2.1", "2001:db8::1"])
        self.registry.add(self.session)
        dials = DialSettings(request_ids=RequestIds("test"), **self.dials)
        self.factory = ConnectFactory(self.reactor, self.registry, dials=dials, **self.limits)

    def tearDown(self):
        """Nothing is left when all connections have been closed."""
        self.factory.close()
        self.assertEqual(self.factory.connections, set())
        self.assertEqual(self.factory.pending_dials.taken, 0)
        self.reactor.advance(0)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def open(self, data=b"", connection_class=MemoryConnection):
        """Open a connection on which ``data`` comes."""
        protocol = self.factory.buildProtocol(None)
        connection = connection_class(self.reactor).open(protocol)
        if data:
            connection.receive(data)
        return connection

    def join(self, data=None, **kwargs):
        """Open a connection, have its dial succeed, and take the 200."""
        connection = self.open(data or connect(), **kwargs)
        target = self.session.dials[-1].succeed()
        connection.turns()
        self.assertEqual(connection.segments.pop(0), ESTABLISHED)
        return connection, target

    def assert_answer(self, connection, status, text):
        """The connection has got this error and is closing: our direction has ended."""
        connection.turns()
        self.assertTrue(connection.sent.startswith(b"HTTP/1.1 %d " % status), connection.sent)
        body = connection.sent.partition(b"\r\n\r\n")[2]
        self.assertIn(text.encode(), body)
        self.assertTrue(body.endswith(b"\n"))
        self.assertIn(b"\r\nContent-Length: %d\r\n" % len(body), connection.sent)
        self.assertTrue(connection.write_ended)


class PlainHalf:
    """What is below TLS: a socket whose caller is told of by ``taken``."""

    def __init__(self):
        self.taken = True

    def getHandle(self):
        """Return a socket on which something waits for the peer, or nothing."""
        self.own, self.peer = socket.socketpair()
        if not self.taken:
            self.own.send(b"x")
        return self.own


@implementer(ISSLTransport)
class MemoryTLSConnection(MemoryConnection):
    """A connection that, like Twisted's TLS, makes one record of what is written in one turn.

    Its handshake is done unless a subclass says otherwise.
    """

    handshaken = True

    def __init__(self, reactor):
        super().__init__(reactor)
        self.collected = b""
        self.records = []
        self.transport = PlainHalf()

    def open(self, protocol):
        """Connect ``protocol`` and shake hands."""
        super().open(protocol)
        if self.handshaken:
            protocol.handshakeCompleted()
        return self

    def getPeerCertificate(self):
        """Have none."""
        raise NotImplementedError("no part of the front end looks at certificates")

    def write(self, data):
        """Collect ``data`` until the next turn."""
        if not self.connected:
            return
        if not self.collected:
            self.reactor.callLater(0, self.send_collected)
        self.collected += data

    def send_collected(self):
        """Send one record."""
        data, self.collected = self.collected, b""
        self.records.append(data)
        super().write(data)

    def loseWriteConnection(self):
        """Fail, as it does."""
        raise AssertionError("this destroys data under TLS")

    def loseConnection(self):
        """Report that nothing more will be sent, and wait for the caller to close, too."""
        self.close_notified = True
