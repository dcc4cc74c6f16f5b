"""The limits of a pool's connections, and its queue."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, fail, succeed
from twisted.internet.error import ConnectError, ConnectionLost

from tests.fakes import MemoryConnection
from tests.http.pooling import BEGUN, PoolTestCase
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.pool import ConnectionPool, PoolBusy, PoolSettings

ENDED = b"0\r\n\r\n"


class BoundTests(PoolTestCase):
    """The number of connections."""

    def test_waiting(self):
        """A request above the limit waits until a connection becomes free, in order."""
        first, second = self.new(), self.new()
        self.begin(first)
        self.begin(second)
        third, fourth = self.ask(), self.ask()
        self.assertEqual([], self.attempts)
        self.assert_statistics(waiting=2)
        self.answer(second)
        self.assertIs(second, self.successResultOf(third))
        self.assertNoResult(fourth)
        self.answer(first)
        self.assertIs(first, self.successResultOf(fourth))
        self.assert_statistics(waiting=0, connects=2)

    def test_many_clients(self):
        """200 concurrent requests stay within the limit, and all are served."""
        pool = ConnectionPool(self.clock, self.connect, PoolSettings())
        self.addCleanup(pool.close)
        self.pool = pool
        served = []
        for _ in range(200):
            _ = self.ask().addCallback(served.append)
        self.assertEqual(32, len(self.attempts))
        while self.attempts:
            self.succeed()
        for number in range(200):
            self.use(served[number])
        self.assert_statistics(connects=32, waiting=0)
        self.assertEqual(32, len(set(served)))

    def test_lost_connection_makes_room(self):
        """When a connection is lost, a waiting request gets a new one."""
        first, second = self.new(), self.new()
        self.begin(first)
        self.begin(second)
        third = self.ask()
        first.transport.break_off(ConnectionLost())
        self.assertIs(self.succeed(), self.successResultOf(third))

    def test_failed_attempt_makes_room(self):
        """When an attempt fails, a waiting request gets the next one."""
        acquired = [self.ask() for _ in range(3)]
        self.attempts.pop(0).errback(ConnectError())
        self.failureResultOf(acquired[0], ConnectError)
        self.assertEqual(2, len(self.attempts))
        self.attempts[1].errback(ConnectError())
        self.failureResultOf(acquired[2], ConnectError)
        self.assertIs(self.succeed(), self.successResultOf(acquired[1]))

    def test_long_uses_do_not_count(self):
        """A response that takes longer than a second frees its place."""
        first, second = self.new(), self.new()
        self.begin(first)
        self.begin(second)
        third = self.ask()
        self.clock.advance(0.9)
        first.transport.receive(BEGUN)
        self.clock.advance(0.9)
        self.assertEqual([], self.attempts)
        self.clock.advance(0.1)
        self.assertIs(self.succeed(), self.successResultOf(third))
        self.assert_statistics(in_use=3)

    def test_answers_that_have_not_begun_count(self):
        """A response that has not begun keeps its place, however long that takes."""
        first, second = self.new(), self.new()
        self.begin(first)
        self.begin(second)
        self.ask()
        self.clock.advance(14)
        self.assertEqual([], self.attempts)
        self.assert_statistics(in_use=2, waiting=1)

    def test_slow_origin(self):
        """200 requests to an origin that takes 1.5 s for each share 32 connections."""
        self.many()
        served = []
        for _ in range(200):
            _ = self.ask().addCallback(served.append)
        rounds = 0
        while served:
            rounds += 1
            connections, served[:] = list(served), []
            self.assertLessEqual(len(connections), 32)
            for connection in connections:
                self.begin(connection)
            self.clock.advance(1.5)
            for connection in connections:
                self.answer(connection)
        self.assertEqual(7, rounds)
        self.assert_statistics(connects=32, refusals=0, waiting=0, in_use=0)

    def test_refused_upgrades(self):
        """300 requests for an upgrade that is refused share 32 connections."""
        self.many()
        served = []
        for _ in range(300):
            _ = self.ask().addCallback(served.append)
        answered = 0
        while served:
            connection = served.pop()
            self.begin(connection, upgrade=True)
            self.answer(connection)
            answered += 1
        self.assertEqual(300, answered)
        self.assert_statistics(connects=32, waiting=0)

    def test_streams_do_not_starve_requests(self):
        """Short requests get connections, however many streams there are."""
        for _ in range(100):
            self.follow(self.new())
        self.use(self.new())
        self.assertEqual(2, self.acquire().requests + 1)

    def test_long_use_ends(self):
        """A connection that was in long use is kept only within the limit."""
        stream = self.new()
        self.follow(stream)
        first, second = self.new(), self.new()
        self.use(first)
        self.use(second)
        stream.transport.receive(ENDED)
        self.assert_statistics(idle=2, in_use=0)
        self.assertFalse(first.reusable)
        self.assertTrue(stream.reusable)

    def test_upgrades_do_not_count(self):
        """An upgrade frees its place as soon as it has its 101."""
        first, second = self.new(), self.new()
        third = self.ask()
        self.upgrade(first)
        self.upgrade(second)
        self.upgrade(self.succeed())
        self.successResultOf(third)
        self.use(self.new())
        self.assert_statistics(in_use=3, idle=1)

    def test_upgrades_that_wait_count(self):
        """An upgrade that waits for its 101 counts like any request."""
        for _ in range(2):
            self.begin(self.new(), upgrade=True)
        self.ask()
        self.clock.advance(14)
        self.assertEqual([], self.attempts)

    def test_long_requests(self):
        """A long-running request does not count, even before its response has begun."""
        for _ in range(5):
            self.begin(self.new(long_running=True))
        first = self.new()
        self.use(first)
        self.assertIs(first, self.acquire(long_running=True))
        self.assert_statistics(in_use=6, idle=0, connects=6)
        self.begin(self.new())
        self.begin(self.new())
        self.begin(self.new(long_running=True))
        self.assert_statistics(in_use=9, waiting=0)

    def test_long_responses(self):
        """A long response to such a request does not free a place."""
        self.follow(self.new(long_running=True))
        self.new()
        self.new()
        self.ask()
        self.assertEqual([], self.attempts)

    def test_long_attempts_do_not_count(self):
        """The connection attempt of a long-running request does not count, nor does its failure."""
        self.begin(self.new())
        long_running = [self.ask(long_running=True) for _ in range(3)]
        for attempt in self.attempts:
            attempt.errback(ConnectError())
        for each in long_running:
            self.failureResultOf(each, ConnectError)
        self.attempts.clear()
        self.new()
        self.ask()
        self.assertEqual([], self.attempts)

    def test_refused_upgrade(self):
        """A refused upgrade leaves a reusable connection."""
        connection = self.new()
        self.use(connection)
        self.assertIs(connection, self.acquire())
        self.use(connection)
        self.assertIs(connection, self.acquire())
        self.assert_statistics(connects=1, in_use=1)

    def test_too_many_waiting(self):
        """Above the limit of the queue, a request is rejected."""
        waiting = [self.ask() for _ in range(5)][2:]
        error = self.failureResultOf(self.ask(), PoolBusy)
        self.assertIn("too many", str(error.value))
        self.assert_statistics(waiting=3, refusals=1)
        for each in waiting:
            each.cancel()
            self.failureResultOf(each, CancelledError)
        self.assert_statistics(waiting=0)

    def test_waiting_too_long(self):
        """A request is rejected after the waiting timeout."""
        self.begin(self.new())
        self.begin(self.new())
        waiting = self.ask()
        self.clock.advance(14.9)
        self.assertNoResult(waiting)
        self.clock.advance(0.1)
        self.failureResultOf(waiting, PoolBusy)
        self.assert_statistics(waiting=0, refusals=1, in_use=2)

    def many(self):
        """Create a pool with the default settings."""

        def connect(key, caller):
            connection = ClientConnection(self.clock)
            self.transports.append(MemoryConnection(self.clock).open(connection))
            return succeed(connection)

        self.pool = ConnectionPool(self.clock, connect, PoolSettings())
        self.addCleanup(self.pool.close)

    def test_fresh_waits(self):
        """A request for a fresh connection waits for a place rather than an idle connection."""
        first, second = self.new(), self.new()
        self.begin(first)
        self.begin(second)
        fresh = self.ask(fresh=True)
        self.answer(first)
        self.assertFalse(first.reusable)
        self.assertIs(self.succeed(), self.successResultOf(fresh))


class TotalTests(PoolTestCase):
    """The total number of connections, those in long use included."""

    settings = PoolSettings(max_per_key=2, max_connections_per_key=4)

    def test_long_uses(self):
        """If all connections are in long use, any further request is rejected at once."""
        streams = [self.new() for _ in range(2)]
        for stream in streams:
            self.follow(stream)
        self.upgrade(self.new())
        self.begin(self.new(long_running=True))
        for long_running in (False, True):
            error = self.failureResultOf(self.ask(long_running=long_running), PoolBusy)
            self.assertIn("in long use", str(error.value))
        self.assert_statistics(refusals=2, connects=4)
        streams[0].transport.break_off(ConnectionLost())
        self.new()

    def test_attempts(self):
        """Connection attempts count, too."""
        for _ in range(4):
            self.ask(long_running=True)
        self.failureResultOf(self.ask(long_running=True), PoolBusy)
        self.assertEqual(4, len(self.attempts))

    def test_short_uses(self):
        """While some are in short use, a short request waits; a long-running one is rejected."""
        for _ in range(3):
            self.follow(self.new())
        short = self.new()
        self.begin(short)
        waiting = self.ask()
        self.assertNoResult(waiting)
        self.failureResultOf(self.ask(long_running=True), PoolBusy)
        self.answer(short)
        self.assertIs(short, self.successResultOf(waiting))

    def test_fresh(self):
        """A fresh connection replaces an idle one."""
        for _ in range(3):
            self.follow(self.new())
        old = self.new()
        self.use(old)
        self.assertIsNot(old, self.new(fresh=True))
        self.assertFalse(old.reusable)


class CancelTests(PoolTestCase):
    """Cancelled requests."""

    def test_attempt(self):
        """Cancelling a request cancels its connection attempt, and frees its place."""
        acquired = [self.ask() for _ in range(3)]
        canceled = self.attempts[0]
        acquired[0].cancel()
        self.failureResultOf(acquired[0], CancelledError)
        self.assertTrue(canceled.called)
        self.assertEqual(3, len(self.attempts))
        acquired[2].cancel()
        self.failureResultOf(acquired[2], CancelledError)
        self.assertTrue(self.attempts[2].called)

    def test_waiting(self):
        """Cancelling a waiting request frees its place in the queue."""
        first = self.new()
        second = self.new()
        self.begin(first)
        self.begin(second)
        third, fourth = self.ask(), self.ask()
        third.cancel()
        self.failureResultOf(third, CancelledError)
        self.answer(first)
        self.assertIs(first, self.successResultOf(fourth))
        self.assert_statistics(waiting=0)

    def test_by_who_is_served_next(self):
        """A request served after a failure may cancel the one whose attempt has failed."""
        first, second = self.new(), self.new()
        failing, next_one = self.ask(), self.ask()
        next_one.addErrback(lambda failure: failing.cancel())
        first.transport.break_off(ConnectionLost())
        attempt = self.attempts.pop()
        self.pool.connect = lambda key, caller: fail(ConnectError())
        attempt.errback(ConnectError())
        self.assertIsNone(self.successResultOf(attempt))
        self.failureResultOf(failing, CancelledError)
        second.transport.break_off(ConnectionLost())
        self.assert_statistics(in_use=0, waiting=0)
