"""Bodies that filters have changed."""

from __future__ import annotations

import json
import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.filters.bodies import ListChange, WatchChange, changed_body
from yurttunnel.hub.filters.interfaces import Change
from yurttunnel.hub.media.codecs import codec_for
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta
from yurttunnel.hub.request.requests import Form

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
JSON = codec_for(Form("json"))
MOST = 2**20
"""Maximum size of an item in bytes."""
META = ListMeta(TypeMeta("v1", "Service"), "17", "next", 3)


def marked(obj):
    """Mark an object, or hide it if it has the member for that."""
    if obj.get("hide"):
        return None
    obj["seen"] = True
    return obj


mark = Change(marked)


def item(**members):
    """Create an item of a list."""
    return Item("", "a", "1", {}, "", json.dumps(members).encode())


class ObjectTests(SynchronousTestCase):
    """One object, or one item of a list."""

    def test_changed(self):
        """It is replaced with the result of the change."""
        self.assertEqual(b'{"a":1,"seen":true}', changed_body(mark, b'{"a": 1}'))

    def test_hidden(self):
        """A hidden object is removed completely."""
        self.assertIsNone(changed_body(mark, b'{"hide":true}'))

    def test_unreadable(self):
        """A body that is not an object stays unchanged."""
        for body in (b"[1]", b"null", b"{", b'{"a":"\xff"}', b"[" * 100_000, b""):
            self.assertEqual(body, changed_body(mark, body))

    def test_unreadable_where_some_are_hidden(self):
        """It is hidden if the change hides objects."""
        for body in (b"[1]", b"null", b"{", b'{"a":"\xff"}', b"[" * 100_000, b""):
            self.assertIsNone(changed_body(mark._replace(hides=True), body))

    @given(st.dictionaries(TEXTS, VALUES))
    def test_untouched(self, obj):
        """Members that the change does not affect have equal values."""
        obj = {**obj, "hide": False}
        body = changed_body(mark, json.dumps(obj).encode())
        self.assertEqual({**obj, "seen": True}, json.loads(body))


class ListTests(SynchronousTestCase):
    """A list, while its items arrive."""

    def body(self, *pieces, change=mark, meta=META):
        """Return the parsed output for a list in these pieces."""
        written = ListChange(change)
        return json.loads(b"".join(map(written.items, pieces)) + written.finish(meta))

    def test_list(self):
        """It has the items that are not hidden in order, and its metadata."""
        found = self.body([item(a=1), item(hide=True)], [], [item(a=2)])
        self.assertEqual([{"a": 1, "seen": True}, {"a": 2, "seen": True}], found["items"])
        self.assertEqual(("ServiceList", "v1"), (found["kind"], found["apiVersion"]))
        self.assertEqual(
            {"resourceVersion": "17", "continue": "next", "remainingItemCount": 3},
            found["metadata"],
        )

    def test_last_page(self):
        """The last page has no continue token."""
        found = self.body([item()], meta=ListMeta(META.type, "18"))
        self.assertEqual({"resourceVersion": "18"}, found["metadata"])

    def test_empty(self):
        """A list that is empty, or whose items are all hidden, has an empty array."""
        for pieces in ([], [[]], [[item(hide=True)], [item(hide=True)]]):
            self.assertEqual([], self.body(*pieces)["items"])

    def test_hidden_first(self):
        """Hidden items leave no extra comma."""
        found = self.body([item(hide=True)], [item(a=1)], [item(hide=True)], [item(a=2)])
        self.assertEqual([1, 2], [each["a"] for each in found["items"]])


def service(number, **members):
    """Create a Service."""
    metadata = {"name": f"web-{number}", "namespace": "default", "resourceVersion": str(number)}
    return {"metadata": metadata, **members}


def pieces(body, cuts):
    """Split a body."""
    at = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    return [body[begin:end] for begin, end in pairwise(at)]


