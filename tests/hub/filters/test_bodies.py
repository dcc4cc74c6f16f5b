"""Bodies as a filter leaves them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.filters.bodies import ListChange, changed_body
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta

TEXTS = st.text('ab"\\/<\n\0\u2028\U0001f600', max_size=4)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
META = ListMeta(TypeMeta("v1", "Service"), "17", "next", 3)


def mark(obj):
    """Mark an object, or hide it when it asks for that."""
    if obj.get("hide"):
        return None
    obj["seen"] = True
    return obj


def item(**members):
    """Make an item of a list."""
    return Item("", "a", "1", {}, "", json.dumps(members).encode())


class ObjectTests(SynchronousTestCase):
    """One object, or one item of a list."""

    def test_changed(self):
        """It is what the change makes of it."""
        self.assertEqual(b'{"a":1,"seen":true}', changed_body(mark, b'{"a": 1}'))

    def test_hidden(self):
        """Nothing is left of what is hidden."""
        self.assertIsNone(changed_body(mark, b'{"hide":true}'))

    def test_unreadable(self):
        """What is no object stays as it is."""
        for body in (b"[1]", b"null", b"{", b'{"a":"\xff"}', b"[" * 100_000, b""):
            self.assertEqual(body, changed_body(mark, body))

    @given(st.dictionaries(TEXTS, VALUES))
    def test_untouched(self, obj):
        """Members that the change does not name are the same for who reads them."""
        obj = {**obj, "hide": False}
        body = changed_body(mark, json.dumps(obj).encode())
        self.assertEqual({**obj, "seen": True}, json.loads(body))


class ListTests(SynchronousTestCase):
    """A list, as its items come."""

    def body(self, *pieces, change=mark, meta=META):
        """Read what is written of a list that comes in such pieces."""
        written = ListChange(change)
        return json.loads(b"".join(map(written.items, pieces)) + written.finish(meta))

    def test_list(self):
        """It has the items that are not hidden, in their order, and says what it said."""
        found = self.body([item(a=1), item(hide=True)], [], [item(a=2)])
        self.assertEqual([{"a": 1, "seen": True}, {"a": 2, "seen": True}], found["items"])
        self.assertEqual(("ServiceList", "v1"), (found["kind"], found["apiVersion"]))
        self.assertEqual(
            {"resourceVersion": "17", "continue": "next", "remainingItemCount": 3},
            found["metadata"],
        )

    def test_last_page(self):
        """The last page does not say that there is another one."""
        found = self.body([item()], meta=ListMeta(META.type, "18"))
        self.assertEqual({"resourceVersion": "18"}, found["metadata"])

    def test_empty(self):
        """A list that is empty, or whose items are all hidden, has an empty array."""
        for pieces in ([], [[]], [[item(hide=True)], [item(hide=True)]]):
            self.assertEqual([], self.body(*pieces)["items"])

    def test_hidden_first(self):
        """Hidden items leave no gap."""
        found = self.body([item(hide=True)], [item(a=1)], [item(hide=True)], [item(a=2)])
        self.assertEqual([1, 2], [each["a"] for each in found["items"]])
