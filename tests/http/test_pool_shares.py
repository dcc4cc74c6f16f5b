"""The shares of callers in a pool."""

from __future__ import annotations

import gc

from twisted.internet.error import ConnectionLost

from tests.http.pooling import PoolTestCase
from yurttunnel.http.pool import ConnectionPool, PoolBusy, PoolSettings


class ShareTests(PoolTestCase):
    """No caller locks others out of an origin."""

    settings = PoolSettings()

    def served(self, caller, **arguments):
        """Connect as many requests of a caller as possible; return how many."""
        for _ in range(2000):
            self.ask(caller=caller, **arguments)
        made = len(self.attempts)
        while self.attempts:
            self.begin(self.succeed(), upgrade=arguments.get("upgrade", False))
        return made

    def test_answers_that_never_begin(self):
        """A caller with many unanswered requests has half; others are served, for hours."""
        self.assertEqual(16, self.served("mallory"))
        for _ in range(60):
            self.use(self.new(caller="jane"))
            self.pool.close_idle()
            self.clock.advance(60)
        self.assertEqual(16, self.pool.statistics.in_use)

    def test_many_who_do_so(self):
        """Each caller leaves as many as it has, so it takes several to use up all."""
        shares = [self.served(f"mallory {number}") for number in range(6)]
        self.assertEqual([16, 8, 4, 2, 1, 1], shares)

    def test_upgrades_have_their_own(self):
        """However many short requests and uploads wait, any caller's upgrades are served."""
        for number in range(40):
            for upload in (False, True):
                self.served(f"mallory {number}", upload=upload)
        for caller in ("jane", "mallory 0"):
            self.upgrade(self.new(caller=caller, upgrade=True))
        self.assert_statistics(in_use=66)

    def test_upgrades_that_never_begin(self):
        """Unanswered upgrades leave room for those of others, and do not affect short requests."""
        self.assertEqual(16, self.served("mallory", upgrade=True))
        self.upgrade(self.new(caller="jane", upgrade=True))
        self.use(self.new(caller="mallory"))

    def test_who_connects(self):
        """Only long-running requests and upgrades connect in the name of their caller."""
        for arguments in ({}, {"upload": True}, {"long_running": True}, {"upgrade": True}):
            self.ask(caller="jane", **arguments)
        events = [attempt.caller for attempt in self.attempts]
        self.assertEqual([None, None, "jane", "jane"], events)

    def test_those_who_wait(self):
        """A caller has half of the places in each queue, too."""
        for arguments in ({}, {"upgrade": True}, {"upload": True}):
            self.served("mallory", **arguments)
            self.assert_statistics(waiting=512)
            self.failureResultOf(self.ask(caller="mallory", **arguments), PoolBusy)
            for number in range(16):
                self.ask(caller=f"jane {number}", **arguments)
            self.assertNoResult(self.ask(caller="joe", **arguments))
            self.clock.advance(self.settings.waiting_timeout)
            self.assert_statistics(waiting=0)

    def test_long_requests_of_a_caller(self):
        """A caller has half of all connections, for any kind of long use."""
        self.assertEqual(512, self.served("mallory", long_running=True))
        error = self.failureResultOf(self.ask(caller="mallory", long_running=True), PoolBusy)
        self.assertIn("in long use", str(error.value))
        self.failureResultOf(self.ask(caller="mallory"), PoolBusy)
        self.begin(self.new(caller="jane", long_running=True))
        self.use(self.new(caller="jane"))

    def test_requests_that_become_long(self):
        """Upgrades and long responses count in their caller's share of all connections."""
        for _ in range(256):
            self.upgrade(self.new(caller="mallory", upgrade=True))
            self.follow(self.new(caller="mallory"))
        self.failureResultOf(self.ask(caller="mallory", upgrade=True), PoolBusy)
        self.use(self.new(caller="jane"))
        self.transports[0].break_off(ConnectionLost())
        self.acquire(caller="mallory", upgrade=True)


class TogetherTests(ShareTests):
    """No caller gets more of a node by using several of its ports or addresses."""

    def setUp(self):
        """Group keys with the same node."""
        super().setUp()
        self.pool = ConnectionPool(
            self.clock, self.connect, self.settings, group_of=lambda key: key[0]
        )
        self.addCleanup(self.pool.close)

    def ask(self, key=("edge-1", 10250), **arguments):
        """Request a connection."""
        return super().ask(key, **arguments)

    def test_long_requests_at_several_ports(self):
        """A caller has half of all connections in use of a node, at any ports; other callers and
        nodes are not affected.
        """
        others = [("edge-1", port) for port in (10255, 9100, 9443)]
        for number in range(256):
            self.begin(self.new(caller="mallory", long_running=True))
            self.follow(self.new(caller="mallory", key=others[number % 3]))
        for key in (("edge-1", 10250), *others, ("edge-1", 80)):
            for long_running in (False, True):
                self.failureResultOf(
                    self.ask(key, caller="mallory", long_running=long_running), PoolBusy
                )
            self.begin(self.new(caller="jane", key=key, long_running=True))
            self.use(self.new(caller="jane", key=key))
        self.begin(self.new(caller="mallory", key=("edge-2", 10250), long_running=True))
        for transport in self.transports:
            transport.break_off(ConnectionLost())
        self.assertEqual(512, self.served("mallory", key=others[0], long_running=True))

    def test_a_free_connection_serves_another_port(self):
        """It does not matter which port of a node frees the place; other nodes are not affected."""
        kubelet, metrics = ("edge-1", 10250), ("edge-1", 10255)
        followed = [self.new(key=kubelet, long_running=True) for _ in range(1023)]
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

    def test_ports_are_served_in_turn(self):
        """Waiting requests of several ports are served in turn."""
        followed = [self.new(long_running=True) for _ in range(1022)]
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

    def test_refused_ports_are_removed(self):
        """An origin that is requested while all places are taken leaves nothing behind."""
        for _ in range(1024):
            self.begin(self.new(long_running=True))
        for port in range(10):
            self.failureResultOf(self.ask(("edge-1", port), long_running=True), PoolBusy)
        self.assertEqual(1, len(self.pool._origins))

    def test_a_port_that_was_removed_before(self):
        """A removed origin does not remove the new one with the same key."""
        first = self.new()
        [former] = self.pool._origins.values()
        first.transport.loseConnection()
        self.settle()
        self.assertEqual({}, self.pool._origins)
        self.begin(self.new())
        former.forget_if_empty()
        self.assertEqual(1, len(self.pool._origins))

    def test_the_end_while_several_ports_are_waited_for(self):
        """No waiting request gets a place that the closing has freed."""
        self.begin(self.new())
        for _ in range(1023):
            self.begin(self.new(long_running=True))
        waiting = [self.ask(("edge-1", port)) for port in (10250, 10255)]
        self.pool.close()
        self.settle()
        for acquired in waiting:
            self.failureResultOf(acquired, PoolBusy)
        self.assertEqual([], self.attempts)
        self.assertEqual({}, self.pool._origins)

    def test_nothing_is_kept(self):
        """The places of a node are released when it is gone, but not while one port is in use."""
        kept = self.new()
        gone = self.new(key=("edge-1", 10255))
        for connection in (kept, gone):
            self.begin(connection)
        gone.transport.break_off(ConnectionLost())
        self.assertEqual([1], [limit.used for limit in self.pool._in_use.values()])
        kept.transport.break_off(ConnectionLost())
        self.transports.clear()
        self.asked.clear()
        del kept, gone, connection
        gc.collect()
        self.assertEqual([], list(self.pool._in_use))
