"""Connections that are kept and shared."""

from __future__ import annotations

import gc

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred, succeed
from twisted.internet.error import ConnectError, ConnectionLost
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.support import Receiver, settle
from tests.tunnel.memory import User
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.pool import ConnectionPool, PoolBusy, PoolSettings

DONE = b"HTTP/1.1 204 No Content\r\n\r\n"
BEGUN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDED = b"0\r\n\r\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: spdy/3.1\r\n\r\n"


class PoolTestCase(SynchronousTestCase):
    """A pool whose connections the test makes."""

    settings = PoolSettings(max_per_key=2, max_waiting=3)

    def setUp(self):
        """Make the pool."""
        self.clock = MemoryReactorClock()
        self.attempts = []
        self.transports = []
        self.pool = ConnectionPool(self.clock, self.connect, self.settings)
        self.asked = []
        self.addCleanup(self.forget)
        self.addCleanup(self.pool.close)

    def ask(self, key="node", **arguments):
        """Ask for a connection."""
        acquired = maybeDeferred(self.pool.take, key, **arguments)
        self.asked.append(acquired)
        return acquired

    def forget(self):
        """Take note of what has failed because the test is over."""
        for acquired in self.asked:
            acquired.addErrback(lambda failure: None)

    def connect(self, key, caller):
        """Keep an attempt."""
        attempt = Deferred()
        attempt.key = key
        attempt.caller = caller
        self.attempts.append(attempt)
        return attempt

    def succeed(self):
        """Have the oldest attempt succeed."""
        connection = ClientConnection(self.clock)
        self.transports.append(MemoryConnection(self.clock).open(connection))
        self.attempts.pop(0).callback(connection)
        return connection

    def acquire(self, **arguments):
        """Get a connection that is there already, or fail."""
        return self.successResultOf(self.ask(**arguments))

    def new(self, **arguments):
        """Get a new connection, and have it made."""
        acquired = self.ask(**arguments)
        self.succeed()
        return self.successResultOf(acquired)

    def use(self, connection):
        """Make a request and have it answered."""
        self.begin(connection)
        self.answer(connection)

    def begin(self, connection, upgrade=False):
        """Make a request."""
        receiver = Receiver()
        receiver.exchange = connection.request(
            b"GET", b"/", [(b"Host", b"node")], receiver, upgrade=upgrade
        )
        return receiver

    def follow(self, connection):
        """Make a request whose answer begins and does not end for a second."""
        self.begin(connection)
        connection.transport.receive(BEGUN)
        self.clock.advance(1)

    def upgrade(self, connection):
        """Make a request that is answered by another protocol."""
        receiver = self.begin(connection, upgrade=True)
        receiver.response_received = lambda head: receiver.exchange.switch(User())
        connection.transport.receive(SWITCHING)

    def answer(self, connection):
        """Have a request answered."""
        connection.transport.receive(DONE)

    def settle(self):
        """Let ends arrive."""
        settle(self.clock, *self.transports)

    def assert_statistics(self, **expected):
        """Compare some of the statistics."""
        found = {name: getattr(self.pool.statistics, name) for name in expected}
        self.assertEqual(expected, found)


