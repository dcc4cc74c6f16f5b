"""Uploads in a pool."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectError

from tests.http.pooling import PoolTestCase
from yurttunnel.http.pool import PoolBusy, PoolSettings


class UploadTests(PoolTestCase):
    """Uploads have their own limit, and each caller a share of it."""

    settings = PoolSettings(max_per_key=2, max_uploads_per_key=4, max_waiting=4)

    def upload(self, caller):
        """Request a connection for an upload."""
        return self.ask(upload=True, caller=caller)

    def test_beside_the_others(self):
        """Uploads and other requests do not affect each other, including their queues."""
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
        """A caller may use as many connections and queue places as remain free, half if it is the
        only one; other callers overtake it.
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

    def test_long_uploads_count_as_uploads_first(self):
        """A long-running upload counts as one until its response has been running for a second."""
        for _ in range(2):
            self.ask(upload=True, long_running=True, caller="a")
        waits = self.upload("a")
        self.follow(self.succeed())
        self.assertEqual(2, len(self.attempts))
        self.assertNoResult(waits)
        self.succeed()
        self.succeed()
        self.successResultOf(waits)

    def test_uploads_that_end(self):
        """Failures, cancellations and lost connections free places as well."""
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
