"""The connector that a reconnecting factory drives over an endpoint."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import (
    ConnectingCancelledError,
    ConnectionRefusedError,
    NotConnectingError,
)
from twisted.internet.interfaces import IAddress, IConnector
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.agent.fakes import FakeNameResolver
from yurttunnel.agent.connector import (
    EndpointConnector,
    EndpointWithDeadline,
    NotConnectedInTime,
)
from yurttunnel.agent.process import server_endpoint


class Endpoint:
    """Keeps the attempts, for the test to answer."""

    cancelled_with = None

    def __init__(self):
        self.attempts = []

    def connect(self, factory):
        """Begin an attempt."""
        self.attempts.append(Deferred(self._cancel))
        return self.attempts[-1]

    def _cancel(self, attempt):
        if self.cancelled_with is not None:
            attempt.errback(self.cancelled_with)


class Factory(ClientFactory):
    """Notes failed attempts; ``again`` connects again at once, as often as it says."""

    again = 0

    def __init__(self):
        self.failures = []

    def clientConnectionFailed(self, connector, reason):
        """Note it."""
        self.failures.append((connector, reason.value))
        if self.again:
            self.again -= 1
            connector.connect()


class ConnectorTests(SynchronousTestCase):
    """What Twisted's connectors promise."""

    def setUp(self):
        """Make a connector."""
        self.endpoint = Endpoint()
        self.factory = Factory()
        self.connector = EndpointConnector(self.endpoint, self.factory)

    def succeed(self):
        """Have the attempt lead to a connection; give its transport."""
        protocol = Protocol()
        transport = StringTransport()
        protocol.makeConnection(transport)
        self.endpoint.attempts[-1].callback(protocol)
        return transport

    def test_interface(self):
        """It is a connector, and says where it leads."""
        self.assertTrue(verifyObject(IConnector, self.connector))
        self.assertTrue(verifyObject(IAddress, self.connector.getDestination()))
        self.assertEqual(self.connector.getDestination(), self.connector.getDestination())

    def test_each_attempt_is_new(self):
        """The endpoint is asked anew for every attempt, so that names are looked up anew."""
        self.connector.connect()
        self.succeed()
        self.connector.connect()
        self.assertEqual(2, len(self.endpoint.attempts))

    def test_twice(self):
        """There is one attempt at a time."""
        self.connector.connect()
        self.assertRaises(RuntimeError, self.connector.connect)

    def test_failure(self):
        """A failed attempt is told to the factory, once, and another may begin within that."""
        self.factory.again = 1
        self.connector.connect()
        error = ConnectionRefusedError()
        self.endpoint.attempts[0].errback(error)
        self.assertEqual([(self.connector, error)], self.factory.failures)
        self.assertEqual(2, len(self.endpoint.attempts))

    def test_stop_when_idle(self):
        """Without an attempt there is nothing to stop, before the first one and after it."""
        self.assertRaises(NotConnectingError, self.connector.stopConnecting)
        self.connector.connect()
        self.succeed()
        self.assertRaises(NotConnectingError, self.connector.stopConnecting)

    def test_stop(self):
        """An attempt that is given up is told to nobody, however the endpoint puts it."""
        for reason in (None, CancelledError(), ConnectingCancelledError(None)):
            self.endpoint.cancelled_with = reason
            self.connector.connect()
            self.connector.stopConnecting()
        self.assertEqual([], self.factory.failures)
        self.connector.connect()
        self.assertEqual(4, len(self.endpoint.attempts))

    def test_disconnect_attempt(self):
        """Disconnecting gives up an attempt."""
        self.connector.connect()
        self.connector.disconnect()
        self.assertRaises(NotConnectingError, self.connector.stopConnecting)

    def test_disconnect_connection(self):
        """Disconnecting closes the connection that there is."""
        self.connector.connect()
        transport = self.succeed()
        self.connector.disconnect()
        self.assertTrue(transport.disconnecting)

    def test_disconnect_when_idle(self):
        """Disconnecting does nothing when there is nothing."""
        self.connector.disconnect()
        self.assertEqual([], self.endpoint.attempts)


class DeadlineTests(SynchronousTestCase):
    """An endpoint that gives up in time."""

    def setUp(self):
        """Allow ten seconds."""
        self.clock = MemoryReactorClock()

    def connect(self, endpoint):
        """Begin an attempt."""
        return EndpointWithDeadline(self.clock, endpoint, 10.0, "server.test:10262").connect(
            Factory.forProtocol(Protocol)
        )

    def test_silent_resolver(self):
        """A lookup that never ends does not hold up the next attempt; the server is named."""
        self.clock.nameResolver = names = FakeNameResolver()
        attempt = self.connect(HostnameEndpoint(self.clock, b"server.test", 10262, timeout=10.0))
        self.clock.advance(9.9)
        self.assertNoResult(attempt)
        self.clock.advance(0.1)
        error = self.failureResultOf(attempt, NotConnectedInTime).value
        self.assertIn("server.test:10262 within 10 s", str(error))
        names.answer("192.0.2.1")
        self.assertEqual([], self.clock.tcpClients)

    def test_in_time(self):
        """What is in time is passed on, and leaves no timer."""
        endpoint = Endpoint()
        attempt = self.connect(endpoint)
        protocol = Protocol()
        endpoint.attempts[0].callback(protocol)
        self.assertIs(protocol, self.successResultOf(attempt))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_cancelled(self):
        """An attempt that is given up ends as the endpoint says, without a timer."""
        attempt = self.connect(Endpoint())
        attempt.cancel()
        self.failureResultOf(attempt, CancelledError)
        self.assertEqual([], self.clock.getDelayedCalls())


class ServerEndpointTests(SynchronousTestCase):
    """The way to a server."""

    def test_a_zone_is_dialed(self):
        """Without it a link-local address leads nowhere."""
        reactor = MemoryReactorClock()
        attempt = server_endpoint(reactor, "fe80::1%lo", 10262).connect(Factory())
        self.assertEqual(("fe80::1%lo", 10262), reactor.tcpClients[0][:2])
        attempt.cancel()
        self.failureResultOf(attempt)
