"""The verbs over HTTP, with the responses of kube-apiserver."""

from __future__ import annotations

import base64
import json

from tests.yurtlab.api.support import (
    MAPS,
    MERGE,
    PODS_PATH,
    WEB,
    ApiTestCase,
    Client,
    config_map,
    pod,
)
from yurtlab.api import rest
from yurtlab.api.resources import CONFIG_MAPS, PODS

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class CreateTests(ApiTestCase):
    """POST."""

    def test_created(self):
        """The response for a new object is 201 with the stored object."""
        made = self.create(config_map(a="1"), MAPS)
        self.assertEqual(made, self.store.get(CONFIG_MAPS, "default", "settings"))

    def test_name_is_taken(self):
        """A second object with the name is AlreadyExists."""
        self.create()
        self.assert_error(
            self.call("POST", PODS_PATH, pod()), 409, "AlreadyExists", 'pods "web" already exists'
        )

    def test_generated_name(self):
        """A name can be generated."""
        body = {**pod(), "metadata": {"generateName": "job-"}}
        self.assertRegex(self.create(body)["metadata"]["name"], "^job-.{5}$")

    def test_yaml(self):
        """Bodies may be YAML, as curl users write them."""
        text = b"metadata: {name: settings}\ndata: {a: '1'}\n"
        self.create(text, MAPS, media_type="application/yaml")
        self.assertEqual(["settings"], self.names(CONFIG_MAPS))

    def test_mismatches(self):
        """A body of another kind, version or namespace is a BadRequest."""
        elsewhere = {**pod(), "metadata": {"name": "web", "namespace": "other"}}
        text = (
            "the namespace of the provided object does not match the namespace sent on the request"
        )
        self.assert_error(self.call("POST", PODS_PATH, elsewhere), 400, "BadRequest", text)
        for body in ({"kind": "Node"}, {"apiVersion": "v2"}):
            status, answer = self.call("POST", PODS_PATH, {**pod(), **body})
            self.assertEqual(400, status)
            self.assertIn("cannot be handled as a Pod", answer["message"])

    def test_version_of_a_new_object(self):
        """A new object must not have a resourceVersion."""
        body = {**pod(), "metadata": {"name": "web", "resourceVersion": "1"}}
        text = "resourceVersion should not be set on objects to be created"
        self.assert_error(self.call("POST", PODS_PATH, body), 400, "BadRequest", text)

    def test_namespace_of_a_node(self):
        """A cluster-scoped object must not have a namespace."""
        body = {"metadata": {"name": "edge-2", "namespace": "default"}}
        text = "namespace is not allowed for nodes"
        self.assert_error(self.call("POST", "/api/v1/nodes", body), 400, "BadRequest", text)

    def test_wrong_type(self):
        """A field of the wrong type is a BadRequest that names it."""
        status, answer = self.call("POST", PODS_PATH, pod(hostname=3))
        self.assertEqual(400, status)
        self.assertEqual(
            'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal number into'
            " field spec.hostname of type string",
            answer["message"],
        )

    def test_unknown_fields(self):
        """Unknown fields are rejected, reported or dropped, as the client requests."""
        body = pod(color="red")
        status, answer = self.call("POST", f"{PODS_PATH}?fieldValidation=Strict", body)
        self.assertEqual((400, "BadRequest"), (status, answer["reason"]))
        self.assertIn('strict decoding error: unknown field "spec.color"', answer["message"])
        _, fields, _ = self.exchange("POST", PODS_PATH, body)
        self.assertEqual(b'299 - "unknown field \\"spec.color\\""', fields[b"warning"])
        _, fields, made = self.exchange(
            "POST", f"{PODS_PATH}?fieldValidation=Ignore", {**body, "metadata": {"name": "b"}}
        )
        self.assertNotIn(b"warning", fields)
        self.assertNotIn("color", json.loads(made)["spec"])

    def test_dry_run(self):
        """A dry run returns the same response, and stores nothing."""
        made = self.create(path=f"{PODS_PATH}?dryRun=All")
        self.assertEqual("Pending", made["status"]["phase"])
        self.assertEqual([], self.names())

    def test_no_namespace(self):
        """Objects cannot be created in a missing namespace."""
        answer = self.call("POST", "/api/v1/namespaces/no/pods", pod())
        self.assert_error(answer, 404, "NotFound", 'namespaces "no" not found')

    def test_secret(self):
        """A Secret's stringData are stored in its data."""
        body = {"metadata": {"name": "s"}, "stringData": {"k": "v"}}
        made = self.create(body, "/api/v1/namespaces/default/secrets")
        self.assertEqual({"k": base64.b64encode(b"v").decode()}, made["data"])
        self.assertEqual("Opaque", made["type"])
        self.assertNotIn("stringData", made)

    def test_service_name(self):
        """The name of a service must begin with a letter."""
        body = {"metadata": {"name": "1st"}, "spec": {}}
        status, answer = self.call("POST", "/api/v1/namespaces/default/services", body)
        self.assertEqual(422, status)
        self.assertIn("a DNS-1035 label must consist of", answer["message"])


