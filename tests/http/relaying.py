"""A request that is forwarded to an origin."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.support import Server, responses, settle
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.pool import ConnectionPool, PoolSettings
from yurttunnel.http.relay import (
    BODY_START_TIMEOUT,
    ForwardedRequest,
    Forwarding,
    Relay,
    RelaySettings,
)
from yurttunnel.http.server import ServerSettings

CHUNKED = b"Transfer-Encoding: chunked"
UPGRADE = (b"Connection: Upgrade", b"Upgrade: SPDY/3.1")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"


class GivenForwarding(Forwarding):
    """A forwarding with the functions of a test."""

    def __init__(self, relay, exchange, acquire, request, describe, **more):
        super().__init__(relay, exchange, more.get("long_running", False))
        self.acquire = acquire
        self.request = request
        self.describe = describe
        self.origin = more.get("origin", "the origin")
        self.added = more.get("added", ())


class RelayTestCase(SynchronousTestCase):
    """A client, a server that forwards, and an origin; the test simulates client and origin."""

    settings = RelaySettings(response_timeout=30)
    pool_settings = PoolSettings()
    caller = None
    long_running = False
    client_kind = MemoryConnection
    origin_kind = MemoryConnection

    def setUp(self):
        """Connect the client."""
        # Bodies arrive byte by byte here, and their timeout is not under test.
        self.server = Server(ServerSettings(body_timeout=60, min_body_bytes=1))
        self.clock = self.server.clock
        self.relay = Relay(self.clock, self.settings)
        self.pool = ConnectionPool(self.clock, self.connect, self.pool_settings)
        self.origins = []
        self.attempts = []
        self.instant = True
        self.server.handler.answer = self.forward
        self.client = self.server.connect(self.client_kind)
        self.addCleanup(self.server.factory.close)
        self.addCleanup(self.pool.close)
        self.addCleanup(self.relay.close)

    def connect(self, key, caller):
        """Connect to the origin, at once or when the test completes the attempt."""
        attempt = Deferred()
        self.attempts.append(attempt)
        if self.instant:
            self.succeed()
        return attempt

    def succeed(self):
        """Complete the newest attempt."""
        connection = ClientConnection(self.clock)
        self.origins.append(self.origin_kind(self.clock).open(connection))
        self.attempts[-1].callback(connection)

    def forward(self, exchange):
        """Forward a request."""
        head = exchange.head
        GivenForwarding(
            self.relay,
            exchange,
            lambda **how: self.pool.acquire("node", caller=self.caller, **how),
            ForwardedRequest(head.method, head.target, head.fields),
            lambda failure: (502, f"edge-1 cannot be reached: {failure.type.__name__}"),
            origin="the kubelet of edge-1",
            long_running=self.long_running,
        ).begin()

    @property
    def origin(self):
        """The newest connection to the origin."""
        return self.origins[-1]

    @property
    def ends(self):
        """The errors with which exchanges have ended."""
        return [error for _, error in self.server.handler.ends]

    def settle(self):
        """Deliver all data."""
        settle(self.clock, self.client, *self.origins)

    def send(self, data):
        """Simulate data from the client."""
        self.client.receive(data)
        self.settle()

    def send_slowly(self, data):
        """Simulate the start of a body, and let the time to wait for the rest pass."""
        self.send(data)
        self.clock.advance(BODY_START_TIMEOUT)
        self.settle()

    def answer(self, data):
        """Simulate data from the origin."""
        self.origin.receive(data)
        self.settle()

    def responses(self, *methods, closed=False):
        """Parse what the client has received."""
        self.settle()
        return responses(self.client.sent, *(methods or ("GET",)), closed=closed)

    def assert_refused(self, status, text, closed=False):
        """Check the only response, an error message."""
        ((found, _, body, _),) = self.responses(closed=closed)
        self.assertEqual(status, found)
        self.assertIn(text, body)
