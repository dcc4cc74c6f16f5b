"""Schemas, and bodies checked against them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.yurtlab.api.support import pod
from yurtlab.api.documents import Documents, WrongType, read
from yurtlab.api.resources import CONFIG_MAPS, NODES, PODS

CORE = "io.k8s.api.core.v1."


class ReadTests(SynchronousTestCase):
    """Reading."""

    def read(self, body, kind=PODS):
        """Read a body without unknown fields."""
        checked, unknown = read(Documents.of_lab(), kind, body)
        self.assertEqual([], unknown)
        return checked

    def test_nothing_to_change(self):
        """A valid body is unchanged."""
        self.assertEqual(pod(), self.read(pod()))

    def test_null(self):
        """A null field is removed; a null value in a map becomes empty."""
        body = {"metadata": {"creationTimestamp": None, "annotations": {"a": None}}, "spec": None}
        self.assertEqual({"metadata": {"annotations": {"a": ""}}}, self.read(body))

    def test_unknown_fields(self):
        """Unknown fields are removed and reported."""
        body = pod(containers=[{"name": "a", "imagee": "b"}], color="red")
        checked, unknown = read(Documents.of_lab(), PODS, body)
        self.assertEqual({"containers": [{"name": "a"}]}, checked["spec"])
        self.assertEqual(["spec.containers[0].imagee", "spec.color"], unknown)

    def test_wrong_types(self):
        """A value of the wrong type is rejected, with its path."""
        for spec, text in (
            ("x", "string into field spec of type object"),
            ({"containers": {}}, "object into field spec.containers of type array"),
            ({"containers": [1]}, "number into field spec.containers[0] of type object"),
            ({"hostNetwork": "no"}, "string into field spec.hostNetwork of type boolean"),
            ({"priority": 1.5}, "number into field spec.priority of type integer"),
            ({"priority": True}, "bool into field spec.priority of type integer"),
            ({"nodeSelector": {"a": 1}}, "number into field spec.nodeSelector.a of type string"),
            ({"hostname": []}, "array into field spec.hostname of type string"),
        ):
            error = self.assertRaises(WrongType, self.read, {"spec": spec})
            self.assertEqual(f"json: cannot unmarshal {text}", str(error))

    def test_null_in_a_list(self):
        """Null is rejected in lists."""
        error = self.assertRaises(WrongType, self.read, {"spec": {"containers": [None]}})
        self.assertIn("cannot unmarshal null", str(error))

    def test_number_or_text(self):
        """Some fields are an integer or a string."""
        for port in (80, "http"):
            probe = {"httpGet": {"port": port}}
            body = {"spec": {"containers": [{"name": "a", "livenessProbe": probe}]}}
            self.assertEqual(body, self.read(body))
        probe = {"httpGet": {"port": 1.5}}
        body = {"spec": {"containers": [{"name": "a", "livenessProbe": probe}]}}
        self.assertRaises(WrongType, self.read, body)

    def test_quantities(self):
        """Quantities may be numbers, and are stored as strings."""
        body = {"metadata": {}, "status": {"capacity": {"cpu": 4, "memory": "1Gi"}}}
        read_back = self.read(body, NODES)
        self.assertEqual({"cpu": "4", "memory": "1Gi"}, read_back["status"]["capacity"])

    def test_other_kinds(self):
        """Every kind has its own fields."""
        self.assertEqual({"data": {"a": "b"}}, self.read({"data": {"a": "b"}}, CONFIG_MAPS))
        _, unknown = read(Documents.of_lab(), CONFIG_MAPS, {"spec": {}})
        self.assertEqual(["spec"], unknown)
