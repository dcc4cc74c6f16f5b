"""Informers: their caches, notifications, and recovery from errors."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.kube.fakes import FakeKubeClient
from tests.logged import Logged
from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotAllowed, WatchInterrupted
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.interfaces import IInformer, IInformers, IKubeClient, InformerSpec
from yurttunnel.kube.reflector import PAGE_OBJECTS
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, PODS, SERVICES

AWAY = ApiUnreachable("GET https://api:6443/api/v1/pods: connection refused")
CUT = WatchInterrupted("watch of https://api:6443/api/v1/pods: the connection was lost")


def whole(obj):
    """Return the object."""
    return obj


def name_of(obj):
    """Return the name."""
    return obj["metadata"]["name"]


def node_of(pod):
    """Return a pod's node; the pod must have a spec."""
    return pod["spec"].get("nodeName")


def pod(name, namespace="default", node=None, **metadata):
    """Create a pod."""
    metadata = {"name": name, "namespace": namespace, **metadata}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}}


PODS_SPEC = InformerSpec(PODS, node_of)


class Turns(Clock):
    """A clock that makes only the calls that are due at its start, as a reactor iteration does."""

    def advance(self, amount):
        """Advance the clock."""
        self.rightNow += amount
        self._sortCalls()
        for call in [call for call in self.calls if call.getTime() <= self.rightNow]:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)


class InformerTestCase(SynchronousTestCase):
    """Informers of pods of an API in memory."""

    def setUp(self):
        """Create both."""
        self.clock = Turns()
        self.clock.advance(1_750_000_000)
        self.client = FakeKubeClient(self.clock)
        self.informers = Informers(self.clock, self.client)

    def follow(self, spec=PODS_SPEC, start=True):
        """Return an informer, and a list of the changes that its handler gets."""
        informer = self.informers.informer(spec)
        told = []
        informer.add_handler(lambda old, new: told.append((old, new)))
        if start and not self.informers.running:
            self.informers.startService()
            self.addCleanup(self.informers.stopService)
        return informer, told

    def count(self, verb):
        """Return the number of calls with a verb."""
        return [call[0] for call in self.client.calls].count(verb)

    def pass_time(self, seconds):
        """Advance the clock, a second at a time."""
        self.clock.pump([1.0] * seconds)


class FollowingTests(InformerTestCase):
    """Caches and notifications."""

    def test_interfaces(self):
        """The interfaces are provided."""
        informer, _ = self.follow()
        verifyObject(IInformers, self.informers)
        verifyObject(IInformer, informer)
        verifyObject(IKubeClient, self.client)

    def test_what_is_there(self):
        """The API's objects are cached, as transformed."""
        self.client.put(PODS, pod("a", node="n1"))
        informer, told = self.follow()
        self.assertTrue(informer.synced)
        self.assertEqual("n1", informer.get("a", "default"))
        self.assertIsNone(informer.get("a", "other"))
        self.assertEqual(["n1"], list(informer.values()))
        self.assertEqual([(None, "n1")], told)

    def test_changes(self):
        """Changes are reported with the previous value; an equal value is no change."""
        informer, told = self.follow()
        self.client.put(PODS, pod("a", node="n1"))
        self.client.put(PODS, pod("a", node="n1", labels={"x": "y"}))
        self.client.put(PODS, pod("a", node="n2"))
        self.client.remove(PODS, "a", "default")
        self.assertEqual([(None, "n1"), ("n1", "n2"), ("n2", None)], told)
        self.assertEqual([], list(informer.values()))

    def test_not_kept(self):
        """An object whose transform is ``None`` is not cached."""
        _, told = self.follow()
        self.client.put(PODS, pod("a"))
        self.assertEqual([], told)
        self.client.put(PODS, pod("a", node="n1"))
        self.client.put(PODS, pod("b"))
        self.assertEqual([(None, "n1")], told)

    def test_cluster_scoped(self):
        """Cluster-scoped objects are found by name."""
        self.client.put(NODES, {"metadata": {"name": "n1"}})
        informer, _ = self.follow(InformerSpec(NODES, name_of))
        self.assertEqual("n1", informer.get("n1"))

    def test_selection(self):
        """Only the selected objects are requested: by namespace, name, labels and fields."""
        spec = InformerSpec(CONFIG_MAPS, name_of, namespace="kube-system", name="ports")
        one, _ = self.follow(spec)
        some, _ = self.follow(InformerSpec(PODS, name_of, label_selector="app=web"))
        mine, _ = self.follow(InformerSpec(PODS, name_of, field_selector="spec.nodeName=n1"))
        for namespace in ("default", "kube-system"):
            for name in ("ports", "other"):
                self.client.put(CONFIG_MAPS, pod(name, namespace))
        self.client.put(PODS, pod("a", labels={"app": "web"}))
        self.client.put(PODS, pod("b", node="n1"))
        self.assertEqual(["ports"], list(one.values()))
        self.assertEqual(["a"], list(some.values()))
        self.assertEqual(["b"], list(mine.values()))

    def test_shared(self):
        """Equal specifications share one informer, others do not."""
        one, _ = self.follow(InformerSpec(PODS, node_of))
        same, _ = self.follow(InformerSpec(PODS, node_of))
        other, _ = self.follow(InformerSpec(PODS, name_of))
        self.assertIs(one, same)
        self.assertIsNot(one, other)
        self.assertEqual(2, self.count("list"))

    def test_list_items_are_like_events(self):
        """Items of a list have a kind, so that they equal those of events."""
        stored = self.client.put(SERVICES, {"metadata": {"name": "a", "namespace": "b"}})
        real_list = self.client.list

        def without_kind(*arguments, **options):
            def strip(page):
                for item in page["items"]:
                    del item["kind"], item["apiVersion"]
                return page

            return real_list(*arguments, **options).addCallback(strip)

        self.client.list = without_kind
        informer, _ = self.follow(InformerSpec(SERVICES, whole))
        self.assertEqual(stored, informer.get("a", "b"))


