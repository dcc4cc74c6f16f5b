"""The store: versions, conflicts, server-set metadata and watchers."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurtlab.api import store as store_module
from yurtlab.api.errors import ApiError
from yurtlab.api.resources import CONFIG_MAPS, EVENTS, NODES, PODS
from yurtlab.api.store import Store

NOW = 1_750_000_000


def named(name="a", **fields):
    """Make an object with a name."""
    return {"metadata": {"name": name}, **fields}


class StoreTestCase(SynchronousTestCase):
    """A test case with a store."""

    def setUp(self):
        """Make it."""
        self.clock = Clock()
        self.clock.advance(NOW)
        self.store = Store(self.clock, history=5)

    def create(self, name="a", kind=CONFIG_MAPS, namespace="default", **fields):
        """Create an object."""
        return self.store.create(kind, namespace, named(name, **fields))

    def refused(self, call, *arguments, **options):
        """Return the error that a call raises."""
        return self.assertRaises(ApiError, call, *arguments, **options)


class FindTests(StoreTestCase):
    """``find``, for objects that may be missing."""

    def test_there(self):
        """An existing object is returned as a copy."""
        made = self.create(data={"k": "v"})
        found = self.store.find(CONFIG_MAPS, "default", "a")
        self.assertEqual(made, found)
        found["data"]["k"] = "changed"
        self.assertEqual(made, self.store.get(CONFIG_MAPS, "default", "a"))

    def test_not_there(self):
        """For a missing object, or an unused kind, the result is ``None``."""
        self.create()
        for kind, namespace in ((CONFIG_MAPS, "other"), (PODS, "default")):
            self.assertIsNone(self.store.find(kind, namespace, "a"))


class CreateTests(StoreTestCase):
    """Creating."""

    def test_metadata_of_the_server(self):
        """The store sets kind, identity, time and version of an object."""
        made = self.create(data={"k": "v"})
        self.assertEqual("ConfigMap", made["kind"])
        self.assertEqual("v1", made["apiVersion"])
        self.assertEqual("2025-06-15T15:06:40Z", made["metadata"]["creationTimestamp"])
        self.assertEqual("default", made["metadata"]["namespace"])
        self.assertEqual(36, len(made["metadata"]["uid"]))
        self.assertEqual(str(self.store.version), made["metadata"]["resourceVersion"])
        self.assertEqual(made, self.store.get(CONFIG_MAPS, "default", "a"))

    def test_name_is_taken(self):
        """A second object with the name in the namespace is AlreadyExists."""
        self.create()
        error = self.refused(self.store.create, CONFIG_MAPS, "default", named())
        self.assertEqual((409, "AlreadyExists"), (error.status, error.reason))
        self.assertEqual('configmaps "a" already exists', error.message)
        self.create(namespace="other")
        self.create(kind=PODS, spec={})

    def test_generated_name(self):
        """A name is generated from generateName and five characters, within 63."""
        body = {"metadata": {"generateName": "x" * 70}}
        first = self.store.create(PODS, "default", body)["metadata"]["name"]
        second = self.store.create(PODS, "default", body)["metadata"]["name"]
        self.assertNotEqual(first, second)
        self.assertRegex(first, "^x{58}[bcdfghjklmnpqrstvwxz2456789]{5}$")

    def test_copies(self):
        """Changes of the caller's objects do not change the store."""
        body = named(data={"k": "v"})
        made = self.store.create(CONFIG_MAPS, "default", body)
        body["data"]["k"] = made["data"]["k"] = "changed"
        self.assertEqual({"k": "v"}, self.store.get(CONFIG_MAPS, "default", "a")["data"])

    def test_dry_run(self):
        """A dry run returns the object and stores nothing."""
        before = self.store.version
        made = self.store.create(CONFIG_MAPS, "default", named(), dry_run=True)
        self.assertIn("uid", made["metadata"])
        self.assertEqual([], self.store.list(CONFIG_MAPS))
        self.assertEqual(before, self.store.version)

    def test_limit(self):
        """Objects of a kind above the limit are rejected."""
        self.patch(store_module, "MAX_OBJECTS", 1)
        self.create()
        error = self.refused(self.create, "b")
        self.assertEqual((403, "Forbidden"), (error.status, error.reason))

    def test_oldest_events_are_dropped(self):
        """Only the newest events are kept."""
        for number in range(EVENTS.keep_at_most + 2):
            self.create(f"e{number}", EVENTS)
        names = {one["metadata"]["name"] for one in self.store.list(EVENTS)}
        self.assertEqual(EVENTS.keep_at_most, len(names))
        self.assertTrue(names.isdisjoint({"e0", "e1"}))

    def test_versions_of_an_earlier_run_are_lower(self):
        """A store that is created later starts with a higher version."""
        self.create()
        self.clock.advance(1)
        self.assertGreater(Store(self.clock).version, self.store.version)