class PiecesTests(SynchronousTestCase):
    """Bodies of the API, split at any positions."""

    def list_changed(self, body, cuts, change=mark):
        """Return a changed list."""
        reader, written = JSON.list_reader(MOST), ListChange(change)
        found = b"".join(written.items(reader.feed(each)) for each in pieces(body, cuts))
        return found + written.finish(reader.finish())

    def watch_changed(self, body, cuts, change=mark):
        """Return a changed watch."""
        reader, written = JSON.watch_reader(MOST), WatchChange(JSON, change)
        return b"".join(written.events(reader.feed(each)) for each in pieces(body, cuts))

    @given(st.lists(st.integers(0, 700), max_size=12), st.lists(st.booleans(), max_size=5))
    def test_list(self, cuts, hidden):
        """A list does not depend on the pieces, and has all items that are not hidden."""
        items = [service(n, hide=hide, spec={"a": [n]}) for n, hide in enumerate(hidden)]
        members_json = {
            "kind": "ServiceList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "9"},
        }
        body = json.dumps({**members_json, "items": items}).encode()
        found = self.list_changed(body, cuts)
        self.assertEqual(self.list_changed(body, []), found)
        shown = [{**each, "seen": True} for each in items if not each["hide"]]
        self.assertEqual({**members_json, "items": shown}, json.loads(found))

    @given(st.lists(st.integers(0, 900), max_size=12), st.lists(st.booleans(), max_size=5))
    def test_watch(self, cuts, hidden):
        """A watch does not depend on the pieces; hidden objects become DELETED."""
        type = {"kind": "Service", "apiVersion": "v1"}
        objects = [{**type, **service(n, hide=hide)} for n, hide in enumerate(hidden)]
        events = [{"type": "MODIFIED", "object": each} for each in objects]
        body = b"".join(json.dumps(each).encode() + b"\n" for each in events)
        found = self.watch_changed(body, cuts)
        self.assertEqual(self.watch_changed(body, []), found)
        shown = [
            {"type": "DELETED", "object": each}
            if each["hide"]
            else {"type": "MODIFIED", "object": {**each, "seen": True}}
            for each in objects
        ]
        self.assertEqual(shown, [json.loads(line) for line in found.splitlines()])

    def test_events(self):
        """Deletions stay deletions, and events without objects are forwarded."""
        type = {"kind": "Service", "apiVersion": "v1"}
        ends = {"k8s.io/initial-events-end": "true"}
        mark_of = {"resourceVersion": "8", "annotations": ends}
        status = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired"}
        events = [
            {"type": "ADDED", "object": {**type, **service(1)}},
            {"type": "DELETED", "object": {**type, **service(1)}},
            {"type": "DELETED", "object": {**type, **service(2, hide=True)}},
            {"type": "BOOKMARK", "object": {**type, "metadata": mark_of}},
            {"type": "ERROR", "object": status},
        ]
        body = b"".join(json.dumps(each).encode() + b"\n" for each in events)
        found = [json.loads(line) for line in self.watch_changed(body, []).splitlines()]
        for number in (0, 1):
            events[number]["object"]["seen"] = True
        self.assertEqual(events[:3], found[:3])
        bookmark = found[3]["object"]["metadata"]
        self.assertEqual(("8", ends), (bookmark["resourceVersion"], bookmark["annotations"]))
        self.assertEqual(events[4], found[4])

    def test_large(self):
        """5,000 Services never block the reactor for 5 ms, and at most one item is buffered."""
        spec = {"ports": [{"name": "https", "port": 443}] * 4, "text": "x" * 500}
        items = [service(n, spec=spec) for n in range(5000)]
        members_json = {
            "kind": "ServiceList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "9"},
        }
        body = json.dumps({**members_json, "items": items}, separators=(",", ":")).encode()
        self.assertLess(min(self.longest(body) for _ in range(3)), 0.005)

    def longest(self, body):
        """Return the seconds for the slowest piece."""
        reader, written = JSON.list_reader(MOST), ListChange(mark)
        longest, taken, given = 0.0, 0, 0
        for piece in pieces(body, range(0, len(body), 65536)):
            begin = time.thread_time()
            found = written.items(reader.feed(piece))
            longest = max(longest, time.thread_time() - begin)
            taken, given = taken + len(piece), given + len(found)
            self.assertLess(taken - given, 2048)
        return longest
