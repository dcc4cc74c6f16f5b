"""Connections on which requests can be made, and attempts that are given up."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionLost, ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.fakes import MemoryConnection
from tests.http.support import SecureConnection
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.connecting import connected


@implementer(IStreamClientEndpoint)
class Endpoint:
    """Connects when the test says so."""

    def __init__(self):
        self.connecting = Deferred(lambda _: self.connecting.errback(ConnectionRefusedError()))

    def connect(self, factory):
        """Connect later."""
        self.factory = factory
        return self.connecting


class ConnectedTests(SynchronousTestCase):
    """The test is the other end."""

    def setUp(self):
        """Begin."""
        self.clock = MemoryReactorClock()
        self.endpoint = Endpoint()
        self.attempt = Deferred.fromCoroutine(
            connected(self.endpoint, lambda: ClientConnection(self.clock))
        )

    def connect(self, kind):
        """Connect by a kind of transport; return it."""
        protocol = self.endpoint.factory.buildProtocol(None)
        transport = kind(self.clock).open(protocol)
        self.endpoint.connecting.callback(protocol)
        return transport

    def test_plain(self):
        """It is there once it is connected."""
        transport = self.connect(MemoryConnection)
        self.assertIs(self.successResultOf(self.attempt), transport.protocol)

    def test_secure(self):
        """By TLS it is there after the handshake, or the reason for which it never will be."""
        for end in ("handshakeCompleted", "connectionLost"):
            self.setUp()
            protocol = self.connect(SecureConnection).protocol
            self.assertNoResult(self.attempt)
            if end == "handshakeCompleted":
                protocol.handshakeCompleted()
                self.assertIs(self.successResultOf(self.attempt), protocol)
            else:
                protocol.transport.break_off(ConnectionLost())
                self.failureResultOf(self.attempt, ConnectionLost)

    def test_refused(self):
        """It fails as its endpoint does."""
        self.endpoint.connecting.errback(ConnectionRefusedError())
        self.failureResultOf(self.attempt, ConnectionRefusedError)

    def test_given_up(self):
        """That is no failure of a connection, and leaves none, before or amid the handshake."""
        self.attempt.cancel()
        self.failureResultOf(self.attempt, CancelledError)
        self.setUp()
        transport = self.connect(SecureConnection)
        self.attempt.cancel()
        self.failureResultOf(self.attempt, CancelledError)
        self.assertTrue(transport.aborted)