class ReplaceTests(StoreTestCase):
    """Replacing."""

    def test_version_must_match(self):
        """An update with an older version is a Conflict, and changes nothing."""
        old = self.create(data={"k": "1"})
        self.store.replace(CONFIG_MAPS, "default", "a", named(data={"k": "2"}))
        error = self.refused(self.store.replace, CONFIG_MAPS, "default", "a", old)
        self.assertEqual((409, "Conflict"), (error.status, error.reason))
        self.assertEqual(
            'Operation cannot be fulfilled on configmaps "a": the object has been modified;'
            " please apply your changes to the latest version and try again",
            error.message,
        )
        self.assertEqual({"k": "2"}, self.store.get(CONFIG_MAPS, "default", "a")["data"])

    def test_identity_must_match(self):
        """An update with another uid is a Conflict."""
        self.create()
        body = {"metadata": {"name": "a", "uid": "other"}}
        error = self.refused(self.store.replace, CONFIG_MAPS, "default", "a", body)
        self.assertIn("Precondition failed: UID in precondition: other", error.message)

    def test_metadata_of_the_server_stay(self):
        """Identity and times cannot be changed."""
        made = self.create()
        body = {"metadata": {"name": "b", "creationTimestamp": "x", "labels": {"l": "1"}}}
        replaced = self.store.replace(CONFIG_MAPS, "default", "a", body)
        expected = {**made["metadata"], "labels": {"l": "1"}}
        expected["resourceVersion"] = str(self.store.version)
        self.assertEqual(expected, replaced["metadata"])

    def test_status_is_apart(self):
        """The status is changed by its subresource only, which changes nothing else."""
        self.create(kind=PODS, spec={"x": 1}, status={"phase": "Pending"})
        body = named(spec={"x": 2}, status={"phase": "Running"})
        self.store.replace(PODS, "default", "a", body)
        stored = self.store.get(PODS, "default", "a")
        self.assertEqual(({"x": 2}, {"phase": "Pending"}), (stored["spec"], stored["status"]))
        body = named(spec={"x": 3}, status={"phase": "Running"})
        self.store.replace(PODS, "default", "a", body, "status")
        stored = self.store.get(PODS, "default", "a")
        self.assertEqual(({"x": 2}, {"phase": "Running"}), (stored["spec"], stored["status"]))

    def test_update_status(self):
        """A status can be written without the rest of the object."""
        self.create(kind=PODS, spec={})
        made = self.store.update_status(PODS, "default", "a", {"phase": "Failed"})
        self.assertEqual({"phase": "Failed"}, made["status"])

    def test_generation(self):
        """A change of the specification increments the generation, other changes do not."""
        made = self.create(kind=PODS, spec={"x": 1})
        self.assertEqual(1, made["metadata"]["generation"])
        made = self.store.replace(PODS, "default", "a", named(spec={"x": 2}))
        self.assertEqual(2, made["metadata"]["generation"])
        labeled = {"metadata": {"name": "a", "labels": {"l": "1"}}, "spec": {"x": 2}}
        made = self.store.replace(PODS, "default", "a", labeled)
        self.assertEqual(2, made["metadata"]["generation"])

    def test_no_change(self):
        """Writing an unchanged object makes no new version and notifies nobody."""
        made = self.create(data={"k": "v"})
        recorded = []
        self.store.follow(CONFIG_MAPS, recorded.append)
        again = self.store.replace(CONFIG_MAPS, "default", "a", named(data={"k": "v"}))
        self.assertEqual(made, again)
        self.assertEqual([], recorded)

    def test_dry_run(self):
        """A dry run returns the result and changes nothing."""
        made = self.create(data={"k": "1"})
        tried = self.store.replace(
            CONFIG_MAPS, "default", "a", named(data={"k": "2"}), dry_run=True
        )
        self.assertEqual({"k": "2"}, tried["data"])
        self.assertEqual(made, self.store.get(CONFIG_MAPS, "default", "a"))

    def test_missing(self):
        """A missing object cannot be replaced."""
        error = self.refused(self.store.replace, PODS, "default", "a", named())
        self.assertEqual(
            (404, "NotFound", 'pods "a" not found', {"name": "a", "kind": "pods"}),
            (error.status, error.reason, error.message, error.details),
        )


class EndTests(StoreTestCase):
    """Deleting."""

    def test_marked(self):
        """A marked object stays, with its deletion time; a later mark can only shorten it."""
        self.create(kind=PODS, spec={})
        self.store.mark_deleted(PODS, "default", "a", 30)
        marked = self.store.mark_deleted(PODS, "default", "a", 60)
        self.assertEqual(30, marked["metadata"]["deletionGracePeriodSeconds"])
        self.assertEqual("2025-06-15T15:07:10Z", marked["metadata"]["deletionTimestamp"])
        marked = self.store.mark_deleted(PODS, "default", "a", 5)
        self.assertEqual("2025-06-15T15:06:45Z", marked["metadata"]["deletionTimestamp"])

    def test_removed(self):
        """A removed object is gone, and its last version is that of the removal."""
        self.create()
        removed = self.store.remove(CONFIG_MAPS, "default", "a")
        self.assertEqual(str(self.store.version), removed["metadata"]["resourceVersion"])
        self.refused(self.store.get, CONFIG_MAPS, "default", "a")
        self.refused(self.store.remove, CONFIG_MAPS, "default", "a")

    def test_dry_run(self):
        """A dry run removes nothing."""
        self.create()
        self.store.remove(CONFIG_MAPS, "default", "a", dry_run=True)
        self.store.mark_deleted(CONFIG_MAPS, "default", "a", 3, dry_run=True)
        self.assertNotIn(
            "deletionTimestamp", self.store.get(CONFIG_MAPS, "default", "a")["metadata"]
        )


