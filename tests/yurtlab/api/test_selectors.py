"""Label and field selectors."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurtlab.api.errors import ApiError
from yurtlab.api.options import field_selector, label_selector, selection
from yurtlab.api.resources import EVENTS, NODES, PODS


class LabelTests(SynchronousTestCase):
    """Selectors of labels."""

    def selects(self, text, **labels):
        """Return whether a selector selects an object with labels."""
        return label_selector(text)({"metadata": {"labels": labels}})

    def test_equality(self):
        """Labels are compared with values; a missing label is not equal."""
        for text in ("a=1", "a==1", " a = 1 ", "a!=2", "b!=1", "a=1,b!=1"):
            self.assertTrue(self.selects(text, a="1"), text)
        for text in ("a=2", "b=1", "a!=1", "a=1,b=1"):
            self.assertFalse(self.selects(text, a="1"), text)

    def test_sets(self):
        """A value is in a set or not in it."""
        for text in ("a in (1,2)", "a in( 1 , 2 ),a=1", "a notin (2)", "b notin (1,2)"):
            self.assertTrue(self.selects(text, a="1"), text)
        for text in ("a in (2,3)", "b in (1)", "a notin (1,2)"):
            self.assertFalse(self.selects(text, a="1"), text)

    def test_presence(self):
        """A label exists or not."""
        self.assertTrue(self.selects("a", a=""))
        self.assertTrue(self.selects("!b,a", a="1"))
        self.assertFalse(self.selects("b", a="1"))
        self.assertFalse(self.selects("!a", a="1"))

    def test_order(self):
        """Values are compared as integers; other values match neither gt nor lt."""
        self.assertTrue(self.selects("a>9,a<11", a="10"))
        self.assertFalse(self.selects("a>10", a="10"))
        self.assertFalse(self.selects("a<10", a="10"))
        self.assertFalse(self.selects("a>1", a="x"))
        self.assertFalse(self.selects("b<1", a="1"))

    def test_empty(self):
        """An empty selector matches all objects, also those without labels."""
        self.assertTrue(label_selector("")({"metadata": {}}))

    def test_qualified_names(self):
        """Names may have a prefix."""
        labels = {"metadata": {"labels": {"kubernetes.io/os": "linux"}}}
        self.assertTrue(label_selector("kubernetes.io/os=linux")(labels))

    def test_nonsense(self):
        """An invalid selector is a BadRequest."""
        for text in ("a=(", "=1", ",", "a,", "a in", "a in (1", "a b", "!"):
            error = self.assertRaises(ApiError, label_selector, text)
            self.assertEqual((400, "BadRequest"), (error.status, error.reason), text)


class FieldTests(SynchronousTestCase):
    """Selectors of fields."""

    def test_name_and_own_fields(self):
        """Name, namespace and the kind's selectable fields are supported."""
        pod = {
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {"nodeName": "edge-1"},
            "status": {"phase": "Running"},
        }
        for text in (
            "",
            "metadata.name=a",
            "metadata.namespace==n,spec.nodeName=edge-1",
            "status.phase!=Pending",
            "spec.hostNetwork=false",
            "status.nominatedNodeName=",
        ):
            self.assertTrue(field_selector(PODS, text)(pod), text)
        for text in ("metadata.name!=a", "spec.nodeName=,status.phase=Running"):
            self.assertFalse(field_selector(PODS, text)(pod), text)

    def test_values_that_are_no_texts(self):
        """Booleans are compared as strings."""
        cordoned = {"metadata": {"name": "a"}, "spec": {"unschedulable": True}}
        self.assertTrue(field_selector(NODES, "spec.unschedulable=true")(cordoned))
        self.assertTrue(field_selector(NODES, "spec.unschedulable=false")({"metadata": {}}))

    def test_fields_with_another_name(self):
        """The source of an event is its component."""
        event = {"metadata": {"name": "a"}, "source": {"component": "kubelet"}}
        self.assertTrue(field_selector(EVENTS, "source=kubelet")(event))

    def test_escaped_values(self):
        """A backslash escapes commas, equals signs and itself."""
        one = {"metadata": {"name": "a,b=c\\"}}
        self.assertTrue(field_selector(PODS, r"metadata.name=a\,b\=c\\")(one))

    def test_unknown_field(self):
        """A field that the kind does not support is a BadRequest."""
        for kind, field in ((PODS, "spec.color"), (NODES, "metadata.namespace")):
            error = self.assertRaises(ApiError, field_selector, kind, f"{field}=1")
            self.assertEqual(f"field label not supported: {field}", error.message)

    def test_nonsense(self):
        """An invalid selector is a BadRequest."""
        for text in ("metadata.name", "=a", "metadata.name=a=b", ",x"):
            error = self.assertRaises(ApiError, field_selector, PODS, text)
            self.assertEqual(400, error.status, text)

    def test_empty_terms(self):
        """Empty terms are ignored."""
        pods = [{"metadata": {"name": name}} for name in ("a", "b")]
        for text, selected in ((",", pods), (",metadata.name=a,,", pods[:1])):
            self.assertEqual(selected, list(filter(field_selector(PODS, text), pods)), text)

    def test_both(self):
        """Both selectors of a request must match."""
        query = {"labelSelector": ["a=1"], "fieldSelector": ["metadata.name=x"]}
        selects = selection(PODS, query)
        self.assertTrue(selects({"metadata": {"name": "x", "labels": {"a": "1"}}}))
        self.assertFalse(selects({"metadata": {"name": "y", "labels": {"a": "1"}}}))