class UploadTests(PoolTestCase):
    """Uploads have connections of their own, and each caller its share of these."""

    settings = PoolSettings(max_per_key=2, max_uploads_per_key=4, max_waiting=4)

    def upload(self, caller):
        """Ask for a connection for an upload."""
        return self.ask(upload=True, caller=caller)

    def test_beside_the_others(self):
        """Neither takes anything from the other, waiting for it included."""
        for caller in "abcd":
            self.upload(caller)
        for caller in "efgh":
            self.assertNoResult(self.upload(caller))
        self.assertEqual(4, len(self.attempts))
        self.ask()
        self.ask()
        self.assertEqual(6, len(self.attempts))
        for _ in range(4):
            self.assertNoResult(self.ask())
        self.failureResultOf(self.ask(), PoolBusy)
        self.failureResultOf(self.upload("i"), PoolBusy)
        self.assertEqual(6, len(self.attempts))

    def test_the_share_of_a_caller(self):
        """One has as many as it leaves free, half if it is alone, of the connections and of the
        places; the others pass it by.
        """
        for _ in range(4):
            self.upload("a")
        self.assertEqual(2, len(self.attempts))
        self.failureResultOf(self.upload("a"), PoolBusy)
        for caller in "bc":
            self.upload(caller)
        self.assertEqual(4, len(self.attempts))
        waits = self.upload("b")
        first, _, third, _ = (self.succeed() for _ in range(4))
        self.begin(third)
        self.answer(third)
        self.assertIs(third, self.successResultOf(waits))
        self.begin(first)
        self.answer(first)
        self.assertNoResult(self.asked[2])
        self.begin(third)
        self.answer(third)
        self.assertIs(third, self.successResultOf(self.asked[2]))
        self.assertNoResult(self.asked[3])

    def test_what_lasts_is_an_upload_first(self):
        """Its answer has to begin and go on before it does not count any more."""
        for _ in range(2):
            self.ask(upload=True, lasting=True, caller="a")
        waits = self.upload("a")
        self.follow(self.succeed())
        self.assertEqual(2, len(self.attempts))
        self.assertNoResult(waits)
        self.succeed()
        self.succeed()
        self.successResultOf(waits)

    def test_uploads_that_end(self):
        """Failures, cancellations and lost connections make room as well."""
        asked = [self.upload(caller) for caller in "aabc"]
        asked[0].cancel()
        self.failureResultOf(asked[0], CancelledError)
        again = self.upload("a")
        self.attempts.pop(0)
        self.attempts.pop(0).errback(ConnectError())
        self.failureResultOf(asked[1], ConnectError)
        self.upload("a")
        for _ in range(4):
            self.succeed().abort()
        self.settle()
        self.successResultOf(again)
        for caller in "aabc":
            self.upload(caller)
        self.assertEqual(4, len(self.attempts))
        waits = self.upload("d")
        self.clock.advance(self.settings.waiting_timeout)
        self.failureResultOf(waits, PoolBusy)
        self.assert_statistics(waiting=0)


class ShareTests(PoolTestCase):
    """No caller shuts an origin for others, whatever it does there."""

    settings = PoolSettings()

    def served(self, caller, **arguments):
        """Have connections made for as much as a caller asks for; give how many it gets."""
        for _ in range(2000):
            self.ask(caller=caller, **arguments)
        made = len(self.attempts)
        while self.attempts:
            self.begin(self.succeed(), upgrade=arguments.get("upgrade", False))
        return made

    def test_answers_that_never_begin(self):
        """One who waits for as many as can be has half; others are served, for hours."""
        self.assertEqual(16, self.served("mallory"))
        for _ in range(60):
            self.use(self.new(caller="jane"))
            self.pool.close_idle()
            self.clock.advance(60)
        self.assertEqual(16, self.pool.statistics.in_use)

    def test_many_who_do_so(self):
        """Each leaves as many as it has, so it takes some to leave nothing."""
        shares = [self.served(f"mallory {number}") for number in range(6)]
        self.assertEqual([16, 8, 4, 2, 1, 1], shares)

    def test_upgrades_have_their_own(self):
        """However many short requests and uploads wait, they begin, of whichever caller."""
        for number in range(40):
            for upload in (False, True):
                self.served(f"mallory {number}", upload=upload)
        for caller in ("jane", "mallory 0"):
            self.upgrade(self.new(caller=caller, upgrade=True))
        self.assert_statistics(in_use=66)

    def test_upgrades_that_never_begin(self):
        """They leave others room for theirs, and take nothing of what is short."""
        self.assertEqual(16, self.served("mallory", upgrade=True))
        self.upgrade(self.new(caller="jane", upgrade=True))
        self.use(self.new(caller="mallory"))

    def test_who_connects(self):
        """What is to last is connected to for its caller, all else for everybody."""
        for arguments in ({}, {"upload": True}, {"lasting": True}, {"upgrade": True}):
            self.ask(caller="jane", **arguments)
        told = [attempt.caller for attempt in self.attempts]
        self.assertEqual([None, None, "jane", "jane"], told)

    def test_those_who_wait(self):
        """One has half of the places to wait, too, of each kind."""
        for arguments in ({}, {"upgrade": True}, {"upload": True}):
            self.served("mallory", **arguments)
            self.assert_statistics(waiting=512)
            self.failureResultOf(self.ask(caller="mallory", **arguments), PoolBusy)
            for number in range(16):
                self.ask(caller=f"jane {number}", **arguments)
            self.assertNoResult(self.ask(caller="joe", **arguments))
            self.clock.advance(self.settings.waiting_timeout)
            self.assert_statistics(waiting=0)

    def test_what_lasts(self):
        """One has half of all the connections, however they came to last."""
        self.assertEqual(512, self.served("mallory", lasting=True))
        error = self.failureResultOf(self.ask(caller="mallory", lasting=True), PoolBusy)
        self.assertIn("for long", str(error.value))
        self.failureResultOf(self.ask(caller="mallory"), PoolBusy)
        self.begin(self.new(caller="jane", lasting=True))
        self.use(self.new(caller="jane"))

    def test_what_turns_out_to_last(self):
        """Upgrades and answers that go on count in what their caller has of all."""
        for _ in range(256):
            self.upgrade(self.new(caller="mallory", upgrade=True))
            self.follow(self.new(caller="mallory"))
        self.failureResultOf(self.ask(caller="mallory", upgrade=True), PoolBusy)
        self.use(self.new(caller="jane"))
        self.transports[0].break_off(ConnectionLost())
        self.acquire(caller="mallory", upgrade=True)


