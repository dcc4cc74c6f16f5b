"""Remembered responses, and their lifetime."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hub.forwarding.world import JSON, KUBELET, ONE, TOKEN, World, pod
from yurttunnel.hub.forwarding.recent_responses import (
    MAX_RESPONSE_SIZE,
    MAX_RESPONSES,
    REMEMBERED_SECONDS,
    RecentResponses,
)


class RepeatsTests(SynchronousTestCase):
    """The last responses."""

    def setUp(self):
        """Start without any."""
        self.clock = Clock()
        self.repeats = RecentResponses(self.clock)

    def test_same(self):
        """An identical response is known for a moment, however often it occurs."""
        self.assertFalse(self.repeats.is_recent("a", b"1"))
        self.clock.advance(REMEMBERED_SECONDS / 2)
        self.assertTrue(self.repeats.is_recent("a", b"1"))
        self.clock.advance(REMEMBERED_SECONDS / 2)
        self.assertFalse(self.repeats.is_recent("a", b"1"))
        self.assertTrue(self.repeats.is_recent("a", b"1"))

    def test_others(self):
        """Another response is not known, nor is the same one to another request."""
        self.repeats.is_recent("a", b"1")
        self.assertFalse(self.repeats.is_recent("b", b"1"))
        self.assertFalse(self.repeats.is_recent("a", b"2"))
        self.assertFalse(self.repeats.is_recent("a", b"1"), "it was not the last one")

    def test_limits(self):
        """Long responses are not remembered, and the oldest are evicted."""
        long = b"x" * (MAX_RESPONSE_SIZE + 1)
        self.repeats.is_recent("a", b"1")
        self.repeats.is_recent("a", long)
        self.assertFalse(self.repeats.is_recent("a", long))
        self.assertFalse(self.repeats.is_recent("a", b"1"))
        for number in range(MAX_RESPONSES):
            self.repeats.is_recent(number, b"1")
        self.assertTrue(self.repeats.is_recent(0, b"1"))
        self.assertFalse(self.repeats.is_recent("a", b"1"))


class CachedTests(World):
    """Writes to the cache."""

    def get(self, version):
        """Send a get, and respond to it."""
        self.send_request(ONE, KUBELET, JSON)
        self.respond_json(pod("one", version))

    def test_repeated(self):
        """An object that is requested repeatedly is cached once a moment, or when it changes."""
        self.users["abc"] = "somebody"
        report = []
        self.patch(self.cache, "upsert", lambda collection, meta, item: report.append(item.version))
        for version in ("7", "7", "8", "8"):
            self.get(version)
        self.assertEqual(["7", "8"], report)
        self.clock.advance(REMEMBERED_SECONDS + 0.1)
        self.get("8")
        self.assertEqual(["7", "8", "8"], report, "after a moment")
        self.send_request(ONE, KUBELET, JSON, TOKEN)
        self.respond_json(pod("one", "8"))
        self.assertEqual(["7", "8", "8", "8"], report, "another client's")
