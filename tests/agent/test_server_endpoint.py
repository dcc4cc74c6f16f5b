"""The endpoint of a server: TCP, with a timeout."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.agent.fakes import FakeNameResolver
from yurttunnel.agent.server_endpoint import (
    ConnectTimeout,
    TimeoutEndpoint,
    server_endpoint,
)


class Endpoint:
    """Stores the attempts, which the test completes."""

    def __init__(self):
        self.attempts = []

    def connect(self, factory):
        """Start an attempt."""
        self.attempts.append(Deferred())
        return self.attempts[-1]


class DeadlineTests(SynchronousTestCase):
    """An endpoint with a timeout."""

    def setUp(self):
        """Set a timeout of ten seconds."""
        self.clock = MemoryReactorClock()

    def connect(self, endpoint):
        """Start an attempt."""
        return TimeoutEndpoint(self.clock, endpoint, 10.0, "server.test:10262").connect(
            Factory.forProtocol(Protocol)
        )

    def test_silent_resolver(self):
        """A lookup that never ends does not block the next attempt; the server is named."""
        self.clock.nameResolver = names = FakeNameResolver()
        attempt = self.connect(HostnameEndpoint(self.clock, b"server.test", 10262, timeout=10.0))
        self.clock.advance(9.9)
        self.assertNoResult(attempt)
        self.clock.advance(0.1)
        error = self.failureResultOf(attempt, ConnectTimeout).value
        self.assertIn("server.test:10262 within 10 s", str(error))
        names.answer("192.0.2.1")
        self.assertEqual([], self.clock.tcpClients)

    def test_in_time(self):
        """A result within the timeout is passed on, and no timer remains."""
        endpoint = Endpoint()
        attempt = self.connect(endpoint)
        protocol = Protocol()
        endpoint.attempts[0].callback(protocol)
        self.assertIs(protocol, self.successResultOf(attempt))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_cancelled(self):
        """A cancelled attempt ends with the endpoint's error, and no timer remains."""
        attempt = self.connect(Endpoint())
        attempt.cancel()
        self.failureResultOf(attempt, CancelledError)
        self.assertEqual([], self.clock.getDelayedCalls())


class ServerEndpointTests(SynchronousTestCase):
    """The endpoint of a server."""

    def test_a_zone_is_dialed(self):
        """The zone is dialed: without it a link-local address has no route."""
        reactor = MemoryReactorClock()
        attempt = server_endpoint(reactor, "fe80::1%lo", 10262).connect(Factory())
        self.assertEqual(("fe80::1%lo", 10262), reactor.tcpClients[0][:2])
        attempt.cancel()
        self.failureResultOf(attempt)

    def dialed(self, skip, *addresses):
        """Return the order in which the addresses of a name are dialed."""
        reactor = MemoryReactorClock()
        reactor.nameResolver = names = FakeNameResolver()
        attempt = server_endpoint(reactor, "server.test", 10262, lambda: skip).connect(Factory())
        names.answer(*addresses)
        reactor.pump([0.25] * 8)
        attempt.cancel()
        self.failureResultOf(attempt)
        return [client[0] for client in reactor.tcpClients]

    def test_addresses_are_skipped(self):
        """Addresses that are skipped are dialed last, and nothing is lost if they are all."""
        self.assertEqual(["192.0.2.1", "192.0.2.2"], self.dialed(0, "192.0.2.1", "192.0.2.2"))
        self.assertEqual(["192.0.2.2", "192.0.2.1"], self.dialed(3, "192.0.2.1", "192.0.2.2"))
        self.assertEqual(["192.0.2.1"], self.dialed(7, "192.0.2.1"))
        self.assertEqual([], self.dialed(1))