class TogetherTests(ShareTests):
    """No caller gets more of a node by asking at several of its ports, or addresses."""

    def setUp(self):
        """Have keys belong together whose nodes are the same."""
        super().setUp()
        self.pool = ConnectionPool(
            self.clock, self.connect, self.settings, together=lambda key: key[0]
        )
        self.addCleanup(self.pool.close)

    def ask(self, key=("edge-1", 10250), **arguments):
        """Ask for a connection."""
        return super().ask(key, **arguments)

    def test_what_lasts_at_several_ports(self):
        """One has half of all that there may be in use, wherever; others, and other nodes, have
        theirs.
        """
        others = [("edge-1", port) for port in (10255, 9100, 9443)]
        for number in range(256):
            self.begin(self.new(caller="mallory", lasting=True))
            self.follow(self.new(caller="mallory", key=others[number % 3]))
        for key in (("edge-1", 10250), *others, ("edge-1", 80)):
            for lasting in (False, True):
                self.failureResultOf(self.ask(key, caller="mallory", lasting=lasting), PoolBusy)
            self.begin(self.new(caller="jane", key=key, lasting=True))
            self.use(self.new(caller="jane", key=key))
        self.begin(self.new(caller="mallory", key=("edge-2", 10250), lasting=True))
        for transport in self.transports:
            transport.break_off(ConnectionLost())
        self.assertEqual(512, self.served("mallory", key=others[0], lasting=True))

    def test_a_place_is_given_to_who_waits_at_another_port(self):
        """Whichever port of a node frees it; those of other nodes are not concerned."""
        kubelet, metrics = ("edge-1", 10250), ("edge-1", 10255)
        followed = [self.new(key=kubelet, lasting=True) for _ in range(1023)]
        self.begin(self.new(key=metrics))
        waiting = [self.ask(metrics) for _ in range(3)]
        self.use(followed[0])
        self.succeed()
        self.begin(self.successResultOf(waiting[0]))
        followed[1].transport.break_off(ConnectionLost())
        self.succeed()
        self.begin(self.successResultOf(waiting[1]))
        self.assertNoResult(waiting[2])
        self.assertEqual([], self.attempts)

    def test_ports_take_turns(self):
        """Of those who wait at several ports none waits for all of another port."""
        followed = [self.new(lasting=True) for _ in range(1022)]
        ports = [("edge-1", port) for port in (10255, 10250, 9100)]
        for key in ports[:2]:
            self.begin(self.new(key=key))
        waiting = [self.ask(key) for key in ports for _ in range(2)]
        for number in range(3):
            followed[number].transport.break_off(ConnectionLost())
        self.assertEqual(ports, [attempt.key for attempt in self.attempts])
        waiting[1].cancel()
        followed[3].transport.break_off(ConnectionLost())
        self.assertEqual([*ports, ports[1]], [attempt.key for attempt in self.attempts])
        self.assertEqual(1, self.pool.statistics.waiting)

    def test_the_end_while_several_ports_are_waited_for(self):
        """Nobody is given a place that the end has freed."""
        self.begin(self.new())
        for _ in range(1023):
            self.begin(self.new(lasting=True))
        waiting = [self.ask(("edge-1", port)) for port in (10250, 10255)]
        self.pool.close()
        self.settle()
        for acquired in waiting:
            self.failureResultOf(acquired, PoolBusy)
        self.assertEqual([], self.attempts)
        self.assertEqual({}, self.pool._origins)

    def test_nothing_is_kept(self):
        """What is counted for nodes that are gone is forgotten, and not while one port is used."""
        kept = self.new()
        gone = self.new(key=("edge-1", 10255))
        for connection in (kept, gone):
            self.begin(connection)
        gone.transport.break_off(ConnectionLost())
        self.assertEqual([1], [places.taken for places in self.pool._in_use.values()])
        kept.transport.break_off(ConnectionLost())
        self.transports.clear()
        self.asked.clear()
        del kept, gone, connection
        gc.collect()
        self.assertEqual([], list(self.pool._in_use))


