"""Watches: their events, forms and ends."""

from __future__ import annotations

import json

from tests.yurtlab.api.support import PODS_PATH, ApiTestCase, pod
from yurtlab.api import watching
from yurtlab.api.resources import CONFIG_MAPS, PODS
from yurtlab.api.rest import WATCH_SECONDS

WATCH = f"{PODS_PATH}?watch=true"
TABLE = ["Accept: application/json;as=Table;v=v1;g=meta.k8s.io"]


class WatchTestCase(ApiTestCase):
    """Watches pods."""

    def seen(self, client):
        """Return the events that a client has received: types and names."""
        client.settle()
        return [(one["type"], one["object"]["metadata"]["name"]) for one in client.events()]

    def label(self, name, **labels):
        """Set the labels of a pod."""
        one = self.store.get(PODS, "default", name)
        one["metadata"]["labels"] = labels
        self.store.replace(PODS, "default", name, one)

    def add(self, name, namespace="default", **labels):
        """Create a pod that has a node already, so that there is one event only."""
        body = pod(name, nodeName="edge-1")
        body["metadata"]["labels"] = labels
        return self.create(body, f"/api/v1/namespaces/{namespace}/pods")


class EventTests(WatchTestCase):
    """Events."""

    def test_from_the_beginning(self):
        """Without a version a watch starts with all existing objects, then sends changes."""
        self.add("a")
        for query in ("watch=true", "watch=1&resourceVersion=0", "watch=true&resourceVersion="):
            client = self.watch(f"{PODS_PATH}?{query}")
            self.assertEqual([("ADDED", "a")], self.seen(client))
        self.label("a", x="1")
        self.store.remove(PODS, "default", "a")
        expected = [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
        self.assertEqual(expected, self.seen(client))
        self.assertEqual(
            str(self.store.version),
            client.events()[-1]["object"]["metadata"]["resourceVersion"],
        )

    def test_from_a_version(self):
        """A watch continues at the version of a list."""
        self.add("a")
        _, listed = self.call("GET", PODS_PATH)
        version = listed["metadata"]["resourceVersion"]
        self.add("b")
        client = self.watch(f"{WATCH}&resourceVersion={version}")
        self.add("c")
        self.assertEqual([("ADDED", "b"), ("ADDED", "c")], self.seen(client))

    def test_expired(self):
        """For an expired version, the watch sends an error event and ends."""
        client = self.watch(f"{WATCH}&resourceVersion=1")
        (event,) = client.events()
        status = event["object"]
        self.assertEqual(
            ("ERROR", "Status", "Failure", 410, "Expired"),
            (event["type"], *(status[key] for key in ("kind", "status", "code", "reason"))),
        )
        self.assertEqual(f"too old resource version: 1 ({self.store.version})", status["message"])
        self.assertEqual(200, client.response()[0])

    def test_namespace(self):
        """A watch sends changes of its namespace, or of all."""
        mine, all_ = self.watch(WATCH), self.watch("/api/v1/pods?watch=true")
        self.add("a", "kube-system")
        self.add("b")
        self.assertEqual([("ADDED", "b")], self.seen(mine))
        self.assertEqual([("ADDED", "a"), ("ADDED", "b")], self.seen(all_))

    def test_selected(self):
        """An object that starts to match is ADDED, one that stops to match is DELETED."""
        client = self.watch(f"{WATCH}&labelSelector=x%3D1")
        self.add("a")
        self.add("b", x="1")
        self.label("a", x="1")
        self.label("a", x="1", y="2")
        self.label("a")
        self.label("a", y="3")
        self.store.remove(PODS, "default", "a")
        self.store.remove(PODS, "default", "b")
        expected = [
            ("ADDED", "b"),
            ("ADDED", "a"),
            ("MODIFIED", "a"),
            ("DELETED", "a"),
            ("DELETED", "b"),
        ]
        self.assertEqual(expected, self.seen(client))

    def test_one(self):
        """One object can be watched, by a field selector or by its path."""
        for path in (f"{WATCH}&fieldSelector=metadata.name%3Da", f"{PODS_PATH}/a?watch=true"):
            client = self.watch(path)
            self.add("a")
            self.add("b")
            self.assertEqual([("ADDED", "a")], self.seen(client))
            for name in "ab":
                self.store.remove(PODS, "default", name)

    def test_other_kinds(self):
        """Changes of other kinds are not sent."""
        client = self.watch(WATCH)
        self.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "a"}})
        self.assertEqual([], self.seen(client))

    def test_initial_events(self):
        """A client can request the existing objects, a bookmark, and then changes."""
        self.add("a")
        client = self.watch(
            f"{WATCH}&sendInitialEvents=true&allowWatchBookmarks=true"
            "&resourceVersionMatch=NotOlderThan&resourceVersion=5"
        )
        client.settle()
        added, bookmark = client.events()
        self.assertEqual(("ADDED", "BOOKMARK"), (added["type"], bookmark["type"]))
        metadata = bookmark["object"]["metadata"]
        self.assertEqual({"k8s.io/initial-events-end": "true"}, metadata["annotations"])
        self.assertEqual(str(self.store.version), metadata["resourceVersion"])

    def test_no_initial_events(self):
        """A client can request changes only."""
        self.add("a")
        client = self.watch(f"{WATCH}&sendInitialEvents=false")
        self.add("b")
        self.assertEqual([("ADDED", "b")], self.seen(client))