class BodyTests(ApiTestCase):
    """Bodies."""

    def test_too_large(self):
        """A body over 3 MiB is rejected, if possible before it is sent."""
        client = Client(self)
        client.connection.receive(
            b"POST %b HTTP/1.1\r\nHost: api\r\n"
            b"Content-Length: %d\r\n\r\n" % (PODS_PATH.encode(), 3 * 1024 * 1024 + 1)
        )
        status, _, body = client.response("POST")
        self.assertEqual(413, status)
        self.assertEqual("RequestEntityTooLarge", json.loads(body)["reason"])

    def test_no_object(self):
        """A body that is not an object is a BadRequest."""
        for body in (b"", b"[]", b"{"):
            status, answer = self.call("POST", PODS_PATH, body)
            self.assertEqual((400, "BadRequest"), (status, answer["reason"]))

    def test_unknown_format(self):
        """A body in an unknown format is an UnsupportedMediaType."""
        status, answer = self.call("POST", PODS_PATH, b"x", media_type="text/plain")
        self.assertEqual((415, "UnsupportedMediaType"), (status, answer["reason"]))

    def test_client_that_leaves(self):
        """A client that disconnects within its body causes no error in the log."""
        client = Client(self)
        client.connection.receive(
            b"POST %b HTTP/1.1\r\nHost: api\r\nContent-Length: 100\r\n\r\n{" % PODS_PATH.encode()
        )
        client.connection.break_off(ConnectionError())
        self.assertEqual([], self.names())


class ReadTests(ApiTestCase):
    """GET."""

    def setUp(self):
        """Create pods."""
        super().setUp()
        self.create(pod("a"))
        labeled = pod("b")
        labeled["metadata"]["labels"] = {"tier": "front"}
        self.create(labeled)
        self.create(pod("a"), "/api/v1/namespaces/kube-system/pods")

    def test_one(self):
        """An object is returned as it is stored."""
        answer = self.call("GET", f"{PODS_PATH}/a")
        self.assertEqual((200, self.store.get(PODS, "default", "a")), answer)

    def test_missing(self):
        """A missing object is NotFound, with details."""
        answer = self.call("GET", f"{PODS_PATH}/c")
        self.assert_error(answer, 404, "NotFound", 'pods "c" not found')
        self.assertEqual({"name": "c", "kind": "pods"}, answer[1]["details"])
        answer = self.call("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/c")
        self.assert_error(answer, 404, "NotFound", 'leases.coordination.k8s.io "c" not found')

    def names_in(self, path):
        """Return the names in a list, with their namespaces."""
        status, answer = self.call("GET", path)
        self.assertEqual((200, "PodList", "v1"), (status, answer["kind"], answer["apiVersion"]))
        metadata = [one["metadata"] for one in answer["items"]]
        return [f"{one['namespace']}/{one['name']}" for one in metadata]

    def test_lists(self):
        """Lists are of one namespace or of all, filtered by labels and fields."""
        for path, expected in (
            ("/api/v1/pods", ["default/a", "default/b", "kube-system/a"]),
            (PODS_PATH, ["default/a", "default/b"]),
            (f"{PODS_PATH}?labelSelector=tier%3Dfront", ["default/b"]),
            ("/api/v1/pods?fieldSelector=metadata.name%3Da", ["default/a", "kube-system/a"]),
            ("/api/v1/namespaces/none/pods", []),
            (f"{PODS_PATH}?limit=1&resourceVersion=0", ["default/a", "default/b"]),
        ):
            self.assertEqual(expected, self.names_in(path), path)

    def test_version_of_a_list(self):
        """A list has the version from which a watch can continue."""
        _, answer = self.call("GET", PODS_PATH)
        self.assertEqual(str(self.store.version), answer["metadata"]["resourceVersion"])

    def test_list_with_half_of_a_pair(self):
        """A string that is not valid Unicode does not break the list."""
        body = {"metadata": {"name": "half"}, "data": {"a": "\ud800"}}
        path = "/api/v1/namespaces/default/configmaps"
        self.create(body, path)
        status, found = self.call("GET", path)
        self.assertEqual((200, "\ufffd"), (status, found["items"][-1]["data"]["a"]))

    def test_bad_selectors(self):
        """An invalid selector is a BadRequest."""
        for query in ("labelSelector=%3D", "fieldSelector=spec.color%3Dred"):
            status, _ = self.call("GET", f"{PODS_PATH}?{query}")
            self.assertEqual(400, status)

    def test_table(self):
        """A table has a row for each object, which includes what the client requests."""
        _, answer = self.call("GET", PODS_PATH, accept=TABLE)
        self.assertEqual(["a", "b"], [row["cells"][0] for row in answer["rows"]])
        self.assertEqual("PartialObjectMetadata", answer["rows"][0]["object"]["kind"])
        _, answer = self.call("GET", f"{PODS_PATH}/a?includeObject=Object", accept=TABLE)
        self.assertEqual("Pod", answer["rows"][0]["object"]["kind"])
        self.assertIn("resourceVersion", answer["metadata"])

    def test_table_of_what_is_written(self):
        """The response to a write can be a table, too."""
        path, patch = f"{PODS_PATH}/a?includeObject=Object", {"metadata": {"labels": {"x": "y"}}}
        _, answer = self.call("PATCH", path, patch, media_type=MERGE, accept=TABLE)
        self.assertEqual("y", answer["rows"][0]["object"]["metadata"]["labels"]["x"])
        self.assertEqual("Pod", answer["rows"][0]["object"]["kind"])

    def test_metadata_only(self):
        """Clients can request metadata only."""
        accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        _, answer = self.call("GET", f"{PODS_PATH}/a", accept=accept)
        self.assertEqual({"kind", "apiVersion", "metadata"}, set(answer))
        accept = accept.replace("Metadata;", "MetadataList;")
        _, answer = self.call("GET", PODS_PATH, accept=accept)
        self.assertEqual("PartialObjectMetadataList", answer["kind"])
        self.assertNotIn("spec", answer["items"][0])

    def test_not_acceptable(self):
        """A response type that the client does not accept is NotAcceptable."""
        status, answer = self.call("GET", PODS_PATH, accept="text/html")
        self.assertEqual((406, "NotAcceptable"), (status, answer["reason"]))

    def test_head(self):
        """HEAD is GET without the body."""
        status, fields, body = self.exchange("HEAD", f"{PODS_PATH}/a")
        self.assertEqual((200, b""), (status, body))
        self.assertNotEqual(b"0", fields[b"content-length"])

    def test_fields(self):
        """Responses have a date and must not be cached."""
        _, fields, _ = self.exchange("GET", PODS_PATH)
        self.assertEqual(b"Sun, 15 Jun 2025 15:06:40 GMT", fields[b"date"])
        self.assertEqual(b"no-cache, private", fields[b"cache-control"])
        self.assertEqual(b"application/json", fields[b"content-type"])


