"""Informers: their caches, notifications, reports, start and stop."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from zope.interface.verify import verifyObject

from tests.kube.informing import (
    PODS_SPEC,
    UNREACHABLE,
    InformerTestCase,
    name_of,
    node_of,
    pod,
    whole,
)
from yurttunnel.kube.errors import ApiError
from yurttunnel.kube.interfaces import IInformer, IInformers, IKubeClient, InformerSpec
from yurttunnel.kube.reflector import PAGE_OBJECTS
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, PODS, SERVICES


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
        informer, changes = self.follow()
        self.assertTrue(informer.synced)
        self.assertEqual("n1", informer.get("a", "default"))
        self.assertIsNone(informer.get("a", "other"))
        self.assertEqual(["n1"], list(informer.values()))
        self.assertEqual([(None, "n1")], changes)

    def test_changes(self):
        """Changes are reported with the previous value; an equal value is no change."""
        informer, changes = self.follow()
        self.client.put(PODS, pod("a", node="n1"))
        self.client.put(PODS, pod("a", node="n1", labels={"x": "y"}))
        self.client.put(PODS, pod("a", node="n2"))
        self.client.remove(PODS, "a", "default")
        self.assertEqual([(None, "n1"), ("n1", "n2"), ("n2", None)], changes)
        self.assertEqual([], list(informer.values()))

    def test_not_kept(self):
        """An object whose transform is ``None`` is not cached."""
        _, changes = self.follow()
        self.client.put(PODS, pod("a"))
        self.assertEqual([], changes)
        self.client.put(PODS, pod("a", node="n1"))
        self.client.put(PODS, pod("b"))
        self.assertEqual([(None, "n1")], changes)

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
        changes = []
        remove = informer.add_handler(lambda old, new: changes.append(new))
        remove()
        remove()
        self.client.put(PODS, pod("a", node="n1"))
        self.assertEqual([], changes)

    def test_same_function_twice(self):
        """A function that is added twice is notified twice, and removed one at a time."""
        informer, _ = self.follow()
        changes = []
        remove = informer.add_handler(lambda old, new: None)
        handler = lambda old, new: changes.append(new)  # noqa: E731 - one object is added twice
        remove = informer.add_handler(handler)
        informer.add_handler(handler)
        remove()
        self.client.put(PODS, pod("a", node="n1"))
        self.assertEqual(["n1"], changes)

    def test_handler_that_raises(self):
        """A handler's exception is logged and does not affect others."""
        informer = self.informers.informer(PODS_SPEC)
        informer.add_handler(lambda old, new: 1 / 0)
        _, changes = self.follow()
        self.client.put(PODS, pod("a", node="n1"))
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertEqual([(None, "n1")], changes)

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
        changes = []
        informer.add_handler(lambda old, new: remove())
        remove = informer.add_handler(lambda old, new: changes.append(new))
        self.follow()
        self.client.put(PODS, pod("a", node="n1"))
        self.assertEqual([], changes)

    def test_change_made_by_a_handler(self):
        """A change that a handler makes is reported to all after the current one."""
        informer = self.informers.informer(PODS_SPEC)

        def move(old, new):
            if new == "n1":
                self.client.put(PODS, pod("a", node="n2"))

        informer.add_handler(move)
        _, changes = self.follow()
        self.client.put(PODS, pod("a", node="n1"))
        self.assertEqual([(None, "n1"), ("n1", "n2")], changes)

    def test_change_while_a_handler_is_added(self):
        """A change during a handler's first notifications is reported to it afterwards."""
        for name in "ab":
            self.client.put(PODS, pod(name, node="n1"))
        informer, _ = self.follow()
        changes = []

        def move(old, new):
            changes.append((old, new))
            if len(changes) == 1:
                self.client.put(PODS, pod("b", node="n2"))

        informer.add_handler(move)
        self.assertEqual([(None, "n1"), (None, "n1"), ("n1", "n2")], changes)


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
        informer, changes = self.follow()
        self.client.forget_history()
        self.client.remove(PODS, "a", "default")
        self.clock.pump([0, 0, 0])
        self.assertTrue(informer.synced)
        self.assertEqual(3, len(informer.values()))
        self.assertEqual([(None, "n1")] * 4 + [("n1", None)], changes)

    def test_expired_watch(self):
        """After a version has expired the list is read again; only differences are reported."""
        for name in "abc":
            self.client.put(PODS, pod(name, node=f"n-{name}"))
        _, changes = self.follow()
        self.client.fail(UNREACHABLE)
        changes.clear()
        self.client.recover()
        self.client.put(PODS, pod("b", node="n-new"))
        self.client.remove(PODS, "c", "default")
        self.client.put(PODS, pod("d", node="n-d"))
        self.client.forget_history()
        self.pass_time(2)
        self.assertEqual(2, self.count("list"))
        expected = {("n-b", "n-new"), (None, "n-d"), ("n-c", None)}
        self.assertEqual((3, expected), (len(changes), set(changes)))
        self.client.put(PODS, pod("e", node="n-e"))
        self.assertEqual((None, "n-e"), changes[-1])

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
        self.client.fail(UNREACHABLE)
        for number in range(2 * PAGE_OBJECTS):
            self.client.remove(PODS, f"p{number:04}", "default")
        self.client.forget_history()
        self.client.recover()
        remaining = set()
        while len(informer.values()):
            self.clock.advance(0.1)
            remaining.add(len(informer.values()))
        self.assertEqual({2 * PAGE_OBJECTS, PAGE_OBJECTS, 0}, remaining)


class ReadinessTests(InformerTestCase):
    """Reports for ``/readyz``."""

    def test_incomplete(self):
        """Caches that have never been synced are listed, with the reason."""
        self.client.put(PODS, pod("a"))
        self.follow()
        self.assertIsNone(self.informers.problem())
        self.client.fail(UNREACHABLE)
        self.follow(InformerSpec(CONFIG_MAPS, whole, namespace="ns", name="ports"))
        self.follow(InformerSpec(SERVICES, whole, namespace="ns"))
        problem = self.informers.problem()
        self.assertIn(
            f"configmaps ns/ports ({UNREACHABLE}), services in ns ({UNREACHABLE})", problem
        )
        self.assertEqual(problem, self.informers.incomplete())

    def test_out_of_touch(self):
        """After a minute without the API, the report has the time of the last response."""
        self.follow()
        self.pass_time(100)
        self.client.fail(UNREACHABLE)
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
        self.client.fail(UNREACHABLE)
        self.informers.startService()
        self.successResultOf(self.informers.stopService())
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_started_later(self):
        """No request is made before the start; then all informers so far start."""
        _, changes = self.follow(start=False)
        self.assertEqual([], self.client.calls)
        self.client.put(PODS, pod("a", node="n1"))
        self.follow()
        self.assertEqual([(None, "n1")], changes)
