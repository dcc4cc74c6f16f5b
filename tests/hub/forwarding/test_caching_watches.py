"""Caching of watches, also of those that are aborted."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.error import ConnectionLost

from tests.hub.cache.caches import make_cache
from tests.hub.forwarding.world import (
    CHUNKED,
    JSON,
    KUBELET,
    ONE,
    PODS,
    World,
    chunk,
    event,
    pod,
    pod_list,
)
from tests.hub.test_configuration import hub_config_map
from yurttunnel.hub.cache.interfaces import Scope
from yurttunnel.hub.filters.watches import INTERVAL, SPREAD
from yurttunnel.hub.forwarding.token_reviews import UNKNOWN_REVIEW_SECONDS
from yurttunnel.kube.resources import CONFIG_MAPS

INGRESS = b"User-Agent: ingress/v1"
BOOKMARK = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "77"}}


class WatchTests(World):
    """The events of watches."""

    def watch(self, query="", *events):
        """Begin a watch."""
        self.send_request(f"{PODS}?watch=1{query}", KUBELET, JSON)
        self.respond(CHUNKED)
        for each in events:
            self.send_event(each)

    def send_event(self, frame):
        """Send a frame."""
        self.respond(chunk(frame))

    def test_events(self):
        """Each is forwarded when it arrives, and cached."""
        self.watch("", event("ADDED", pod("one", "1")), event("ADDED", pod("two", "2")))
        self.send_event(event("MODIFIED", pod("one", "3")))
        self.assertEqual(("3", "2"), (self.cached("one"), self.cached("two")))
        self.assertIn(chunk(event("MODIFIED", pod("one", "3"))), self.client.sent)
        self.send_event(event("DELETED", pod("one", "4")))
        self.assertIsNone(self.cached("one"))

    def list(self, *pods, version="9", fields=()):
        """Send a list, and respond with pods at a version."""
        self.send_request(PODS, KUBELET, JSON)
        self.respond_json(pod_list(*pods or [pod("one")], version=version), b"200 OK", -1, *fields)

    def version(self):
        """Return the version of the cached list."""
        listed = self.successResultOf(self.cache.list(Scope(self.collection())))
        listed.close()
        return listed.meta.version

    def test_versions(self):
        """A cached list has the version of the last event of its watch."""
        self.list()
        self.watch("&resourceVersion=9")
        for type, obj, version in (
            ("ADDED", pod("two", "11"), "11"),
            ("DELETED", pod("two", "12"), "12"),
            ("BOOKMARK", BOOKMARK, "77"),
        ):
            self.send_event(event(type, obj))
            self.assertEqual(version, self.version())

    def test_versions_of_others(self):
        """A watch of a part, or from any version, does not change the version."""
        self.list()
        for query in ("&resourceVersion=9&labelSelector=x%3D1", "", "&resourceVersion=0"):
            self.client = self.server.connect()
            self.watch(query, event("ADDED", pod("two", "11")), event("BOOKMARK", BOOKMARK))
            self.assertEqual("9", self.version())

    def test_versions_after_a_list_that_is_not_cached(self):
        """A watch after a list that was not cached does not make the cached list newer."""
        self.list(pod("one"), pod("gone", "2"), version="10")
        self.list(version="20", fields=[b"Content-Encoding: br"])
        later = BOOKMARK | {"metadata": {"resourceVersion": "30"}}
        self.watch("&resourceVersion=20", event("BOOKMARK", later))
        self.assertEqual("10", self.version())
        self.client = self.server.connect()
        self.list(version="20")
        self.send_event(event("BOOKMARK", later))
        self.assertEqual((["one"], "20"), (self.cached_list(), self.version()))
        self.client = self.server.connect()
        self.watch("&resourceVersion=20", event("BOOKMARK", later))
        self.assertEqual("30", self.version())

    def test_leaving_a_selection(self):
        """An object that leaves the selection of one watch still exists for another."""
        self.watch("&labelSelector=x%3D1", event("ADDED", pod("one", "1", x="1")))
        self.client = self.server.connect()
        self.watch("", event("MODIFIED", pod("one", "2", x="2")))
        self.respond(chunk(event("DELETED", pod("one", "2", x="1"))), 0)
        self.assertEqual("2", self.cached("one"))

    def test_leaving_a_selection_that_others_had(self):
        """A list that had an object that left the selection of a watch is no longer complete."""
        self.list(pod("one", "1", x="1"))
        self.watch("&resourceVersion=9&labelSelector=x%3D1")
        self.send_event(event("DELETED", pod("one", "12", x="1")))
        for watched, complete in ((False, False), (True, True)):
            if watched:
                self.client = self.server.connect()
                self.watch("&resourceVersion=9", event("MODIFIED", pod("one", "12", x="2")))
            listed = self.successResultOf(self.cache.list(Scope(self.collection())))
            listed.close()
            self.assertEqual((complete, "12"), (listed.complete, listed.meta.version))
        self.assertEqual("12", self.cached("one"))

    def test_end(self):
        """After its end, normal or not, its events stay cached."""
        self.watch("", event("ADDED", pod("one", "1")))
        self.connections.played[-1].break_off(ConnectionLost())
        self.settle()
        self.assertEqual("1", self.cached("one"))

    def test_later(self):
        """Events are parsed after they were forwarded, also those before an abort."""
        calls = []
        self.patch(self.cache, "defer", lambda client, call, size: calls.append(call))
        self.watch("", event("ADDED", pod("one", "1")))
        self.assertIn(chunk(event("ADDED", pod("one", "1"))), self.client.sent)
        self.assertIsNone(self.cached("one"))
        self.connections.played[-1].break_off(ConnectionLost())
        self.settle()
        for call in calls:
            call()
        self.assertEqual("1", self.cached("one"))

    def test_ended_later(self):
        """The end of a watch comes after its events: a list that they complete is cached."""
        calls = []
        self.patch(self.cache, "defer", lambda client, call, size: calls.append(call))
        annotations = {"k8s.io/initial-events-end": "true"}
        end = {**BOOKMARK, "metadata": {"resourceVersion": "77", "annotations": annotations}}
        self.watch(
            "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            event("ADDED", pod("one", "1")),
            event("BOOKMARK", end),
        )
        self.respond(b"0\r\n\r\n")
        for call in calls:
            call()
        self.assertEqual("77", self.version())

    def test_malformed(self):
        """A body that cannot be parsed is forwarded, and nothing after it is cached."""
        self.watch("", b'{"type": 1}\n', event("ADDED", pod("one")))
        self.assertIn(event("ADDED", pod("one")), self.client.sent)
        self.assertIsNone(self.cached("one"))
        self.assertEqual(1, self.responses.unreadable)

    def test_initial_events(self):
        """A watch that begins with all objects replaces the list."""
        self.send_request(PODS, KUBELET, JSON)
        self.respond_json(pod_list(pod("old")))
        bookmark = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "resourceVersion": "9",
                "annotations": {"k8s.io/initial-events-end": "true"},
            },
        }
        self.watch(
            "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
            event("ADDED", pod("one", "3")),
        )
        self.assertEqual("1", self.cached("old"))
        self.send_event(event("BOOKMARK", bookmark))
        self.assertEqual(["one"], self.cached_list())
        self.send_event(event("ADDED", pod("two", "10")))
        self.assertEqual(["one", "two"], sorted(self.cached_list()))
        self.assertEqual("10", self.version())


class ConfiguredTests(World):
    """Watches of clients for which ``yurt-hub-cfg`` decides about caching."""

    servers = ("a",)

    def name(self, clients):
        """List clients in the ConfigMap, and wait for the effect."""
        self.informers.put(CONFIG_MAPS, hub_config_map({"cache_agents": clients}))
        self.pass_time(INTERVAL + SPREAD)

    def replace_cache(self):
        """Let the cache begin a new file, and wait for the effect."""
        self.cache.replacements += 1
        for callback in self.cache.on_replaced:
            callback()
        self.pass_time(INTERVAL + SPREAD)

    def watch(self, version="100", agent=INGRESS):
        """Begin a watch."""
        self.client = self.server.connect()
        self.send_request(f"{PODS}?watch=1&resourceVersion={version}", agent, JSON)
        if not self.client.sent:
            self.respond(CHUNKED + chunk(event("ADDED", pod("new", "150"))))

    def list(self, query="", token="", agent=INGRESS):
        """Send a list."""
        self.client = self.server.connect()
        self.send_request(f"{PODS}?{query}", agent, JSON)
        self.respond_json(pod_list(pod(f"new{query[-1:]}", "150"), version="200", token=token))

    def assert_refused(self):
        """Assert that the client of the last watch gets 410."""
        [(status, body)] = self.client_responses(closed=True)
        self.assertEqual(410, status)
        self.assertIn(b'"Expired"', body)

    def assert_kept(self):
        """Assert that the client lists, and that its whole watch is cached from then on."""
        self.list()
        self.watch("200")
        self.pass_time(INTERVAL + SPREAD)
        self.respond(
            chunk(event("DELETED", pod("new", "210"))) + chunk(event("ADDED", pod("a", "220")))
        )
        self.assertFalse(self.client.aborted)
        self.assertEqual(["a"], self.cached_list(client="ingress"))

    def test_owner_known_later(self):
        """A client whose token had no known owner lists again once it has, and is cached then."""
        owner = "system:serviceaccount:n:web"
        for token, lists in (("first", True), ("rotated", False)):
            agent = KUBELET + b"\r\nAuthorization: Bearer " + token.encode()
            if lists:
                self.list(agent=agent)
            self.watch("200", agent=agent)
            self.pass_time(UNKNOWN_REVIEW_SECONDS, 1.0)
            self.watch("200", agent=agent)
            self.assertFalse(self.client.aborted)
            self.users[token] = owner
            self.pass_time(UNKNOWN_REVIEW_SECONDS, 1.0)
            self.watch("200", agent=agent)
            self.assert_refused()
            self.list(agent=agent)
            self.watch("200", agent=agent)
            self.assertIn("new", self.cached_list(client=f"kubelet {owner}"))
            self.pass_time(INTERVAL + SPREAD)
            self.assertFalse(self.client.aborted)

    def test_owner_known_later_without_a_list(self):
        """A client that never lists gets 410 only once."""
        agent = KUBELET + b"\r\nAuthorization: Bearer single"
        self.watch("200", agent=agent)
        self.users["single"] = "system:serviceaccount:n:web"
        self.pass_time(UNKNOWN_REVIEW_SECONDS, 1.0)
        self.watch("200", agent=agent)
        self.assert_refused()
        self.watch("200", agent=agent)
        self.assertFalse(self.client.aborted)
        self.assertEqual(["new"], self.cached_list(client="kubelet system:serviceaccount:n:web"))

    def test_same_request_on_one_connection(self):
        """Each response to a repeated request is cached as the ConfigMap says at that time."""
        for clients, version, cached in (("", "1", None), ("ingress", "2", "2"), ("", "3", "2")):
            self.informers.put(CONFIG_MAPS, hub_config_map({"cache_agents": clients}))
            self.send_request(ONE, INGRESS, JSON)
            self.respond_json(pod("one", version))
            self.assertEqual(cached, self.cached("one", client="ingress"), version)

    def test_named_later(self):
        """A client that is listed during its watch, or before the hub knew, lists again."""
        self.watch()
        self.name("ingress")
        self.assertTrue(self.client.aborted)
        for _ in range(2):
            self.watch("150")
            self.assert_refused()
        self.assert_kept()

    def test_named_between(self):
        """So is a client that is listed between its list, or its first page, and its watch."""
        self.list()
        self.name("ingress")
        self.watch("200")
        self.assert_refused()
        self.assert_kept()
        self.name("")
        self.list("limit=1", "more")
        self.name("ingress")
        self.list("limit=1&continue=more")
        self.watch("200")
        self.assert_refused()
        self.assert_kept()

    def test_reported_during_a_watch(self):
        """A filtered watch gets the ERROR event at once."""
        self.filters.change = lambda obj: obj
        self.watch()
        self.name("ingress")
        [(_, body)] = self.client_responses()
        self.assertIn(b'"ERROR"', body)
        self.assertIn(b'"Expired"', body)
        self.assert_kept()

    def test_named_no_longer(self):
        """The watch of a client that is no longer listed ends, too."""
        self.name("ingress")
        self.assert_kept()
        self.name("")
        self.assertTrue(self.client.aborted)
        self.watch("220")
        self.assert_refused()

    def test_a_new_file(self):
        """With a new file of the cache, clients list again, whether they listed in this run or not.

        Their later watches stay open.
        """
        for listed in (False, True):
            if listed:
                self.list(agent=KUBELET)
            self.watch("200", KUBELET)
            self.replace_cache()
            self.assertTrue(self.client.aborted)
            self.watch("200", KUBELET)
            self.assert_refused()
            self.list(agent=KUBELET)
            self.watch("200", KUBELET)
            self.pass_time(INTERVAL + SPREAD)
            self.assertFalse(self.client.aborted)

    def test_a_new_file_before_the_watch(self):
        """So does a client whose list is from before this run; one that never lists is served."""
        self.replace_cache()
        self.watch("200", KUBELET)
        self.assert_refused()
        for _ in range(2):
            self.watch("200", KUBELET)
            self.pass_time(INTERVAL + SPREAD)
            self.assertFalse(self.client.aborted)

    def test_a_new_file_of_others(self):
        """Clients that are not cached are not affected."""
        self.watch()
        self.replace_cache()
        self.assertFalse(self.client.aborted)
        self.watch()
        self.pass_time(INTERVAL + SPREAD)
        self.assertFalse(self.client.aborted)

    def test_others(self):
        """Other clients are not affected: those that are cached anyway, or still are not."""
        clients = []
        for agent in (KUBELET, b"User-Agent: other/v1", INGRESS + b"\r\nEdge-Cache: true"):
            self.watch(agent=agent)
            clients.append(self.client)
        self.name("ingress")
        self.assertEqual([False] * 3, [client.aborted for client in clients])


class RoomTests(World):
    """Aborted watches in a cache on disk with limited memory."""

    def make_cache(self):
        """Create such a cache."""
        cache = make_cache(Path(self.mktemp()), self.clock)
        cache.startService()
        return cache

    def end(self):
        """Stop it, too."""
        stopped = self.cache.stopService()
        self.pass_time(1)
        self.successResultOf(stopped)
        super().end()

    def lose_server(self):
        """Abort the server's connection."""
        self.connections.played[-1].break_off(ConnectionLost())

    def change_filters(self):
        """Change the filters."""
        [end] = self.filters.ends
        end()

    def test_amid_their_first_list(self):
        """Their incomplete first lists release their memory, although the clients see an end."""
        query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        self.filters.change = lambda obj: obj
        for break_off in (self.lose_server, self.change_filters):
            before = self.cache.stats.queued
            self.client = self.server.connect()
            self.send_request(f"{PODS}?watch=1{query}", KUBELET, JSON)
            self.respond(CHUNKED + chunk(event("ADDED", pod("one", text="x" * 1000))))
            self.assertLess(before + 1000, self.cache.stats.queued)
            break_off()
            self.pass_time(1)
            self.assertEqual(200, self.client_responses()[0][0])
            self.assertEqual(before, self.cache.stats.queued)
