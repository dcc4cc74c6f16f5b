"""The replacements for threads follow the contract of threads."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from tests.hub.cache.caches import HeldJobs
from tests.ops.contract_jobs import JobsContract


class HeldJobsTests(JobsContract, TestCase):
    """Jobs that may be held."""

    make_jobs = HeldJobs

    async def test_held(self) -> None:
        """Held jobs run in order when they are released."""
        jobs, seen = HeldJobs(), []
        jobs.holds = True
        ends = [jobs.run(lambda number=number: seen.append(number)) for number in range(3)]
        self.assertEqual([], seen)
        jobs.release()
        self.assertEqual([None] * 3, [await end for end in ends])
        self.assertEqual([0, 1, 2], seen)
