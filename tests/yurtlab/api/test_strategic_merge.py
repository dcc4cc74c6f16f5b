"""Strategic merge patches."""

from __future__ import annotations

import copy

from twisted.trial.unittest import SynchronousTestCase

from yurtlab.api.patches import BadPatch, strategic_merge

POD = {
    "metadata": {"name": "web", "labels": {"a": "1"}, "finalizers": ["x/y"]},
    "spec": {
        "containers": [
            {"name": "main", "image": "one", "env": [{"name": "A", "value": "1"}]},
            {"name": "side", "image": "two", "command": ["sh"]},
        ],
        "tolerations": [{"key": "a"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    },
}


class MergeTestCase(SynchronousTestCase):
    """Merges."""

    def merge(self, patch, document=POD):
        """Merge, and check that the inputs are not modified."""
        before = copy.deepcopy(document)
        merged = strategic_merge(document, patch)
        self.assertEqual(before, document)
        return merged


class MergeTests(MergeTestCase):
    """Merging."""

    def test_fields(self):
        """Objects are merged, null deletes."""
        merged = self.merge({"metadata": {"labels": {"a": None, "b": "2"}}})
        self.assertEqual({"b": "2"}, merged["metadata"]["labels"])
        self.assertEqual(POD["spec"], merged["spec"])

    def test_named_things_are_merged_by_name(self):
        """Containers are merged by name, and so are their environment variables."""
        patch = {
            "spec": {
                "containers": [
                    {"name": "side", "image": "three"},
                    {"name": "main", "env": [{"name": "B", "value": "2"}]},
                    {"name": "new", "image": "four", "tty": None},
                ]
            }
        }
        self.assertEqual(
            [
                {
                    "name": "main",
                    "image": "one",
                    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                },
                {"name": "side", "image": "three", "command": ["sh"]},
                {"name": "new", "image": "four"},
            ],
            self.merge(patch)["spec"]["containers"],
        )

    def test_other_lists_are_replaced(self):
        """Lists without a merge key, such as tolerations and commands, are replaced."""
        patch = {
            "spec": {
                "tolerations": [{"key": "b"}],
                "containers": [{"name": "side", "command": ["ls"]}],
            }
        }
        spec = self.merge(patch)["spec"]
        self.assertEqual([{"key": "b"}], spec["tolerations"])
        self.assertEqual(["ls"], spec["containers"][1]["command"])

    def test_ports(self):
        """Ports are merged by containerPort in containers and by port in services."""
        container = {"containers": [{"name": "a", "ports": [{"containerPort": 1, "name": "x"}]}]}
        patch = {"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 2}]}]}}
        merged = self.merge(patch, {"spec": container})["spec"]["containers"][0]["ports"]
        self.assertEqual([1, 2], [port["containerPort"] for port in merged])
        service = {"spec": {"ports": [{"port": 80, "name": "x"}]}}
        merged = self.merge({"spec": {"ports": [{"port": 80, "nodePort": 1}]}}, service)
        self.assertEqual([{"port": 80, "name": "x", "nodePort": 1}], merged["spec"]["ports"])

    def test_conditions_and_addresses(self):
        """Conditions and the addresses of a node are merged by type."""
        status = {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        }
        patch = {
            "status": {
                "conditions": [{"type": "Ready", "status": "False"}, {"type": "Disk"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}],
            }
        }
        merged = self.merge(patch, {"status": status})["status"]
        self.assertEqual(
            [{"type": "Ready", "status": "False"}, {"type": "Disk"}], merged["conditions"]
        )
        self.assertEqual([{"type": "InternalIP", "address": "10.0.0.2"}], merged["addresses"])

    def test_finalizers(self):
        """Finalizers are added and deleted one by one."""
        merged = self.merge({"metadata": {"finalizers": ["x/y", "x/z"]}})
        self.assertEqual(["x/y", "x/z"], merged["metadata"]["finalizers"])
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/y"]}}
        self.assertEqual([], self.merge(patch)["metadata"]["finalizers"])

    def test_missing_merge_key(self):
        """A patch with an element without its merge key is invalid."""
        error = self.assertRaises(BadPatch, self.merge, {"spec": {"containers": [{"image": "x"}]}})
        self.assertIn("does not contain declared merge key: name", str(error))


class DirectiveTests(MergeTestCase):
    """Directives, which kubectl apply and edit write."""

    def test_delete_element(self):
        """An element can be deleted."""
        patch = {"spec": {"containers": [{"name": "main", "$patch": "delete"}]}}
        names = [one["name"] for one in self.merge(patch)["spec"]["containers"]]
        self.assertEqual(["side"], names)

    def test_delete_object(self):
        """An object can be deleted."""
        self.assertNotIn(
            "labels", self.merge({"metadata": {"labels": {"$patch": "delete"}}})["metadata"]
        )

    def test_replace_object(self):
        """An object can be replaced."""
        patch = {"metadata": {"labels": {"$patch": "replace", "z": "26", "y": None}}}
        self.assertEqual({"z": "26"}, self.merge(patch)["metadata"]["labels"])

    def test_replace_list(self):
        """A list that would be merged can be replaced."""
        patch = {"spec": {"containers": [{"name": "only"}, {"$patch": "replace"}]}}
        self.assertEqual([{"name": "only"}], self.merge(patch)["spec"]["containers"])

    def test_unknown_directive(self):
        """A patch with an unknown directive is invalid."""
        self.assertRaises(BadPatch, self.merge, {"spec": {"$patch": "turn"}})
        self.assertRaises(BadPatch, self.merge, {"spec": {"$retainKeys": "a"}})

    def test_retained_keys(self):
        """A union keeps only the named members: a volume changes its source."""
        patch = {
            "spec": {
                "volumes": [
                    {"name": "v", "hostPath": {"path": "/"}, "$retainKeys": ["name", "hostPath"]}
                ]
            }
        }
        self.assertEqual(
            [{"name": "v", "hostPath": {"path": "/"}}], self.merge(patch)["spec"]["volumes"]
        )

    def test_order(self):
        """Elements get the given order; others keep their positions."""
        patch = {
            "spec": {
                "$setElementOrder/containers": [{"name": "new"}, {"name": "main"}],
                "containers": [{"name": "new"}],
            }
        }
        names = [one["name"] for one in self.merge(patch)["spec"]["containers"]]
        self.assertEqual(["new", "side", "main"], names)
        patch = {"metadata": {"$setElementOrder/finalizers": ["b", "x/y"], "finalizers": ["b"]}}
        self.assertEqual(["b", "x/y"], self.merge(patch)["metadata"]["finalizers"])

    def test_directives_are_not_stored(self):
        """Directives are not stored in new objects."""
        patch = {
            "spec": {"new": {"$patch": "merge", "$retainKeys": ["a"], "a": [{"$x": 1, "b": 2}]}}
        }
        self.assertEqual({"a": [{"b": 2}]}, self.merge(patch)["spec"]["new"])
