"""Objects and lists while offline."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred

from tests.http.support import request
from tests.hub.cache.memory import CachedList
from tests.hub.offline.world import OfflineTestCase, collection, item
from yurttunnel.hub.cache.interfaces import Scope
from yurttunnel.hub.media.codecs import codec_for
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta
from yurttunnel.hub.request.callers import PAGES
from yurttunnel.hub.request.requests import Form
from yurttunnel.kube.protobuf_fields import encode_bytes

TABLE = b"Accept: application/json;as=Table;v=v1;g=meta.k8s.io, application/json"
PARTIAL = b"Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
PARTIAL_PROTOBUF = PARTIAL.replace(b"json", b"vnd.kubernetes.protobuf")
PROTOBUF = b"Accept: application/vnd.kubernetes.protobuf,application/json"


def protobuf_item(name, version="1", more=b""):
    """Create an item in protobuf."""
    metadata = (
        encode_bytes(1, name.encode()) + encode_bytes(3, b"n") + encode_bytes(6, version.encode())
    )
    return Item("n", name, version, {}, "", encode_bytes(1, metadata) + more)


class GetTests(OfflineTestCase):
    """An object."""

    def test_an_object(self):
        """It is served as it was received, with its type."""
        self.store_one("configmaps.v1.core", item("a", 3, data={"x": "1"}))
        status, content = self.get_json("/api/v1/namespaces/n/configmaps/a")
        self.assertEqual(200, status)
        self.assertEqual(("ConfigMap", "v1"), (content["kind"], content["apiVersion"]))
        self.assertEqual({"x": "1"}, content["data"])

    def test_head(self):
        """HEAD gets the response to GET without its body."""
        self.store_one("configmaps.v1.core", item("a"))
        _, fields, expected = self.send_request("/api/v1/namespaces/n/configmaps/a")
        status, headers, body = self.send_request(
            "/api/v1/namespaces/n/configmaps/a", method=b"HEAD"
        )
        self.assertEqual((200, fields, b""), (status, headers, body))
        self.assertEqual(len(expected), int(headers[b"content-length"]))

    def test_what_a_list_had(self):
        """Objects of a list can be read individually."""
        self.store("configmaps.v1.core", item("a"))
        self.assertEqual(200, self.send_request("/api/v1/namespaces/n/configmaps/a")[0])

    def test_the_status_of_an_object(self):
        """The subresource status is the object."""
        self.store_one("nodes.v1.core", item("edge-1", namespace=""))
        self.assertEqual(200, self.send_request("/api/v1/nodes/edge-1/status")[0])

    def test_many_at_once(self):
        """Many requests for one object all get responses."""
        self.store_one("configmaps.v1.core", item("a"))
        statuses = {self.send_request("/api/v1/namespaces/n/configmaps/a")[0] for _ in range(50)}
        self.assertEqual({200}, statuses)

    def test_absent(self):
        """An object that is missing from a known list does not exist."""
        self.store("configmaps.v1.core", item("a"))
        status = self.assert_status(
            404, "NotFound", 'configmaps "b" not found', "/api/v1/namespaces/n/configmaps/b"
        )
        self.assertEqual({"name": "b", "kind": "configmaps"}, status["details"])

    def test_absent_while_lists_are_read(self):
        """A 404 does not wait for concurrent reads of lists."""
        self.store("configmaps.v1.core", item("a"))
        self.patch(self.cache, "list", lambda scope: Deferred())
        self.assert_status(404, "NotFound", "", "/api/v1/namespaces/n/configmaps/b")

    def test_deleted_online(self):
        """An object that the API deleted, or did not find, does not exist."""
        self.store("configmaps.v1.core", item("a"))
        self.cache.remove(Scope(collection("kubelet", "configmaps.v1.core")), item("a", ""))
        self.assert_status(404, "NotFound", "", "/api/v1/namespaces/n/configmaps/a")

    def test_unknown(self):
        """An unknown object is not a 404, because it may exist."""
        target = "/api/v1/namespaces/n/configmaps/a"
        status = self.assert_status(503, "ServiceUnavailable", "was never received here", target)
        self.assertEqual({"retryAfterSeconds": 1}, status["details"])
        self.assertEqual(b"1", self.send_request(target)[1][b"retry-after"])
        self.store_one("configmaps.v1.core", item("b"))
        self.assert_status(503, "ServiceUnavailable", "was never received here", target)

    def test_forms(self):
        """The best accepted form with cached data is served."""
        self.store_one("pods.v1.core", item("a"))
        status, content = self.get_json("/api/v1/namespaces/n/pods/a", PROTOBUF)
        self.assertEqual((200, "Pod"), (status, content["kind"]))
        self.store_one("pods.v1.core", protobuf_item("a"), form="protobuf")
        status, fields, body = self.send_request("/api/v1/namespaces/n/pods/a", PROTOBUF)
        self.assertEqual(b"application/vnd.kubernetes.protobuf", fields[b"content-type"])
        type, found = codec_for(Form("protobuf")).read_object(body)
        self.assertEqual((200, TypeMeta("v1", "Pod"), "a"), (status, type, found.name))

    def test_the_newest_form(self):
        """A newer object is preferred to a better form."""
        self.store_one("pods.v1.core", protobuf_item("a", "4"), form="protobuf")
        self.store_one("pods.v1.core", item("a", 10))
        _, content = self.get_json("/api/v1/namespaces/n/pods/a", PROTOBUF)
        self.assertEqual("10", content["metadata"]["resourceVersion"])

    def test_deleted_in_another_form(self):
        """An object missing in a newer list of another form does not exist, until it is newer."""
        target = "/api/v1/namespaces/n/configmaps/a"
        self.store_one("configmaps.v1.core", item("a", 50))
        self.store("configmaps.v1.core", form="protobuf", version=49)
        self.assertEqual(200, self.send_request(target, PROTOBUF)[0])
        self.store("configmaps.v1.core", form="protobuf", version=51)
        self.assert_status(404, "NotFound", 'configmaps "a" not found', target, PROTOBUF)
        self.store_one("configmaps.v1.core", item("a", 52))
        self.assertEqual(200, self.send_request(target, PROTOBUF)[0])

    def test_pods_deleted_in_another_form(self):
        """The kubelet lists the pods of its node: a pod missing in the list was deleted."""
        of_node = {"field_selector": "spec.nodeName=edge-1"}
        self.store("pods.v1.core", item("a", 50, node="edge-1"), **of_node)
        self.store("pods.v1.core", protobuf_item("b"), form="protobuf", version=51, **of_node)
        target = "/api/v1/namespaces/n/pods/a"
        self.assert_status(404, "NotFound", 'pods "a" not found', target, PROTOBUF)

    def test_unknown_forms(self):
        """A client that accepts only other forms gets 406."""
        self.store_one("configmaps.v1.core", item("a"))
        target = "/api/v1/namespaces/n/configmaps/a"
        self.assert_status(406, "NotAcceptable", "", target, b"Accept: application/yaml")

    def test_other_clients(self):
        """Data of one client is not served to another."""
        self.store_one("secrets.v1.core", item("a"))
        target = "/api/v1/namespaces/n/secrets/a"
        self.assert_status(503, "ServiceUnavailable", "", target, agent=b"kube-proxy/v1")

    def test_clients_that_are_not_cached(self):
        """A client that is not cached gets a response that says so."""
        target = "/api/v1/namespaces/n/secrets/a"
        self.assert_status(
            503, "ServiceUnavailable", "responses to curl about", target, agent=b"curl/8"
        )


class ListTests(OfflineTestCase):
    """A list."""

    def test_a_list(self):
        """It has all items with their type, and the version up to which everything is known."""
        self.store("services.v1.core", item("b"), item("a"), version=5)
        self.store_one("services.v1.core", item("c", 9))
        status, headers, body = self.send_request("/api/v1/services")
        content = json.loads(body)
        self.assertEqual((200, len(body)), (status, int(headers[b"content-length"])))
        self.assertEqual(("ServiceList", "v1"), (content["kind"], content["apiVersion"]))
        self.assertEqual("5", content["metadata"]["resourceVersion"])
        self.assertEqual(["a", "b", "c"], [one["metadata"]["name"] for one in content["items"]])

    def test_versions_do_not_go_back(self):
        """If the newest object is deleted, the version of the list stays."""
        self.store("services.v1.core", item("a"), item("b", 9), version=9)
        self.cache.remove(Scope(collection("kubelet", "services.v1.core")), item("b", ""))
        _, content = self.get_json("/api/v1/services")
        self.assertEqual("9", content["metadata"]["resourceVersion"])

    def test_protobuf(self):
        """A list in protobuf is rebuilt with its envelope."""
        self.store(
            "services.v1.core", protobuf_item("a"), protobuf_item("b"), form="protobuf", version=7
        )
        status, fields, body = self.send_request("/api/v1/services", PROTOBUF)
        self.assertEqual(
            (200, b"application/vnd.kubernetes.protobuf", len(body)),
            (status, fields[b"content-type"], int(fields[b"content-length"])),
        )
        reader = codec_for(Form("protobuf")).list_reader(10_000)
        self.assertEqual(["a", "b"], [one.name for one in reader.feed(body)])
        self.assertEqual(ListMeta(TypeMeta("v1", "Service"), "7"), reader.finish())

    def test_the_newest_list(self):
        """A newer list is preferred to a better form, but an incomplete one is not."""
        self.store("services.v1.core", protobuf_item("a"), form="protobuf", version=7)
        self.store("services.v1.core", item("b"), version=10)
        self.assertEqual(["b"], self.names("/api/v1/services", PROTOBUF))
        self.store("configmaps.v1.core", item("a"), version=7)
        self.store_one("configmaps.v1.core", protobuf_item("b", "10"), form="protobuf")
        self.assertEqual(["a"], self.names("/api/v1/configmaps", PROTOBUF))

    def test_known_to_be_empty(self):
        """A list that was empty in the API is empty: not null and not 404."""
        self.store("configmaps.v1.core", item("a", namespace="m"))
        status, content = self.get_json("/api/v1/namespaces/n/configmaps")
        self.assertEqual((200, []), (status, content["items"]))

    def test_kubelets_pods(self):
        """The kubelet never gets an empty list of pods, because it would stop all running pods."""
        target = "/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1"
        self.assert_status(404, "NotFound", "not listed", target)
        self.store("pods.v1.core", field_selector="spec.nodeName=edge-1")
        self.assert_status(404, "NotFound", "not listed", target)
        self.store("pods.v1.core", item("a", node="edge-1"), field_selector="spec.nodeName=edge-1")
        self.assertEqual(["a"], self.names(target))

    def test_never_listed(self):
        """An unknown list is a 404 whose message says that the cloud is not reachable."""
        status = self.assert_status(
            404, "NotFound", "node edge-1 cannot reach the Kubernetes API", "/api/v1/services"
        )
        self.assertEqual({"kind": "services"}, status["details"])

    def test_a_part_is_no_list(self):
        """Individually known objects are not served as a list."""
        self.store_one("services.v1.core", item("a"))
        self.assert_status(404, "NotFound", "not listed", "/api/v1/services")
        self.store("services.v1.core", item("a"), namespace="n")
        self.assertEqual(["a"], self.names("/api/v1/namespaces/n/services"))
        self.assert_status(404, "NotFound", "not listed", "/api/v1/services")

    def test_selectors(self):
        """Selectors that were not used before are evaluated."""
        self.store(
            "services.v1.core",
            item("a", labels={"app": "web"}),
            item("b", labels={"app": "db"}),
            item("c", namespace="m"),
        )
        for query, names in (
            ("", ["c", "a", "b"]),
            ("?labelSelector=app%3Dweb", ["a"]),
            ("?labelSelector=app", ["a", "b"]),
            ("?labelSelector=!app", ["c"]),
            ("?fieldSelector=metadata.namespace%3Dm", ["c"]),
            ("?fieldSelector=metadata.name!%3Da", ["c", "b"]),
            ("?labelSelector=app+in+(none)", []),
        ):
            self.assertEqual(names, self.names(f"/api/v1/services{query}"), query)

    def test_bad_selectors(self):
        """Invalid selectors are rejected."""
        self.store("services.v1.core")
        target = "/api/v1/services?labelSelector=a+b"
        self.assert_status(400, "BadRequest", "unable to parse", target)

    def test_a_list_by_name(self):
        """A list by name of a known object is complete; of an unknown one it is not served."""
        self.store_one("configmaps.v1.core", item("a"))
        target = "/api/v1/namespaces/n/configmaps?fieldSelector=metadata.name%3D"
        self.assertEqual(["a"], self.names(target + "a"))
        self.assert_status(404, "NotFound", "", target + "b")
        self.store("configmaps.v1.core", item("a"))
        self.assertEqual([], self.names(target + "b"))

    def test_a_list_by_name_of_all_namespaces(self):
        """A name in all namespaces is complete only for a cluster-scoped object."""
        self.store_one("configmaps.v1.core", item("a"))
        target = "/api/v1/configmaps?fieldSelector=metadata.name%3Da"
        self.assert_status(404, "NotFound", "not listed", target)
        self.store("configmaps.v1.core", item("a"), item("a", namespace="m"))
        self.assertEqual(["a", "a"], self.names(target))
        self.store_one("nodes.v1.core", item("edge-1", namespace=""))
        target = "/api/v1/nodes?fieldSelector=metadata.name%3Dedge-1"
        self.assertEqual(["edge-1"], self.names(target))

    def test_the_version_of_a_list_by_name(self):
        """A list of an object that was only read has its version, from which a watch continues."""
        self.store_one("configmaps.v1.core", item("a", 50))
        self.store("configmaps.v1.core", item("b", 900, "m"), version=900, namespace="m")
        target = "/api/v1/namespaces/n/configmaps?fieldSelector=metadata.name%3Da"
        _, content = self.get_json(f"{target}&resourceVersion=0")
        self.assertEqual("50", content["metadata"]["resourceVersion"])
        too_new = "Too large resource version: 900, current: 50"
        self.assert_status(504, "Timeout", too_new, f"{target}&resourceVersion=900")

    def test_large_lists(self):
        """A large list is streamed no faster than the client reads."""
        many = [item(f"s{n:04}", data="x" * 1000) for n in range(3000)]
        self.store("services.v1.core", *many)
        connection = self.server.connect()
        connection.receive(
            b"GET /api/v1/services HTTP/1.1\r\nHost: n\r\nUser-Agent: kubelet\r\n\r\n"
        )
        self.assertLess(len(connection.dataBuffer) + connection._tempDataLen, 1_000_000)
        self.assertEqual(1, self.cache.listed)
        while self.cache.listed:
            connection.turn()
            self.assertLess(len(connection.dataBuffer) + connection._tempDataLen, 1_000_000)
        connection.turn()
        _, _, body = connection.sent.partition(b"\r\n\r\n")
        self.assertEqual(3000, len(json.loads(body)["items"]))

    def test_clients_that_leave(self):
        """Nothing is left of a list whose client disconnects."""
        many = [item(f"s{n:04}", data="x" * 1000) for n in range(3000)]
        self.store("services.v1.core", *many)
        connection = self.server.connect()
        connection.receive(
            b"GET /api/v1/services HTTP/1.1\r\nHost: n\r\nUser-Agent: kubelet\r\n\r\n"
        )
        self.assertEqual(1, self.cache.listed)
        connection.abortConnection()
        self.assertEqual(0, self.cache.listed)

    def test_versions_that_are_not_known_yet(self):
        """A client never gets an older state, but an error after which it omits the version."""
        self.store("services.v1.core", item("a"), version=5)
        target = "/api/v1/services?resourceVersion=6"
        status = self.assert_status(504, "Timeout", "Too large resource version", target)
        causes = status["details"]["causes"]
        self.assertEqual(["ResourceVersionTooLarge"], [cause["reason"] for cause in causes])
        self.assertEqual(["a"], self.names("/api/v1/services?resourceVersion=5"))
        self.assertEqual(["a"], self.names("/api/v1/services?resourceVersion=0"))
        # No API server has such a version, and Python rejects a number with that many digits.
        self.assertEqual(["a"], self.names(f"/api/v1/services?resourceVersion={'9' * 5000}"))
        target = "/api/v1/services?resourceVersion=4&resourceVersionMatch=Exact"
        self.assert_status(410, "Expired", "", target)


class PageTests(OfflineTestCase):
    """Pages of a list."""

    def setUp(self):
        """Cache a list of five objects."""
        super().setUp()
        self.store("services.v1.core", *(item(f"s{n}") for n in range(5)), version=7)

    def page(self, query):
        """Return the names of a page, its token and the remaining number."""
        status, content = self.get_json(f"/api/v1/services?{query}")
        self.assertEqual(200, status, content)
        metadata = content["metadata"]
        self.assertEqual("7", metadata["resourceVersion"])
        names = [one["metadata"]["name"] for one in content["items"]]
        return names, metadata.get("continue", ""), metadata.get("remainingItemCount")

    def test_pages(self):
        """All pages together form the list."""
        names, token, remaining = self.page("limit=2")
        self.assertEqual((["s0", "s1"], 3), (names, remaining))
        names, token, remaining = self.page(f"limit=2&continue={token}")
        self.assertEqual((["s2", "s3"], 1), (names, remaining))
        self.assertEqual((["s4"], "", None), self.page(f"limit=2&continue={token}"))

    def test_a_limit_that_is_enough(self):
        """A page with everything has no token."""
        for query in ("limit=5", "limit=500", "limit=0", ""):
            names, token, remaining = self.page(query)
            self.assertEqual((5, "", None), (len(names), token, remaining), query)

    def test_the_rest_at_once(self):
        """A page without a limit has the rest."""
        _, token, _ = self.page("limit=2")
        self.assertEqual((["s2", "s3", "s4"], "", None), self.page(f"continue={token}"))

    def test_lists_that_change(self):
        """After a change of the list its pages cannot be continued."""
        _, token, _ = self.page("limit=2")
        self.cache.remove(Scope(collection("kubelet", "services.v1.core")), item("s0", ""))
        target = f"/api/v1/services?limit=2&continue={token}"
        self.assert_status(410, "Expired", "start the list again", target)

    def test_pages_that_the_api_began(self):
        """A list that began with the API cannot be continued offline."""
        for token in ("abc", "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ==", "W10=", "%7B", "eDo="):
            target = f"/api/v1/services?limit=2&continue={token}"
            self.assert_status(410, "Expired", "start the list again", target)


class TransformTests(OfflineTestCase):
    """Tables and metadata."""

    def table(self, target, **more):
        """Return the columns and cells of a Table."""
        status, content = self.get_json(target, TABLE, **more)
        self.assertEqual((200, "Table"), (status, content["kind"]), content)
        columns = [column["name"] for column in content["columnDefinitions"]]
        return columns, [row["cells"] for row in content["rows"]]

    def test_tables_of_objects(self):
        """Without a cached Table the result has the name and the age."""
        self.store("services.v1.core", item("a"), item("b"))
        self.assertEqual(
            (["Name", "Age"], [["a", "5m"], ["b", "5m"]]), self.table("/api/v1/services")
        )
        one = self.table("/api/v1/namespaces/n/services/b")
        self.assertEqual((["Name", "Age"], [["b", "5m"]]), one)

    def test_tables_of_the_api(self):
        """A cached Table is served unchanged, also for a single object."""
        form = Form("json", "Table", "v1")
        columns = b'[{"name":"Name"},{"name":"Ready"}]'
        row = b'{"cells":["a","1/1"],"object":{"metadata":{"name":"a","namespace":"n"}}}'
        listing = self.cache.begin_list(Scope(collection(form=str(form))), "")
        listing.add([Item("n", "a", "1", {}, "", row)])
        type = TypeMeta("meta.k8s.io/v1", "Table")
        listing.complete(ListMeta(type, "5", columns=columns))
        expected = ["Name", "Ready"], [["a", "1/1"]]
        self.assertEqual(expected, self.table("/api/v1/pods"))
        self.assertEqual(expected, self.table("/api/v1/namespaces/n/pods/a"))

    def test_tables_without_columns(self):
        """A cached row without known columns is not used: a Table is built instead."""
        row = b'{"cells":["a","1/1"],"object":{"metadata":{"name":"a","namespace":"n"}}}'
        self.cache.upsert(
            collection(form=str(Form("json", "Table", "v1"))),
            TypeMeta("meta.k8s.io/v1", "Table"),
            Item("n", "a", "1", {}, "", row),
        )
        self.store_one("pods.v1.core", item("a"))
        expected = ["Name", "Age"], [["a", "5m"]]
        target = "/api/v1/namespaces/n/pods"
        self.assertEqual(expected, self.table(f"{target}/a"))
        self.assertEqual(expected, self.table(f"{target}?fieldSelector=metadata.name%3Da"))

    def test_metadata(self):
        """Metadata are built from objects in JSON."""
        self.store("services.v1.core", item("a", spec={"x": 1}))
        status, content = self.get_json("/api/v1/services", PARTIAL)
        self.assertEqual((200, "PartialObjectMetadataList"), (status, content["kind"]))
        (one,) = content["items"]
        self.assertEqual({"metadata"}, one.keys())

    def test_metadata_in_protobuf(self):
        """A list of metadata is built from protobuf, with all metadata and its length."""
        spec = encode_bytes(2, b"x" * 300)
        whole = [protobuf_item("a", more=spec), protobuf_item("b", more=spec)]
        self.store("services.v1.core", *whole, form="protobuf", version=7)
        status, fields, body = self.send_request("/api/v1/services", PARTIAL_PROTOBUF)
        self.assertEqual((200, len(body)), (status, int(fields[b"content-length"])))
        reader = codec_for(Form("protobuf", "PartialObjectMetadata", "v1")).list_reader(1000)
        found = reader.feed(body)
        self.assertEqual(["a", "b"], [one.name for one in found])
        self.assertNotIn(spec, body)
        meta = reader.finish()
        expected = TypeMeta("meta.k8s.io/v1", "PartialObjectMetadata"), "7"
        self.assertEqual(expected, (meta.type, meta.version))

    def test_clients_that_leave_metadata(self):
        """The conversion stops when the client disconnects."""
        spec = encode_bytes(2, b"x" * 1000)
        many = [protobuf_item(f"s{number:04}", more=spec) for number in range(3000)]
        self.store("services.v1.core", *many, form="protobuf")
        connection = self.server.connect()
        reads, read = [], CachedList.read

        def leaving(listed):
            reads.append(listed)
            connection.abortConnection()
            return read(listed)

        self.patch(CachedList, "read", leaving)
        connection.receive(request(b"/api/v1/services", b"User-Agent: kubelet", PARTIAL_PROTOBUF))
        self.assertEqual((1, 0), (len(reads), self.cache.listed))

    def test_kubectl(self):
        """kubectl without data of its own gets the kubelet's, and a warning."""
        self.store("pods.v1.core", protobuf_item("a"), form="protobuf", namespace="n")
        target, kubectl = "/api/v1/namespaces/n/pods?limit=500", b"kubectl/v1"
        columns = self.table(target, agent=kubectl)
        self.assertEqual((["Name", "Age"], [["a", "<unknown>"]]), columns)
        _, fields, _ = self.send_request(target, TABLE, agent=kubectl)
        self.assertIn(
            b"this is what its kubelet has cached, and may be incomplete", fields[b"warning"]
        )
        self.assert_status(
            503, "ServiceUnavailable", "are not cached here", "/api/v1/secrets", agent=kubectl
        )

    def test_pages_of_the_hub(self):
        """The hub's pages have all of the kubelet's pods, and never a part."""
        of_node = {"field_selector": "spec.nodeName=edge-1"}
        self.store("pods.v1.core", item("old", node="edge-1"), client=PAGES, **of_node)
        target = "/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1"
        agent = PAGES.encode()
        self.store_one("pods.v1.core", item("part", node="edge-1"))
        self.assert_status(503, "ServiceUnavailable", "are not cached here", target, agent=agent)
        self.store("pods.v1.core", item("new", node="edge-1"), **of_node)
        self.assertEqual(["new"], self.names(target, agent=agent))


class FilterTests(OfflineTestCase):
    """Filters are also applied offline."""

    def setUp(self):
        """Hide b, and mark the others."""
        super().setUp()
        self.store("services.v1.core", item("a"), item("b"), item("c"))

        def change(obj):
            obj["seen"] = True
            return None if obj["metadata"]["name"] == "b" else obj

        self.filters.change = change

    def test_lists(self):
        """Hidden items are not in the list, the others are changed."""
        _, content = self.get_json("/api/v1/services", PROTOBUF)
        self.assertEqual([True, True], [one["seen"] for one in content["items"]])
        self.assertEqual(["a", "c"], self.names("/api/v1/services"))

    def test_objects(self):
        """A hidden object is not found."""
        _, content = self.get_json("/api/v1/namespaces/n/services/a")
        self.assertTrue(content["seen"])
        self.assert_status(404, "NotFound", "", "/api/v1/namespaces/n/services/b")

    def test_protobuf_only(self):
        """Filters need JSON: a client that does not accept it gets 406."""
        accept = b"Accept: application/vnd.kubernetes.protobuf"
        self.assert_status(406, "NotAcceptable", "", "/api/v1/services", accept)
