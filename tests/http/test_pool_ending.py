"""Closing of a pool and its connections."""

from __future__ import annotations

from twisted.internet.defer import CancelledError

from tests.http.pooling import PoolTestCase
from yurttunnel.http.pool import PoolBusy


class EndTests(PoolTestCase):
    """Closing of a pool."""

    def test_who_uses_what(self):
        """Each connection is either idle, or in use by its caller."""
        used, idle = self.new(caller="a"), self.new(caller="b")
        self.use(idle)
        self.assertEqual([(used, "a")], list(self.pool.in_use_connections()))
        self.assertEqual([idle], self.pool.idle_connections())
        self.assertIs(idle, self.acquire(caller="c"))
        self.assertEqual({used: "a", idle: "c"}, dict(self.pool.in_use_connections()))

    def test_close_idle(self):
        """Idle connections are closed, those in use are not."""
        first, second = self.new(), self.new()
        self.use(first)
        receiver = self.begin(second)
        self.pool.close_idle()
        self.assertFalse(first.reusable)
        self.answer(second)
        self.assertEqual([None], receiver.ends)
        self.assertIs(second, self.acquire())

    def test_close_idle_of_some(self):
        """Idle connections of other keys are kept."""
        first = self.new()
        self.use(first)
        self.pool.close_idle(lambda key: False)
        self.assertTrue(first.reusable)

    def test_may_not_keep(self):
        """A connection that ``may_keep`` rejects is closed when it becomes free."""
        first = self.new()
        self.begin(first)
        asked = []
        self.pool.may_keep = lambda key: asked.append(key)
        self.answer(first)
        self.assertFalse(first.reusable)
        self.assertEqual(1, len(asked))

    def test_drain(self):
        """After a drain no connection is kept."""
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
        """Everything of the given keys ends at once: in use, idle, connecting and waiting."""
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

    def test_who_is_refused_has_others_wait_no_more(self):
        """A rejected request may cancel other waiting ones."""
        self.new(), self.new()
        first, second = self.ask(), self.ask()
        events = []
        first.addErrback(lambda failure: (events.append(failure.value), second.cancel()))
        self.pool.close()
        self.settle()
        self.assertIsInstance(events[0], PoolBusy)
        self.failureResultOf(second, CancelledError)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_close(self):
        """Everything ends at once, and no delayed call is left."""
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