class HandlerTests(InformerTestCase):
    """Handlers."""

    def test_late_handler(self):
        """A handler that is added later is first notified of the existing objects."""
        self.client.put(PODS, pod("a", node="n1"))
        informer, _ = self.follow()
        late = []
        informer.add_handler(lambda old, new: late.append((old, new)))
        self.assertEqual([(None, "n1")], late)

    def test_removed_handler(self):
        """A removed handler is not notified; removing it again has no effect."""
        informer, _ = self.follow()
        told = []
        remove = informer.add_handler(lambda old, new: told.append(new))
        remove()
        remove()
        self.client.put(PODS, pod("a", node="n1"))
        self.assertEqual([], told)

    def test_same_function_twice(self):
        """A function that is added twice is notified twice, and removed one at a time."""
        informer, _ = self.follow()
        told = []
        remove = informer.add_handler(lambda old, new: None)
        handler = lambda old, new: told.append(new)  # noqa: E731 - one object is added twice
        remove = informer.add_handler(handler)
        informer.add_handler(handler)
        remove()
        self.client.put(PODS, pod("a", node="n1"))
        self.assertEqual(["n1"], told)

    def test_handler_that_raises(self):
        """A handler's exception is logged and does not affect others."""
        informer = self.informers.informer(PODS_SPEC)
        informer.add_handler(lambda old, new: 1 / 0)
        _, told = self.follow()
        self.client.put(PODS, pod("a", node="n1"))
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertEqual([(None, "n1")], told)

    def test_added_by_a_handler(self):
        """A handler that was added by a handler is notified of each change once."""
        informer, _ = self.follow()
        inner = []

        def add(old, new):
            informer.add_handler(lambda old, new: inner.append((old, new)))
            remove()

        remove = informer.add_handler(add)
        self.client.put(PODS, pod("a", node="n1"))
        self.client.put(PODS, pod("b", node="n2"))
        self.assertEqual([(None, "n1"), (None, "n2")], inner)

    def test_removed_by_a_handler(self):
        """A handler that was removed by an earlier one is not notified of the current change."""
        informer = self.informers.informer(PODS_SPEC)
        told = []
        informer.add_handler(lambda old, new: remove())
        remove = informer.add_handler(lambda old, new: told.append(new))
        self.follow()
        self.client.put(PODS, pod("a", node="n1"))
        self.assertEqual([], told)

    def test_change_made_by_a_handler(self):
        """A change that a handler makes is reported to all after the current one."""
        informer = self.informers.informer(PODS_SPEC)

        def move(old, new):
            if new == "n1":
                self.client.put(PODS, pod("a", node="n2"))

        informer.add_handler(move)
        _, told = self.follow()
        self.client.put(PODS, pod("a", node="n1"))
        self.assertEqual([(None, "n1"), ("n1", "n2")], told)

    def test_change_while_a_handler_is_added(self):
        """A change during a handler's first notifications is reported to it afterwards."""
        for name in "ab":
            self.client.put(PODS, pod(name, node="n1"))
        informer, _ = self.follow()
        told = []

        def move(old, new):
            told.append((old, new))
            if len(told) == 1:
                self.client.put(PODS, pod("b", node="n2"))

        informer.add_handler(move)
        self.assertEqual([(None, "n1"), (None, "n1"), ("n1", "n2")], told)


