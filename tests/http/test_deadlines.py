"""One timer for many deadlines."""

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.deadlines import Deadlines


class DeadlinesTests(SynchronousTestCase):
    """``Deadlines`` expires each item after its time."""

    def setUp(self):
        """Create deadlines of ten seconds."""
        self.clock = Clock()
        self.expired = []
        self.deadlines = Deadlines(self.clock, 10, self.expired.append)

    def test_items_expire_one_after_the_other(self):
        """Each item expires ten seconds after it was added."""
        self.deadlines.add("a")
        self.clock.advance(4)
        self.deadlines.add("b")
        self.deadlines.add("c")
        self.clock.advance(5.9)
        self.assertEqual(self.expired, [])
        self.clock.advance(0.1)
        self.assertEqual(self.expired, ["a"])
        self.clock.advance(4)
        self.assertEqual(self.expired, ["a", "b", "c"])
        self.assertEqual(len(self.deadlines), 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_discarded_items_do_not_expire(self):
        """A discarded item does not expire; discarding it again does nothing."""
        self.deadlines.add("a")
        self.deadlines.add("b")
        self.assertIn("a", self.deadlines)
        self.deadlines.discard("a")
        self.deadlines.discard("a")
        self.assertNotIn("a", self.deadlines)
        self.assertEqual(len(self.deadlines), 1)
        self.clock.advance(10)
        self.assertEqual(self.expired, ["b"])

    def test_items_may_be_added_and_discarded_when_one_expires(self):
        """The callback may add and discard items."""
        clock = Clock()
        expired = []

        def on_expiry(item):
            expired.append(item)
            deadlines.discard("b")
            if item == "a":
                deadlines.add("again")

        deadlines = Deadlines(clock, 10, on_expiry)
        deadlines.add("a")
        clock.advance(1)
        deadlines.add("b")
        clock.advance(9)
        clock.advance(10)
        self.assertEqual(expired, ["a", "again"])

    def test_items_discarded_when_another_expires_do_not_expire(self):
        """If two items are late, the callback of the first may discard or restart the second."""

        def on_expiry(item):
            self.expired.append(item)
            deadlines.discard("b")
            deadlines.discard("c")
            if item == "a":
                deadlines.add("c")

        deadlines = Deadlines(self.clock, 10, on_expiry)
        for item in "abc":
            deadlines.add(item)
        self.clock.advance(10)
        self.assertEqual(self.expired, ["a"])
        self.clock.advance(10)
        self.assertEqual(self.expired, ["a", "c"])

    def test_item_that_raises(self):
        """An exception of the callback is logged, and the other items expire."""

        def on_expiry(item):
            if item == "a":
                raise ZeroDivisionError
            self.expired.append(item)

        deadlines = Deadlines(self.clock, 10, on_expiry)
        deadlines.add("a")
        deadlines.add("b")
        self.clock.advance(5)
        deadlines.add("c")
        self.clock.advance(5)
        self.assertEqual(self.expired, ["b"])
        self.clock.advance(5)
        self.assertEqual(self.expired, ["b", "c"])
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_there_is_one_timer_at_most(self):
        """There is one delayed call, however many items are pending."""
        for number in range(100):
            self.deadlines.add(number)
            self.clock.advance(0.01)
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)

    def test_stop(self):
        """After ``stop`` nothing expires and no call is left; stopping again does nothing."""
        self.deadlines.add("a")
        self.deadlines.stop()
        self.deadlines.stop()
        self.deadlines.add("late")
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual((len(self.deadlines), self.expired), (0, []))
