"""The selectors of requests."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.errors import RequestFailed
from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.cache.selectors import scope_of, selector, split_fields
from yurttunnel.hub.media.interfaces import Item
from yurttunnel.hub.request.requests import (
    MAX_SELECTORS,
    ApiRequest,
    Form,
    ListOptions,
    ResourceType,
)

PODS = ResourceType("", "v1", "pods")
COLLECTION = Collection("kubelet", "pods.v1.core", "json")


def pod(name="p", namespace="n", node="edge-1", **labels):
    """Create an item."""
    return Item(namespace, name, "7", labels, node, b"{}")


class ScopeTests(SynchronousTestCase):
    """The scope of a list."""

    def scope(self, resource=PODS, namespace="", **options):
        """Return the scope of a list."""
        request = ApiRequest("list", "/", resource, namespace, options=ListOptions(**options))
        return scope_of("kubelet", request, Form("json"))

    def test_collection(self):
        """It has one client, one resource and one form."""
        self.assertEqual(Scope(COLLECTION, "n"), self.scope(namespace="n"))

    def test_selectors(self):
        """Selectors that can be evaluated belong to the scope, in any order."""
        fields = "spec.nodeName=edge-1,metadata.namespace!=x"
        expected = Scope(COLLECTION, "", "a=1", "metadata.namespace!=x,spec.nodeName=edge-1")
        self.assertEqual(expected, self.scope(label_selector="a=1", field_selector=fields))

    def test_spaces(self):
        """Spaces around a label selector are ignored; alone they select all, as in the API."""
        for labels, expected in ((" ", ""), ("\t\r\n ", ""), (" a=1\n", "a=1")):
            self.assertEqual(Scope(COLLECTION, "", expected), self.scope(label_selector=labels))
        for labels in ("\u00a0", "a=1, "):
            with self.assertRaises(RequestFailed):
                self.scope(label_selector=labels)

    def test_views(self):
        """Selectors that only the API can evaluate are part of the collection."""
        found = self.scope(field_selector="status.phase!=Failed,metadata.name=p")
        self.assertEqual("status.phase!=Failed", found.collection.view)
        self.assertEqual("metadata.name=p", found.field_selector)
        self.assertEqual(("", "a=1,b=2"), split_fields("b==2,a=1,b=2", False))

    def test_empty_terms(self):
        """They are ignored, as in the API (parseSelector of k8s.io/apimachinery pkg/fields)."""
        for fields in (
            ",metadata.namespace!=x",
            "metadata.namespace!=x,,",
            ",,metadata.namespace!=x,",
        ):
            self.assertEqual(("metadata.namespace!=x", ""), split_fields(fields, False), fields)
        self.assertEqual(("", ""), split_fields(",", False))

    def test_nul(self):
        """A selector with a NUL, which SQLite would truncate, is rejected."""
        for options in ({"field_selector": "reason=\0x"}, {"label_selector": "a in (\0x)"}):
            self.assertEqual(400, self.assertRaises(RequestFailed, self.scope, **options).status)

    def test_long_ones(self):
        """Very long selectors are not parsed, because that would block others for a second."""
        labels, nonsense = "a=1,b=2", "=" * MAX_SELECTORS
        fields = "metadata.name=p".ljust(MAX_SELECTORS - len(labels), ",")
        found = self.scope(label_selector=labels, field_selector=fields)
        self.assertEqual((labels, "metadata.name=p"), found[2:])
        for options in (
            {"label_selector": labels, "field_selector": fields + ","},
            {"field_selector": nonsense + "="},
            {"label_selector": nonsense + "="},
        ):
            self.assertEqual(503, self.assertRaises(RequestFailed, self.scope, **options).status)

    def test_nodes_of_other_things(self):
        """spec.nodeName is evaluated for pods only."""
        found = self.scope(ResourceType("x", "v1", "things"), field_selector="spec.nodeName=a")
        self.assertEqual(("spec.nodeName=a", ""), (found.collection.view, found.field_selector))

    def test_nodes_in_tables(self):
        """Tables and metadata do not contain the node of a pod."""
        options = ListOptions(field_selector="spec.nodeName=a")
        request = ApiRequest("list", "/", PODS, options=options)
        for transform in ("Table", "PartialObjectMetadata"):
            found = scope_of("kubelet", request, Form("json", transform, "v1"))
            self.assertEqual(("spec.nodeName=a", ""), (found.collection.view, found.field_selector))

    def test_invalid(self):
        """Invalid selectors are rejected with the API's message."""
        for options in ({"label_selector": "a b"}, {"field_selector": "metadata.name"}):
            error = self.assertRaises(RequestFailed, self.scope, **options)
            self.assertEqual(400, error.status)


class SelectorTests(SynchronousTestCase):
    """The items that a scope selects."""

    def selects(self, item, namespace="", labels="", fields=""):
        """Return whether a scope selects an item."""
        return selector(Scope(COLLECTION, namespace, labels, fields))(item)

    def test_all(self):
        """Without a namespace and selectors it selects everything."""
        self.assertTrue(self.selects(pod()))

    def test_namespace(self):
        """It selects the items in its namespace."""
        self.assertTrue(self.selects(pod(), "n"))
        self.assertFalse(self.selects(pod(), "other"))

    def test_fields(self):
        """Name, namespace and node are compared."""
        for fields in (
            "metadata.name=p",
            "metadata.name!=q,metadata.namespace=n",
            "spec.nodeName=edge-1",
        ):
            self.assertTrue(self.selects(pod(), fields=fields), fields)
        for fields in (
            "metadata.name=q",
            "metadata.name=p,spec.nodeName=",
            "metadata.namespace!=n",
        ):
            self.assertFalse(self.selects(pod(), fields=fields), fields)

    def test_values_with_commas(self):
        """An escaped comma does not split a value when the selector is written again."""
        fields, _ = split_fields(r"metadata.name=a\,b\=c\\", True)
        self.assertTrue(self.selects(pod(name="a,b=c\\"), fields=fields))

    def test_together(self):
        """Labels, fields and the namespace all have to match."""
        item = pod(app="web", tier="front")
        self.assertTrue(self.selects(item, "n", "app in (web,db),!x", "metadata.name=p"))
        self.assertFalse(self.selects(item, "m", "app in (web,db),!x", "metadata.name=p"))
        self.assertFalse(self.selects(item, "n", "app notin (web)", "metadata.name=p"))
        self.assertFalse(self.selects(item, "n", "app", "metadata.name=q"))

    def test_long_ones_are_not_remembered(self):
        """They are evaluated but not remembered; the memory for short ones is limited."""
        for length, remembered in ((10, True), (10_000, False)):
            fields = "metadata.name=" + "p" * length
            scope = Scope(COLLECTION, label_selector=f"!{'x' * length}", field_selector=fields)
            self.assertTrue(selector(scope)(pod(name="p" * length)))
            self.assertEqual(remembered, selector(scope) is selector(scope))
            self.assertEqual((fields, ""), split_fields(fields, True))
            self.assertEqual(remembered, split_fields(fields, True) is split_fields(fields, True))