class FormTests(WatchTestCase):
    """Forms of events."""

    def test_tables(self):
        """kubectl get -w gets tables with one row each, and columns in the first."""
        client = self.watch(WATCH, fields=TABLE)
        self.add("a")
        self.add("b")
        client.settle()
        first, second = (one["object"] for one in client.events())
        self.assertEqual("Name", first["columnDefinitions"][0]["name"])
        self.assertIsNone(second["columnDefinitions"])
        self.assertEqual("b", second["rows"][0]["cells"][0])
        self.assertEqual("PartialObjectMetadata", second["rows"][0]["object"]["kind"])

    def test_metadata_only(self):
        """Clients can watch metadata only."""
        accept = "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        client = self.watch(WATCH, fields=[accept])
        self.add("a")
        client.settle()
        (event,) = client.events()
        self.assertEqual({"kind", "apiVersion", "metadata"}, set(event["object"]))

    def test_bookmarks(self):
        """Bookmarks are sent once a minute on request, in the form of other events."""
        plain, table = (
            self.watch(f"{WATCH}&allowWatchBookmarks=true", fields=fields) for fields in ((), TABLE)
        )
        none = self.watch(WATCH)
        for _ in range(2):
            self.clock.advance(watching.BOOKMARK_SECONDS)
        for client in (plain, table, none):
            client.settle()
        self.assertEqual(["BOOKMARK"] * 2, [one["type"] for one in plain.events()])
        bookmark = plain.events()[0]["object"]
        self.assertEqual(("Pod", "v1"), (bookmark["kind"], bookmark["apiVersion"]))
        self.assertEqual(str(self.store.version), bookmark["metadata"]["resourceVersion"])
        self.assertEqual([[], []], [one["object"]["rows"] for one in table.events()])
        self.assertEqual([], none.events())


class EndTests(WatchTestCase):
    """Ends of watches."""

    def test_timeout(self):
        """A watch ends normally after the client's timeout."""
        client = self.watch(f"{WATCH}&timeoutSeconds=5")
        self.add("a")
        self.clock.advance(4.9)
        client.settle()
        self.assertNotIn(b"\r\n0\r\n\r\n", client.received)
        self.clock.advance(0.2)
        status, _, body = client.response()
        self.assertEqual((200, "ADDED"), (status, json.loads(body)["type"]))
        self.add("b")

    def test_usual_timeout(self):
        """A watch without a timeout ends after between half an hour and an hour."""
        client = self.watch(WATCH)
        self.clock.advance(WATCH_SECONDS - 1)
        client.settle()
        self.assertFalse(client.received.endswith(b"0\r\n\r\n"))
        self.clock.advance(WATCH_SECONDS + 1)
        client.response()

    def test_client_leaves(self):
        """A watch is removed when its client disconnects."""
        before = len(self.clock.getDelayedCalls())
        client = self.watch(f"{WATCH}&allowWatchBookmarks=true")
        client.connection.break_off(ConnectionError())
        self.add("a")
        self.api.stop()
        self.server.factory.close()
        self.assertLessEqual(len(self.clock.getDelayedCalls()), before)

    def test_stop(self):
        """When the API stops, watches end normally."""
        client = self.watch(WATCH)
        self.api.stop()
        client.response()

    def test_slow_client(self):
        """A client that pauses gets all events when it reads again."""
        client = self.watch(WATCH)
        client.settle()
        connection = client.connection
        connection.producer.pauseProducing()
        self.add("a")
        client.settle()
        self.assertEqual([], self.seen(client))
        connection.producer.resumeProducing()
        self.add("b")
        self.assertEqual([("ADDED", "a"), ("ADDED", "b")], self.seen(client))

    def test_client_that_never_reads(self):
        """A client that never reads is aborted before much is buffered."""
        self.patch(watching, "MAX_QUEUED_BYTES", 3000)
        client = self.watch(WATCH)
        client.settle()
        client.connection.producer.pauseProducing()
        sizes = [len(json.dumps(self.add("a"))), len(json.dumps(self.add("b")))]
        self.assertLess(sum(sizes), 3000)
        self.assertFalse(client.connection.aborted)
        for name in "cdef":
            self.add(name)
        self.assertTrue(client.connection.aborted)
        self.add("g")

    def test_much_at_the_beginning(self):
        """The initial events may exceed the buffer for changes."""
        self.patch(watching, "MAX_QUEUED_BYTES", 3000)
        body = {"metadata": {"name": ""}, "data": {"k": "x" * 30_000}}
        for name in "abcdef":
            body["metadata"]["name"] = name
            self.store.create(CONFIG_MAPS, "default", body)
        client = self.watch("/api/v1/configmaps?watch=true")
        client.settle()
        self.assertEqual(list("abcdef"), [name for _, name in self.seen(client)])

    def test_time_is_over_for_a_slow_client(self):
        """A watch that times out sends its buffered events, and ends."""
        client = self.watch(f"{WATCH}&timeoutSeconds=5")
        client.settle()
        client.connection.producer.pauseProducing()
        self.add("a")
        self.clock.advance(5)
        client.connection.producer.resumeProducing()
        _, _, body = client.response()
        self.assertEqual("a", json.loads(body)["object"]["metadata"]["name"])
