"""A connection to an origin, in memory."""

from __future__ import annotations

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.support import Receiver, begin, settle
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.interfaces import ExchangeFailed

HOST = (b"Host", b"node")
UPGRADE = ((b"Connection", b"Upgrade"), (b"Upgrade", b"spdy/3.1"))
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: spdy/3.1\r\n\r\n"


class ClientTestCase(SynchronousTestCase):
    """A connection to an origin that the test simulates."""

    kind = MemoryConnection

    def setUp(self):
        """Connect."""
        self.clock = MemoryReactorClock()
        self.responses = []
        self.idle = []
        self.lost = []
        self.connect()

    def connect(self, **arguments):
        """Make a connection."""
        self.connection = ClientConnection(self.clock, **arguments)
        self.connection.on_response = lambda *response: self.responses.append(response)
        self.connection.on_idle = self.idle.append
        self.connection.on_lost = self.lost.append
        self.origin = self.kind(self.clock).open(self.connection)

    def ask(self, method=b"GET", *fields, waits=False, **arguments):
        """Send a request; return its receiver."""
        receiver = Receiver(waits)
        receiver.exchange = begin(
            self.connection, method, b"/", [HOST, *fields], receiver, **arguments
        )
        self.settle()
        return receiver

    def settle(self):
        """Send all pending data."""
        settle(self.clock, self.origin)

    def answer(self, data):
        """Simulate data from the origin."""
        self.origin.receive(data)
        self.settle()

    def assert_failed(self, receiver, text, unanswered):
        """Check that an exchange has failed, once, and the connection with it."""
        (error,) = receiver.ends
        self.assertIsInstance(error, ExchangeFailed)
        self.assertIn(text, str(error))
        self.assertEqual(unanswered, error.unanswered)
        self.assertFalse(self.connection.reusable)
        self.settle()
        self.assertIsNotNone(self.origin.closed_with)
        self.assertEqual([self.connection], self.lost)
        return error
