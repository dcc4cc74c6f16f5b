"""Caching of the API's responses, and what clients get meanwhile."""

from __future__ import annotations

import gc
import gzip
import itertools
import json
import weakref

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
from yurttunnel.hub.cache.interfaces import Scope
from yurttunnel.hub.forwarding import responses
from yurttunnel.hub.forwarding.deferred_parse import SLICE
from yurttunnel.hub.forwarding.responses import MAX_VIEW
from yurttunnel.hub.media.interfaces import Item, TypeMeta
from yurttunnel.hub.media.protobuf_objects import envelope
from yurttunnel.hub.request.requests import MAX_SELECTORS

ACCOUNT = "system:serviceaccount:n:web"


class CachingTests(World):
    """Objects and lists of the kubelet."""

    def get(self, target=ONE, obj=None, **how):
        """Send a get, and respond to it."""
        self.send_request(target, KUBELET, JSON)
        self.respond_json(obj or pod("one"), **how)

    def list(self, *pods, target=PODS, **how):
        """Send a list, and respond with pods."""
        self.send_request(target, KUBELET, JSON)
        self.respond_json(pod_list(*pods, **how))

    def test_object(self):
        """A single object is cached, and forwarded unchanged."""
        body = json.dumps(pod("one", "7")).encode() + b"\n"
        self.get(obj=body)
        self.assertEqual([(200, body)], self.client_responses())
        self.assertEqual("7", self.cached("one"))

    def test_ended_exchanges_are_no_garbage(self):
        """An exchange that has ended is freed without the garbage collector, which takes time."""
        watched = []
        plan = self.responses.plan

        def watch(call, *arguments):
            watched.append(weakref.ref(call.exchange))
            return plan(call, *arguments)

        self.responses.plan = watch
        gc.disable()
        self.addCleanup(gc.enable)
        self.get()
        self.list(pod("one"))
        self.send_request(ONE, KUBELET, JSON, method=b"PUT", body=b"{}")
        self.respond_json(pod("one"))
        self.settle()
        self.server.handler.exchanges.clear()
        self.assertEqual(3, len(self.client_responses("GET", "GET", "PUT")))
        self.assertEqual([None] * 3, [exchange() for exchange in watched])

    def test_of_others(self):
        """Responses to clients that are not cached are only forwarded."""
        self.send_request(ONE, b"User-Agent: kubectl/1", JSON)
        self.respond_json(pod("one"))
        self.assertIsNone(self.cached("one", client="kubectl"))

    def test_owner(self):
        """A response to a request with a token is cached for the owner that the API returns."""
        self.users["abc"] = ACCOUNT
        self.send_request(ONE, KUBELET, JSON, TOKEN)
        self.respond_json(pod("one", "7"))
        self.assertIsNone(self.cached("one"))
        self.assertEqual("7", self.cached("one", client=f"kubelet {ACCOUNT}"))

    def test_response_waits_for_its_owner(self):
        """A response to be cached waits for the owner of its token; others do not."""
        self.users["abc"] = asked = Deferred()
        self.send_request("/api/v1/nodes", JSON, TOKEN)
        self.respond_json({"items": []})
        self.send_request(ONE, KUBELET, JSON, TOKEN)
        self.assertNotIn(ONE, self.received_request())
        asked.callback(ACCOUNT)
        self.settle()
        self.respond_json(pod("one", "7"))
        self.assertEqual([200, 200], [one[0] for one in self.client_responses("GET", "GET")])
        self.assertEqual("7", self.cached("one", client=f"kubelet {ACCOUNT}"))

    def test_unknown_owner(self):
        """After some seconds it is forwarded, and not cached for the claimed owner."""
        forged = service_account_token("kube-system", "coredns")
        self.users[forged] = Deferred()
        self.send_request(ONE, KUBELET, JSON, b"Authorization: Bearer " + forged.encode())
        self.pass_time(6)
        self.respond_json(pod("one", "7"))
        self.assertEqual(200, self.client_responses()[0][0])
        for client in ("kubelet", "kubelet system:serviceaccount:kube-system:coredns", "kubelet "):
            self.assertIsNone(self.cached("one", client=client))

    def test_end(self):
        """After shutdown nothing is sent to the API."""
        self.users["abc"] = asked = Deferred()
        self.send_request(ONE, KUBELET, JSON, TOKEN)
        self.client.break_off(ConnectionLost())
        self.forwarder.close()
        self.assertTrue(asked.called)

    def test_client_that_does_not_wait(self):
        """A request whose client has disconnected is not forwarded."""
        self.users["abc"] = asked = Deferred()
        self.send_request(ONE, KUBELET, JSON, TOKEN)
        self.client.break_off(ConnectionLost())
        asked.callback(ACCOUNT)
        self.settle()
        self.assertEqual([], self.connections.played)

    def test_writes(self):
        """The result of a write is cached."""
        for method, status, version in (
            (b"POST", b"201 Created", "2"),
            (b"PUT", b"200 OK", "3"),
            (b"PATCH", b"200 OK", "4"),
        ):
            target = ONE if method != b"POST" else "/api/v1/namespaces/default/pods"
            self.send_request(target, KUBELET, JSON, method=method, body=b"{}")
            self.respond_json(pod("one", version), status)
            self.assertEqual(version, self.cached("one"))

    def test_list(self):
        """A list replaces the cached one."""
        self.get()
        self.list(pod("two"), pod("three"))
        self.assertEqual(["three", "two"], sorted(self.cached_list()))

    def test_in_pieces(self):
        """A list does not depend on its pieces."""
        body = json.dumps(pod_list(pod("two"), pod("three"))).encode()
        self.send_request(PODS, KUBELET, JSON)
        self.respond(CHUNKED)
        for number in range(len(body)):
            self.respond(chunk(body[number : number + 1]))
        self.respond(b"0\r\n\r\n")
        self.assertEqual([(200, body)], self.client_responses())
        self.assertEqual(["three", "two"], sorted(self.cached_list()))

    def test_long_selections(self):
        """Results of very long field selectors that only the API can evaluate are not cached."""
        kept = {}
        for length in (MAX_VIEW, MAX_VIEW + 1):
            view = "status.phase=".ljust(length, "x")
            self.list(pod("one"), target=f"{PODS}?fieldSelector={view}")
            kept[length] = self.cached_list(view=view)
        self.assertEqual({MAX_VIEW: ["one"], MAX_VIEW + 1: None}, kept)

    def test_long_selectors(self):
        """Results of very long selectors are forwarded, and not cached."""
        for length, kept in ((MAX_SELECTORS + 1, None), (MAX_SELECTORS, ["one"])):
            self.list(pod("one"), target=f"{PODS}?labelSelector={'x' * length}")
            self.assertEqual(kept, self.cached_list())
        self.assertEqual([200, 200], [status for status, _ in self.client_responses("GET", "GET")])

    def test_long(self):
        """A list whose parsing is deferred is the same, compressed or not."""
        pods = [pod(f"pod-{number}", text="x" * (SLICE // 2)) for number in range(3)]
        body = json.dumps(pod_list(*pods)).encode()
        packed = gzip.compress(body, 0)
        gzipped = b"Content-Encoding: gzip"
        for number, sent, fields in ((1, body, ()), (2, packed, (gzipped,))):
            self.cache.evict(lambda component: False)
            self.send_request(PODS, KUBELET, JSON)
            self.respond_json(sent, b"200 OK", -1, *fields)
            self.assertEqual((200, sent), self.client_responses(*number * ["GET"])[-1])
            self.assertEqual(["pod-0", "pod-1", "pod-2"], sorted(self.cached_list()))

    def test_long_that_breaks_off(self):
        """Nothing is cached of a list that is aborted before it was parsed."""
        pods = [pod(f"pod-{number}", text="x" * (SLICE // 2)) for number in range(3)]
        body = json.dumps(pod_list(*pods)).encode()
        self.send_request(PODS, KUBELET, JSON)
        self.respond(CHUNKED + chunk(body))
        self.connections.played[-1].break_off(ConnectionLost())
        self.settle()
        self.assertIsNone(self.cached_list())

    def test_pages(self):
        """All pages together form the list."""
        self.list(pod("two"), token="more", target=f"{PODS}?limit=1")
        self.list(pod("three"), target=f"{PODS}?limit=1&continue=more")
        self.assertEqual(["three", "two"], sorted(self.cached_list()))

    def test_broken_list(self):
        """A list that is aborted is incomplete for the client, and the cached one stays."""
        self.list(pod("one"))
        self.send_request(PODS, KUBELET, JSON)
        body = json.dumps(pod_list(pod("two"))).encode()
        self.respond(CHUNKED + chunk(body[:-20]))
        self.connections.played[-1].break_off(ConnectionLost())
        self.settle()
        self.assertTrue(self.client.write_ended)
        self.assertEqual(["one"], self.cached_list())

    def test_client_leaves(self):
        """The same applies if the client disconnects."""
        self.list(pod("one"))
        self.send_request(PODS, KUBELET, JSON)
        self.respond(CHUNKED + chunk(json.dumps(pod_list(pod("two"))).encode()[:-20]))
        self.client.break_off(ConnectionLost())
        self.settle()
        self.assertEqual(["one"], self.cached_list())

    def test_malformed_list(self):
        """A body that cannot be parsed is forwarded, logged in one line, and not cached."""
        self.list(pod("one"))
        self.send_request(PODS, KUBELET, JSON)
        self.respond_json(b'{"items": [{"secret": }]}')
        self.assertEqual(
            (200, b'{"items": [{"secret": }]}'), self.client_responses("GET", "GET")[1]
        )
        self.assertEqual(["one"], self.cached_list())
        self.assertEqual(1, self.responses.unreadable)
        self.assertIn("cannot be cached", self.lines[-1])
        self.assertNotIn("secret", self.lines[-1])

    def test_wrong_length(self):
        """A body that is shorter than its length is aborted."""
        self.list(pod("one"))
        self.send_request(PODS, KUBELET, JSON)
        self.respond(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
            + json.dumps(pod_list(pod("two"))).encode()
        )
        self.connections.played[-1].receive_end()
        self.settle()
        self.assertEqual(["one"], self.cached_list())

    def test_errors(self):
        """A Status is never cached."""
        for status in (b"403 Forbidden", b"500 Internal Server Error", b"200 OK"):
            self.get(obj={"kind": "Status", "apiVersion": "v1", "metadata": {}}, status=status)
        self.assertIsNone(self.cached_list())

    def test_gone(self):
        """After a 404 of the API the object is removed."""
        self.get()
        status = {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
        self.get(obj=status, status=b"404 Not Found")
        self.assertIsNone(self.cached("one"))

    def test_gone_from_a_watch_cache(self):
        """A 404 for any version may be out of date: watches tell about what was listed."""
        status = {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
        for listed, left in ((False, None), (True, "1")):
            self.get()
            if listed:
                self.list(pod("one"))
            self.send_request(f"{ONE}?resourceVersion=0", KUBELET, JSON)
            self.respond_json(status, b"404 Not Found")
            self.assertEqual(left, self.cached("one"))
        self.assertEqual(["one"], self.cached_list())

    def test_deleted_in_all_forms(self):
        """It is removed from all forms and views, such as Tables."""
        others = ({"form": "json:Table.v1"}, {"view": "status.phase=Running"})
        status = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        for method, answer in ((b"GET", b"404 Not Found"), (b"DELETE", b"200 OK")):
            for which in others:
                one = Item("default", "one", "1", {}, "edge-1", b"{}")
                self.cache.upsert(self.collection(**which), TypeMeta("v1", "Pod"), one)
            self.send_request(ONE, KUBELET, JSON, method=method)
            self.respond_json(status, answer)
            self.assertEqual([None, None], [self.cached("one", **which) for which in others])

    def test_not_served(self):
        """A 404 in plain text is for the resource, not the object: nothing is removed."""
        self.get()
        self.send_request(ONE, KUBELET, JSON)
        self.respond(
            b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"
        )
        self.assertEqual("1", self.cached("one"))

    def test_no_status(self):
        """A 404 for a missing status subresource removes nothing: the object may exist."""
        self.get()
        self.send_request(f"{ONE}/status", KUBELET, JSON)
        status = {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
        self.respond_json(status, b"404 Not Found")
        self.assertEqual("1", self.cached("one"))

    def test_deleted(self):
        """A completed deletion removes the object; one that has only begun does not."""
        self.get()
        for version, held in (
            ("2", {"deletionGracePeriodSeconds": 30}),
            ("3", {"deletionGracePeriodSeconds": 0, "finalizers": ["example.com/wait"]}),
        ):
            ending = pod("one", version)
            ending["metadata"] |= held
            self.send_request(ONE, KUBELET, JSON, method=b"DELETE")
            self.respond_json(ending)
            self.assertEqual(version, self.cached("one"))
        self.send_request(ONE, KUBELET, JSON, method=b"DELETE")
        self.respond_json({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        self.assertIsNone(self.cached("one"))

    def test_deleted_namespace(self):
        """A Namespace exists until it is empty: its deletion has only begun."""
        path = "/api/v1/namespaces/n"
        namespace = {
            "kind": "Namespace",
            "apiVersion": "v1",
            "metadata": {"name": "n", "resourceVersion": "1"},
            "spec": {"finalizers": ["kubernetes"]},
        }
        self.send_request(path, KUBELET, JSON)
        self.respond_json(namespace)
        namespace["metadata"] |= {
            "resourceVersion": "2",
            "deletionTimestamp": "2025-01-02T00:00:00Z",
        }
        self.send_request(path, KUBELET, JSON, method=b"DELETE")
        self.respond_json(namespace)
        self.assertEqual("2", self.cached("n", "", resource="namespaces"))
        namespace["metadata"]["resourceVersion"] = "3"
        namespace["spec"] = {}
        self.send_request(path, KUBELET, JSON, method=b"DELETE")
        self.respond_json(namespace)
        self.assertIsNone(self.cached("n", "", resource="namespaces"))

    def test_dry_runs(self):
        """Dry runs do not change the cache; their responses are forwarded."""
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
            self.send_request(ONE + query, KUBELET, JSON, *fields, method=b"DELETE", body=body)
            self.respond_json(done)
            self.assertEqual("1", self.cached("one"), (body, query))
        for method, target in ((b"PUT", ONE), (b"PATCH", ONE), (b"POST", ONE[:-4])):
            self.send_request(f"{target}?dryRun=All", KUBELET, JSON, method=method, body=b"{}")
            self.respond_json(pod("one", "9"))
            self.assertEqual("1", self.cached("one"), method)
        self.send_request(
            ONE, KUBELET, JSON, method=b"DELETE", body=b'{"propagationPolicy":"Orphan"}'
        )
        self.respond_json(done)
        self.assertIsNone(self.cached("one"))

    def test_impersonation(self):
        """Responses to impersonated requests are cached for neither user."""
        self.send_request(ONE, KUBELET, JSON, b"Impersonate-User: alice")
        self.respond_json(pod("one", "7"))
        self.assertEqual(200, self.client_responses()[0][0])
        self.assertIsNone(self.cached("one"))

    def test_shards(self):
        """A shard, which only the API can select, is forwarded, and removes nothing."""
        self.get()
        shard = "shardSelector=shardRange(object.metadata.uid,%270x0%27,%270x8%27)"
        for query in (f"?{shard}", f"?limit=5&{shard}"):
            self.send_request(PODS + query, KUBELET, JSON)
            self.respond_json(pod_list(pod("two")))
            self.assertTrue(self.client.sent.endswith(b"]}"), query)
            self.assertEqual(["one"], self.cached_list())
        self.send_request(f"{PODS}?shardSelector=", KUBELET, JSON)
        self.respond_json(pod_list(pod("two")))
        self.assertEqual(["two"], self.cached_list())

    def test_no_dry_runs(self):
        """A request that the API does not treat as a dry run deletes the object."""
        for query in ("?dryRun=All;x", "?pretty=dryRun", "?dry%5Run=All", "?dryrun=All%20"):
            self.get()
            self.send_request(ONE + query, KUBELET, JSON, method=b"DELETE")
            self.respond_json({"kind": "Status", "apiVersion": "v1", "status": "Success"})
            self.assertIsNone(self.cached("one"), query)

    def test_deleted_at_once(self):
        """A deletion may return the last state of the object, which is removed then."""
        for grace in ({}, {"deletionGracePeriodSeconds": 0}):
            self.get()
            last = pod("one", "2")
            last["metadata"] |= grace
            self.send_request(ONE, KUBELET, JSON, method=b"DELETE")
            self.respond_json(last)
            self.assertIsNone(self.cached("one"))

    def test_last_finalizer(self):
        """An update that removes the last finalizer deletes the object, if it was to be deleted."""
        ending = {"deletionTimestamp": "2025-01-02T00:00:00Z"}
        for method in (b"PUT", b"PATCH"):
            for more, version in (
                ({"finalizers": []}, "7"),
                (ending | {"deletionGracePeriodSeconds": 30}, "7"),
                (ending | {"finalizers": ["example.com/wait"]}, "7"),
                (ending | {"deletionGracePeriodSeconds": 0}, None),
                (ending, None),
            ):
                self.get(obj=pod("one", "7"))
                changed = pod("one", "7")
                changed["metadata"] |= more
                self.send_request(ONE, KUBELET, JSON, method=method, body=b"{}")
                self.respond_json(changed)
                self.assertEqual(version, self.cached("one"), (method, more))
        self.get(obj=pod("one", "9"))
        self.send_request(ONE, KUBELET, JSON, method=b"PUT", body=b"{}")
        self.respond_json(changed)
        self.assertEqual("9", self.cached("one"), "an object that was made again")

    def test_last_finalizer_of_a_namespace(self):
        """A form without the spec of a namespace does not show whether it has more finalizers."""
        target, ending = "/api/v1/namespaces/a", {"deletionTimestamp": "2025-01-02T00:00:00Z"}
        versions = itertools.count(6)
        for method, form in itertools.product(
            (b"PUT", b"PATCH", b"DELETE"), ("", "PartialObjectMetadata", "Table")
        ):
            before = str(next(versions))
            meta = {"name": "a", "resourceVersion": before}
            namespace = {"kind": "Namespace", "apiVersion": "v1", "metadata": meta}
            self.send_request(target, KUBELET, JSON)
            self.respond_json(namespace)
            meta = meta | ending | {"resourceVersion": str(next(versions))}
            shown = {"kind": form, "apiVersion": "meta.k8s.io/v1", "metadata": meta}
            if form == "Table":
                shown["rows"] = [{"cells": [], "object": {"metadata": meta}}]
            accept = JSON + b";as=%b;v=v1;g=meta.k8s.io" % form.encode() if form else JSON
            self.send_request(target, KUBELET, accept, method=method, body=b"{}")
            self.respond_json(shown if form else namespace | {"metadata": meta})
            cached = self.cached("a", namespace="", resource="namespaces")
            self.assertEqual(before if form else None, cached, (method, form))

    def test_deleted_collection_without_a_list(self):
        """If the response does not name all deleted objects, cached lists may be too long."""
        scope = Scope(self.collection(), "default")
        status = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        for body in (status, json.dumps(pod_list(pod("one"))).encode()[:-1]):
            self.list(pod("one"), version="9")
            self.assertEqual("9", self.successResultOf(self.cache.known_version(scope)))
            self.send_request(PODS, KUBELET, JSON, method=b"DELETE")
            self.respond_json(body)
            self.assertIsNone(self.successResultOf(self.cache.known_version(scope)))
            self.list(pod("one"), version="10")
            self.assertEqual("10", self.successResultOf(self.cache.known_version(scope)))
            self.cache.evict(lambda _: False)
        for form, body in (
            (b"application/vnd.kubernetes.protobuf", envelope(TypeMeta("v1", "Status"), b"")),
            (b"application/cbor", b"x"),
        ):
            self.list(pod("one"), version="9")
            self.send_request(PODS, KUBELET, b"Accept: " + form, method=b"DELETE")
            self.respond(
                b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
                % (form, len(body), body)
            )
            self.assertIsNone(self.successResultOf(self.cache.known_version(scope)), form)
            self.cache.evict(lambda _: False)
        self.assertEqual(1, self.responses.unreadable, "the incomplete list; a Status is valid")

    def test_deleted_in_an_unknown_form(self):
        """The object is removed; if it was listed, only its watch shows whether it still exists."""
        response = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/yaml\r\nContent-Length: 1\r\n\r\nx"
        )
        self.get()
        self.send_request(ONE, KUBELET, b"Accept: application/yaml", method=b"DELETE")
        self.respond(response)
        self.assertIsNone(self.cached("one"))
        self.list(pod("one"), version="9")
        self.send_request(ONE, KUBELET, b"Accept: application/yaml", method=b"DELETE")
        self.respond(response)
        scope = Scope(self.collection(), "default")
        self.assertIsNone(self.successResultOf(self.cache.known_version(scope)))

    def test_deleted_and_made_again(self):
        """A new object with the same name stays."""
        self.get(obj=pod("one", "3"))
        self.send_request(ONE, KUBELET, JSON, method=b"DELETE")
        self.respond_json(pod("one", "2"))
        self.assertEqual("3", self.cached("one"))

    def test_pods_without_a_node(self):
        """A pod without a node does not replace the one that runs."""
        self.get()
        self.get(obj=pod("one", "2", node=""))
        self.assertEqual("1", self.cached("one"))

    def test_compressed(self):
        """A compressed body is parsed, and forwarded unchanged."""
        body = gzip.compress(json.dumps(pod_list(pod("two"))).encode())
        self.send_request(PODS, KUBELET, JSON, b"Accept-Encoding: gzip")
        self.assertIn("Accept-Encoding: gzip", self.received_request())
        self.respond_json(body, b"200 OK", -1, b"Content-Encoding: gzip")
        self.assertEqual([(200, body)], self.client_responses())
        self.assertEqual(["two"], self.cached_list())

    def test_badly_compressed(self):
        """A damaged or incomplete body is not cached; other encodings are not parsed."""
        whole = gzip.compress(json.dumps(pod_list(pod("two"))).encode())
        for body, coding in ((b"no", b"gzip"), (whole[:-9], b"gzip"), (whole, b"br")):
            self.send_request(PODS, KUBELET, JSON)
            self.respond_json(body, b"200 OK", -1, b"Content-Encoding: " + coding)
        self.assertIsNone(self.cached_list())
        self.assertEqual([200] * 3, [status for status, _ in self.client_responses(*["GET"] * 3)])

    def test_bombs(self):
        """A body that is much longer when decompressed is forwarded, and not read completely."""
        items = b'{"metadata": {"name": "a"}},' * 100_000
        body = gzip.compress(b'{"kind": "PodList", "items": [' + items + b"{}]}")
        self.send_request(PODS, KUBELET, JSON)
        self.respond_json(body, b"200 OK", -1, b"Content-Encoding: gzip")
        self.assertEqual([(200, body)], self.client_responses())
        self.assertIn("100 times as long", " ".join(self.lines))

    def test_documents(self):
        """Discovery is cached for all clients."""
        self.send_request("/apis", KUBELET, JSON)
        self.respond_json({"kind": "APIGroupList"})
        document = self.successResultOf(self.cache.document("", "/apis", "application/json"))
        self.assertEqual(b'{"kind": "APIGroupList"}', document.body)

    def test_head(self):
        """The response to HEAD has no body, so nothing is cached or removed."""
        self.get()
        self.send_request(ONE, KUBELET, JSON, method=b"HEAD")
        self.respond(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        self.assertEqual("1", self.cached("one"))
        self.assertEqual(0, self.responses.unreadable)


class DocumentTests(World):
    """Documents of pods that read slowly."""

    local = False

    def setUp(self):
        """Allow a few of them."""
        self.patch(responses, "MAX_BUFFERED_DOCUMENTS", 4000)
        super().setUp()
        self.users["abc"] = ACCOUNT

    def begin_one(self, path, *fields):
        """Begin one, except for its last byte."""
        self.client = self.server.connect()
        self.send_request(path, KUBELET, JSON, TOKEN)
        head = [b"HTTP/1.1 200 OK", b"Content-Type: application/json", *fields]
        self.respond(b"\r\n".join([*head, b"Content-Length: 1501", b"", b""]))
        for _ in range(3):
            self.respond(b"x" * 500)
        return self.client

    def is_kept(self, path):
        """Return whether one is cached."""
        return self.successResultOf(self.cache.document("", path, "application/json")) is not None

    def test_limit(self):
        """The size of incomplete documents is limited; a pod may use as much as it leaves free."""
        self.begin_one("/version")
        self.begin_one("/apis")
        for number in (1, 0):
            self.respond(b"x", number)
        self.assertEqual(b"x" * 1501, self.client_responses()[0][1])
        self.assertEqual((True, False), (self.is_kept("/version"), self.is_kept("/apis")))
        self.assertIn("are too large together", " ".join(self.lines))

    def test_those_that_are_over(self):
        """Completed, aborted and abandoned documents release their share."""
        self.begin_one("/api")
        self.respond(b"x")
        self.begin_one("/api").abortConnection()
        self.begin_one("/api")
        self.connections.played[-1].break_off(ConnectionLost())
        self.begin_one("/api", b"Content-Encoding: gzip")
        self.begin_one("/version")
        self.respond(b"x")
        self.assertTrue(self.is_kept("/version"))