class ListTests(StoreTestCase):
    """Listing."""

    def test_order(self):
        """Lists are sorted by namespace and name, and can be of one namespace."""
        for namespace, name in (("b", "y"), ("a", "z"), ("b", "x")):
            self.create(name, namespace=namespace)
        self.assertEqual(
            ["z", "x", "y"], [one["metadata"]["name"] for one in self.store.list(CONFIG_MAPS)]
        )
        found = self.store.list(CONFIG_MAPS, "b")
        self.assertEqual(["x", "y"], [one["metadata"]["name"] for one in found])


class WatchTests(StoreTestCase):
    """Watchers."""

    def setUp(self):
        """Record notifications."""
        super().setUp()
        self.recorded = []

    def record(self, change, one):
        """Record a change."""
        self.recorded.append((change, one["metadata"]["name"]))

    def test_begins_with_what_is_there(self):
        """A watcher gets all existing objects first, then changes, until it is stopped."""
        self.create("a")
        stop = self.store.watch(CONFIG_MAPS, self.record)
        self.create("b")
        self.create("n", NODES, None)
        self.store.replace(CONFIG_MAPS, "default", "a", named("a", data={"k": "v"}))
        self.store.remove(CONFIG_MAPS, "default", "b")
        stop()
        stop()
        self.create("c")
        self.assertEqual(
            [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")], self.recorded
        )

    def test_changes_by_a_watcher(self):
        """All watchers get changes in order, including those made by a watcher."""

        def answer(change, one):
            if change == "ADDED":
                self.store.replace(CONFIG_MAPS, "default", "a", {**one, "data": {"seen": "yes"}})

        self.store.watch(CONFIG_MAPS, answer)
        self.store.watch(CONFIG_MAPS, self.record)
        self.create("a")
        self.assertEqual([("ADDED", "a"), ("MODIFIED", "a")], self.recorded)

    def test_changes_during_the_initial_events(self):
        """A watcher that changes objects during the initial events is notified of that change."""
        self.create("a")

        def answer(change, one):
            self.record(change, one)
            if change == "ADDED":
                self.store.remove(CONFIG_MAPS, "default", "a")

        self.store.watch(CONFIG_MAPS, answer)
        self.assertEqual([("ADDED", "a"), ("DELETED", "a")], self.recorded)

    def test_a_watcher_that_begins_in_between(self):
        """A watcher that starts during a notification gets each object once."""

        def begin(change, one):
            if one["metadata"]["name"] == "a" and change == "ADDED":
                self.create("b")
                self.store.watch(CONFIG_MAPS, self.record)

        self.store.watch(CONFIG_MAPS, begin)
        self.create("a")
        self.assertEqual([("ADDED", "a"), ("ADDED", "b")], self.recorded)

    def test_failing_watcher(self):
        """An exception in one watcher is logged, and the others are notified."""
        self.store.follow(CONFIG_MAPS, lambda event: 1 / 0)
        self.store.watch(CONFIG_MAPS, self.record)
        self.create("a")
        self.assertEqual([("ADDED", "a")], self.recorded)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_since_a_version(self):
        """A watch can start in the past, and gets the previous state of each object."""
        version = self.store.version
        self.create("a", data={"k": "1"})
        self.store.replace(CONFIG_MAPS, "default", "a", named("a", data={"k": "2"}))
        events = []
        self.store.follow(CONFIG_MAPS, events.append, version)
        self.assertEqual(["ADDED", "MODIFIED"], [event.type for event in events])
        self.assertIsNone(events[0].previous)
        self.assertEqual({"k": "1"}, events[1].previous["data"])

    def test_too_old(self):
        """A version before the history, or of another run, has expired."""
        first = self.store.version
        for number in range(6):
            self.create(f"o{number}")
        error = self.refused(self.store.follow, CONFIG_MAPS, lambda event: None, first)
        self.assertEqual((410, "Expired"), (error.status, error.reason))
        self.assertEqual(f"too old resource version: {first} ({self.store.version})", error.message)
        events = []
        self.store.follow(CONFIG_MAPS, events.append, first + 1)
        self.assertEqual(5, len(events))
        self.refused(self.store.follow, CONFIG_MAPS, events.append, self.store.version + 1)
