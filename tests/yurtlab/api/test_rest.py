"""The verbs over HTTP, with the responses of kube-apiserver."""

from __future__ import annotations

import base64
import json

from tests.yurtlab.api.support import (
    MERGE,
    PODS_PATH,
    STRATEGIC,
    ApiTestCase,
    Client,
    pod,
)
from yurtlab.api import rest
from yurtlab.api.resources import CONFIG_MAPS, MAKE_PODS, NODES, PODS, SERVICE_ACCOUNTS

WEB = f"{PODS_PATH}/web"
MAPS = "/api/v1/namespaces/default/configmaps"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def config_map(name="settings", **data):
    """Make a ConfigMap."""
    return {"metadata": {"name": name}, "data": data}


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


class UpdateTests(ApiTestCase):
    """PUT."""

    def setUp(self):
        """Create an object."""
        super().setUp()
        self.made = self.create(config_map(a="1"), MAPS)
        self.path = f"{MAPS}/settings"

    def test_replaced(self):
        """The object is replaced."""
        status, answer = self.call("PUT", self.path, config_map(b="2"))
        self.assertEqual((200, {"b": "2"}), (status, answer["data"]))

    def test_conflict(self):
        """An object that has changed meanwhile is a Conflict."""
        self.call("PUT", self.path, config_map(b="2"))
        status, answer = self.call("PUT", self.path, self.made)
        self.assertEqual((409, "Conflict"), (status, answer["reason"]))
        self.assertEqual({"name": "settings", "kind": "configmaps"}, answer["details"])

    def test_another_name(self):
        """The name in the body must match the path."""
        answer = self.call("PUT", self.path, config_map("other"))
        text = "the name of the object (other) does not match the name on the URL (settings)"
        self.assert_error(answer, 400, "BadRequest", text)

    def test_missing(self):
        """A missing object cannot be replaced."""
        status, _ = self.call("PUT", f"{MAPS}/other", config_map("other"))
        self.assertEqual(404, status)

    def test_status(self):
        """The status of a node is updated separately."""
        body = {"metadata": {"name": "edge-1"}, "status": {"phase": "Terminated"}}
        status, answer = self.call("PUT", "/api/v1/nodes/edge-1/status", body)
        self.assertEqual((200, {"phase": "Terminated"}), (status, answer["status"]))
        _, answer = self.call("GET", "/api/v1/nodes/edge-1/status")
        self.assertEqual({"phase": "Terminated"}, answer["status"])

    def test_dry_run(self):
        """A dry run changes nothing."""
        _, answer = self.call("PUT", f"{self.path}?dryRun=All", config_map(b="2"))
        self.assertEqual({"b": "2"}, answer["data"])
        self.assertEqual(self.made, self.store.get(CONFIG_MAPS, "default", "settings"))


