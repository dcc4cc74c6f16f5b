"""What runs jobs, in threads or at once: what those who give them can rely on."""

from __future__ import annotations


class JobsContract:
    """A mixin for tests; ``make_jobs`` returns what runs them."""

    async def test_order(self) -> None:
        """Jobs run in their order, and each result comes to who asks."""
        jobs, seen = self.make_jobs(), []

        def job(number):
            seen.append(number)
            return -number

        ends = [jobs.run(lambda number=number: job(number)) for number in range(20)]
        self.assertEqual([await end for end in ends], [-number for number in range(20)])
        self.assertEqual(seen, list(range(20)))

    async def test_error(self) -> None:
        """One that raises does not keep the next one from being run."""
        jobs = self.make_jobs()
        await self.assertFailure(jobs.run(lambda: 1 / 0), ZeroDivisionError)
        self.assertEqual(await jobs.run(lambda: 1), 1)

    async def test_after_the_end(self) -> None:
        """What was given before the end is run, and so is what comes after it."""
        jobs = self.make_jobs()
        first = jobs.run(lambda: 1)
        jobs.end()
        self.assertEqual((await first, await jobs.run(lambda: 2)), (1, 2))
