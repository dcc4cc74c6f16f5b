"""The contract of every client of the API, tested for the fake and for the real one."""

from __future__ import annotations

from twisted.internet.defer import CancelledError

from yurttunnel.kube.errors import (
    AlreadyExists,
    ApiError,
    ApiUnreachable,
    Conflict,
    Expired,
    NotFound,
)
from yurttunnel.kube.resources import CONFIG_MAPS, LEASES, NODES, PODS


def config_map(name, namespace="default", data=None, **labels):
    """Create a ConfigMap."""
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"metadata": metadata, "data": data or {}}


class ClientContract:
    """Tests; a test case has ``client``, and the methods below that raise."""

    def settle(self):
        """Process all pending data."""

    def pass_time(self, seconds):
        """Advance the clock."""
        raise NotImplementedError

    def forget_history(self):
        """Make the API forget all versions so far, and pages that are not read yet."""
        raise NotImplementedError

    def cut_off(self):
        """Make the API unreachable."""
        raise NotImplementedError

    def done(self, deferred):
        """Return a result."""
        self.settle()
        return self.successResultOf(deferred)

    def refused(self, deferred, kind):
        """Return an error."""
        self.settle()
        return self.failureResultOf(deferred, kind).value

    def add(self, name, **options):
        """Create a ConfigMap."""
        body = config_map(name, **options)
        return self.done(self.client.create(CONFIG_MAPS, body, body["metadata"]["namespace"]))

    def watch(self, resource=CONFIG_MAPS, since="0", timeout=60, **options):
        """Watch; return the Deferred and a list of events."""
        events = []
        options["resource_version"] = since
        watching = self.client.watch(
            resource, lambda kind, obj: events.append((kind, obj)), timeout=timeout, **options
        )
        self.settle()
        return watching, events

    def version(self, resource=CONFIG_MAPS):
        """Return the version of a list."""
        return self.done(self.client.list(resource))["metadata"]["resourceVersion"]

    def seen(self, events):
        """Return types and names of events."""
        self.settle()
        return [(kind, obj["metadata"]["name"]) for kind, obj in events if kind != "BOOKMARK"]

    # Objects

    def test_create(self):
        """A created object is returned with the fields that the API adds, and can be read."""
        created = self.add("a", data={"x": "1"})
        metadata = created["metadata"]
        for key in ("uid", "resourceVersion", "creationTimestamp"):
            self.assertTrue(metadata[key], key)
        self.assertEqual(("ConfigMap", "v1"), (created["kind"], created["apiVersion"]))
        self.assertEqual({"x": "1"}, created["data"])
        self.assertEqual(created, self.done(self.client.get(CONFIG_MAPS, "a", "default")))

    def test_create_without_namespace(self):
        """The namespace may be that of the object itself."""
        created = self.done(self.client.create(CONFIG_MAPS, config_map("a", "kube-system")))
        self.assertEqual("kube-system", created["metadata"]["namespace"])

    def test_generated_name(self):
        """A name is generated from ``generateName``."""
        body = {"metadata": {"generateName": "made-"}}
        created = self.done(self.client.create(CONFIG_MAPS, body, "default"))
        self.assertRegex(created["metadata"]["name"], "^made-.{5}$")

    def test_already_exists(self):
        """A name can be used once."""
        self.add("a")
        error = self.refused(
            self.client.create(CONFIG_MAPS, config_map("a"), "default"), AlreadyExists
        )
        self.assertEqual(
            (409, "AlreadyExists", 'configmaps "a" already exists'),
            (error.status, error.reason, error.message),
        )

    def test_not_found(self):
        """Every operation on a missing object fails with NotFound."""
        body = config_map("a")
        for asked in (
            self.client.get(CONFIG_MAPS, "a", "default"),
            self.client.update(CONFIG_MAPS, body),
            self.client.delete(CONFIG_MAPS, "a", "default"),
        ):
            error = self.refused(asked, NotFound)
            self.assertEqual((404, "NotFound"), (error.status, error.reason))
            self.assertEqual('configmaps "a" not found (404 NotFound)', str(error))

    def test_update(self):
        """An object is replaced, with and without a version; fields set by the API remain."""
        created = self.add("a", data={"x": "1"})
        updated = self.done(self.client.update(CONFIG_MAPS, {**created, "data": {"x": "2"}}))
        self.assertEqual({"x": "2"}, updated["data"])
        self.assertEqual(created["metadata"]["uid"], updated["metadata"]["uid"])
        self.assertNotEqual(
            created["metadata"]["resourceVersion"], updated["metadata"]["resourceVersion"]
        )
        again = self.done(self.client.update(CONFIG_MAPS, config_map("a", data={"x": "3"})))
        self.assertEqual({"x": "3"}, again["data"])

    def test_conflict(self):
        """An update from an old version is a conflict."""
        old = self.add("a")
        self.done(self.client.update(CONFIG_MAPS, {**old, "data": {"x": "2"}}))
        error = self.refused(self.client.update(CONFIG_MAPS, {**old, "data": {}}), Conflict)
        self.assertEqual((409, "Conflict"), (error.status, error.reason))

    def test_status(self):
        """A status is changed only as a subresource."""
        body = {"metadata": {"name": "n7"}, "spec": {}}
        created = self.done(self.client.create(NODES, body))
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        changed = self.done(
            self.client.update(
                NODES, {**created, "spec": {"podCIDR": "x"}, "status": status}, "status"
            )
        )
        self.assertEqual([("Ready", "True")], self.conditions(changed))
        self.assertNotIn("podCIDR", changed["spec"])
        changed["status"] = {}
        changed["metadata"]["labels"] = {"a": "b"}
        changed = self.done(self.client.update(NODES, changed))
        self.assertEqual({"a": "b"}, changed["metadata"]["labels"])
        self.assertEqual([("Ready", "True")], self.conditions(changed))

    def conditions(self, obj):
        """Return types and values, without the times that a real API adds."""
        return [(each["type"], each["status"]) for each in obj["status"]["conditions"]]

    def test_lease(self):
        """Resources of other groups have their own paths."""
        body = {"metadata": {"name": "a"}, "spec": {"holderIdentity": "x"}}
        created = self.done(self.client.create(LEASES, body, "kube-system"))
        self.assertEqual("coordination.k8s.io/v1", created["apiVersion"])
        self.assertEqual("x", created["spec"]["holderIdentity"])

    def test_delete(self):
        """A deleted object is gone."""
        self.add("a")
        self.assertIsNone(self.done(self.client.delete(CONFIG_MAPS, "a", "default")))
        self.refused(self.client.get(CONFIG_MAPS, "a", "default"), NotFound)

    def test_results_belong_to_the_caller(self):
        """Changes that a caller makes to an object do not affect others."""
        created = self.add("a", data={"x": "1"})
        created["data"]["x"] = "2"
        found = self.done(self.client.get(CONFIG_MAPS, "a", "default"))
        self.assertEqual({"x": "1"}, found["data"])

    # Lists

    def names(self, listed):
        """Return the names of a list."""
        return [obj["metadata"]["name"] for obj in listed["items"]]

    def list_names(self, **options):
        """Return the names of the ConfigMaps that the tests have created."""
        found = self.names(self.done(self.client.list(CONFIG_MAPS, **options)))
        return [name for name in found if len(name) == 1]

    def test_list(self):
        """Objects are listed, in a namespace or all, and selected by labels and fields."""
        self.add("a", x="1")
        self.add("b", namespace="kube-system", x="2")
        self.assertEqual(["a", "b"], self.list_names())
        self.assertEqual(["a"], self.list_names(namespace="default"))
        self.assertEqual(["b"], self.list_names(label_selector="x=2"))
        self.assertEqual(["a", "b"], self.list_names(label_selector="x"))
        self.assertEqual(["b"], self.list_names(label_selector="x!=1"))
        self.assertEqual(["a"], self.list_names(field_selector="metadata.name=a"))

    def test_pages(self):
        """A list is read in pages, all of one version."""
        for name in "abcde":
            self.add(name, x="1")
        found, token, versions = [], "", set()
        while True:
            page = self.done(
                self.client.list(CONFIG_MAPS, label_selector="x", limit=2, continue_token=token)
            )
            self.assertTrue(len(page["items"]) <= 2)
            found += self.names(page)
            versions.add(page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue", "")
            if not token:
                break
            if len(found) == 2:
                self.add("z", x="1")
        self.assertEqual(["a", "b", "c", "d", "e"], found)
        self.assertEqual(1, len(versions))

    def test_page_expired(self):
        """A page that is requested too late has expired."""
        for name in "abc":
            self.add(name)
        page = self.done(self.client.list(CONFIG_MAPS, "default", limit=1))
        self.forget_history()
        token = page["metadata"]["continue"]
        asked = self.client.list(CONFIG_MAPS, "default", limit=1, continue_token=token)
        error = self.refused(asked, Expired)
        self.assertEqual((410, "Expired"), (error.status, error.reason))

    # Watches

    def test_watch(self):
        """A watch returns changes after a version, both past and future ones."""
        version = self.version()
        created = self.add("a")
        watching, events = self.watch(since=version)
        self.done(self.client.update(CONFIG_MAPS, config_map("a", data={"x": "1"})))
        self.done(self.client.delete(CONFIG_MAPS, "a", "default"))
        self.assertEqual([("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")], self.seen(events))
        self.assertEqual(created, events[0][1])
        self.assertEqual({"x": "1"}, events[2][1]["data"], "the last state")
        versions = [int(obj["metadata"]["resourceVersion"]) for _, obj in events]
        self.assertEqual(sorted(set(versions)), versions)
        self.assertNoResult(watching)
        watching.cancel()
        self.refused(watching, CancelledError)

    def test_watch_selected(self):
        """An object that begins to match is added, and one that no longer matches is deleted."""
        version = self.version()
        watching, events = self.watch(since=version, namespace="default", label_selector="x=1")
        self.add("a")
        self.add("b", namespace="kube-system", x="1")
        for labels in ({"x": "1"}, {"x": "1", "y": "2"}, {}):
            self.done(self.client.update(CONFIG_MAPS, config_map("a", **labels)))
        self.assertEqual([("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")], self.seen(events))
        watching.cancel()
        self.refused(watching, CancelledError)

    def test_watch_other_kinds(self):
        """A watch returns only one resource."""
        watching, events = self.watch(PODS, since=self.version(PODS))
        self.add("a")
        self.assertEqual([], self.seen(events))
        watching.cancel()
        self.refused(watching, CancelledError)

    def test_watch_ends(self):
        """A watch ends regularly after its timeout."""
        watching, _ = self.watch(since=self.version(), timeout=60)
        self.pass_time(59)
        self.settle()
        self.assertNoResult(watching)
        self.pass_time(2)
        self.assertIsNone(self.done(watching))

    def test_cancelled_watch(self):
        """A cancelled watch returns no more events."""
        watching, events = self.watch(since=self.version())
        watching.cancel()
        self.refused(watching, CancelledError)
        self.add("a")
        self.assertEqual([], self.seen(events))

    def test_watch_expired(self):
        """A watch from a version that is too old has expired."""
        version = self.version()
        self.add("a")
        self.forget_history()
        watching, _ = self.watch(since=version)
        error = self.refused(watching, Expired)
        self.assertEqual(410, error.status)

    # Out of reach

    def test_unreachable(self):
        """An unreachable API fails all calls, and ends the watches."""
        watching, _ = self.watch(since=self.version())
        self.cut_off()
        self.assertNotIsInstance(self.refused(watching, ApiUnreachable), ApiError)
        for asked in (
            self.client.get(CONFIG_MAPS, "a", "default"),
            self.client.list(CONFIG_MAPS),
            self.client.create(CONFIG_MAPS, config_map("a"), "default"),
            self.watch()[0],
        ):
            self.refused(asked, ApiUnreachable)