class PatchTests(ApiTestCase):
    """PATCH."""

    def setUp(self):
        """Create a pod."""
        super().setUp()
        self.create()

    def labels(self, patch, media_type):
        """Patch the pod, and return its labels."""
        status, answer = self.call("PATCH", WEB, patch, media_type=media_type)
        self.assertEqual(200, status, answer)
        return answer["metadata"].get("labels")

    def test_kinds_of_patches(self):
        """All types of patches are applied."""
        patch = {"metadata": {"labels": {"a": "1"}}}
        self.assertEqual({"a": "1"}, self.labels(patch, MERGE))
        patch = {"metadata": {"labels": {"b": "2"}}}
        self.assertEqual({"a": "1", "b": "2"}, self.labels(patch, STRATEGIC))
        patch = [{"op": "remove", "path": "/metadata/labels/a"}]
        self.assertEqual({"b": "2"}, self.labels(patch, JSON_PATCH))

    def test_containers_are_merged(self):
        """A strategic patch changes one field of one container."""
        patch = {"spec": {"containers": [{"name": "main", "image": "new"}]}}
        _, answer = self.call("PATCH", WEB, patch, media_type=STRATEGIC)
        (container,) = answer["spec"]["containers"]
        self.assertEqual(("new", "Always"), (container["image"], container["imagePullPolicy"]))

    def test_failed_test(self):
        """A JSON patch whose test fails is Invalid."""
        patch = [{"op": "test", "path": "/metadata/name", "value": "x"}]
        status, answer = self.call("PATCH", WEB, patch, media_type=JSON_PATCH)
        self.assertEqual((422, "Invalid"), (status, answer["reason"]))
        (cause,) = answer["details"]["causes"]
        self.assertEqual("testing value /metadata/name failed: test failed", cause["message"])

    def test_no_patches(self):
        """An invalid patch, or one whose result is not an object, is a BadRequest."""
        for media_type, patch in (
            (JSON_PATCH, {}),
            (JSON_PATCH, [{"op": "jump"}]),
            (JSON_PATCH, [{"op": "replace", "path": "", "value": 3}]),
            (MERGE, []),
            (MERGE, {"metadata": None}),
            (STRATEGIC, {"spec": {"containers": [{"image": "x"}]}}),
        ):
            status, answer = self.call("PATCH", WEB, patch, media_type=media_type)
            self.assertEqual((400, "BadRequest"), (status, answer["reason"]), patch)

    def test_unknown_kind(self):
        """The error for an unknown patch type lists the supported ones."""
        status, answer = self.call("PATCH", WEB, {}, media_type="application/json")
        self.assertEqual(415, status)
        self.assertIn(STRATEGIC, answer["message"])

    def test_version(self):
        """A patch may require a version."""
        patch = {"metadata": {"resourceVersion": "1", "labels": {"a": "1"}}}
        status, answer = self.call("PATCH", WEB, patch, media_type=MERGE)
        self.assertEqual((409, "Conflict"), (status, answer["reason"]))

    def test_another_name(self):
        """A patch cannot rename an object."""
        status, _ = self.call("PATCH", WEB, {"metadata": {"name": "x"}}, media_type=MERGE)
        self.assertEqual(400, status)

    def test_strict(self):
        """The result of a patch is validated like a whole object."""
        patch = {"spec": {"color": "red"}}
        path = f"{WEB}?fieldValidation=Strict"
        status, answer = self.call("PATCH", path, patch, media_type=MERGE)
        self.assertEqual(400, status)
        self.assertIn('unknown field "spec.color"', answer["message"])

    def test_status(self):
        """The status is patched separately, its conditions by type."""
        patch = {"status": {"conditions": [{"type": "Disk", "status": "True"}]}}
        path = "/api/v1/nodes/edge-1/status"
        _, answer = self.call("PATCH", path, patch, media_type=STRATEGIC)
        types = [one["type"] for one in answer["status"]["conditions"]]
        self.assertEqual(["Ready", "Disk"], types)

    def test_missing(self):
        """A missing object cannot be patched."""
        answer = self.call("PATCH", f"{PODS_PATH}/no", {}, media_type=MERGE)
        self.assert_error(answer, 404, "NotFound", 'pods "no" not found')


class ApplyTests(ApiTestCase):
    """Server-side apply."""

    path = f"{MAPS}/settings?fieldManager=me"

    def apply(self, path=None, **data):
        """Apply a ConfigMap."""
        body = {"apiVersion": "v1", "kind": "ConfigMap", **config_map(**data)}
        return self.call("PATCH", path or self.path, body, media_type=APPLY)

    def test_created_then_merged(self):
        """An applied object is created if it is missing, and merged otherwise."""
        self.assertEqual(201, self.apply(a="1")[0])
        status, answer = self.apply(b="2")
        self.assertEqual((200, {"a": "1", "b": "2"}), (status, answer["data"]))

    def test_yaml(self):
        """An applied object may be YAML."""
        text = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n  a: '1'\n"
        status, answer = self.call("PATCH", self.path, text, media_type=APPLY)
        self.assertEqual((201, {"a": "1"}), (status, answer["data"]))

    def test_manager(self):
        """Apply requires a field manager."""
        status, answer = self.apply(f"{MAPS}/settings", a="1")
        self.assertEqual(400, status)
        self.assertIn("fieldManager: Required value", answer["message"])

    def test_status(self):
        """The status of a missing object cannot be applied."""
        path = "/api/v1/nodes/no/status?fieldManager=me"
        status, _ = self.call("PATCH", path, {"status": {}}, media_type=APPLY)
        self.assertEqual(404, status)


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


