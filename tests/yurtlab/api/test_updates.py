"""PUT and PATCH over HTTP, with the responses of kube-apiserver."""

from __future__ import annotations

from tests.yurtlab.api.support import (
    APPLY,
    JSON_PATCH,
    MAPS,
    MERGE,
    PODS_PATH,
    STRATEGIC,
    WEB,
    ApiTestCase,
    config_map,
)
from yurtlab.api.resources import CONFIG_MAPS


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
