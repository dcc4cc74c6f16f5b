"""One timer for many deadlines, and names for requests."""

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.server.deadlines import Deadlines
from yurttunnel.server.request_ids import RequestIds


class DeadlinesTests(SynchronousTestCase):
    """``Deadlines`` expires each item in its time."""

    def setUp(self):
        """Give each item ten seconds."""
        self.clock = Clock()
        self.expired = []
        self.deadlines = Deadlines(self.clock, 10, self.expired.append)

    def test_items_expire_one_after_the_other(self):
        """Each has its ten seconds from when it was added."""
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
        """An item that got done is forgotten; discarding it again does nothing."""
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
        """Expiring may change what waits."""
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

    def test_there_is_one_timer_at_most(self):
        """However many items wait, the clock has one call."""
        for number in range(100):
            self.deadlines.add(number)
            self.clock.advance(0.01)
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)

    def test_stop(self):
        """After ``stop`` nothing expires and no call is left; stopping again does nothing."""
        self.deadlines.add("a")
        self.deadlines.stop()
        self.deadlines.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual((len(self.deadlines), self.expired), (0, []))


class RequestIdsTests(SynchronousTestCase):
    """``RequestIds`` names requests."""

    def test_ids_differ_within_a_process_and_between_processes(self):
        """A counter counts, and a prefix is the process's own."""
        ids = RequestIds()
        made = {ids.make() for _ in range(100)} | {RequestIds().make() for _ in range(100)}
        self.assertEqual(len(made), 200)
        self.assertEqual(RequestIds("abc").make(), "abc-1")

    def test_sane_ids_of_callers_are_taken_over(self):
        """One id of printable characters is kept."""
        self.assertEqual(RequestIds("p").taken_over([b"audit-0a:7/b"]), "audit-0a:7/b")

    def test_other_ids_are_replaced(self):
        """Long, empty, strange and repeated ids are not for a log."""
        for proposed in ([], [b""], [b"a" * 129], [b"a b"], [b"a\nb"], [b"\xff"], [b"a", b"b"]):
            self.assertEqual(RequestIds("p").taken_over(proposed), "p-1")