class ReuseTests(PoolTestCase):
    """Connections are used again."""

    def test_reused(self):
        """A connection that is free is given out again."""
        first = self.new()
        self.assertEqual(0, first.requests)
        self.use(first)
        self.assertIs(first, self.acquire())
        self.assert_statistics(connects=1, reuses=1, in_use=1, idle=0)
        self.use(first)
        self.assert_statistics(in_use=0, idle=1)

    def test_newest_first(self):
        """The one used last is given out first, so that the others can go."""
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
        """A connection that is lost, or has ended, is not given out."""
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
        """One whose response says so is not kept."""
        connection = self.new()
        self.begin(connection)
        connection.transport.receive(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        self.settle()
        self.assert_statistics(idle=0, in_use=0)

    def test_idle_timeout(self):
        """One that nobody needs is closed."""
        connection = self.new()
        self.use(connection)
        self.clock.advance(59.9)
        self.assertTrue(connection.reusable)
        self.clock.advance(0.1)
        self.settle()
        self.assertIsNotNone(connection.transport.closed_with)
        self.assert_statistics(idle=0)

    def test_fresh(self):
        """Who asks for a new one does not get an old one."""
        old = self.new()
        self.use(old)
        self.assertIsNot(old, self.new(fresh=True))
        self.assertTrue(old.reusable)

    def test_fresh_within_the_bound(self):
        """For a new one an old one is closed where there is no room."""
        first, second = self.new(), self.new()
        self.use(first)
        self.use(second)
        self.new(fresh=True)
        self.assertFalse(first.reusable)
        self.assertTrue(second.reusable)

    def test_lost_while_it_was_made(self):
        """A connection that has ended already is a failure, of which nothing was sent."""
        acquired = self.ask()
        connection = ClientConnection(self.clock)
        MemoryConnection(self.clock).open(connection).break_off(ConnectionLost())
        self.attempts.pop().callback(connection)
        self.assertTrue(self.failureResultOf(acquired, ExchangeFailed).value.unanswered)

    def test_failure(self):
        """An attempt that fails fails for who waits for it, and makes room."""
        for _ in range(5):
            acquired = self.ask()
            self.attempts.pop().errback(ConnectError())
            self.failureResultOf(acquired, ConnectError)
        self.assert_statistics(connects=5, failed_connects=5, in_use=0)
        self.assertEqual({}, self.pool._origins)

    def test_connect_raises(self):
        """So is one that raises."""
        pool = ConnectionPool(self.clock, lambda key, caller: 1 / 0)
        self.failureResultOf(pool.take("node"), ZeroDivisionError)

    def test_nothing_is_kept_for_origins_that_are_gone(self):
        """An origin without connections is forgotten."""
        connection = self.new()
        self.use(connection)
        self.assertEqual(1, len(self.pool._origins))
        connection.transport.break_off(ConnectionLost())
        self.assertEqual({}, self.pool._origins)


class BoundTests(PoolTestCase):
    """How many connections there are."""

    def test_waiting(self):
        """Who comes beyond the bound waits for one that becomes free, in order."""
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
        """200 at once stay at the bound, and all are served."""
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
        """When one is lost, who waits gets a new one."""
        first, second = self.new(), self.new()
        self.begin(first)
        self.begin(second)
        third = self.ask()
        first.transport.break_off(ConnectionLost())
        self.assertIs(self.succeed(), self.successResultOf(third))

    def test_failed_attempt_makes_room(self):
        """When an attempt fails, who waits gets the next."""
        acquired = [self.ask() for _ in range(3)]
        self.attempts.pop(0).errback(ConnectError())
        self.failureResultOf(acquired[0], ConnectError)
        self.assertEqual(2, len(self.attempts))
        self.attempts[1].errback(ConnectError())
        self.failureResultOf(acquired[2], ConnectError)
        self.assertIs(self.succeed(), self.successResultOf(acquired[1]))

    def test_long_uses_do_not_count(self):
        """An answer that goes on for longer than a second gives its place to others."""
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
        """However long an answer takes to begin, nobody gets its place."""
        first, second = self.new(), self.new()
        self.begin(first)
        self.begin(second)
        self.ask()
        self.clock.advance(14)
        self.assertEqual([], self.attempts)
        self.assert_statistics(in_use=2, waiting=1)

    def test_slow_origin(self):
        """200 who ask one that takes 1.5 s for each answer share 32 connections."""
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
        """300 who ask for an upgrade that is refused share 32 connections."""
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
        """However many streams there are, short requests get connections."""
        for _ in range(100):
            self.follow(self.new())
        self.use(self.new())
        self.assertEqual(2, self.acquire().requests + 1)

    def test_long_use_comes_back(self):
        """A connection that was long in use is kept within the bound only."""
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
        """Once it has its 101 an upgrade gives its place to others, at once."""
        first, second = self.new(), self.new()
        third = self.ask()
        self.upgrade(first)
        self.upgrade(second)
        self.upgrade(self.succeed())
        self.successResultOf(third)
        self.use(self.new())
        self.assert_statistics(in_use=3, idle=1)

    def test_upgrades_that_wait_count(self):
        """An upgrade that waits for its 101 counts as every request does."""
        for _ in range(2):
            self.begin(self.new(), upgrade=True)
        self.ask()
        self.clock.advance(14)
        self.assertEqual([], self.attempts)

    def test_lasting(self):
        """What will last does not count, while its answer has not begun either."""
        for _ in range(5):
            self.begin(self.new(lasting=True))
        first = self.new()
        self.use(first)
        self.assertIs(first, self.acquire(lasting=True))
        self.assert_statistics(in_use=6, idle=0, connects=6)
        self.begin(self.new())
        self.begin(self.new())
        self.begin(self.new(lasting=True))
        self.assert_statistics(in_use=9, waiting=0)

    def test_lasting_answers(self):
        """That the answer of such a request goes on for long gives nobody a place."""
        self.follow(self.new(lasting=True))
        self.new()
        self.new()
        self.ask()
        self.assertEqual([], self.attempts)

    def test_lasting_attempts_do_not_count(self):
        """Nor does it while its connection is made, and when that fails."""
        self.begin(self.new())
        lasting = [self.ask(lasting=True) for _ in range(3)]
        for attempt in self.attempts:
            attempt.errback(ConnectError())
        for each in lasting:
            self.failureResultOf(each, ConnectError)
        self.attempts.clear()
        self.new()
        self.ask()
        self.assertEqual([], self.attempts)

    def test_refused_upgrade(self):
        """An upgrade that was refused leaves a connection to use."""
        connection = self.new()
        self.use(connection)
        self.assertIs(connection, self.acquire())
        self.use(connection)
        self.assertIs(connection, self.acquire())
        self.assert_statistics(connects=1, in_use=1)

    def test_too_many_waiting(self):
        """Beyond a bound nobody may wait."""
        waiting = [self.ask() for _ in range(5)][2:]
        error = self.failureResultOf(self.ask(), PoolBusy)
        self.assertIn("too many", str(error.value))
        self.assert_statistics(waiting=3, refusals=1)
        for each in waiting:
            each.cancel()
            self.failureResultOf(each, CancelledError)
        self.assert_statistics(waiting=0)

    def test_waiting_too_long(self):
        """Nor for ever."""
        self.begin(self.new())
        self.begin(self.new())
        waiting = self.ask()
        self.clock.advance(14.9)
        self.assertNoResult(waiting)
        self.clock.advance(0.1)
        self.failureResultOf(waiting, PoolBusy)
        self.assert_statistics(waiting=0, refusals=1, in_use=2)

    def many(self):
        """Have a pool with the usual settings."""

        def connect(key, caller):
            connection = ClientConnection(self.clock)
            self.transports.append(MemoryConnection(self.clock).open(connection))
            return succeed(connection)

        self.pool = ConnectionPool(self.clock, connect, PoolSettings())
        self.addCleanup(self.pool.close)

    def test_fresh_waits(self):
        """Who needs a new one waits for room, not for an old one."""
        first, second = self.new(), self.new()
        self.begin(first)
        self.begin(second)
        fresh = self.ask(fresh=True)
        self.answer(first)
        self.assertFalse(first.reusable)
        self.assertIs(self.succeed(), self.successResultOf(fresh))


class TotalTests(PoolTestCase):
    """How many connections there are, with those that are in use for long."""

    settings = PoolSettings(max_per_key=2, max_connections_per_key=4)

    def test_long_uses(self):
        """When all are in use for long the next is refused at once, also one that would last."""
        streams = [self.new() for _ in range(2)]
        for stream in streams:
            self.follow(stream)
        self.upgrade(self.new())
        self.begin(self.new(lasting=True))
        for lasting in (False, True):
            error = self.failureResultOf(self.ask(lasting=lasting), PoolBusy)
            self.assertIn("for long", str(error.value))
        self.assert_statistics(refusals=2, connects=4)
        streams[0].transport.break_off(ConnectionLost())
        self.new()

    def test_attempts(self):
        """Those that are being made are counted, too."""
        for _ in range(4):
            self.ask(lasting=True)
        self.failureResultOf(self.ask(lasting=True), PoolBusy)
        self.assertEqual(4, len(self.attempts))

    def test_short_uses(self):
        """While some are in use for a short time, the next waits for them if it is short, too."""
        for _ in range(3):
            self.follow(self.new())
        short = self.new()
        self.begin(short)
        waiting = self.ask()
        self.assertNoResult(waiting)
        self.failureResultOf(self.ask(lasting=True), PoolBusy)
        self.answer(short)
        self.assertIs(short, self.successResultOf(waiting))

    def test_fresh(self):
        """For a new one an idle one goes."""
        for _ in range(3):
            self.follow(self.new())
        old = self.new()
        self.use(old)
        self.assertIsNot(old, self.new(fresh=True))
        self.assertFalse(old.reusable)


class CancelTests(PoolTestCase):
    """Who gives up."""

    def test_attempt(self):
        """The attempt that was made for it is canceled, and makes room."""
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
        """Its place in the queue goes to the next."""
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


class EndTests(PoolTestCase):
    """Ending a pool."""

    def test_who_uses_what(self):
        """Each connection is idle, or in use by its caller."""
        used, idle = self.new(caller="a"), self.new(caller="b")
        self.use(idle)
        self.assertEqual([(used, "a")], list(self.pool.lent()))
        self.assertEqual([idle], self.pool.unused())
        self.assertIs(idle, self.acquire(caller="c"))
        self.assertEqual({used: "a", idle: "c"}, dict(self.pool.lent()))

    def test_close_idle(self):
        """What is idle is closed, what is used goes on."""
        first, second = self.new(), self.new()
        self.use(first)
        receiver = self.begin(second)
        self.pool.close_idle()
        self.assertFalse(first.reusable)
        self.answer(second)
        self.assertEqual([None], receiver.ends)
        self.assertIs(second, self.acquire())

    def test_close_idle_of_some(self):
        """What is idle of other keys is kept."""
        first = self.new()
        self.use(first)
        self.pool.close_idle(lambda key: False)
        self.assertTrue(first.reusable)

    def test_not_kept(self):
        """What is not to be kept is closed when it becomes free."""
        first = self.new()
        self.begin(first)
        asked = []
        self.pool.keeps = lambda key: asked.append(key)
        self.answer(first)
        self.assertFalse(first.reusable)
        self.assertEqual(1, len(asked))

    def test_drain(self):
        """After that nothing is kept."""
        first, second = self.new(), self.new()
        self.use(first)
        self.begin(second)
        self.pool.drain()
        self.assertFalse(first.reusable)
        self.answer(second)
        self.settle()
        self.assertIsNotNone(second.transport.closed_with)
        self.assert_statistics(idle=0, in_use=0)

    def test_close_all_of_some(self):
        """Whatever concerns some keys ends at once: what is used, idle, being made, waited for."""
        other, idle, follower = self.new(key="other"), self.new(key="idle"), self.new()
        self.use(idle)
        self.follow(follower)
        used = self.new()
        receiver = self.begin(used)
        attempt, waiting = self.ask(), self.ask()
        self.pool.close_all(lambda key: key != "other", "it is lost")
        self.settle()
        self.assertEqual(1, len(receiver.ends))
        for connection in (follower, idle, used):
            self.assertFalse(connection.reusable)
        self.failureResultOf(attempt, CancelledError)
        self.assertEqual("it is lost", str(self.failureResultOf(waiting, PoolBusy).value))
        self.use(other)
        self.assertIs(other, self.acquire(key="other"))

    def test_close(self):
        """Everything ends at once, and no call is left."""
        used = self.new()
        receiver = self.begin(used)
        attempt = self.ask()
        waiting = self.ask()
        self.pool.close()
        self.settle()
        self.assertEqual(1, len(receiver.ends))
        self.assertTrue(used.transport.aborted)
        self.failureResultOf(attempt, CancelledError)
        self.failureResultOf(waiting, PoolBusy)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual({}, self.pool._origins)