class ListTests(InformerTestCase):
    """Pages of lists, and repeated lists."""

    def test_pages(self):
        """A long list is read in pages, and the reactor runs between two of them."""
        for number in range(3 * PAGE_OBJECTS):
            self.client.put(PODS, pod(f"p{number:04}", node="n1"))
        informer, _ = self.follow()
        known = [len(informer.values())]
        while not informer.synced:
            self.clock.advance(0)
            known.append(len(informer.values()))
        self.assertEqual([PAGE_OBJECTS, 2 * PAGE_OBJECTS, 3 * PAGE_OBJECTS], known)
        self.assertEqual(3, self.count("list"))

    def test_expired_between_pages(self):
        """A list whose next page has expired is restarted at once."""
        self.client.page_limit = 2
        for name in "abcd":
            self.client.put(PODS, pod(name, node="n1"))
        informer, told = self.follow()
        self.client.forget_history()
        self.client.remove(PODS, "a", "default")
        self.clock.pump([0, 0, 0])
        self.assertTrue(informer.synced)
        self.assertEqual(3, len(informer.values()))
        self.assertEqual([(None, "n1")] * 4 + [("n1", None)], told)

    def test_expired_watch(self):
        """After a version has expired the list is read again; only differences are reported."""
        for name in "abc":
            self.client.put(PODS, pod(name, node=f"n-{name}"))
        _, told = self.follow()
        self.client.fail(AWAY)
        told.clear()
        self.client.recover()
        self.client.put(PODS, pod("b", node="n-new"))
        self.client.remove(PODS, "c", "default")
        self.client.put(PODS, pod("d", node="n-d"))
        self.client.forget_history()
        self.pass_time(2)
        self.assertEqual(2, self.count("list"))
        expected = {("n-b", "n-new"), (None, "n-d"), ("n-c", None)}
        self.assertEqual((3, expected), (len(told), set(told)))
        self.client.put(PODS, pod("e", node="n-e"))
        self.assertEqual((None, "n-e"), told[-1])

    def test_expired_event(self):
        """An event that the version has expired causes a list at once."""
        self.follow()
        self.client.forget_history()
        self.client.end_watches(ApiError(410, "Expired", "too old"))
        self.client.end_watches()
        self.pass_time(2)
        self.assertEqual(2, self.count("list"))
        self.assertEqual(1, len(self.client.watches))

    def test_always_expired(self):
        """If versions always expire at once, lists are repeated with pauses."""
        self.client.forget_history()
        self.client.put(PODS, pod("a", node="n1"))
        self.client._oldest = float("inf")
        self.follow()
        self.clock.pump([0.01] * 100)
        self.assertIn(self.count("list"), (2, 3))

    def test_many_gone(self):
        """If very many objects are gone, the reactor also runs in between."""
        for number in range(2 * PAGE_OBJECTS):
            self.client.put(PODS, pod(f"p{number:04}", node="n1"))
        informer, _ = self.follow()
        self.clock.pump([0, 0])
        self.client.fail(AWAY)
        for number in range(2 * PAGE_OBJECTS):
            self.client.remove(PODS, f"p{number:04}", "default")
        self.client.forget_history()
        self.client.recover()
        remaining = set()
        while len(informer.values()):
            self.clock.advance(0.1)
            remaining.add(len(informer.values()))
        self.assertEqual({2 * PAGE_OBJECTS, PAGE_OBJECTS, 0}, remaining)


