"""Informers: malformed objects, outages and errors of the API."""

from __future__ import annotations

from tests.kube.informing import CUT, UNREACHABLE, InformerTestCase, pod
from tests.logged import Logged
from yurttunnel.kube.errors import ApiError, NotAllowed
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.resources import NODES, PODS


class MalformedTests(InformerTestCase):
    """Malformed objects and responses."""

    def test_transform_fails(self):
        """An object that cannot be transformed is logged; the others are cached."""
        bad = pod("bad", node="n1")
        del bad["spec"]
        self.client.put(PODS, bad)
        self.client.put(PODS, pod("good", node="n1"))
        informer, changes = self.follow()
        self.assertEqual(1, len(self.flushLoggedErrors(KeyError)))
        self.assertTrue(informer.synced)
        self.assertEqual([(None, "n1")], changes)

    def test_known_object_becomes_bad(self):
        """The cached value of an object remains if a new version cannot be transformed."""
        self.client.put(PODS, pod("a", node="n1"))
        informer, _ = self.follow()
        bad = pod("a")
        bad["spec"] = None
        self.client.put(PODS, bad)
        self.flushLoggedErrors(AttributeError)
        self.assertEqual("n1", informer.get("a", "default"))

    def test_objects_without_names(self):
        """Objects without names are ignored, in lists and in events."""
        page = {"metadata": {"resourceVersion": "1000"}}
        page["items"] = [None, "text", {}, {"metadata": []}, pod("a", node="n1")]
        self.answer_lists_with(page)
        informer, _ = self.follow()
        self.assertEqual(["n1"], list(informer.values()))
        (watch,) = self.client.watches
        for kind in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            watch.on_event(kind, {"metadata": {"name": 7}})
        self.assertEqual(["n1"], list(informer.values()))

    def test_no_list(self):
        """A response that is not a list is a failure, and retried."""
        for page in ({}, {"items": []}, {"items": 1, "metadata": {"resourceVersion": "1"}}):
            self.answer_lists_with(page)
        informer, _ = self.follow()
        self.assertFalse(informer.synced)
        self.pass_time(10)
        self.assertTrue(informer.synced)

    def test_null_items(self):
        """A list without items may have ``null`` instead."""
        self.answer_lists_with({"items": None, "metadata": {"resourceVersion": "1000"}})
        informer, _ = self.follow()
        self.assertTrue(informer.synced)

    def answer_lists_with(self, page):
        """Respond to the next list with ``page``."""
        earlier = self.client.list

        def answer(*arguments, **options):
            self.client.list = later.pop(0) if later else earlier
            return earlier(*arguments, **options).addCallback(lambda _: page)

        later = [earlier]
        self.client.list = answer


