"""Named sources, the store that merges them, and the broadcaster that tells of changes."""

from __future__ import annotations

from dataclasses import dataclass

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.proxy.sources.broadcaster import Broadcaster
from yurttunnel.proxy.sources.config import Config
from yurttunnel.proxy.sources.mux import Mux
from yurttunnel.proxy.sources.store import Operation, Update


@dataclass(frozen=True)
class Thing:
    """An object; ``value`` is all that may change of it."""

    name: str
    value: int = 0
    namespace: str = "default"


def put(*things):
    """Return an update that replaces everything."""
    return Update(Operation.SET, things)


def add(*things):
    """Return an update that adds things."""
    return Update(Operation.ADD, things)


def remove(*names):
    """Return an update that removes things."""
    return Update(Operation.REMOVE, [Thing(each) for each in names])


class ConfigTests(SynchronousTestCase):
    """Two sources of one kind of objects."""

    def setUp(self):
        """Have the sources, and count who is told."""
        self.clock = Clock()
        broadcaster = Broadcaster(self.clock)
        broadcaster.add(lambda: self.told.append(self.found()))
        self.told = []
        self.config = Config(broadcaster)
        self.api, self.file = self.config.channel("api"), self.config.channel("file")

    def found(self):
        """Return the merged objects, by name."""
        return {each.name: each.value for each in self.config.objects()}

    def test_operations(self):
        """SET replaces what a source has said, ADD and REMOVE change single objects of it."""
        self.api(put(Thing("a"), Thing("b")))
        self.file(put(Thing("c")))
        self.assertEqual({"a": 0, "b": 0, "c": 0}, self.found())
        self.api(add(Thing("a", 1), Thing("d")))
        self.api(remove("b", "unknown"))
        self.assertEqual({"a": 1, "c": 0, "d": 0}, self.found())
        self.api(put(Thing("e")))
        self.assertEqual({"e": 0, "c": 0}, self.found())

    def test_same_name(self):
        """Of two sources the first one's object counts; the other's returns when it is removed."""
        self.file(put(Thing("a", 2)))
        self.api(put(Thing("a", 1)))
        self.assertEqual({"a": 1}, self.found())
        self.api(remove("a"))
        self.assertEqual({"a": 2}, self.found())

    def test_removing_is_ones_own(self):
        """A source removes nothing of others."""
        self.file(put(Thing("a")))
        self.api(put())
        self.api(remove("a"))
        self.assertEqual({"a": 0}, self.found())

    def test_incomplete(self):
        """A source is incomplete until it has said something, be it that there is nothing."""
        self.assertEqual(["api", "file"], self.config.incomplete())
        self.file(put())
        self.assertEqual(["api"], self.config.incomplete())
        self.api(put(Thing("a")))
        self.assertEqual([], self.config.incomplete())

    def test_burst(self):
        """Many updates in one turn are told of once, in the next one, with the final state."""
        for value in range(100):
            self.api(put(Thing("a", value)))
            self.file(add(Thing("b", value)))
        self.assertEqual([], self.told)
        self.clock.advance(0)
        self.assertEqual([{"a": 99, "b": 99}], self.told)
        self.clock.advance(10)
        self.assertEqual(1, len(self.told))

    def test_nothing_new(self):
        """Updates that change nothing are not told of."""
        self.api(put(Thing("a")))
        self.clock.advance(0)
        for update in (put(Thing("a")), add(Thing("a")), remove("b")):
            self.api(update)
        self.clock.advance(0)
        self.assertEqual(1, len(self.told))

    def test_empty_list(self):
        """The first list is told of, though it is empty: now it is known that there is nothing."""
        self.api(put())
        self.clock.advance(0)
        self.assertEqual([{}], self.told)


class MuxTests(SynchronousTestCase):
    """Channels by name."""

    def test_channel(self):
        """A name has one channel, whose updates carry it; a name that is empty has none."""
        seen = []
        mux = Mux(lambda *update: seen.append(update))
        self.assertIs(mux.channel("a"), mux.channel("a"))
        mux.channel("b")(add())
        self.assertEqual([("b", add())], seen)
        self.assertRaises(ValueError, mux.channel, "")


class BroadcasterTests(SynchronousTestCase):
    """Listeners are told in turn."""

    def setUp(self):
        """Have a broadcaster with two listeners, the first of which may fail."""
        self.clock = Clock()
        self.told = []
        self.broadcaster = Broadcaster(self.clock)
        self.broadcaster.add(lambda: self.told.append("first") or (self.fails and 1 / 0))
        self.broadcaster.add(lambda: self.told.append("second"))
        self.fails = False

    def test_order(self):
        """They are told in the order in which they were added."""
        self.broadcaster.notify()
        self.clock.advance(0)
        self.assertEqual(["first", "second"], self.told)

    def test_failure(self):
        """One that fails is logged, and keeps none of the others from being told."""
        self.fails = True
        self.broadcaster.notify()
        self.clock.advance(0)
        self.assertEqual(["first", "second"], self.told)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_notified_by_a_listener(self):
        """What a listener changes is told of once more, to all."""
        again = iter([True, False])
        self.broadcaster.add(lambda: next(again) and self.broadcaster.notify())
        self.broadcaster.notify()
        self.clock.pump([0, 0])
        self.assertEqual(["first", "second"] * 2, self.told)

    def test_stop(self):
        """After a stop nobody is told of what came before."""
        self.broadcaster.notify()
        self.broadcaster.stop()
        self.clock.advance(1)
        self.assertEqual([], self.told)
