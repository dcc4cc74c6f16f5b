"""What of the API's answers is kept, and what clients see of them meanwhile."""

from __future__ import annotations

import gzip
import json

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost

from tests.hub.forwarding.world import (
    CHUNKED,
    JSON,
    KUBELET,
    ONE,
    PODS,
    TOKEN,
    World,
    chunk,
    pod,
    pod_list,
)
from tests.hub.request.tokens import service_account_token
from yurttunnel.hub.forwarding import answers
from yurttunnel.hub.forwarding.answers import LONGEST_VIEW
from yurttunnel.hub.forwarding.behind import SLICE
from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.hub.request.requests import LONGEST_SELECTORS

ACCOUNT = "system:serviceaccount:n:web"


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

    def test_long_selectors(self):
        """What is selected by very long selectors passes, and is not kept."""
        for length, kept in ((LONGEST_SELECTORS + 1, None), (LONGEST_SELECTORS, ["one"])):
            self.list(pod("one"), target=f"{PODS}?labelSelector={'x' * length}")
            self.assertEqual(kept, self.kept_list())
        self.assertEqual([200, 200], [status for status, _ in self.answered("GET", "GET")])

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
        self.assertIn("cannot be cached", self.lines[-1])
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

    def test_no_status(self):
        """What has no status is there: for a custom resource without one the API answers so."""
        self.get()
        self.ask(f"{ONE}/status", KUBELET, JSON)
        status = {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
        self.answer_json(status, b"404 Not Found")
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

    def test_deleted_namespace(self):
        """A Namespace is there until nothing is in it: its deletion has only begun."""
        path = "/api/v1/namespaces/n"
        namespace = {
            "kind": "Namespace",
            "apiVersion": "v1",
            "metadata": {"name": "n", "resourceVersion": "1"},
            "spec": {"finalizers": ["kubernetes"]},
        }
        self.ask(path, KUBELET, JSON)
        self.answer_json(namespace)
        namespace["metadata"] |= {
            "resourceVersion": "2",
            "deletionTimestamp": "2025-01-02T00:00:00Z",
        }
        self.ask(path, KUBELET, JSON, method=b"DELETE")
        self.answer_json(namespace)
        self.assertEqual("2", self.kept("n", "", resource="namespaces"))
        namespace["metadata"]["resourceVersion"] = "3"
        namespace["spec"] = {}
        self.ask(path, KUBELET, JSON, method=b"DELETE")
        self.answer_json(namespace)
        self.assertIsNone(self.kept("n", "", resource="namespaces"))

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

    def test_shards(self):
        """A part of the objects that only the API can tell is passed on, and removes none."""
        self.get()
        shard = "shardSelector=shardRange(object.metadata.uid,%270x0%27,%270x8%27)"
        for query in (f"?{shard}", f"?limit=5&{shard}"):
            self.ask(PODS + query, KUBELET, JSON)
            self.answer_json(pod_list(pod("two")))
            self.assertTrue(self.client.sent.endswith(b"]}"), query)
            self.assertEqual(["one"], self.kept_list())
        self.ask(f"{PODS}?shardSelector=", KUBELET, JSON)
        self.answer_json(pod_list(pod("two")))
        self.assertEqual(["two"], self.kept_list())

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


class DocumentTests(World):
    """Documents of pods, which take them slowly."""

    local = False

    def setUp(self):
        """Have room for some of them."""
        self.patch(answers, "MOST_OF_DOCUMENTS", 4000)
        super().setUp()
        self.users["abc"] = ACCOUNT

    def begin_one(self, path, *fields):
        """Have one come, all but its last byte."""
        self.client = self.server.connect()
        self.ask(path, KUBELET, JSON, TOKEN)
        head = [b"HTTP/1.1 200 OK", b"Content-Type: application/json", *fields]
        self.answer(b"\r\n".join([*head, b"Content-Length: 1501", b"", b""]))
        for _ in range(3):
            self.answer(b"x" * 500)
        return self.client

    def is_kept(self, path):
        """Return whether one is kept."""
        return self.successResultOf(self.cache.document("", path, "application/json")) is not None

    def test_bound(self):
        """Of what has not come to its end so much is held, and a pod has as much as it leaves."""
        self.begin_one("/version")
        self.begin_one("/apis")
        for number in (1, 0):
            self.answer(b"x", number)
        self.assertEqual(b"x" * 1501, self.answered()[0][1])
        self.assertEqual((True, False), (self.is_kept("/version"), self.is_kept("/apis")))
        self.assertIn("too much is being read", " ".join(self.lines))

    def test_those_that_are_over(self):
        """What has come to its end, broken off or been left makes room for the next one."""
        self.begin_one("/api")
        self.answer(b"x")
        self.begin_one("/api").abortConnection()
        self.begin_one("/api")
        self.connections.played[-1].break_off(ConnectionLost())
        self.begin_one("/api", b"Content-Encoding: gzip")
        self.begin_one("/version")
        self.answer(b"x")
        self.assertTrue(self.is_kept("/version"))