class DeleteTests(ApiTestCase):
    """DELETE."""

    def test_status_of_a_deletion(self):
        """The response for an object that is removed at once is a Status with its identity."""
        made = self.create(config_map(), MAPS)
        status, answer = self.call("DELETE", f"{MAPS}/settings")
        details = {"name": "settings", "kind": "configmaps", "uid": made["metadata"]["uid"]}
        self.assertEqual((200, "Success", details), (status, answer["status"], answer["details"]))
        self.assertEqual([], self.names(CONFIG_MAPS))

    def test_preconditions(self):
        """A precondition prevents the deletion of another object with the name."""
        made = self.create(config_map(), MAPS)
        for desired in ({"uid": "other"}, {"resourceVersion": "1"}):
            body = {"preconditions": desired}
            status, answer = self.call("DELETE", f"{MAPS}/settings", body)
            self.assertEqual((409, "Conflict"), (status, answer["reason"]))
        body = {"preconditions": {"uid": made["metadata"]["uid"]}}
        status, _ = self.call("DELETE", f"{MAPS}/settings", body)
        self.assertEqual(200, status)

    def test_dry_run(self):
        """A dry run deletes nothing."""
        self.create(config_map(), MAPS)
        self.call("DELETE", f"{MAPS}/settings?dryRun=All")
        self.assertEqual(["settings"], self.names(CONFIG_MAPS))

    def test_all(self):
        """All selected objects of a namespace are deleted."""
        for name in ("a", "b"):
            body = config_map(name)
            body["metadata"]["labels"] = {"name": name}
            self.create(body, MAPS)
        status, answer = self.call("DELETE", f"{MAPS}?labelSelector=name%3Da")
        self.assertEqual((200, "ConfigMapList"), (status, answer["kind"]))
        self.assertEqual(["b"], self.names(CONFIG_MAPS))

    def test_all_pods(self):
        """All selected pods are deleted gracefully."""
        self.create()
        _, answer = self.call("DELETE", PODS_PATH)
        self.assertIn("deletionTimestamp", answer["items"][0]["metadata"])
        self.assertEqual(["web"], self.names())


class MethodTests(ApiTestCase):
    """Unsupported methods."""

    def test_refused(self):
        """Unsupported methods are rejected."""
        self.create()
        for method, path in (
            ("POST", WEB),
            ("PUT", PODS_PATH),
            ("POST", "/api/v1/pods"),
            ("DELETE", "/api/v1/pods"),
            ("DELETE", "/api/v1/namespaces"),
            ("POST", f"{WEB}/status"),
            ("PUT", f"{WEB}/log"),
            ("OPTIONS", WEB),
        ):
            answer = self.call(method, path, {})
            text = "the server does not allow this method on the requested resource"
            self.assert_error(answer, 405, "MethodNotAllowed", text)


class DefectTests(ApiTestCase):
    """Defects."""

    def test_told_and_logged(self):
        """A defect is an InternalError for the client, and is logged."""
        self.patch(rest, "flag", lambda query, name: 1 / 0)
        status, answer = self.call("GET", PODS_PATH)
        self.assertEqual((500, "InternalError"), (status, answer["reason"]))
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
