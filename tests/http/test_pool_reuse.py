"""Reuse of connections."""

from __future__ import annotations

from twisted.internet.defer import fail
from twisted.internet.error import ConnectError, ConnectionLost

from tests.fakes import MemoryConnection
from tests.http.pooling import PoolTestCase
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.pool import ConnectionPool, PoolSettings


class ReuseTests(PoolTestCase):
    """Connections are reused."""

    def test_reused(self):
        """A free connection is reused."""
        first = self.new()
        self.assertEqual(0, first.requests)
        self.use(first)
        self.assertIs(first, self.acquire())
        self.assert_statistics(connects=1, reuses=1, in_use=1, idle=0)
        self.use(first)
        self.assert_statistics(in_use=0, idle=1)

    def test_newest_first(self):
        """The most recently used connection is reused first, so that the others can time out."""
        first, second = self.new(), self.new()
        self.use(second)
        self.use(first)
        self.assertIs(first, self.acquire())
        self.assertIs(second, self.acquire())

    def test_keys(self):
        """Each key has its own connections."""
        self.use(self.new())
        other = self.ask("other")
        self.assertNoResult(other)
        self.assertEqual("other", self.attempts[0].key)

    def test_lost(self):
        """A connection that is lost or has ended is not reused."""
        first, second = self.new(), self.new()
        self.use(first)
        self.use(second)
        first.transport.break_off(ConnectionLost())
        self.assert_statistics(idle=1)
        second.transport.receive_end()
        self.assertNoResult(self.ask())
        self.settle()
        self.assert_statistics(idle=0, in_use=0)

    def test_closed_by_the_origin(self):
        """A connection that its origin closes is not kept."""
        connection = self.new()
        self.begin(connection)
        connection.transport.receive(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        self.settle()
        self.assert_statistics(idle=0, in_use=0)

    def test_idle_timeout(self):
        """An idle connection is closed after the timeout."""
        connection = self.new()
        self.use(connection)
        self.clock.advance(59.9)
        self.assertTrue(connection.reusable)
        self.clock.advance(0.1)
        self.settle()
        self.assertIsNotNone(connection.transport.closed_with)
        self.assert_statistics(idle=0)

    def test_fresh(self):
        """A request for a fresh connection does not get an idle one."""
        old = self.new()
        self.use(old)
        self.assertIsNot(old, self.new(fresh=True))
        self.assertTrue(old.reusable)

    def test_fresh_within_the_bound(self):
        """If there is no place for a fresh connection, an idle one is closed."""
        first, second = self.new(), self.new()
        self.use(first)
        self.use(second)
        self.new(fresh=True)
        self.assertFalse(first.reusable)
        self.assertTrue(second.reusable)

    def test_lost_while_it_was_made(self):
        """A connection that has ended already is a failure before anything was sent."""
        acquired = self.ask()
        connection = ClientConnection(self.clock)
        MemoryConnection(self.clock).open(connection).break_off(ConnectionLost())
        self.attempts.pop().callback(connection)
        self.assertTrue(self.failureResultOf(acquired, ExchangeFailed).value.unanswered)

    def test_failure(self):
        """A failed attempt fails its request, and frees its place."""
        for _ in range(5):
            acquired = self.ask()
            self.attempts.pop().errback(ConnectError())
            self.failureResultOf(acquired, ConnectError)
        self.assert_statistics(connects=5, failed_connects=5, in_use=0)
        self.assertEqual({}, self.pool._origins)

    def test_failures_at_once(self):
        """If connecting fails synchronously, each waiting request fails once."""
        used = self.new(), self.new()
        waiting = [self.ask() for _ in range(3)]
        self.pool.connect = lambda key, caller: fail(ConnectError())
        used[0].transport.break_off(ConnectionLost())
        for acquired in waiting:
            self.failureResultOf(acquired, ConnectError)
        self.assert_statistics(connects=5, failed_connects=3, waiting=0, in_use=1)
        used[1].transport.break_off(ConnectionLost())
        self.assertEqual({}, self.pool._origins)

    def test_failures_at_once_of_several_origins(self):
        """An origin is removed once its last waiting request has failed."""
        self.settings = PoolSettings(max_per_key=2, max_waiting=3, max_connections_per_key=2)
        self.pool = ConnectionPool(
            self.clock, self.connect, self.settings, group_of=lambda key: "all"
        )
        self.addCleanup(self.pool.close)
        used = self.new(), self.new()
        waiting = [self.ask(), self.ask("other"), self.ask("other")]
        self.pool.connect = lambda key, caller: fail(ConnectError())
        used[0].transport.break_off(ConnectionLost())
        for acquired in waiting:
            self.failureResultOf(acquired, ConnectError)
        self.assertEqual(["node"], list(self.pool._origins))

    def test_connect_raises(self):
        """An exception while connecting fails the request."""
        pool = ConnectionPool(self.clock, lambda key, caller: 1 / 0)
        self.failureResultOf(pool.acquire("node"), ZeroDivisionError)

    def test_nothing_is_stored_for_former_origins(self):
        """An origin without connections is forgotten."""
        connection = self.new()
        self.use(connection)
        self.assertEqual(1, len(self.pool._origins))
        connection.transport.break_off(ConnectionLost())
        self.assertEqual({}, self.pool._origins)
