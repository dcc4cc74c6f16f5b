"""A server with one client."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.support import (
    Server,
    responses,
    settle,
)
from yurttunnel.http.server import ServerSettings

CHUNKED = b"Transfer-Encoding: chunked"
CLOSE = b"Connection: close"


def hello(exchange):
    """Respond with a body."""
    exchange.respond(200, [(b"X-Target", exchange.head.target)], b"hello")


class ServerTestCase(SynchronousTestCase):
    """A server with one client over plain TCP."""

    kind = MemoryConnection
    settings = ServerSettings()

    def setUp(self):
        """Connect."""
        self.server = Server(self.settings)
        self.addCleanup(self.server.factory.close)
        self.clock = self.server.clock
        self.handler = self.server.handler
        self.client = self.server.connect(self.kind)

    def settle(self):
        """Send all pending data."""
        settle(self.clock, self.client)

    def send(self, data):
        """Simulate data from the client."""
        self.client.receive(data)
        self.settle()

    def responses(self, *methods, closed=False):
        """Parse what the client has received."""
        self.settle()
        return responses(self.client.sent, *(methods or ("GET",)), closed=closed)

    def pass_time(self, seconds):
        """Let time pass."""
        for _ in range(round(seconds * 4)):
            self.clock.advance(0.25)
            self.settle()

    def read_nothing(self, seconds):
        """Let time pass while the client receives nothing."""
        for _ in range(round(seconds * 4)):
            self.clock.advance(0.25)

    @property
    def exchange(self):
        """The newest exchange."""
        return self.handler.exchange
