"""Open watches while filters change."""

from __future__ import annotations

from unittest import mock

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.filters import watches
from yurttunnel.hub.filters.watches import INTERVAL, MAX_LISTS, SETTLE, SPREAD, TrackedWatches
from yurttunnel.hub.request.requests import ApiRequest, Caller, ListOptions, ResourceType

PROXY = Caller("kube-proxy")
OLD, NEW = (("a", 0),), (("a", 1),)


def request_for(version="", **more):
    """Create a request for a watch, or for the list before it."""
    options = ListOptions(resource_version=version, **more)
    return ApiRequest("watch", "/w", ResourceType("", "v1", "services"), options=options)


class WatchesTests(SynchronousTestCase):
    """The selection and the time of watches that end."""

    def setUp(self):
        """Start the service."""
        self.clock = Clock()
        self.watches = TrackedWatches(self.clock)
        self.watches.startService()
        self.addCleanup(self.watches.stopService)
        self.state = OLD
        self.ended = []

    def track(self, name="w", request=None, caller=PROXY):
        """Begin a watch."""
        request = request or request_for("7")
        end = lambda: self.ended.append((name, self.clock.seconds()))  # noqa: E731
        return self.watches.track(caller, request, lambda: self.state, end)

    def change(self, state=NEW):
        """Change the filters."""
        self.state = state
        self.watches.review()

    def test_ended(self):
        """A watch that is filtered differently now is ended, once."""
        self.track()
        self.change()
        self.clock.advance(SETTLE)
        self.clock.advance(SPREAD)
        self.assertEqual(["w"], [name for name, _ in self.ended])
        self.change(OLD)
        self.clock.pump([INTERVAL, SPREAD])
        self.assertEqual(1, len(self.ended))

    def test_same(self):
        """A watch without a change continues, and so does one whose change was undone."""
        self.track()
        self.watches.review()
        self.clock.pump([SETTLE, SPREAD])
        self.change()
        self.change(OLD)
        self.clock.pump([INTERVAL, SPREAD])
        self.assertEqual([], self.ended)

    def test_spread(self):
        """Many watches end one after another."""
        with mock.patch.object(watches.random, "uniform", side_effect=[0.5, 1.5, 1.0]):
            for _ in range(3):
                self.track()
            self.change()
            self.clock.advance(SETTLE)
            self.clock.pump([0.5] * 4)
        self.assertEqual([1.5, 2.0, 2.5], [when for _, when in self.ended])

    def test_limited(self):
        """However often something changes, there is a minimum interval between rounds."""
        with mock.patch.object(watches.random, "uniform", return_value=0.0):
            for number in range(100):
                self.track()
                self.change((("a", number + 1),))
                self.clock.advance(0.5)
        rounds = sorted({when for _, when in self.ended})
        self.assertEqual([SETTLE + INTERVAL * number for number in range(5)], rounds)

    def test_left(self):
        """A watch that has ended for another reason is not ended again."""
        first, second = self.track("first"), self.track("second")
        self.change()
        first()
        self.clock.advance(SETTLE)
        second()
        self.clock.advance(SPREAD)
        self.assertEqual([], self.ended)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_listed_before(self):
        """A watch that continues a list is out of date if the list is."""
        request = request_for("7")
        self.watches.record_list(PROXY, request, OLD)
        self.state = NEW
        self.track()
        self.clock.pump([SETTLE, SPREAD])
        self.assertEqual(1, len(self.ended))
        self.watches.record_list(PROXY, request, NEW)
        self.track()
        self.clock.pump([INTERVAL, SPREAD])
        self.assertEqual(1, len(self.ended))

    def test_listed_in_pages(self):
        """A change between two pages of a list ends the watch after it; a new list resets this."""
        self.state = NEW
        pages = request_for(), request_for(continue_token="2"), request_for(continue_token="3")
        for page, state in zip(pages, (OLD, OLD, NEW), strict=True):
            self.watches.record_list(PROXY, page, state)
        self.track()
        self.clock.pump([SETTLE, SPREAD])
        self.assertEqual(["w"], [name for name, _ in self.ended])
        for page in pages:
            self.watches.record_list(PROXY, page, NEW)
        self.track()
        self.clock.pump([INTERVAL, SPREAD])
        self.assertEqual(1, len(self.ended))

    def test_other_lists(self):
        """Lists of other clients, or of the same client elsewhere, do not affect a watch."""
        request = request_for("7", label_selector="a=b")
        self.watches.record_list(PROXY, request, OLD)
        self.watches.record_list(Caller("coredns"), request_for("7"), OLD)
        self.state = NEW
        self.track()
        self.clock.pump([SETTLE, SPREAD])
        self.assertEqual([], self.ended)

    def test_outdated(self):
        """The client of a watch is out of date, however the watch ends, until it lists."""
        request = request_for("7")
        for ended in (False, True):
            self.setUp()
            self.assertFalse(self.watches.is_outdated(PROXY, request, NEW, NEW))
            end = self.track()
            self.change()
            if ended:
                end()
            self.clock.pump([SETTLE, SPREAD])
            self.assertTrue(self.watches.is_outdated(PROXY, request, NEW, NEW), ended)
        for other in (request_for(), request_for("0"), request_for("7", send_initial_events=True)):
            self.assertFalse(self.watches.is_outdated(PROXY, other, NEW, NEW))
        self.watches.record_list(PROXY, request, NEW)
        self.assertFalse(self.watches.is_outdated(PROXY, request, NEW, NEW))

    def test_a_client_that_never_lists(self):
        """It gets 410 for a minute, and its later watches stay open."""
        request = request_for("7")
        self.track()
        self.change()
        for number in range(60):
            self.clock.pump([SETTLE, SPREAD, INTERVAL])
            if len(self.ended) > number:
                self.track()
        self.assertLess(len(self.ended), 20)
        self.assertFalse(self.watches.is_outdated(PROXY, request, NEW, NEW))
        self.assertEqual(1, len(self.watches._watches))

    def test_list_in_watch(self):
        """A watch that begins with all objects counts as a list."""
        for request in (
            request_for(),
            request_for("0"),
            request_for("7", send_initial_events=True),
        ):
            self.watches.record_list(PROXY, request, OLD)
            self.state = NEW
            self.track("new", request)()
            self.state = OLD
            self.track("old", request_for("9", send_initial_events=False))
        self.clock.pump([SETTLE, SPREAD])
        self.assertEqual({"old"}, {name for name, _ in self.ended})

    def test_memory(self):
        """The number of remembered lists is limited; the most recent are kept."""
        for number in range(MAX_LISTS + 1):
            self.watches.record_list(PROXY, request_for("7", label_selector=f"n={number}"), OLD)
            self.watches.record_list(PROXY, request_for("7", label_selector="n=1"), OLD)
        self.state = NEW
        for number in (0, 1, 2):
            self.track(number, request_for("7", label_selector=f"n={number}"))
        self.clock.pump([SETTLE, SPREAD])
        self.assertEqual({1, 2}, {name for name, _ in self.ended})

    def test_stop(self):
        """After shutdown no timer is left, and changes end no watch."""
        self.track()
        self.change()
        self.clock.advance(SETTLE)
        self.change(OLD)
        self.watches.stopService()
        self.change()
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual([], self.ended)
