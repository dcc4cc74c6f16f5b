"""Filtered responses, and their caching."""

from __future__ import annotations

import json

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


class FilterTests(World):
    """Filtered responses."""

    def setUp(self):
        """Hide one pod, and mark the others."""
        super().setUp()

        def change(obj):
            if obj["metadata"]["name"] == "hidden":
                return None
            obj["metadata"]["labels"] = {"seen": "yes"}
            return obj

        self.filters.change = change

    def test_the_requested_forms(self):
        """Uncompressed JSON is requested from the API."""
        protobuf = b"Accept: application/vnd.kubernetes.protobuf,application/json"
        self.send_request(PODS, KUBELET, protobuf, b"Accept-Encoding: gzip")
        self.assertIn("Accept: application/json\r\n", self.received_request())
        self.assertNotIn("Accept-Encoding", self.received_request())

    def test_not_json(self):
        """A client that does not accept JSON gets 406."""
        self.send_request(PODS, KUBELET, b"Accept: application/vnd.kubernetes.protobuf")
        self.assertEqual(406, self.client_responses()[0][0])

    def test_websocket(self):
        """A watch over WebSocket, whose events would not be filtered, gets 400."""
        upgrade = b"Connection: Upgrade", b"Upgrade: websocket"
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON, *upgrade)
        self.assertEqual([], self.connections.played)
        self.assertEqual(400, self.client_responses()[0][0])

    def test_list(self):
        """The client gets the remaining items; the cache has the unfiltered list."""
        self.send_request(PODS, KUBELET, JSON)
        self.respond_json(pod_list(pod("hidden"), pod("one")))
        ((_, body),) = self.client_responses()
        (item,) = json.loads(body)["items"]
        self.assertEqual({"seen": "yes"}, item["metadata"]["labels"])
        self.assertEqual(["hidden", "one"], sorted(self.cached_list()))

    def test_selectors_that_cannot_be_read(self):
        """Results of selectors that cannot be parsed are filtered, but not cached."""
        self.send_request(f"{PODS}?labelSelector=a+b", KUBELET, JSON)
        self.respond_json(pod_list(pod("hidden"), pod("one")))
        ((_, listed),) = self.client_responses()
        self.client = self.server.connect()
        self.send_request(f"{PODS}?labelSelector=a+b&watch=1", KUBELET, JSON)
        self.respond(CHUNKED + chunk(event("ADDED", pod("hidden", "1"))) + b"0\r\n\r\n")
        ((_, watched),) = self.client_responses()
        self.assertEqual(
            ["one"], [item["metadata"]["name"] for item in json.loads(listed)["items"]]
        )
        self.assertEqual("DELETED", json.loads(watched)["type"])
        self.assertIsNone(self.cached_list())
        self.assertIsNone(self.cached("hidden"))

    def test_tables(self):
        """A client that prefers Tables, such as kubectl, gets the remaining items as a list."""
        table = b"Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        self.send_request(PODS, KUBELET, table)
        self.respond_json(pod_list(pod("hidden"), pod("one")))
        ((_, body),) = self.client_responses()
        (item,) = json.loads(body)["items"]
        self.assertEqual({"seen": "yes"}, item["metadata"]["labels"])
        self.assertEqual(["hidden", "one"], sorted(self.cached_list()))

    def test_object(self):
        """The same applies to a single object; a hidden one is aborted."""
        self.send_request(ONE, KUBELET, JSON)
        self.respond_json(pod("one"))
        ((_, body),) = self.client_responses()
        self.assertEqual({"seen": "yes"}, json.loads(body)["metadata"]["labels"])

    def test_watch(self):
        """In a watch, hidden objects are deleted."""
        self.send_request(f"{PODS}?watch=1", KUBELET, JSON)
        self.respond(CHUNKED + chunk(event("ADDED", pod("hidden", "1"))))
        self.respond(chunk(event("ADDED", pod("one", "2"))))
        self.assertIn(b'"DELETED"', self.client.sent)
        self.assertIn(b'"seen"', self.client.sent)
        self.assertEqual("1", self.cached("hidden"))

    def test_what_cannot_be_read(self):
        """A body that a filter cannot parse is aborted, because it may have to be hidden."""
        for target in (PODS, ONE, f"{PODS}?watch=1"):
            self.client = self.server.connect()
            self.send_request(target, KUBELET, JSON)
            self.respond(CHUNKED + chunk(b'{"type": 1}\n') + b"0\r\n\r\n")
            self.assertTrue(self.client.aborted, target)

    def test_broken_filter(self):
        """So is an object for which a filter fails."""
        self.filters.change = lambda obj: obj["nothing"]
        self.send_request(ONE, KUBELET, JSON)
        self.respond_json(pod("one"))
        self.assertTrue(self.client.aborted)
        self.assertEqual(1, len(self.flushLoggedErrors(KeyError)))

    def test_status(self):
        """A Status is not filtered."""
        self.send_request(ONE, KUBELET, JSON)
        self.respond_json({"kind": "Status", "apiVersion": "v1", "metadata": {}})
        self.assertEqual("Status", json.loads(self.client_responses()[0][1])["kind"])
