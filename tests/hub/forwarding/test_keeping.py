"""What of the API's answers is kept, and what clients see of them meanwhile."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionLost

from tests.hub.cache.caches import make_cache
from tests.hub.forwarding.world import (
    JSON,
    KUBELET,
    PODS,
    TOKEN,
    World,
    chunk,
    event,
    pod,
    pod_list,
)
from tests.hub.request.tokens import service_account_token
from yurttunnel.hub.cache.interfaces import Scope
from yurttunnel.hub.forwarding.answers import LONGEST_VIEW
from yurttunnel.hub.forwarding.behind import SLICE
from yurttunnel.hub.forwarding.seen_tokens import ACCEPTED_SECONDS, KNOWN_SECONDS, UNKNOWN_SECONDS
from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.hub.request.callers import read_token
from yurttunnel.hub.upstream.calls import TokenRefused

ACCOUNT = "system:serviceaccount:n:web"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
ONE = "/api/v1/namespaces/default/pods/one"


class KeepingTests(World):
    """Objects and lists of kubelet."""

    def get(self, target=ONE, obj=None, **how):
        """Have an object asked for and answered."""
        self.ask(target, KUBELET, JSON)
        self.answer_json(obj or pod("one"), **how)

    def list(self, *pods, target=PODS, **how):
        """Have pods listed."""
        self.ask(target, KUBELET, JSON)
        self.answer_json(pod_list(*pods, **how))

    def test_object(self):
        """A single object is kept, and passed on to the byte."""
        body = json.dumps(pod("one", "7")).encode() + b"\n"
        self.get(obj=body)
        self.assertEqual([(200, body)], self.answered())
        self.assertEqual("7", self.kept("one"))

    def test_of_others(self):
        """What other clients ask for is passed on."""
        self.ask(ONE, b"User-Agent: kubectl/1", JSON)
        self.answer_json(pod("one"))
        self.assertIsNone(self.kept("one", client="kubectl"))

    def test_owner(self):
        """What is asked for with a token is kept apart, for whom the API says it is."""
        self.users["abc"] = ACCOUNT
        self.ask(ONE, KUBELET, JSON, TOKEN)
        self.answer_json(pod("one", "7"))
        self.assertIsNone(self.kept("one"))
        self.assertEqual("7", self.kept("one", client=f"kubelet {ACCOUNT}"))

    def test_owner_that_is_not_known_yet(self):
        """What is to be kept waits for the API to say whose the token is; the rest does not."""
        self.users["abc"] = asked = Deferred()
        self.ask("/api/v1/nodes", JSON, TOKEN)
        self.answer_json({"items": []})
        self.ask(ONE, KUBELET, JSON, TOKEN)
        self.assertNotIn(ONE, self.asked())
        asked.callback(ACCOUNT)
        self.settle()
        self.answer_json(pod("one", "7"))
        self.assertEqual([200, 200], [one[0] for one in self.answered("GET", "GET")])
        self.assertEqual("7", self.kept("one", client=f"kubelet {ACCOUNT}"))

    def test_owner_that_is_not_told(self):
        """After some seconds it is passed on, and not kept for whoever the token says it is."""
        forged = service_account_token("kube-system", "coredns")
        self.users[forged] = Deferred()
        self.ask(ONE, KUBELET, JSON, b"Authorization: Bearer " + forged.encode())
        self.pass_time(6)
        self.answer_json(pod("one", "7"))
        self.assertEqual(200, self.answered()[0][0])
        for client in ("kubelet", "kubelet system:serviceaccount:kube-system:coredns", "kubelet "):
            self.assertIsNone(self.kept("one", client=client))

    def test_end(self):
        """At the end of the hub nothing is asked any more."""
        self.users["abc"] = asked = Deferred()
        self.ask(ONE, KUBELET, JSON, TOKEN)
        self.client.break_off(ConnectionLost())
        self.forwarder.close()
        self.assertTrue(asked.called)

    def test_client_that_does_not_wait(self):
        """A request whose client has left is not sent any more."""
        self.users["abc"] = asked = Deferred()
        self.ask(ONE, KUBELET, JSON, TOKEN)
        self.client.break_off(ConnectionLost())
        asked.callback(ACCOUNT)
        self.settle()
        self.assertEqual([], self.connections.played)

    def test_writes(self):
        """What the API makes of a write is kept."""
        for method, status, version in (
            (b"POST", b"201 Created", "2"),
            (b"PUT", b"200 OK", "3"),
            (b"PATCH", b"200 OK", "4"),
        ):
            target = ONE if method != b"POST" else "/api/v1/namespaces/default/pods"
            self.ask(target, KUBELET, JSON, method=method, body=b"{}")
            self.answer_json(pod("one", version), status)
            self.assertEqual(version, self.kept("one"))

    def test_list(self):
        """A list takes the place of what there was."""
        self.get()
        self.list(pod("two"), pod("three"))
        self.assertEqual(["three", "two"], sorted(self.kept_list()))

    def test_in_pieces(self):
        """A list is the same however it comes."""
        body = json.dumps(pod_list(pod("two"), pod("three"))).encode()
        self.ask(PODS, KUBELET, JSON)
        self.answer(CHUNKED)
        for number in range(len(body)):
            self.answer(chunk(body[number : number + 1]))
        self.answer(b"0\r\n\r\n")
        self.assertEqual([(200, body)], self.answered())
        self.assertEqual(["three", "two"], sorted(self.kept_list()))

    def test_long_selections(self):
        """What a field selector selects that is very long, and for the API alone, is not kept."""
        kept = {}
        for length in (LONGEST_VIEW, LONGEST_VIEW + 1):
            view = "status.phase=".ljust(length, "x")
            self.list(pod("one"), target=f"{PODS}?fieldSelector={view}")
            kept[length] = self.kept_list(view=view)
        self.assertEqual({LONGEST_VIEW: ["one"], LONGEST_VIEW + 1: None}, kept)

    def test_long(self):
        """A list that is read behind its client is the same, compressed or not."""
        pods = [pod(f"pod-{number}", text="x" * (SLICE // 2)) for number in range(3)]
        body = json.dumps(pod_list(*pods)).encode()
        packed = gzip.compress(body, 0)
        gzipped = b"Content-Encoding: gzip"
        for number, sent, fields in ((1, body, ()), (2, packed, (gzipped,))):
            self.cache.forget(lambda component: False)
            self.ask(PODS, KUBELET, JSON)
            self.answer_json(sent, b"200 OK", -1, *fields)
            self.assertEqual((200, sent), self.answered(*number * ["GET"])[-1])
            self.assertEqual(["pod-0", "pod-1", "pod-2"], sorted(self.kept_list()))

    def test_long_that_breaks_off(self):
        """Nothing is kept of a list that breaks off while it is read behind its client."""
        pods = [pod(f"pod-{number}", text="x" * (SLICE // 2)) for number in range(3)]
        body = json.dumps(pod_list(*pods)).encode()
        self.ask(PODS, KUBELET, JSON)
        self.answer(CHUNKED + chunk(body))
        self.connections.played[-1].break_off(ConnectionLost())
        self.settle()
        self.assertIsNone(self.kept_list())

    def test_pages(self):
        """All pages together are the list."""
        self.list(pod("two"), token="more", target=f"{PODS}?limit=1")
        self.list(pod("three"), target=f"{PODS}?limit=1&continue=more")
        self.assertEqual(["three", "two"], sorted(self.kept_list()))

    def test_broken_list(self):
        """A list that is cut off is cut off for the client, and what was kept stays."""
        self.list(pod("one"))
        self.ask(PODS, KUBELET, JSON)
        body = json.dumps(pod_list(pod("two"))).encode()
        self.answer(CHUNKED + chunk(body[:-20]))
        self.connections.played[-1].break_off(ConnectionLost())
        self.settle()
        self.assertTrue(self.client.aborted)
        self.assertEqual(["one"], self.kept_list())

    def test_client_leaves(self):
        """So it stays when the client does not wait for the end."""
        self.list(pod("one"))
        self.ask(PODS, KUBELET, JSON)
        self.answer(CHUNKED + chunk(json.dumps(pod_list(pod("two"))).encode()[:-20]))
        self.client.break_off(ConnectionLost())
        self.settle()
        self.assertEqual(["one"], self.kept_list())

    def test_malformed_list(self):
        """What cannot be read is passed on, told of in one line without the body, and not kept."""
        self.list(pod("one"))
        self.ask(PODS, KUBELET, JSON)
        self.answer_json(b'{"items": [{"secret": }]}')
        self.assertEqual((200, b'{"items": [{"secret": }]}'), self.answered("GET", "GET")[1])
        self.assertEqual(["one"], self.kept_list())
        self.assertEqual(1, self.answers.unreadable)
        self.assertIn("cannot be kept", self.lines[-1])
        self.assertNotIn("secret", self.lines[-1])

    def test_wrong_length(self):
        """A body that is shorter than it says is cut off."""
        self.list(pod("one"))
        self.ask(PODS, KUBELET, JSON)
        self.answer(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
            + json.dumps(pod_list(pod("two"))).encode()
        )
        self.connections.played[-1].receive_end()
        self.settle()
        self.assertEqual(["one"], self.kept_list())

    def test_errors(self):
        """A Status is never kept."""
        for status in (b"403 Forbidden", b"500 Internal Server Error", b"200 OK"):
            self.get(obj={"kind": "Status", "apiVersion": "v1", "metadata": {}}, status=status)
        self.assertIsNone(self.kept_list())

    def test_gone(self):
        """What the API does not find any more is forgotten."""
        self.get()
        status = {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
        self.get(obj=status, status=b"404 Not Found")
        self.assertIsNone(self.kept("one"))

    def test_gone_in_all_forms(self):
        """It is forgotten in all forms and views: a Table has it no more than a list."""
        others = ({"form": "json:Table.v1"}, {"view": "status.phase=Running"})
        status = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        for method, answer in ((b"GET", b"404 Not Found"), (b"DELETE", b"200 OK")):
            for which in others:
                one = Item("default", "one", "1", {}, "edge-1", b"{}")
                self.cache.upsert(self.collection(**which), TypeMeta("v1", "Pod"), one)
            self.ask(ONE, KUBELET, JSON, method=method)
            self.answer_json(status, answer)
            self.assertEqual([None, None], [self.kept("one", **which) for which in others])

    def test_not_served(self):
        """A 404 in text says that the API does not serve the resource now: nothing is forgotten."""
        self.get()
        self.ask(ONE, KUBELET, JSON)
        self.answer(
            b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"
        )
        self.assertEqual("1", self.kept("one"))

    def test_deleted(self):
        """A deletion that is done forgets the object; one that has only begun does not."""
        self.get()
        for version, held in (
            ("2", {"deletionGracePeriodSeconds": 30}),
            ("3", {"deletionGracePeriodSeconds": 0, "finalizers": ["example.com/wait"]}),
        ):
            ending = pod("one", version)
            ending["metadata"] |= held
            self.ask(ONE, KUBELET, JSON, method=b"DELETE")
            self.answer_json(ending)
            self.assertEqual(version, self.kept("one"))
        self.ask(ONE, KUBELET, JSON, method=b"DELETE")
        self.answer_json({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        self.assertIsNone(self.kept("one"))

    def test_dry_runs(self):
        """What is tried only changes nothing of what is kept; its answer is passed on."""
        self.get()
        done = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        protobuf = b"k8s\0\n\0\x12\x05\x2a\x03All"
        for body, query, *fields in (
            (b"", "?dryRun=All"),
            (b"", "?pretty=1&dryRun=All"),
            (b"", "?dry%52un=All"),
            (json.dumps({"kind": "DeleteOptions", "dryRun": ["All"]}).encode(), ""),
            (protobuf, "", b"Content-Type: application/vnd.kubernetes.protobuf"),
        ):
            self.ask(ONE + query, KUBELET, JSON, *fields, method=b"DELETE", body=body)
            self.answer_json(done)
            self.assertEqual("1", self.kept("one"), (body, query))
        for method, target in ((b"PUT", ONE), (b"PATCH", ONE), (b"POST", ONE[:-4])):
            self.ask(f"{target}?dryRun=All", KUBELET, JSON, method=method, body=b"{}")
            self.answer_json(pod("one", "9"))
            self.assertEqual("1", self.kept("one"), method)
        self.ask(ONE, KUBELET, JSON, method=b"DELETE", body=b'{"propagationPolicy":"Orphan"}')
        self.answer_json(done)
        self.assertIsNone(self.kept("one"))

    def test_impersonation(self):
        """What is answered to somebody who acts for another one is kept for neither."""
        self.ask(ONE, KUBELET, JSON, b"Impersonate-User: alice")
        self.answer_json(pod("one", "7"))
        self.assertEqual(200, self.answered()[0][0])
        self.assertIsNone(self.kept("one"))

    def test_no_dry_runs(self):
        """What the API does not read as that deletes."""
        for query in ("?dryRun=All;x", "?pretty=dryRun", "?dry%5Run=All", "?dryrun=All%20"):
            self.get()
            self.ask(ONE + query, KUBELET, JSON, method=b"DELETE")
            self.answer_json({"kind": "Status", "apiVersion": "v1", "status": "Success"})
            self.assertIsNone(self.kept("one"), query)

    def test_deleted_at_once(self):
        """A deletion may be answered with the object as it last was, which is gone then."""
        for grace in ({}, {"deletionGracePeriodSeconds": 0}):
            self.get()
            last = pod("one", "2")
            last["metadata"] |= grace
            self.ask(ONE, KUBELET, JSON, method=b"DELETE")
            self.answer_json(last)
            self.assertIsNone(self.kept("one"))

    def test_deleted_and_made_again(self):
        """What has been made in its place meanwhile stays."""
        self.get(obj=pod("one", "3"))
        self.ask(ONE, KUBELET, JSON, method=b"DELETE")
        self.answer_json(pod("one", "2"))
        self.assertEqual("3", self.kept("one"))

    def test_pods_without_a_node(self):
        """A pod that has no node yet does not take the place of the one that runs."""
        self.get()
        self.get(obj=pod("one", "2", node=""))
        self.assertEqual("1", self.kept("one"))

    def test_compressed(self):
        """What is compressed is read all the same, and passed on as it came."""
        body = gzip.compress(json.dumps(pod_list(pod("two"))).encode())
        self.ask(PODS, KUBELET, JSON, b"Accept-Encoding: gzip")
        self.assertIn("Accept-Encoding: gzip", self.asked())
        self.answer_json(body, b"200 OK", -1, b"Content-Encoding: gzip")
        self.assertEqual([(200, body)], self.answered())
        self.assertEqual(["two"], self.kept_list())

    def test_badly_compressed(self):
        """What is broken or incomplete is not kept; other codings are not read."""
        whole = gzip.compress(json.dumps(pod_list(pod("two"))).encode())
        for body, coding in ((b"no", b"gzip"), (whole[:-9], b"gzip"), (whole, b"br")):
            self.ask(PODS, KUBELET, JSON)
            self.answer_json(body, b"200 OK", -1, b"Content-Encoding: " + coding)
        self.assertIsNone(self.kept_list())
        self.assertEqual([200] * 3, [status for status, _ in self.answered(*["GET"] * 3)])

    def test_bombs(self):
        """What is far longer without its compression passes, and is not read to its end."""
        items = b'{"metadata": {"name": "a"}},' * 100_000
        body = gzip.compress(b'{"kind": "PodList", "items": [' + items + b"{}]}")
        self.ask(PODS, KUBELET, JSON)
        self.answer_json(body, b"200 OK", -1, b"Content-Encoding: gzip")
        self.assertEqual([(200, body)], self.answered())
        self.assertIn("100 times as long", " ".join(self.lines))

    def test_documents(self):
        """Discovery is kept for everybody."""
        self.ask("/apis", KUBELET, JSON)
        self.answer_json({"kind": "APIGroupList"})
        document = self.successResultOf(self.cache.document("", "/apis", "application/json"))
        self.assertEqual(b'{"kind": "APIGroupList"}', document.body)

    def test_head(self):
        """The answer to HEAD has no body, which is no sign of anything."""
        self.get()
        self.ask(ONE, KUBELET, JSON, method=b"HEAD")
        self.answer(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        self.assertEqual("1", self.kept("one"))
        self.assertEqual(0, self.answers.unreadable)


BOOKMARK = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "77"}}


class WatchTests(World):
    """What watches tell."""

    def watch(self, query="", *events):
        """Begin a watch."""
        self.ask(f"{PODS}?watch=1{query}", KUBELET, JSON)
        self.answer(CHUNKED)
        for each in events:
            self.tell(each)

    def tell(self, frame):
        """Have the watch tell something."""
        self.answer(chunk(frame))

    def test_events(self):
        """Each is passed on when it comes, and kept."""
        self.watch("", event("ADDED", pod("one", "1")), event("ADDED", pod("two", "2")))
        self.tell(event("MODIFIED", pod("one", "3")))
        self.assertEqual(("3", "2"), (self.kept("one"), self.kept("two")))
        self.assertIn(chunk(event("MODIFIED", pod("one", "3"))), self.client.sent)
        self.tell(event("DELETED", pod("one", "4")))
        self.assertIsNone(self.kept("one"))

    def list(self, *pods, version="9", fields=()):
        """Have pods listed, at a version."""
        self.ask(PODS, KUBELET, JSON)
        self.answer_json(pod_list(*pods or [pod("one")], version=version), b"200 OK", -1, *fields)

    def version(self):
        """Return that of the list that is kept."""
        listed = self.successResultOf(self.cache.list(Scope(self.collection())))
        listed.close()
        return listed.meta.version

    def test_versions(self):
        """A list that is kept is at the version of what its watch has told last."""
        self.list()
        self.watch("&resourceVersion=9")
        for type, obj, version in (
            ("ADDED", pod("two", "11"), "11"),
            ("DELETED", pod("two", "12"), "12"),
            ("BOOKMARK", BOOKMARK, "77"),
        ):
            self.tell(event(type, obj))
            self.assertEqual(version, self.version())

    def test_versions_of_others(self):
        """A watch of a part, or one that begins anywhere, does not tell of all."""
        self.list()
        for query in ("&resourceVersion=9&labelSelector=x%3D1", "", "&resourceVersion=0"):
            self.client = self.server.connect()
            self.watch(query, event("ADDED", pod("two", "11")), event("BOOKMARK", BOOKMARK))
            self.assertEqual("9", self.version())

    def test_versions_behind_a_list_that_is_not_kept(self):
        """A watch that began with such a list does not make the one before it newer."""
        self.list(pod("one"), pod("gone", "2"), version="10")
        self.list(version="20", fields=[b"Content-Encoding: br"])
        later = BOOKMARK | {"metadata": {"resourceVersion": "30"}}
        self.watch("&resourceVersion=20", event("BOOKMARK", later))
        self.assertEqual("10", self.version())
        self.client = self.server.connect()
        self.list(version="20")
        self.tell(event("BOOKMARK", later))
        self.assertEqual((["one"], "20"), (self.kept_list(), self.version()))
        self.client = self.server.connect()
        self.watch("&resourceVersion=20", event("BOOKMARK", later))
        self.assertEqual("30", self.version())

    def test_leaving_a_selection(self):
        """What leaves the selection of one watch is there for another."""
        self.watch("&labelSelector=x%3D1", event("ADDED", pod("one", "1", x="1")))
        self.client = self.server.connect()
        self.watch("", event("MODIFIED", pod("one", "2", x="2")))
        self.answer(chunk(event("DELETED", pod("one", "2", x="1"))), 0)
        self.assertEqual("2", self.kept("one"))

    def test_end(self):
        """When it ends, or breaks off, what it told stays."""
        self.watch("", event("ADDED", pod("one", "1")))
        self.connections.played[-1].break_off(ConnectionLost())
        self.settle()
        self.assertEqual("1", self.kept("one"))

    def test_malformed(self):
        """What cannot be read is passed on, and nothing that follows is kept."""
        self.watch("", b'{"type": 1}\n', event("ADDED", pod("one")))
        self.assertIn(event("ADDED", pod("one")), self.client.sent)
        self.assertIsNone(self.kept("one"))
        self.assertEqual(1, self.answers.unreadable)

    def test_initial_events(self):
        """A watch that begins with all there is takes the place of a list."""
        self.ask(PODS, KUBELET, JSON)
        self.answer_json(pod_list(pod("old")))
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
        self.assertEqual("1", self.kept("old"))
        self.tell(event("BOOKMARK", bookmark))
        self.assertEqual(["one"], self.kept_list())
        self.tell(event("ADDED", pod("two", "10")))
        self.assertEqual(["one", "two"], sorted(self.kept_list()))
        self.assertEqual("10", self.version())


class RoomTests(World):
    """What watches that break off leave in a cache on the disk, whose memory is bounded."""

    def make_cache(self):
        """Have such a cache."""
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
        """Have the server break off."""
        self.connections.played[-1].break_off(ConnectionLost())

    def change_filters(self):
        """Have filters change."""
        [end] = self.filters.ends
        end()

    def test_amid_their_first_list(self):
        """What has come of it takes no room any more, though their clients see an end as any."""
        query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        self.filters.change = lambda obj: obj
        for break_off in (self.lose_server, self.change_filters):
            before = self.cache.stats.waiting
            self.client = self.server.connect()
            self.ask(f"{PODS}?watch=1{query}", KUBELET, JSON)
            self.answer(CHUNKED + chunk(event("ADDED", pod("one", text="x" * 1000))))
            self.assertLess(before + 1000, self.cache.stats.waiting)
            break_off()
            self.pass_time(1)
            self.assertEqual(200, self.answered()[0][0])
            self.assertEqual(before, self.cache.stats.waiting)


class FilterTests(World):
    """Answers that filters change."""

    def setUp(self):
        """Hide one pod, and mark the others."""
        super().setUp()

        def change(obj):
            if obj["metadata"]["name"] == "hidden":
                return None
            obj["metadata"]["labels"] = {"seen": "yes"}
            return obj

        self.filters.change = change

    def test_what_is_asked_for(self):
        """The API is asked for JSON, uncompressed."""
        protobuf = b"Accept: application/vnd.kubernetes.protobuf,application/json"
        self.ask(PODS, KUBELET, protobuf, b"Accept-Encoding: gzip")
        self.assertIn("Accept: application/json\r\n", self.asked())
        self.assertNotIn("Accept-Encoding", self.asked())

    def test_not_json(self):
        """Who takes no JSON cannot be answered."""
        self.ask(PODS, KUBELET, b"Accept: application/vnd.kubernetes.protobuf")
        self.assertEqual(406, self.answered()[0][0])

    def test_list(self):
        """The client gets what is left; what is kept is as it was."""
        self.ask(PODS, KUBELET, JSON)
        self.answer_json(pod_list(pod("hidden"), pod("one")))
        ((_, body),) = self.answered()
        (item,) = json.loads(body)["items"]
        self.assertEqual({"seen": "yes"}, item["metadata"]["labels"])
        self.assertEqual(["hidden", "one"], sorted(self.kept_list()))

    def test_selectors_that_cannot_be_read(self):
        """What the API selects is filtered all the same; nothing of it is kept."""
        self.ask(f"{PODS}?labelSelector=a+b", KUBELET, JSON)
        self.answer_json(pod_list(pod("hidden"), pod("one")))
        ((_, listed),) = self.answered()
        self.client = self.server.connect()
        self.ask(f"{PODS}?labelSelector=a+b&watch=1", KUBELET, JSON)
        self.answer(CHUNKED + chunk(event("ADDED", pod("hidden", "1"))) + b"0\r\n\r\n")
        ((_, watched),) = self.answered()
        self.assertEqual(
            ["one"], [item["metadata"]["name"] for item in json.loads(listed)["items"]]
        )
        self.assertEqual("DELETED", json.loads(watched)["type"])
        self.assertIsNone(self.kept_list())
        self.assertIsNone(self.kept("hidden"))

    def test_tables(self):
        """Who asks for a Table first, as kubectl does, gets what is left of the list itself."""
        table = b"Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        self.ask(PODS, KUBELET, table)
        self.answer_json(pod_list(pod("hidden"), pod("one")))
        ((_, body),) = self.answered()
        (item,) = json.loads(body)["items"]
        self.assertEqual({"seen": "yes"}, item["metadata"]["labels"])
        self.assertEqual(["hidden", "one"], sorted(self.kept_list()))

    def test_object(self):
        """So it is with one object; one that is hidden is cut off."""
        self.ask(ONE, KUBELET, JSON)
        self.answer_json(pod("one"))
        ((_, body),) = self.answered()
        self.assertEqual({"seen": "yes"}, json.loads(body)["metadata"]["labels"])

    def test_watch(self):
        """On a watch, what is hidden is gone."""
        self.ask(f"{PODS}?watch=1", KUBELET, JSON)
        self.answer(CHUNKED + chunk(event("ADDED", pod("hidden", "1"))))
        self.answer(chunk(event("ADDED", pod("one", "2"))))
        self.assertIn(b'"DELETED"', self.client.sent)
        self.assertIn(b'"seen"', self.client.sent)
        self.assertEqual("1", self.kept("hidden"))

    def test_what_cannot_be_read(self):
        """What a filter cannot look into is cut off, since it may have to be hidden."""
        for target in (PODS, ONE, f"{PODS}?watch=1"):
            self.client = self.server.connect()
            self.ask(target, KUBELET, JSON)
            self.answer(CHUNKED + chunk(b'{"type": 1}\n') + b"0\r\n\r\n")
            self.assertTrue(self.client.aborted, target)

    def test_broken_filter(self):
        """So is what a filter fails with."""
        self.filters.change = lambda obj: obj["nothing"]
        self.ask(ONE, KUBELET, JSON)
        self.answer_json(pod("one"))
        self.assertTrue(self.client.aborted)
        self.assertEqual(1, len(self.flushLoggedErrors(KeyError)))

    def test_status(self):
        """A Status is no object that could be changed."""
        self.ask(ONE, KUBELET, JSON)
        self.answer_json({"kind": "Status", "apiVersion": "v1", "metadata": {}})
        self.assertEqual("Status", json.loads(self.answered()[0][1])["kind"])


class TokenTests(World):
    """Which tokens the API accepts."""

    def owner(self, token="abc"):
        """Return whose a token is, as far as it is known."""
        return self.successResultOf(self.cache.token_owner(read_token(token).digest))

    def get(self, status=b"200 OK", token="abc"):
        """Have the API answer."""
        self.client = self.server.connect()
        self.ask("/api/v1/nodes", b"Authorization: Bearer " + token.encode(), JSON)
        self.answer_json({"kind": "Status"}, status)

    def test_accepted(self):
        """A token is whose the API says that it is when the hub asks."""
        self.users["abc"] = ACCOUNT
        self.get()
        self.assertEqual(ACCOUNT, self.owner())

    def test_forged(self):
        """No answer to the client says that a token is somebody's."""
        forged = service_account_token("kube-system", "coredns")
        for status in (b"200 OK", b"400 Bad Request", b"403 Forbidden", b"404 Not Found"):
            self.pass_time(UNKNOWN_SECONDS, step=10)
            self.get(status, forged)
            self.assertIsNone(self.owner(forged))
        self.assertEqual([forged] * 4, self.reviewed)

    def test_review_that_is_refused(self):
        """A token that the API does not accept any more when it is asked about is forgotten."""
        self.users["abc"] = ACCOUNT
        self.get()
        self.users["abc"] = fail(TokenRefused())
        self.pass_time(KNOWN_SECONDS, step=60)
        self.get(b"403 Forbidden")
        self.assertIsNone(self.owner())

    def test_refused(self):
        """So is one with which a request is refused, and one that never was is not known."""
        self.get(b"401 Unauthorized")
        self.assertIsNone(self.owner())
        self.pass_time(UNKNOWN_SECONDS, step=10)
        self.users["abc"] = ACCOUNT
        self.get()
        self.assertEqual(ACCOUNT, self.owner())
        self.get(b"401 Unauthorized")
        self.assertIsNone(self.owner())

    def test_refused_once(self):
        """One that is accepted again after that is asked about within a minute."""
        self.users["abc"] = ACCOUNT
        self.get()
        self.get(b"401 Unauthorized")
        self.pass_time(UNKNOWN_SECONDS, step=10)
        self.get()
        self.assertEqual(ACCOUNT, self.owner())
        self.assertEqual(["abc"] * 2, self.reviewed)

    def test_failures(self):
        """An API that fails has not looked at it."""
        self.users["abc"] = ACCOUNT
        self.get(b"503 Service Unavailable")
        self.assertIsNone(self.owner())
        self.assertEqual([], self.reviewed)

    def test_how_often(self):
        """It is asked about once an hour, and once a minute as long as nobody says."""
        for owner, seconds in (("", UNKNOWN_SECONDS), (ACCOUNT, KNOWN_SECONDS)):
            self.pass_time(UNKNOWN_SECONDS, step=10)
            self.users["abc"] = owner
            self.reviewed.clear()
            self.get()
            self.get()
            self.pass_time(seconds - 30, step=10)
            self.get()
            self.assertEqual(["abc"], self.reviewed)
            self.pass_time(30, step=10)
            self.get()
            self.assertEqual(["abc"] * 2, self.reviewed)

    def test_one_at_a_time(self):
        """A token is asked about once at a time."""
        self.users["abc"] = Deferred()
        self.get()
        self.get()
        self.assertEqual(["abc"], self.reviewed)

    def test_bound(self):
        """Tokens that somebody makes up are asked about by so many at a time."""
        names = [f"made-up-{number}" for number in range(100)]
        self.users.update((name, Deferred()) for name in names)
        for name in names:
            self.get(token=name)
        self.assertEqual(names[:64], self.reviewed)

    def test_bound_of_one_pod(self):
        """One pod that makes them up leaves questions to others."""
        self.local = False
        names = [f"made-up-{number}" for number in range(100)]
        self.users.update((name, Deferred()) for name in names)
        for name in names:
            self.get(token=name)
        self.assertEqual(names[:32], self.reviewed)
        self.local = True
        self.users["abc"] = ACCOUNT
        self.get()
        self.assertEqual(ACCOUNT, self.owner())

    def test_floods(self):
        """Nor do they push out what is known of another one, however many they are."""
        self.users["abc"] = ACCOUNT
        self.get()
        self.reviewed.clear()
        for number in range(5_000):
            self.successResultOf(self.tokens.owner(f"made-up-{number}", None))
        self.get()
        self.assertNotIn("abc", self.reviewed)

    def test_ends(self):
        """A token is accepted until it ends, and for a day at most."""
        now = self.clock.seconds()
        for expires in (now + 3600, now + 10 * ACCEPTED_SECONDS):
            token = service_account_token("n", "web", expires)
            self.users[token] = ACCOUNT
            self.get(token=token)
            self.assertEqual(ACCOUNT, self.owner(token))
            self.clock.advance(min(expires - now, ACCEPTED_SECONDS))
            self.assertIsNone(self.owner(token))
