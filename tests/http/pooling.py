"""A pool whose connection attempts the test completes."""

from __future__ import annotations

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.support import Receiver, begin, settle
from tests.tunnel.memory import User
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.pool import ConnectionPool, PoolSettings

DONE = b"HTTP/1.1 204 No Content\r\n\r\n"
BEGUN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: spdy/3.1\r\n\r\n"


class PoolTestCase(SynchronousTestCase):
    """A pool whose connection attempts the test completes."""

    settings = PoolSettings(max_per_key=2, max_waiting=3)

    def setUp(self):
        """Create the pool."""
        self.clock = MemoryReactorClock()
        self.attempts = []
        self.transports = []
        self.pool = ConnectionPool(self.clock, self.connect, self.settings)
        self.asked = []
        self.addCleanup(self.forget)
        self.addCleanup(self.pool.close)

    def ask(self, key="node", **arguments):
        """Request a connection."""
        acquired = maybeDeferred(self.pool.acquire, key, **arguments)
        self.asked.append(acquired)
        return acquired

    def forget(self):
        """Consume failures that are caused by the end of the test."""
        for acquired in self.asked:
            acquired.addErrback(lambda failure: None)

    def connect(self, key, caller):
        """Store an attempt."""
        attempt = Deferred()
        attempt.key = key
        attempt.caller = caller
        self.attempts.append(attempt)
        return attempt

    def succeed(self):
        """Complete the oldest attempt."""
        connection = ClientConnection(self.clock)
        self.transports.append(MemoryConnection(self.clock).open(connection))
        self.attempts.pop(0).callback(connection)
        return connection

    def acquire(self, **arguments):
        """Take an idle connection; fail if there is none."""
        return self.successResultOf(self.ask(**arguments))

    def new(self, **arguments):
        """Request a connection, complete its attempt, and return it."""
        acquired = self.ask(**arguments)
        self.succeed()
        return self.successResultOf(acquired)

    def use(self, connection):
        """Send a request and respond to it."""
        self.begin(connection)
        self.answer(connection)

    def begin(self, connection, upgrade=False):
        """Send a request."""
        receiver = Receiver()
        receiver.exchange = begin(
            connection, b"GET", b"/", [(b"Host", b"node")], receiver, upgrade=upgrade
        )
        return receiver

    def follow(self, connection):
        """Send a request whose response begins and does not end within a second."""
        self.begin(connection)
        connection.transport.receive(BEGUN)
        self.clock.advance(1)

    def upgrade(self, connection):
        """Send a request that is answered by a 101."""
        receiver = self.begin(connection, upgrade=True)
        receiver.response_received = lambda head: receiver.exchange.switch(User())
        connection.transport.receive(SWITCHING)

    def answer(self, connection):
        """Respond to a request."""
        connection.transport.receive(DONE)

    def settle(self):
        """Deliver all ends."""
        settle(self.clock, *self.transports)

    def assert_statistics(self, **expected):
        """Compare some of the statistics."""
        found = {name: getattr(self.pool.statistics, name) for name in expected}
        self.assertEqual(expected, found)
