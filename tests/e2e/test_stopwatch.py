"""The measurement of the time for which a test waits."""

from __future__ import annotations

import os
from types import SimpleNamespace

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.e2e import stopwatch
from tests.e2e.stopwatch import Deadline, Stopwatch
from tests.e2e.support import EndToEndTestCase


class StopwatchTests(EndToEndTestCase):
    """Bounds in seconds, on a machine with other load."""

    def setUp(self):
        """Simulate two programs, one of which runs, and the time that each has waited."""
        self.clock = Clock()
        self.waits = {os.getpid(): 5.0, 1001: 7.0}
        self.one = SimpleNamespace(running=True, pid=1001)
        self.other = SimpleNamespace(running=False, pid=1002)
        self.patch(stopwatch, "programs", [self.one, self.other])
        self.ended_threads = set()
        self.patch(stopwatch, "cpu_wait_by_thread", self.cpu_wait_by_thread)
        self.stolen = 7.0
        self.patch(stopwatch, "stolen", lambda: self.stolen)
        return super().setUp()

    def cpu_wait_by_thread(self, pid):
        """Return the time that a program's only thread has waited, if it has not ended."""
        return [] if pid in self.ended_threads else [(str(pid), self.waits[pid])]

    def test_running_time_counts(self):
        """Without waits it is the elapsed time."""
        watch = Stopwatch(self.clock)
        self.clock.advance(3)
        self.assertEqual(3.0, watch.seconds())

    def test_waiting_for_a_processor_does_not_count(self):
        """Neither for the tests' process nor for a program, also one that was started later."""
        watch = Stopwatch(self.clock)
        self.clock.advance(3)
        self.waits.update({os.getpid(): 5.25, 1001: 7.5, 1002: 1.0})
        self.assertEqual(2.25, watch.seconds())
        self.other.running = True
        self.assertEqual(1.25, watch.seconds())

    def test_stolen_time_does_not_count(self):
        """Stolen time is excluded."""
        watch = Stopwatch(self.clock)
        self.clock.advance(3)
        self.stolen += 0.5
        self.assertEqual(2.5, watch.seconds())

    def test_waits_of_ended_programs(self):
        """The earlier waits of an ended program are not subtracted."""
        watch = Stopwatch(self.clock)
        self.clock.advance(3)
        self.one.running = False
        self.assertEqual(3.0, watch.seconds())

    def test_waits_of_ended_threads_count(self):
        """Otherwise a program whose thread ended would have a negative wait."""
        watch = Stopwatch(self.clock)
        self.clock.advance(3)
        self.waits[1001] += 1
        self.assertEqual(1.0, watch.waited())
        self.ended_threads.add(1001)
        self.assertEqual((1.0, 2.0), (watch.waited(), watch.seconds()))

    def test_a_deadline_uses_the_longer_time(self):
        """The longer of both applies."""
        deadline = Deadline(self.clock, 3)
        self.clock.advance(3)
        self.assertFalse(deadline.passed)
        self.clock.advance(1)
        self.assertTrue(deadline.passed)
        self.waits[1001] += 2
        self.assertFalse(deadline.passed)

    async def test_a_timeout_is_a_failure(self):
        """A bound cancels the wait."""
        ended = []
        never = Deferred(ended.append)
        with self.assertRaisesRegex(self.failureException, "not within 0.05 s: the answer"):
            await self.within(0.05, never, "the answer")
        self.assertEqual([never], ended)
        with self.assertRaisesRegex(self.failureException, "after 0.05 s it was not so that"):
            await self.eventually(lambda: False, "it comes", 0.05)

    async def test_a_bound_is_longer_where_processors_are_others(self):
        """It is extended by the time that was waited for a processor."""
        answer = Deferred()
        watched = iter((5.0, 65.0, 65.0))

        def cpu_wait_by_thread(pid):
            return [("own", next(watched))] if pid == os.getpid() else []

        self.patch(stopwatch, "cpu_wait_by_thread", cpu_wait_by_thread)
        reactor.callLater(0.15, answer.callback, "late")
        self.assertEqual("late", await self.within(0.1, answer, "the answer"))
