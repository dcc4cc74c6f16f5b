"""The contract of job runners, whether they run jobs in a thread or immediately."""

from __future__ import annotations


class JobsContract:
    """A mixin for test cases; ``make_jobs`` returns the job runner."""

    async def test_order(self) -> None:
        """Jobs run in the order of submission, and each caller gets the result of its job."""
        jobs, seen = self.make_jobs(), []

        def job(number):
            seen.append(number)
            return -number

        ends = [jobs.run(lambda number=number: job(number)) for number in range(20)]
        self.assertEqual([await end for end in ends], [-number for number in range(20)])
        self.assertEqual(seen, list(range(20)))

    async def test_error(self) -> None:
        """A job that raises does not keep the next job from running."""
        jobs = self.make_jobs()
        await self.assertFailure(jobs.run(lambda: 1 / 0), ZeroDivisionError)
        self.assertEqual(await jobs.run(lambda: 1), 1)

    async def test_after_the_end(self) -> None:
        """Jobs that are submitted before or after the runner's end are run."""
        jobs = self.make_jobs()
        first = jobs.run(lambda: 1)
        jobs.end()
        self.assertEqual((await first, await jobs.run(lambda: 2)), (1, 2))