class NamespaceTests(ApiTestCase):
    """Namespaces."""

    path = "/api/v1/namespaces"

    def namespace(self, name="team"):
        """Return a namespace, or the status of an error."""
        return self.call("GET", f"{self.path}/{name}")

    def test_initial(self):
        """A new cluster has four namespaces."""
        _, answer = self.call("GET", self.path)
        names = [one["metadata"]["name"] for one in answer["items"]]
        self.assertEqual(["default", "kube-node-lease", "kube-public", "kube-system"], names)

    def test_created(self):
        """A new namespace is active and labeled with its name, also after a change."""
        made = self.create({"metadata": {"name": "team"}}, self.path)
        self.assertEqual("Active", made["status"]["phase"])
        label = {"kubernetes.io/metadata.name": "team"}
        self.assertEqual(label, made["metadata"]["labels"])
        _, changed = self.call("PUT", f"{self.path}/team", {"metadata": {"name": "team"}})
        self.assertEqual(label, changed["metadata"]["labels"])
        self.assertEqual({"finalizers": ["kubernetes"]}, changed["spec"])

    def test_name(self):
        """The name of a namespace is a label."""
        status, _ = self.call("POST", self.path, {"metadata": {"name": "a.b"}})
        self.assertEqual(422, status)

    def test_immortal(self):
        """Some namespaces cannot be deleted."""
        answer = self.call("DELETE", f"{self.path}/default")
        text = 'namespaces "default" is forbidden: this namespace may not be deleted'
        self.assert_error(answer, 403, "Forbidden", text)

    def test_empty(self):
        """An empty namespace is removed at once."""
        self.create({"metadata": {"name": "team"}}, self.path)
        status, answer = self.call("DELETE", f"{self.path}/team")
        self.assertEqual((200, "Terminating"), (status, answer["status"]["phase"]))
        self.assertEqual(404, self.namespace()[0])

    def test_with_contents(self):
        """A deleted namespace is removed with its last object, and accepts no new ones."""
        self.create({"metadata": {"name": "team"}}, self.path)
        self.create(path=f"{self.path}/team/pods")
        self.create(config_map(), f"{self.path}/team/configmaps")
        self.call("DELETE", f"{self.path}/team")
        self.assertEqual([], self.names(CONFIG_MAPS))
        self.assertEqual("Terminating", self.namespace()[1]["status"]["phase"])
        answer = self.call("POST", f"{self.path}/team/configmaps", config_map())
        text = (
            'configmaps "settings" is forbidden: unable to create new content in namespace team'
            " because it is being terminated"
        )
        self.assert_error(answer, 403, "Forbidden", text)
        self.store.remove(PODS, "team", "web")
        self.assertEqual(404, self.namespace()[0])

    def test_dry_run(self):
        """A dry run deletes nothing in it."""
        self.create({"metadata": {"name": "team"}}, self.path)
        self.create(config_map(), f"{self.path}/team/configmaps")
        self.call("DELETE", f"{self.path}/team?dryRun=All")
        self.assertEqual(["settings"], self.names(CONFIG_MAPS))
        self.assertEqual("Active", self.namespace()[1]["status"]["phase"])


class NodeTests(ApiTestCase):
    """Nodes."""

    def test_status_at_creation(self):
        """A node may be created with its status."""
        body = {"metadata": {"name": "edge-2"}, "status": {"phase": "Running"}}
        self.create(body, "/api/v1/nodes")
        self.assertEqual("Running", self.store.get(NODES, None, "edge-2")["status"]["phase"])


