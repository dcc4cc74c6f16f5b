"""Connecting, and cancelled attempts."""

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
from yurttunnel.http.client_connect import open_connection


@implementer(IStreamClientEndpoint)
class Endpoint:
    """An endpoint that connects when the test completes it."""

    def __init__(self):
        self.connecting = Deferred(lambda _: self.connecting.errback(ConnectionRefusedError()))

    def connect(self, factory):
        """Return an attempt."""
        self.factory = factory
        return self.connecting


class ConnectedTests(SynchronousTestCase):
    """The test simulates the other end."""

    def setUp(self):
        """Start an attempt."""
        self.clock = MemoryReactorClock()
        self.endpoint = Endpoint()
        self.attempt = Deferred.fromCoroutine(
            open_connection(self.endpoint, lambda: ClientConnection(self.clock))
        )

    def connect(self, kind):
        """Connect with a kind of transport; return it."""
        protocol = self.endpoint.factory.buildProtocol(None)
        transport = kind(self.clock).open(protocol)
        self.endpoint.connecting.callback(protocol)
        return transport

    def test_plain(self):
        """A plain connection is returned once it is connected."""
        transport = self.connect(MemoryConnection)
        self.assertIs(self.successResultOf(self.attempt), transport.protocol)

    def test_secure(self):
        """A TLS connection is returned after the handshake; a failed handshake is reported."""
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
        """A failed attempt fails as its endpoint does."""
        self.endpoint.connecting.errback(ConnectionRefusedError())
        self.failureResultOf(self.attempt, ConnectionRefusedError)

    def test_given_up(self):
        """Cancelling is no connection failure, and leaves no connection, at any time."""
        self.attempt.cancel()
        self.failureResultOf(self.attempt, CancelledError)
        self.setUp()
        transport = self.connect(SecureConnection)
        self.attempt.cancel()
        self.failureResultOf(self.attempt, CancelledError)
        self.assertTrue(transport.aborted)
