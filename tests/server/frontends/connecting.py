"""The CONNECT front end and its callers' connections in memory."""

from __future__ import annotations

import socket

from twisted.internet.interfaces import ISSLTransport
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.fakes import FakeSession, MemoryConnection
from yurttunnel.server.frontends.connect import SETTINGS, ConnectFactory
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.request_ids import RequestIds

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def connect(target="edge-1:10250", *fields):
    """Return the head of a CONNECT as kube-apiserver sends it, with additional fields."""
    lines = [f"CONNECT {target} HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


class HalfClosingConnection(MemoryConnection):
    """A connection whose peer still reads after closing its sending direction."""

    def getHandle(self):
        """Return a Unix socket whose peer is in the same state."""
        self.own, self.peer = socket.socketpair()
        self.end(self.peer)
        return self.own

    def end(self, peer):
        """Close one direction."""
        peer.shutdown(socket.SHUT_WR)


class ConnectTestCase(SynchronousTestCase):
    """A front end with one node."""

    settings = SETTINGS

    def setUp(self):
        """Connect edge-1, which is also 192.0.2.1."""
        self.reactor = MemoryReactorClock()
        self.reactor.advance(1000)
        self.registry = SessionRegistry(self.reactor)
        self.session = FakeSession("edge-1", addresses=["192.0.2.1", "2001:db8::1"])
        self.registry.add(self.session)
        self.factory = ConnectFactory(self.reactor, self.registry, self.settings)
        self.factory.request_ids = RequestIds("test")

    def tearDown(self):
        """Check that nothing remains after all connections are closed."""
        self.factory.close()
        self.assertEqual(self.factory.connections, set())
        self.assertEqual(self.factory.pending_dials.used, 0)
        self.reactor.advance(0)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def open(self, data=b"", connection_class=MemoryConnection):
        """Open a connection that receives ``data``."""
        protocol = self.factory.buildProtocol(None)
        connection = connection_class(self.reactor).open(protocol)
        if data:
            connection.receive(data)
        return connection

    def join(self, data=None, **kwargs):
        """Open a connection, complete its dial, and receive the 200."""
        connection = self.open(data or connect(), **kwargs)
        target = self.session.dials[-1].succeed()
        connection.turns()
        self.assertEqual(connection.segments.pop(0), ESTABLISHED)
        return connection, target

    def assert_answer(self, connection, status, text):
        """Check that the connection has received this error and is closing."""
        connection.turns()
        self.assertTrue(connection.sent.startswith(b"HTTP/1.1 %d " % status), connection.sent)
        body = connection.sent.partition(b"\r\n\r\n")[2]
        self.assertIn(text.encode(), body)
        self.assertTrue(body.endswith(b"\n"))
        self.assertIn(b"\r\nContent-Length: %d\r\n" % len(body), connection.sent)
        self.assertTrue(connection.write_ended)


class PlainHalf:
    """The transport below TLS: a socket; ``all_read`` is whether its caller has read everything."""

    def __init__(self):
        self.all_read = True

    def getHandle(self):
        """Return a socket with pending data for the peer, or without."""
        self.own, self.peer = socket.socketpair()
        if not self.all_read:
            self.own.send(b"x")
        return self.own


@implementer(ISSLTransport)
class MemoryTLSConnection(MemoryConnection):
    """A connection that, like Twisted's TLS, sends one record per iteration.

    Its handshake is complete unless a subclass overrides that.
    """

    handshaken = True

    def __init__(self, reactor):
        super().__init__(reactor)
        self.collected = b""
        self.records = []
        self.transport = PlainHalf()

    def open(self, protocol):
        """Connect ``protocol`` and complete the handshake."""
        super().open(protocol)
        if self.handshaken:
            protocol.handshakeCompleted()
        return self

    def getPeerCertificate(self):
        """Return no certificate."""
        raise NotImplementedError("no part of the front end looks at certificates")

    def write(self, data):
        """Collect ``data`` until the next iteration."""
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
        """Fail, like Twisted's TLS."""
        raise AssertionError("this destroys data under TLS")

    def loseConnection(self):
        """Send close_notify, and wait for the caller to close, too."""
        self.close_notified = True
