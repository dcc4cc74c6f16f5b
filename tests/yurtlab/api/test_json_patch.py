"""JSON Patch and JSON Merge Patch, by the examples of their specifications."""

from __future__ import annotations

import copy

from twisted.trial.unittest import SynchronousTestCase

from yurtlab.api import patches as module
from yurtlab.api.patches import BadPatch, PatchFailed, json_patch, merge_patch

# RFC 7396 appendix A: original, patch, result.
MERGE_EXAMPLES = (
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
)

# RFC 6902 appendix A: document, patch, result.
PATCH_EXAMPLES = (
    ({"foo": "bar"}, [("add", "/baz", "qux")], {"baz": "qux", "foo": "bar"}),
    ({"foo": ["bar", "baz"]}, [("add", "/foo/1", "qux")], {"foo": ["bar", "qux", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, [("remove", "/baz")], {"foo": "bar"}),
    ({"foo": ["bar", "qux", "baz"]}, [("remove", "/foo/1")], {"foo": ["bar", "baz"]}),
    ({"baz": "qux"}, [("replace", "/baz", "boo")], {"baz": "boo"}),
    ({"foo": [1, 2]}, [("replace", "/foo/0", 3)], {"foo": [3, 2]}),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [("move", "/qux/thud", "/foo/waldo")],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        [("move", "/foo/3", "/foo/1")],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    ({"baz": "qux"}, [("test", "/baz", "qux")], {"baz": "qux"}),
    ({"foo": "bar"}, [("add", "/child", {"g": {}})], {"foo": "bar", "child": {"g": {}}}),
    ({"/": 9, "~1": 10}, [("test", "/~01", 10)], {"/": 9, "~1": 10}),
    ({"foo": ["bar"]}, [("add", "/foo/-", ["abc", "def"])], {"foo": ["bar", ["abc", "def"]]}),
    ({"a": {"b": 1}}, [("copy", "/c", "/a")], {"a": {"b": 1}, "c": {"b": 1}}),
    ({"a": 1}, [("replace", "", {"b": 2})], {"b": 2}),
    ({"a": 1}, [("add", "", {"b": 2})], {"b": 2}),
    ({"a": 1}, [("move", "/a", "/a")], {"a": 1}),
    ({"a": 1}, [("test", "/b", None)], {"a": 1}),
)


def operations(*parts):
    """Encode operations as JSON."""
    made = []
    for name, path, *rest in parts:
        operation = {"op": name, "path": path}
        if rest:
            operation["from" if name in ("move", "copy") else "value"] = rest[0]
        made.append(operation)
    return made


class MergePatchTests(SynchronousTestCase):
    """RFC 7396."""

    def test_examples(self):
        """The examples of the specification give the specified results, and inputs are not
        modified."""
        for document, patch, result in MERGE_EXAMPLES:
            before = copy.deepcopy(document)
            self.assertEqual(result, merge_patch(document, patch))
            self.assertEqual(before, document)


class JSONPatchTests(SynchronousTestCase):
    """RFC 6902."""

    def test_examples(self):
        """The examples of the specification give the specified results, and inputs are not
        modified."""
        for document, patch, result in PATCH_EXAMPLES:
            before = copy.deepcopy(document)
            self.assertEqual(result, json_patch(document, operations(*patch)), patch)
            self.assertEqual(before, document)

    def test_does_not_apply(self):
        """A patch fails if a value that it needs is missing or differs from a tested value."""
        document = {"baz": "qux", "list": [1]}
        for operation in (
            ("test", "/baz", "bar"),
            ("test", "/list/0", True),
            ("add", "/no/bat", "qux"),
            ("add", "/baz/bat", "qux"),
            ("remove", "/no"),
            ("replace", "/no", 1),
            ("copy", "/x", "/no"),
            ("move", "/x", "/no"),
            ("add", "/list/2", 1),
            ("remove", "/list/1"),
            ("replace", "/list/-", 1),
            ("remove", "/list/00"),
            ("remove", "/list/-1"),
            ("add", "/list/1e0", 1),
        ):
            self.assertRaises(PatchFailed, json_patch, document, operations(operation))

    def test_is_none(self):
        """An invalid patch raises another error than one that does not apply."""
        for patch in (
            {},
            ["add"],
            [{"op": "jump", "path": "/a"}],
            [{"op": ["add"], "path": "/a"}],
            [{"op": "add", "path": "/b"}],
            [{"op": "add", "value": 1}],
            [{"op": "add", "path": "a", "value": 1}],
            [{"op": "move", "path": "/a"}],
            [{"op": "remove", "path": ""}],
            [{"op": "move", "from": "/a", "path": "/a/b"}],
        ):
            self.assertRaises(BadPatch, json_patch, {"a": {}}, patch)

    def test_number_of_operations(self):
        """A patch has a bounded number of operations."""
        self.patch(module, "MAX_OPERATIONS", 2)
        test = ("test", "", {})
        self.assertEqual({}, json_patch({}, operations(test, test)))
        self.assertRaises(BadPatch, json_patch, {}, operations(test, test, test))

    def test_copies_are_bounded(self):
        """A patch that repeatedly doubles the document is rejected."""
        doubling = [("copy", f"/x{number}", "") for number in range(64)]
        error = self.assertRaises(PatchFailed, json_patch, {"a": "b"}, operations(*doubling))
        self.assertIn("copies more than", str(error))

    def test_depth_is_bounded(self):
        """A patch that repeatedly copies the document into its deepest value is rejected."""
        nesting = [("copy", "/a" * 2**number, "") for number in range(12)]
        error = self.assertRaises(PatchFailed, json_patch, {"a": {}}, operations(*nesting))
        self.assertEqual("the patch nests values too deep", str(error))

    def test_copies_are_apart(self):
        """A copy can be changed without its source."""
        patch = operations(("copy", "/b", "/a"), ("add", "/b/c", 1))
        self.assertEqual({"a": {}, "b": {"c": 1}}, json_patch({"a": {}}, patch))
