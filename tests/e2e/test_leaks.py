"""The leak detection itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.leaks import TRANSIENT_CALLS, ResourceCounts, delayed_calls

BEFORE = ResourceCounts(10, 1, 5, 0, 2, 512, Counter({"lag.look": 1, "session.ping": 1}))


class ResourceCountsTests(SynchronousTestCase):
    """Comparison of resource counts."""

    def test_page(self) -> None:
        """Delayed calls are counted by function, including overdue ones."""
        page = (
            "thread x\n\ndelayed calls: 3\n"
            "     2  next in    -0.001 s  a.b\n     1  next in     1.500 s  c\n"
        )
        self.assertEqual(Counter({"a.b": 2, "c": 1}), delayed_calls(page))

    def test_same(self) -> None:
        """Equal or lower counts are not a leak."""
        after = replace(BEFORE, descriptors=9, delayed_calls=Counter({"lag.look": 1}))
        self.assertEqual({}, after.growth_since(BEFORE))

    def test_each_count(self) -> None:
        """Each count that has grown is named."""
        names = ("descriptors", "threads", "readers", "writers", "streams", "kept_bytes")
        for name in names:
            after = replace(BEFORE, **{name: getattr(BEFORE, name) + 1})
            self.assertEqual([name], list(after.growth_since(BEFORE)))

    def test_delayed_call_in_place_of_another(self) -> None:
        """A new delayed call is detected although one of another function has ended."""
        after = replace(BEFORE, delayed_calls=Counter({"lag.look": 1, "stream.grow": 1}))
        self.assertEqual({"stream.grow": "0 -> 1"}, after.growth_since(BEFORE))

    def test_shared_timers(self) -> None:
        """The shared timers of deadlines may be active once for each class."""
        for function, limit in TRANSIENT_CALLS.items():
            armed = Counter({**BEFORE.delayed_calls, function: limit})
            self.assertEqual({}, replace(BEFORE, delayed_calls=armed).growth_since(BEFORE))
            armed[function] += 1
            self.assertIn(function, replace(BEFORE, delayed_calls=armed).growth_since(BEFORE))
