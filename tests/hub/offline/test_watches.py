"""Watches while offline."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred

from tests.http.support import request, responses, settle
from tests.hub.offline.world import OfflineTestCase, collection, item
from yurttunnel.hub.cache.interfaces import Scope
from yurttunnel.hub.media.interfaces import Item
from yurttunnel.kube.protobuf_fields import encode_bytes

SERVICES = {"resource": "services.v1.core"}
WATCH = "/api/v1/services?watch=true"


class WatchTestCase(OfflineTestCase):
    """Watches of Services."""

    def frames(self, connection):
        """Return the events so far, as types and objects, and whether the watch has ended."""
        sent = connection.sent
        ended = sent.endswith(b"0\r\n\r\n")
        ((status, headers, body, _),) = responses(sent if ended else sent + b"0\r\n\r\n", b"GET")
        self.assertEqual((200, b"application/json"), (status, headers[b"content-type"]))
        events = [json.loads(line) for line in body.splitlines()]
        return [(event["type"], event["object"]) for event in events], ended

    def names(self, connection):
        """Return the types and names of the events so far."""
        return [(type, one["metadata"].get("name")) for type, one in self.frames(connection)[0]]

    def assert_parked(self, connection):
        """Assert that a watch is open."""
        self.assertFalse(self.frames(connection)[1])

    def assert_ended(self, connection):
        """Assert that a watch has ended normally, and its connection is open."""
        settle(self.clock, connection)
        self.assertTrue(self.frames(connection)[1])
        self.assertIsNone(connection.closed_with)


class BeginningTests(WatchTestCase):
    """The start of a watch."""

    def setUp(self):
        """Cache two Services."""
        super().setUp()
        self.store("services.v1.core", item("a", labels={"app": "web"}), item("b"), version=7)

    def test_from_the_beginning(self):
        """Without a version, or at version 0, all objects are ADDED, and the watch stays open."""
        for query in ("", "&resourceVersion=0"):
            connection = self.open(WATCH + query)
            self.assertEqual([("ADDED", "a"), ("ADDED", "b")], self.names(connection))
            self.assert_parked(connection)
        _, one = self.frames(connection)[0][0]
        self.assertEqual("Service", one["kind"])

    def test_selectors(self):
        """Only selected objects are ADDED."""
        connection = self.open(WATCH + "&labelSelector=app%3Dweb")
        self.assertEqual([("ADDED", "a")], self.names(connection))

    def test_from_a_version(self):
        """A client with a version gets nothing, because no change is known."""
        for version in ("7", "3", "900"):
            connection = self.open(f"{WATCH}&resourceVersion={version}")
            self.assertEqual([], self.names(connection))
            self.assert_parked(connection)

    def test_initial_events(self):
        """A client that requests the initial events gets their end (KEP-3157)."""
        connection = self.open(
            WATCH
            + "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        )
        self.assertEqual(
            [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", None)], self.names(connection)
        )
        _, bookmark = self.frames(connection)[0][-1]
        self.assertEqual("Service", bookmark["kind"])
        self.assertEqual("7", bookmark["metadata"]["resourceVersion"])
        self.assertEqual({"k8s.io/initial-events-end": "true"}, bookmark["metadata"]["annotations"])

    def test_initial_events_by_name(self):
        """For an object that was only read, this end and later bookmarks have its version."""
        self.store_one("configmaps.v1.core", item("a", 50))
        self.store("configmaps.v1.core", item("b", 900, "m"), version=900, namespace="m")
        connection = self.open(
            "/api/v1/namespaces/n/configmaps?watch=true&fieldSelector=metadata.name%3Da"
            "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        )
        self.clock.pump([1] * 62)
        settle(self.clock, connection)
        events, _ = self.frames(connection)
        versions = [(type, one["metadata"]["resourceVersion"]) for type, one in events]
        self.assertEqual([("ADDED", "50"), ("BOOKMARK", "50"), ("BOOKMARK", "50")], versions)

    def test_initial_events_of_nothing(self):
        """If nothing is known, the initial events do not end."""
        target = (
            "/api/v1/configmaps?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        )
        self.assert_status(404, "NotFound", "not listed", target)
        self.assert_status(404, "NotFound", "not listed", "/api/v1/configmaps?watch=1")

    def test_initial_events_without_a_match(self):
        """The API requires resourceVersionMatch with it."""
        target = WATCH + "&sendInitialEvents=true"
        self.assert_status(400, "BadRequest", "resourceVersionMatch", target)

    def test_kubelets_pods(self):
        """A watch does not show the kubelet an empty list of pods, either."""
        self.store("pods.v1.core")
        self.assert_status(404, "NotFound", "not listed", "/api/v1/pods?watch=1")

    def test_protobuf(self):
        """A watch has the best form with cached data."""
        metadata = encode_bytes(1, b"a") + encode_bytes(6, b"1")
        one = Item("", "a", "1", {}, "", encode_bytes(1, metadata))
        self.store("nodes.v1.core", one, form="protobuf")
        accept = b"Accept: application/vnd.kubernetes.protobuf;stream=watch,application/json"
        connection = self.open("/api/v1/nodes?watch=1", accept)
        ((_, headers, body, _),) = responses(connection.sent + b"0\r\n\r\n", b"GET")
        expected = b"application/vnd.kubernetes.protobuf;stream=watch"
        self.assertEqual(expected, headers[b"content-type"])
        self.assertEqual(len(body) - 4, int.from_bytes(body[:4], "big"))

    def test_tables(self):
        """A watch of Tables has the columns in its first event."""
        accept = b"Accept: application/json;as=Table;v=v1;g=meta.k8s.io"
        events, _ = self.frames(self.open(WATCH, accept))
        columns = [table["columnDefinitions"] for _, table in events]
        self.assertEqual(["Name", "Age"], [column["name"] for column in columns[0]])
        self.assertEqual([None], columns[1:])
        self.assertEqual(["a", "b"], [table["rows"][0]["cells"][0] for _, table in events])

    def test_filters(self):
        """Hidden objects are not ADDED."""
        self.filters.change = lambda obj: None if obj["metadata"]["name"] == "a" else obj
        self.assertEqual([("ADDED", "b")], self.names(self.open(WATCH)))

    def test_head(self):
        """The response to HEAD ends."""
        self.assertEqual(200, self.send_request(WATCH, method=b"HEAD")[0])

    def test_slow_clients(self):
        """Objects are sent no faster than the client reads; then the watch stays open."""
        many = (item(f"s{n:04}", data="x" * 1000) for n in range(2000))
        self.store("services.v1.core", *many, version=8)
        connection = self.server.connect()
        connection.receive(request(WATCH.encode(), b"User-Agent: kubelet"))
        self.assertEqual(1, self.cache.listed)
        while self.cache.listed:
            connection.turn()
            self.assertLess(len(connection.dataBuffer) + connection._tempDataLen, 1_000_000)
        settle(self.clock, connection)
        self.assertEqual(2000, len(self.names(connection)))
        self.assert_parked(connection)
        self.assertEqual(1, len(self.offline.open_watches))


class OpenWatchTests(WatchTestCase):
    """The duration and the end of watches."""

    def setUp(self):
        """Cache a Service."""
        super().setUp()
        self.store("services.v1.core", item("a"), version=7)

    def test_time_out(self):
        """A watch ends after the client's timeout."""
        connection = self.open(WATCH + "&resourceVersion=7&timeoutSeconds=30")
        self.clock.pump([1] * 29)
        self.assert_parked(connection)
        self.clock.pump([1] * 2)
        self.assert_ended(connection)
        self.assertEqual(0, len(self.offline.open_watches))

    def test_without_a_time(self):
        """Without a timeout it lasts from half an hour to an hour."""
        connections = [self.open(WATCH + "&resourceVersion=7") for _ in range(20)]
        self.clock.pump([1] * 1799)
        for connection in connections:
            self.assert_parked(connection)
        ends = []
        for second in range(1800, 3602):
            self.clock.advance(1)
            for connection in connections:
                connection.turn()
            ends += [second] * (20 - len(ends) - len(self.offline.open_watches))
        self.assertEqual(20, len(ends))
        self.assertGreater(len(set(ends)), 10)
        for connection in connections:
            self.assertTrue(self.frames(connection)[1])

    def test_bookmarks(self):
        """Each minute a bookmark with the client's version is sent to clients that allow it."""
        allowing = self.open(WATCH + "&resourceVersion=3&allowWatchBookmarks=true")
        other = self.open(WATCH + "&resourceVersion=3")
        self.clock.pump([1] * 59)
        self.assertEqual([], self.names(allowing))
        self.clock.pump([1] * 62)
        settle(self.clock, allowing, other)
        events, _ = self.frames(allowing)
        self.assertEqual(["BOOKMARK", "BOOKMARK"], [type for type, _ in events])
        for _, bookmark in events:
            self.assertEqual("Service", bookmark["kind"])
            self.assertEqual("3", bookmark["metadata"]["resourceVersion"])
            self.assertNotIn("annotations", bookmark["metadata"])
        self.assertEqual([], self.names(other))

    def test_bookmarks_of_unknown_kinds(self):
        """If the kind is not known, there are no bookmarks, because they need it."""
        connection = self.open(
            "/api/v1/configmaps?watch=1&resourceVersion=3&allowWatchBookmarks=true"
        )
        self.clock.pump([1] * 70)
        settle(self.clock, connection)
        self.assertEqual([], self.names(connection))

    def test_the_cloud_is_back(self):
        """All end within two seconds, but not at once."""
        connections = [self.open(WATCH + "&resourceVersion=7") for _ in range(300)]
        self.assertEqual(300, len(self.offline.open_watches))
        self.clock.pump([1])
        self.connectivity.change(True)
        left = []
        for _ in range(20):
            self.clock.pump([0.05] * 2)
            left.append(len(self.offline.open_watches))
        self.assertEqual(0, left[-1])
        steps = [before - after for before, after in zip([300, *left], left, strict=False)]
        self.assertLess(max(steps), 50, steps)
        for connection in connections:
            self.assert_ended(connection)

    def test_the_cloud_is_back_soon(self):
        """A watch that has just begun lasts for a second, too, and ends with the others."""
        connections = [self.open(WATCH + "&resourceVersion=7") for _ in range(20)]
        self.clock.pump([0.5])
        self.connectivity.change(True)
        self.clock.pump([0.05] * 9)
        self.assertEqual(20, len(self.offline.open_watches))
        self.clock.pump([0.05] * 22)
        for connection in connections:
            self.assert_ended(connection)

    def test_few_timers(self):
        """All watches share one timer."""
        before = len(self.clock.getDelayedCalls())
        for _ in range(100):
            self.open(WATCH + "&resourceVersion=7&timeoutSeconds=30&allowWatchBookmarks=true")
        idle = len(self.server.factory.idle)
        self.assertLessEqual(len(self.clock.getDelayedCalls()) - before - min(idle, 1), 3)

    def test_back_meanwhile(self):
        """A watch that was sending its first events when the cloud became reachable ends, too."""
        waiting, list_now = Deferred(), self.cache.list
        self.patch(self.cache, "list", lambda scope: waiting)
        connection = self.open(WATCH)
        self.connectivity.change(True)
        waiting.callback(self.successResultOf(list_now(Scope(collection(**SERVICES)))))
        settle(self.clock, connection)
        self.assertEqual([("ADDED", "a")], self.names(connection))
        self.clock.pump([0.05] * 40)
        self.assert_ended(connection)

    def test_an_outage_that_is_not_known_yet(self):
        """A watch lasts for a second at least: clients take a shorter one for a failure."""
        self.connectivity.online = True
        connections = [self.open(WATCH + "&resourceVersion=7") for _ in range(20)]
        self.clock.pump([0.05] * 19)
        self.assertEqual(20, len(self.offline.open_watches))
        self.clock.pump([0.05] * 20)
        for connection in connections:
            self.assert_ended(connection)

    def test_clients_that_leave(self):
        """A watch whose client has disconnected is forgotten."""
        connection = self.open(WATCH)
        connection.abortConnection()
        self.assertEqual(0, len(self.offline.open_watches))
        self.clock.pump([1] * 3)

    def test_the_hub_stops(self):
        """All watches end when the hub stops."""
        connections = [self.open(WATCH) for _ in range(3)]
        self.successResultOf(self.offline.stopService())
        for connection in connections:
            self.assert_ended(connection)
