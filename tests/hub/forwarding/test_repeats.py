"""What is remembered of answers, and for how long."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hub.forwarding.world import JSON, KUBELET, ONE, TOKEN, World, pod
from yurttunnel.hub.forwarding.repeats import LONGEST, MOMENT, MOST, Repeats


class RepeatsTests(SynchronousTestCase):
    """The last answers."""

    def setUp(self):
        """Remember nothing."""
        self.clock = Clock()
        self.repeats = Repeats(self.clock)

    def test_same(self):
        """The same answer is known for a moment, however often it comes."""
        self.assertFalse(self.repeats.is_known("a", b"1"))
        self.clock.advance(MOMENT / 2)
        self.assertTrue(self.repeats.is_known("a", b"1"))
        self.clock.advance(MOMENT / 2)
        self.assertFalse(self.repeats.is_known("a", b"1"))
        self.assertTrue(self.repeats.is_known("a", b"1"))

    def test_others(self):
        """Another answer is not known, nor is the same one to another question."""
        self.repeats.is_known("a", b"1")
        self.assertFalse(self.repeats.is_known("b", b"1"))
        self.assertFalse(self.repeats.is_known("a", b"2"))
        self.assertFalse(self.repeats.is_known("a", b"1"), "it was not the last one")

    def test_bounds(self):
        """Long answers are not remembered, and the oldest make room."""
        long = b"x" * (LONGEST + 1)
        self.repeats.is_known("a", b"1")
        self.repeats.is_known("a", long)
        self.assertFalse(self.repeats.is_known("a", long))
        self.assertFalse(self.repeats.is_known("a", b"1"))
        for number in range(MOST):
            self.repeats.is_known(number, b"1")
        self.assertTrue(self.repeats.is_known(0, b"1"))
        self.assertFalse(self.repeats.is_known("a", b"1"))


class KeptTests(World):
    """What the cache is told of."""

    def get(self, version):
        """Have an object asked for and answered."""
        self.ask(ONE, KUBELET, JSON)
        self.answer_json(pod("one", version))

    def test_repeated(self):
        """Who asks again and again has an object kept once a moment, or when it has changed."""
        self.users["abc"] = "somebody"
        told = []
        self.patch(self.cache, "upsert", lambda collection, meta, item: told.append(item.version))
        for version in ("7", "7", "8", "8"):
            self.get(version)
        self.assertEqual(["7", "8"], told)
        self.clock.advance(MOMENT + 0.1)
        self.get("8")
        self.assertEqual(["7", "8", "8"], told, "after a moment")
        self.ask(ONE, KUBELET, JSON, TOKEN)
        self.answer_json(pod("one", "8"))
        self.assertEqual(["7", "8", "8", "8"], told, "another client's")
