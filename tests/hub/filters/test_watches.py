"""Watches that run while what filters do changes."""

from __future__ import annotations

from unittest import mock

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.filters import watches
from yurttunnel.hub.filters.watches import INTERVAL, MOST_LISTS, SETTLE, SPREAD, FollowedWatches
from yurttunnel.hub.request.requests import ApiRequest, Caller, ListOptions, ResourceType

PROXY = Caller("kube-proxy")
OLD, NEW = (("a", 0),), (("a", 1),)


def asking(version="", **more):
    """Make a request for a watch, or for the list before it."""
    options = ListOptions(resource_version=version, **more)
    return ApiRequest("watch", "/w", ResourceType("", "v1", "services"), options=options)


class WatchesTests(SynchronousTestCase):
    """Which are ended, and when."""

    def setUp(self):
        """Begin."""
        self.clock = Clock()
        self.watches = FollowedWatches(self.clock)
        self.watches.startService()
        self.addCleanup(self.watches.stopService)
        self.state = OLD
        self.ended = []

    def follow(self, name="w", request=None, caller=PROXY):
        """Begin a watch."""
        request = request or asking("7")
        end = lambda: self.ended.append((name, self.clock.seconds()))  # noqa: E731
        return self.watches.follow(caller, request, lambda: self.state, end)

    def change(self, state=NEW):
        """Change what filters do."""
        self.state = state
        self.watches.review()

    def test_ended(self):
        """A watch that goes through something else now is ended, once."""
        self.follow()
        self.change()
        self.clock.advance(SETTLE)
        self.clock.advance(SPREAD)
        self.assertEqual(["w"], [name for name, _ in self.ended])
        self.change(OLD)
        self.clock.pump([INTERVAL, SPREAD])
        self.assertEqual(1, len(self.ended))

    def test_same(self):
        """A watch of which nothing has changed goes on, as does one whose change was undone."""
        self.follow()
        self.watches.review()
        self.clock.pump([SETTLE, SPREAD])
        self.change()
        self.change(OLD)
        self.clock.pump([INTERVAL, SPREAD])
        self.assertEqual([], self.ended)

    def test_spread(self):
        """Many end one after another."""
        with mock.patch.object(watches.random, "uniform", side_effect=[0.5, 1.5, 1.0]):
            for _ in range(3):
                self.follow()
            self.change()
            self.clock.advance(SETTLE)
            self.clock.pump([0.5] * 4)
        self.assertEqual([1.5, 2.0, 2.5], [when for _, when in self.ended])

    def test_bounded(self):
        """However often something changes, rounds have their distance."""
        with mock.patch.object(watches.random, "uniform", return_value=0.0):
            for number in range(100):
                self.follow()
                self.change((("a", number + 1),))
                self.clock.advance(0.5)
        rounds = sorted({when for _, when in self.ended})
        self.assertEqual([SETTLE + INTERVAL * number for number in range(5)], rounds)

    def test_left(self):
        """A watch that has ended otherwise is not ended again, whenever that was."""
        first, second = self.follow("first"), self.follow("second")
        self.change()
        first()
        self.clock.advance(SETTLE)
        second()
        self.clock.advance(SPREAD)
        self.assertEqual([], self.ended)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_listed_before(self):
        """A watch that goes on from a list is out of date when the list is."""
        request = asking("7")
        self.watches.listed(PROXY, request, OLD)
        self.state = NEW
        self.follow()
        self.clock.pump([SETTLE, SPREAD])
        self.assertEqual(1, len(self.ended))
        self.watches.listed(PROXY, request, NEW)
        self.follow()
        self.clock.pump([INTERVAL, SPREAD])
        self.assertEqual(1, len(self.ended))

    def test_listed_in_pages(self):
        """What changes between two pages of a list ends the watch behind it; a new list counts."""
        self.state = NEW
        pages = asking(), asking(continue_token="2"), asking(continue_token="3")
        for page, state in zip(pages, (OLD, OLD, NEW), strict=True):
            self.watches.listed(PROXY, page, state)
        self.follow()
        self.clock.pump([SETTLE, SPREAD])
        self.assertEqual(["w"], [name for name, _ in self.ended])
        for page in pages:
            self.watches.listed(PROXY, page, NEW)
        self.follow()
        self.clock.pump([INTERVAL, SPREAD])
        self.assertEqual(1, len(self.ended))

    def test_other_lists(self):
        """What others have listed, or the same client elsewhere, is nothing to a watch."""
        request = asking("7", label_selector="a=b")
        self.watches.listed(PROXY, request, OLD)
        self.watches.listed(Caller("coredns"), asking("7"), OLD)
        self.state = NEW
        self.follow()
        self.clock.pump([SETTLE, SPREAD])
        self.assertEqual([], self.ended)

    def test_outdated(self):
        """What the client of a watch has is out of date, however it ends, until it lists."""
        request = asking("7")
        for ended in (False, True):
            self.setUp()
            self.assertFalse(self.watches.is_outdated(PROXY, request, NEW))
            end = self.follow()
            self.change()
            if ended:
                end()
            self.clock.pump([SETTLE, SPREAD])
            self.assertTrue(self.watches.is_outdated(PROXY, request, NEW), ended)
        for other in (asking(), asking("0"), asking("7", send_initial_events=True)):
            self.assertFalse(self.watches.is_outdated(PROXY, other, NEW))
        self.watches.listed(PROXY, request, NEW)
        self.assertFalse(self.watches.is_outdated(PROXY, request, NEW))

    def test_a_client_that_never_lists(self):
        """It is told for a minute, and its watches last from then on."""
        request = asking("7")
        self.follow()
        self.change()
        for number in range(60):
            self.clock.pump([SETTLE, SPREAD, INTERVAL])
            if len(self.ended) > number:
                self.follow()
        self.assertLess(len(self.ended), 20)
        self.assertFalse(self.watches.is_outdated(PROXY, request, NEW))
        self.assertEqual(1, len(self.watches._watches))

    def test_list_in_watch(self):
        """A watch that begins with all objects is a list itself."""
        for request in (asking(), asking("0"), asking("7", send_initial_events=True)):
            self.watches.listed(PROXY, request, OLD)
            self.state = NEW
            self.follow("new", request)()
            self.state = OLD
            self.follow("old", asking("9", send_initial_events=False))
        self.clock.pump([SETTLE, SPREAD])
        self.assertEqual({"old"}, {name for name, _ in self.ended})

    def test_memory(self):
        """Lists are remembered up to a bound, the latest ones."""
        for number in range(MOST_LISTS + 1):
            self.watches.listed(PROXY, asking("7", label_selector=f"n={number}"), OLD)
            self.watches.listed(PROXY, asking("7", label_selector="n=1"), OLD)
        self.state = NEW
        for number in (0, 1, 2):
            self.follow(number, asking("7", label_selector=f"n={number}"))
        self.clock.pump([SETTLE, SPREAD])
        self.assertEqual({1, 2}, {name for name, _ in self.ended})

    def test_stop(self):
        """At the end nothing is left, and what changes then ends nothing."""
        self.follow()
        self.change()
        self.clock.advance(SETTLE)
        self.change(OLD)
        self.watches.stopService()
        self.change()
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual([], self.ended)