class BadTimesTests(InformerTestCase):
    """Outages and errors of the API."""

    def test_unreachable_from_the_start(self):
        """Requests are retried with backoff until the API is reachable."""
        self.client.fail(UNREACHABLE)
        self.client.put(PODS, pod("a", node="n1"))
        informer, _ = self.follow()
        self.pass_time(600)
        self.assertFalse(informer.synced)
        self.assertTrue(20 <= self.count("list") <= 90, self.count("list"))
        self.client.recover()
        self.pass_time(31)
        self.assertTrue(informer.synced)

    def test_unreachable_for_hours(self):
        """After an outage of hours there is no list, and the cache stays in use."""
        self.client.put(PODS, pod("a", node="n1"))
        informer, changes = self.follow()
        self.client.fail(UNREACHABLE)
        self.pass_time(3 * 3600)
        self.assertTrue(informer.synced)
        self.assertEqual("n1", informer.get("a", "default"))
        self.client.put(PODS, pod("b", node="n2"))
        self.client.recover()
        self.pass_time(31)
        self.assertEqual(1, self.count("list"))
        self.assertEqual([(None, "n1"), (None, "n2")], changes)

    def test_pauses_begin_short_again(self):
        """After a healthy watch, the backoff is reset."""
        self.follow()
        self.client.fail(UNREACHABLE)
        self.pass_time(300)
        self.client.recover()
        # The longest pause, and the time after which a watch is healthy.
        self.pass_time(70)
        self.client.end_watches(UNREACHABLE)
        watches = self.count("watch")
        self.pass_time(2)
        self.assertEqual(watches + 1, self.count("watch"))

    def test_refused(self):
        """A rejection is retried, since permissions may be granted later, and reported."""
        text = 'pods is forbidden: User "x" cannot list resource "pods"'
        self.client.fail(NotAllowed(403, "Forbidden", text))
        informer, _ = self.follow()
        self.assertEqual(
            f"the API has not yet listed all pods ({text} (403 Forbidden))",
            self.informers.problem(),
        )
        self.client.recover()
        self.pass_time(2)
        self.assertTrue(informer.synced)
        self.assertIsNone(self.informers.problem())

    def test_retry_after(self):
        """The API's retry time is respected."""
        self.client.fail(ApiError(429, "TooManyRequests", "slow down", 20.0))
        self.follow()
        self.pass_time(19)
        self.assertEqual(1, self.count("list"))
        self.pass_time(1)
        self.assertEqual(2, self.count("list"))

    def test_retry_after_a_day(self):
        """The retry time is limited to a minute, so that one mistake does not last."""
        self.client.fail(ApiError(503, "ServiceUnavailable", "come back later", 100_000.0))
        self.follow()
        self.pass_time(59)
        self.assertEqual(1, self.count("list"))
        self.client.recover()
        self.pass_time(2)
        self.assertEqual(2, self.count("list"))

    def test_watch_from_the_future(self):
        """If the API cannot serve a watch from its version, a list follows."""
        self.follow()
        self.client.end_watches(ApiError(504, "Timeout", "Too large resource version"))
        self.pass_time(2)
        self.assertEqual(2, self.count("list"))

    def test_busy_api(self):
        """An overloaded API gets no additional lists."""
        self.follow()
        for status in (429, 500, 503):
            self.client.end_watches(ApiError(status, "InternalError", "busy"))
            self.pass_time(40)
        self.assertEqual((1, 4), (self.count("list"), self.count("watch")))

    def test_a_version_from_which_there_is_no_watch(self):
        """After several 500 responses in a row there is a new list, from which watches work."""
        informer, _ = self.follow()
        for _ in range(5):
            self.client.end_watches(ApiError(500, "InternalError", "an event cannot be decoded"))
            self.pass_time(25)
        self.assertEqual((2, 6), (self.count("list"), self.count("watch")))
        self.assertIsNone(informer.error)

    def test_watches_end_at_once(self):
        """Watches that end as soon as they begin are failures, and retried with backoff."""
        self.follow()
        for _ in range(150):
            self.clock.advance(0.01)
            self.client.end_watches()
        self.assertIn(self.count("watch"), (2, 3))

    def test_watches_that_are_cut(self):
        """If a load balancer closes idle watches, the API still counts as reachable."""
        said = Logged(self)
        informer, _ = self.follow()
        for cut in range(1, 60):
            self.pass_time(20)
            self.assertEqual((cut, 1), (self.count("watch"), len(self.client.watches)))
            self.client.end_watches(CUT)
            self.assertEqual((None, None), (informer.error, self.informers.problem()))
            self.assertEqual([], self.client.watches)
            self.pass_time(1)
        self.assertEqual((1, []), (self.count("list"), said))

    def test_watches_that_are_cut_at_once(self):
        """Watches that are closed at once are failures, and retried with growing pauses."""
        informer, _ = self.follow()
        for _ in range(150):
            self.clock.advance(0.01)
            self.client.end_watches(CUT)
        self.assertIs(CUT, informer.error)
        self.assertIn(self.count("watch"), (2, 3))
        for _ in range(600):
            self.pass_time(1)
            self.client.end_watches(CUT)
        self.assertLess(self.count("watch"), 90)

    def test_watches_that_end_in_order(self):
        """A watch that was idle, or short with events, is followed by the next at once."""
        informer, _ = self.follow()
        self.pass_time(2)
        self.client.end_watches()
        self.clock.advance(0)
        self.assertEqual((2, None), (self.count("watch"), informer.error))
        self.client.put(PODS, pod("a", node="n1"))
        self.client.end_watches()
        self.clock.advance(0)
        self.assertEqual((3, None), (self.count("watch"), informer.error))

    def test_reported_once(self):
        """Failure and recovery of a watch are logged once."""
        said = Logged(self)
        self.follow()
        self.pass_time(100)
        self.assertEqual([], said)
        self.client.fail(UNREACHABLE)
        self.pass_time(100)
        self.client.recover()
        self.pass_time(100)
        self.assertEqual(1, sum("watch failed" in line for line in said))
        self.assertEqual(1, sum("followed again" in line for line in said))

    def test_an_outage_that_is_known(self):
        """What fails in an outage is not logged; what fails after it is, once."""
        said, outages = Logged(self), [True]
        self.informers = Informers(self.clock, self.client, lambda: bool(outages))
        self.client.fail(UNREACHABLE)
        self.follow()
        self.pass_time(100)
        self.assertEqual([], said)
        outages.clear()
        self.pass_time(100)
        self.client.recover()
        self.pass_time(100)
        self.assertEqual(2, len(said), said)

    def test_next_watch(self):
        """A watch that ends after its timeout is followed by the next, from the last bookmark."""
        self.follow()
        self.client.put(NODES, {"metadata": {"name": "n1"}})
        self.client.bookmark()
        versions = []
        watch = self.client.watch

        def remember(*arguments, **options):
            versions.append(options["resource_version"])
            return watch(*arguments, **options)

        self.client.watch = remember
        self.pass_time(601)
        self.assertEqual({"1001"}, set(versions))
        self.assertEqual(1, self.count("list"))

    def test_error_of_our_own(self):
        """An unexpected exception is logged, and does not end the informer."""
        earlier = self.client.list

        def fail(*arguments, **options):
            self.client.list = earlier
            raise ZeroDivisionError

        self.client.list = fail
        informer, _ = self.follow()
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.pass_time(2)
        self.assertTrue(informer.synced)