class MalformedTests(InformerTestCase):
    """Malformed objects and responses."""

    def test_transform_fails(self):
        """An object that cannot be transformed is logged; the others are cached."""
        bad = pod("bad", node="n1")
        del bad["spec"]
        self.client.put(PODS, bad)
        self.client.put(PODS, pod("good", node="n1"))
        informer, told = self.follow()
        self.assertEqual(1, len(self.flushLoggedErrors(KeyError)))
        self.assertTrue(informer.synced)
        self.assertEqual([(None, "n1")], told)

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

    def test_away_from_the_beginning(self):
        """Requests are retried with backoff until the API is reachable."""
        self.client.fail(AWAY)
        self.client.put(PODS, pod("a", node="n1"))
        informer, _ = self.follow()
        self.pass_time(600)
        self.assertFalse(informer.synced)
        self.assertTrue(20 <= self.count("list") <= 90, self.count("list"))
        self.client.recover()
        self.pass_time(31)
        self.assertTrue(informer.synced)

    def test_away_for_hours(self):
        """After an outage of hours there is no list, and the cache stays in use."""
        self.client.put(PODS, pod("a", node="n1"))
        informer, told = self.follow()
        self.client.fail(AWAY)
        self.pass_time(3 * 3600)
        self.assertTrue(informer.synced)
        self.assertEqual("n1", informer.get("a", "default"))
        self.client.put(PODS, pod("b", node="n2"))
        self.client.recover()
        self.pass_time(31)
        self.assertEqual(1, self.count("list"))
        self.assertEqual([(None, "n1"), (None, "n2")], told)

    def test_pauses_begin_short_again(self):
        """After a healthy watch, the backoff is reset."""
        self.follow()
        self.client.fail(AWAY)
        self.pass_time(300)
        self.client.recover()
        # The longest pause, and the time after which a watch is healthy.
        self.pass_time(70)
        self.client.end_watches(AWAY)
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

    def test_told_once(self):
        """Failure and recovery of a watch are logged once."""
        said = Logged(self)
        self.follow()
        self.pass_time(100)
        self.assertEqual([], said)
        self.client.fail(AWAY)
        self.pass_time(100)
        self.client.recover()
        self.pass_time(100)
        self.assertEqual(1, sum("watch failed" in line for line in said))
        self.assertEqual(1, sum("followed again" in line for line in said))

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


class ReadinessTests(InformerTestCase):
    """Reports for ``/readyz``."""

    def test_incomplete(self):
        """Caches that have never been synced are listed, with the reason."""
        self.client.put(PODS, pod("a"))
        self.follow()
        self.assertIsNone(self.informers.problem())
        self.client.fail(AWAY)
        self.follow(InformerSpec(CONFIG_MAPS, whole, namespace="ns", name="ports"))
        self.follow(InformerSpec(SERVICES, whole, namespace="ns"))
        problem = self.informers.problem()
        self.assertIn(f"configmaps ns/ports ({AWAY}), services in ns ({AWAY})", problem)
        self.assertEqual(problem, self.informers.incomplete())

    def test_out_of_touch(self):
        """After a minute without the API, the report has the time of the last response."""
        self.follow()
        self.pass_time(100)
        self.client.fail(AWAY)
        self.pass_time(60)
        self.assertIsNone(self.informers.problem())
        self.pass_time(2)
        problem = self.informers.problem()
        self.assertIn("not been heard of since 2025-06-15 15:0", problem)
        self.assertIn("about pods;", problem)
        self.assertEqual(problem, self.informers.stale_informers())
        self.assertIsNone(self.informers.incomplete())
        self.client.recover()
        self.pass_time(70)
        self.assertIsNone(self.informers.problem())

    def test_when_synced(self):
        """Waiters are notified when all informers of that time are synced."""
        self.client.hold()
        informer, _ = self.follow()
        self.follow(InformerSpec(NODES, whole))
        one, all_ = informer.when_synced(), self.informers.when_synced()
        self.follow(InformerSpec(SERVICES, whole))
        self.assertNoResult(one)
        self.assertNoResult(all_)
        self.client.release()
        self.successResultOf(one)
        self.successResultOf(all_)
        self.successResultOf(informer.when_synced())
        self.successResultOf(self.informers.when_synced())

    def test_waiting_cancelled(self):
        """A cancelled waiter does not affect the others."""
        self.client.hold()
        informer, _ = self.follow()
        one, other, all_ = informer.when_synced(), informer.when_synced(), self.informers
        all_ = all_.when_synced()
        one.cancel()
        all_.cancel()
        self.failureResultOf(one, CancelledError)
        self.failureResultOf(all_, CancelledError)
        self.client.release()
        self.successResultOf(other)


class LifeTests(InformerTestCase):
    """Start and stop."""

    def test_stop(self):
        """After a stop nothing continues, and waiters are cancelled."""
        self.client.hold()
        informer, _ = self.follow()
        self.follow(InformerSpec(NODES, whole))
        waiting = informer.when_synced()
        self.successResultOf(self.informers.stopService())
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_stop_while_watching(self):
        """Watches are ended, too, and the pauses after failures."""
        self.follow()
        self.successResultOf(self.informers.stopService())
        self.assertEqual(([], []), (self.client.watches, self.clock.getDelayedCalls()))
        self.client.fail(AWAY)
        self.informers.startService()
        self.successResultOf(self.informers.stopService())
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_started_later(self):
        """No request is made before the start; then all informers so far start."""
        _, told = self.follow(start=False)
        self.assertEqual([], self.client.calls)
        self.client.put(PODS, pod("a", node="n1"))
        self.follow()
        self.assertEqual([(None, "n1")], told)
