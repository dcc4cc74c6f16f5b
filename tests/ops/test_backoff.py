"""Backoff between attempts."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.backoff import Backoff, equal_jitter, exponential, full_jitter


class BackoffTests(SynchronousTestCase):
    """The delay after a number of failures."""

    def test_pauses_double(self):
        """Delays double from the first to the maximum, also after an outage of years."""
        self.assertEqual([1, 2, 4, 5, 5], [exponential(n, 1, 5) for n in (0, 1, 2, 3, 10_000)])

    def test_jitter_has_its_bounds(self):
        """Jitter is at least the minimum or half the delay, and at most the delay."""
        for failures, maximum in ((0, 1), (1, 2), (10_000, 5)):
            full = [full_jitter(failures, 1, 5, 0.5) for _ in range(200)]
            equal = [equal_jitter(failures, 1, 5) for _ in range(200)]
            for pauses, minimum in ((full, 0.5), (equal, maximum / 2)):
                self.assertTrue(all(minimum <= pause <= maximum for pause in pauses))
                self.assertLess(min(pauses), minimum + (maximum - minimum) / 4)
                self.assertGreater(max(pauses), maximum - (maximum - minimum) / 4)

    def test_failures_in_a_row(self):
        """A success resets the backoff."""
        backoff = Backoff(1, 4)
        bounds = (2, 4, 4)
        for _ in range(2):
            for bound in bounds:
                self.assertTrue(1 <= backoff.next() <= bound)
            backoff.reset()