class ServiceTests(ApiTestCase):
    """Services."""

    path = "/api/v1/namespaces/default/services"
    service = {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}

    def test_defaults(self):
        """A service gets the default values, but no cluster IP, which would lead nowhere."""
        made = self.create(
            {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}, self.path
        )
        spec = {
            "type": "ClusterIP",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        }
        self.assertEqual((spec, {"loadBalancer": {}}), (made["spec"], made["status"]))

    def test_change(self):
        """Fields that an update omits get their defaults again."""
        self.create(self.service, self.path)
        changed = {"spec": {"type": "NodePort", "ports": [{"port": 81}]}}
        _, after = self.call("PATCH", f"{self.path}/web", changed, media_type=MERGE)
        self.assertEqual("Cluster", after["spec"]["externalTrafficPolicy"])
        ports = [{"port": 81, "protocol": "TCP", "targetPort": 81}]
        self.assertEqual(ports, after["spec"]["ports"])


class WholeListTests(ApiTestCase):
    """Lists."""

    def test_whole(self):
        """A list is complete, also for clients that request pages."""
        for name in ("a", "b", "c"):
            self.create(config_map(name), MAPS)
        _, found = self.call("GET", f"{MAPS}?limit=2")
        self.assertEqual(["a", "b", "c"], [one["metadata"]["name"] for one in found["items"]])
        self.assertEqual({"resourceVersion": str(self.store.version)}, found["metadata"])


class DemonstrationTests(ApiTestCase):
    """Requests that the quickstart does not support are rejected with an alternative."""

    def test_what_makes_pods(self):
        """Workloads that would never run are rejected; they can be listed."""
        for kind in sorted(MAKE_PODS, key=lambda kind: kind.kind):
            path = f"/apis/{kind.group}/v1/namespaces/default/{kind.plural}"
            text = (
                "this is the demonstration API of yurttunnel: it runs pods only, and has nothing"
                f" that would make pods of a {kind.kind}; create the pods themselves, as kubectl"
                " run does"
            )
            for method, place, options in (
                ("POST", path, {}),
                # kubectl create and scale send this, which is not to be told first.
                ("POST", path, {"media_type": "application/vnd.kubernetes.protobuf"}),
                ("PUT", f"{path}/web", {}),
                ("PATCH", f"{path}/web", {"media_type": STRATEGIC}),
            ):
                answer = self.call(method, place, {}, **options)
                self.assert_error(answer, 405, "MethodNotAllowed", text)
            self.assertEqual([], self.call("GET", path)[1]["items"])

    def test_ways_to_pods(self):
        """Proxies to pods and ephemeral containers are rejected."""
        self.create()
        for path, word in (
            (f"{PODS_PATH}/web:80/proxy/index.html", "port-forward"),
            ("/api/v1/namespaces/default/services/web/proxy", "port-forward"),
            (f"{PODS_PATH}/web/ephemeralcontainers", "kubectl exec"),
        ):
            status, answer = self.call("GET", path)
            self.assertEqual((405, "MethodNotAllowed"), (status, answer["reason"]))
            self.assertIn("the demonstration API of yurttunnel", answer["message"])
            self.assertIn(word, answer["message"])

    def test_tokens(self):
        """Tokens of service accounts are rejected: nothing would accept them."""
        path = "/api/v1/namespaces/default/serviceaccounts/default/token"
        status, answer = self.call("POST", path, {})
        self.assertEqual((405, "MethodNotAllowed"), (status, answer["reason"]))
        self.assertIn("it knows its users by their certificates alone", answer["message"])

    def test_default_account(self):
        """Each namespace has a default account, which is deleted with it."""
        self.create({"metadata": {"name": "shop"}}, "/api/v1/namespaces")
        for namespace in ("default", "shop"):
            self.assertEqual(["default"], self.names(SERVICE_ACCOUNTS, namespace))
        self.call("DELETE", "/api/v1/namespaces/shop")
        self.assertEqual(404, self.call("GET", "/api/v1/namespaces/shop")[0])
