"""JSON of other servers and future versions, and JSON that is rejected."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.hub.media.goldens import META, compact
from tests.hub.media.support import codec_of, cuts, read_list, read_watch, written_list
from yurttunnel.hub.media.interfaces import ListMeta, TypeMeta
from yurttunnel.hub.media.json_values import MAX_GUESS
from yurttunnel.kube.protobuf_fields import BadBody

POD = TypeMeta("v1", "Pod")
NAMESPACE = TypeMeta("v1", "Namespace")
JSON = codec_of("json")


def list_of(*items, **members):
    """Create a list of pods."""
    meta = {"resourceVersion": "9"}
    return {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": [*items], **members}


def pod(name, **members):
    """Create a pod as an item of a list."""
    return {"metadata": {"name": name, "namespace": "n", "resourceVersion": "7"}, **members}


TEMPLATES = pod("db", spec={"volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}] * 3})
"""For this pod the end of the item is first guessed too early."""

TEXTS = st.text('ab"\\/{}[],:\n\0\u2028\U0001f600', max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


class ListTests(SynchronousTestCase):
    """Lists."""

    def names(self, body, max_item=100_000):
        """Parse the names of a list; check that they do not depend on the pieces."""
        items, meta = read_list(JSON, [body], max_item)
        for size in (1, 7, 100, 4096):
            pieces = [body[at : at + size] for at in range(0, len(body), size)]
            self.assertEqual(read_list(JSON, pieces, max_item), (items, meta))
        self.assertEqual(meta, ListMeta(POD, "9"))
        return [item.name for item in items]

    def test_wrong_guesses(self):
        """Nested objects that begin like items are not items."""
        body = compact(list_of(pod("a"), TEMPLATES, pod("b"), TEMPLATES, pod("c")))
        self.assertEqual(self.names(body), ["a", "db", "b", "db", "c"])

    def test_pretty(self):
        """White space may be anywhere; the bytes of an item are unchanged."""
        value = list_of(pod("a"), TEMPLATES, pod("b"), pod("c"))
        for indent in (None, 0, 1, "\t"):
            body = json.dumps(value, indent=indent).encode()
            self.assertEqual(self.names(body), ["a", "db", "b", "c"])
        spaced = b' {"items" :\r\n[ %b , %b ] ,' % (compact(pod("a")), compact(pod("b")))
        rest = b'"kind": "PodList","apiVersion":"v1","metadata" : {"resourceVersion":"9"} } \n\n'
        self.assertEqual(self.names(spaced + rest), ["a", "b"])

    def test_sorted(self):
        """Members may be in any order: custom resources have their items before the kind."""
        value = list_of(pod("a", spec={"nodeName": "edge-1"}), pod("b"))
        body = json.dumps(value, sort_keys=True).encode()
        self.assertEqual(self.names(body), ["a", "b"])
        self.assertEqual(read_list(JSON, [body])[0][0].node, "edge-1")

    def test_unlike(self):
        """Items may begin differently."""
        items = [pod("a"), {"x": [1, {}], **pod("b")}, pod("c"), {"y": "}", **pod("d")}, pod("e")]
        self.assertEqual(self.names(compact(list_of(*items))), list("abcde"))

    def test_unlike_for_long(self):
        """An item without a similar successor is returned nevertheless."""
        others = [{"a": index, **pod(str(index))} for index in range(2000)]
        body = compact(list_of(pod("a"), pod("b"), *others))
        self.assertGreater(len(body), 2 * MAX_GUESS)
        found = self.names(body, 2000)
        self.assertEqual(len(found), 2002)

    def test_types(self):
        """The type at the start of items is removed, because the list has it."""
        full = {"apiVersion": "v1", "kind": "Pod", **pod("a")}
        items, _ = read_list(JSON, [compact(list_of(full, pod("b")))])
        self.assertEqual([one.body for one in items], [compact(pod("a")), compact(pod("b"))])

    def test_further_members(self):
        """Unknown members are ignored, whatever they are."""
        for value in ({"a": [{}, "]}"]}, 'x\\"', 1.5e9, None, True, [[]]):
            body = compact({"future": value, **list_of(pod("a"), pod("b")), "more": value})
            self.assertEqual(self.names(body), ["a", "b"])

    def test_null(self):
        """Null is parsed as an empty list, which is written as an array."""
        items, meta = read_list(JSON, [compact(list_of(items=None))])
        self.assertEqual(items, [])
        self.assertIn(b'"items":[]', written_list(JSON, meta, []))

    def test_large(self):
        """Items of a megabyte are parsed, in pieces of any size."""
        text = 'x"\\},{"metadata"' * 50_000
        body = compact(list_of(pod("a"), pod("b"), pod("c", data=text), pod("d")))
        for size in (16_384, 262_144, len(body)):
            pieces = [body[at : at + size] for at in range(0, len(body), size)]
            items, _ = read_list(JSON, pieces, 2**21)
            self.assertEqual([one.name for one in items], list("abcd"))

    def test_nested(self):
        """Objects may be nested, up to the limit of the decoder."""
        for depth, fits in ((100, True), (100_000, False), (500_000, False)):
            body = b'{"metadata":{"name":"a"},"x":' + b"[" * depth + b"]" * depth + b"}"
            text = compact(list_of()).replace(b"[]", b"[" + body + b"," + body + b"]")
            if fits:
                self.assertEqual(self.names(text), ["a", "a"])
            else:
                with self.assertRaises(BadBody):
                    read_list(JSON, [text], 2**21)

    def test_rejected(self):
        """These are not lists of objects."""
        good = list_of(pod("a"))
        for change in (
            {"items": {}},
            {"items": "x"},
            {"items": [1]},
            {"items": ["x"]},
            {"items": [None]},
            {"items": [{}]},
            {"items": [{"metadata": {"name": 7}}]},
            {"items": [{"metadata": {"name": "a", "labels": {"x": 1}}}]},
            {"items": [{"metadata": []}]},
            {"kind": "Pod"},
            {"kind": "List"},
            {"kind": ""},
            {"kind": 7},
            {"kind": "Table"},
            {"apiVersion": ""},
            {"metadata": []},
            {"metadata": {"resourceVersion": 7}},
            {"metadata": {"remainingItemCount": "x"}},
        ):
            with self.assertRaises(BadBody, msg=change):
                read_list(JSON, [compact({**good, **change})])
        text = compact(good)
        for body in (
            text.replace(b'"items":', b'"itemz":'),
            text.replace(b"]", b",]"),
            text.replace(b'"kind"', b'"items":[],"kind"'),
            text.replace(b",", b",,", 1),
            text.replace(b":", b" ", 1),
            text + b"x",
            text + text,
            text.replace(b'"a"', b'"\xff"'),
            text.replace(b"]}", b"]]"),
            b'{"' + b"x" * 5000,
            b'{"x":' + b"1" * 5000,
        ):
            with self.assertRaises(BadBody, msg=body):
                read_list(JSON, [body])

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.dictionaries(TEXTS, VALUES)),
        st.lists(st.integers(1, 90), min_size=1),
        st.sampled_from([None, 1]),
        st.booleans(),
    )
    def test_any(self, members, sizes, indent, ascii_only):
        """Items are unchanged, whatever they contain and however they are split."""
        pods = [{**pod(str(index)), **one} for index, one in enumerate(members)]
        value = list_of(*pods)
        body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
        pieces, at = [], 0
        for size in sizes * len(body):
            pieces.append(body[at : at + size])
            at += size
            if at >= len(body):
                break
        items, meta = read_list(JSON, pieces)
        self.assertEqual([json.loads(item.body) for item in items], pods)
        written = written_list(JSON, meta, [item.body for item in items])
        self.assertEqual(json.loads(written), value)
        self.assertEqual(read_list(JSON, [written]), (items, meta))


class ObjectTests(SynchronousTestCase):
    """Single objects."""

    def test_type(self):
        """The type is at the start of an object, once, wherever it was."""
        for value in (
            {"kind": "Pod", "apiVersion": "v1", **pod("a")},
            {"apiVersion": "v1", "kind": "Pod", **pod("a")},
            {**pod("a"), "kind": "Pod", "apiVersion": "v1"},
            {"apiVersion": "v1", "data": {}, "kind": "Pod", **pod("a")},
        ):
            meta, item = JSON.read_object(json.dumps(value).encode())
            self.assertEqual((meta, item.name), (POD, "a"))
            pairs = json.loads(JSON.object(meta, item.body), object_pairs_hook=list)
            self.assertEqual(sorted(name for name, _ in pairs), sorted(value))
            self.assertEqual(JSON.read_object(JSON.object(meta, item.body)), (meta, item))

    def test_empty(self):
        """An object may contain only its type."""
        for body in (b'{"kind":"A","apiVersion":"b"}\n', b' { "apiVersion":"b" , "kind":"A" } '):
            meta, item = JSON.read_object(body)
            self.assertEqual(meta, TypeMeta("b", "A"))
            self.assertEqual(JSON.object(meta, item.body), b'{"kind":"A","apiVersion":"b"}\n')

    def test_spec(self):
        """Only pods have a node; the spec of others may be anything."""
        for spec in ("text", [1], None, 7, {"nodeName": 7}, {"nodeName": "edge-1"}):
            value = {"kind": "Other", "apiVersion": "example.org/v1", **pod("a", spec=spec)}
            self.assertEqual(JSON.read_object(compact(value))[1].node, "")

    def test_held(self):
        """A deleted object exists as long as it has a grace period or finalizers."""
        table = codec_of("json", "Table")
        for meta, held in (
            (None, False),
            ({"name": "a", "finalizers": None}, False),
            ({"deletionGracePeriodSeconds": 0, "finalizers": []}, False),
            ({"deletionGracePeriodSeconds": 30}, True),
            ({"deletionGracePeriodSeconds": 0, "finalizers": ["example.com/wait"]}, True),
        ):
            item = {"metadata": meta, "spec": {"finalizers": ["kubernetes"]}}
            self.assertEqual((False, held), JSON.deletion(compact(item), POD))
            row = compact({"cells": [], "object": item})
            self.assertEqual((False, held), table.deletion(row, TypeMeta(META, "Table")))
        with self.assertRaises(BadBody):
            JSON.deletion(b'{"metadata":{"finalizers":7}}', POD)

    def test_held_namespaces(self):
        """A terminating Namespace exists as long as it has finalizers of its own."""
        for type, spec, held in (
            (NAMESPACE, {"finalizers": ["kubernetes"]}, True),
            (NAMESPACE, {"finalizers": []}, False),
            (NAMESPACE, {}, False),
            (NAMESPACE, None, False),
            (TypeMeta("example.org/v1", "Namespace"), {"finalizers": ["kubernetes"]}, False),
            (TypeMeta("example.org/v1", "Other"), {"finalizers": 7}, False),
        ):
            ending = {"name": "a", "deletionTimestamp": "2025-01-02T00:00:00Z"}
            self.assertEqual(
                (True, held), JSON.deletion(compact({"metadata": ending, "spec": spec}), type)
            )
            there = {"metadata": {"name": "a"}, "spec": spec}
            self.assertEqual((False, False), JSON.deletion(compact(there), type))
        with self.assertRaises(BadBody):
            JSON.deletion(compact({"metadata": ending, "spec": 7}), NAMESPACE)

    def test_rejected(self):
        """These are not objects."""
        for body in (b"", b"[]", b"{", b'{"metadata":7}', b"{}{}", b"[" * 100_000, b"\xff"):
            with self.assertRaises(BadBody):
                JSON.read_object(body)

    def test_no_type(self):
        """Clients may omit the type of an object, the API may not."""
        for type in ({}, {"kind": "Pod"}, {"apiVersion": "v1"}, {"kind": "", "apiVersion": "v1"}):
            value = {**type, **pod("a")}
            self.assertEqual(JSON.read_object(compact(value))[1].name, "a")
            for event in ("ADDED", "BOOKMARK", "ERROR"):
                with self.assertRaises(BadBody):
                    read_watch(JSON, [compact({"type": event, "object": value}) + b"\n"])


class WatchTests(SynchronousTestCase):
    """Watches."""

    def event(self, name, **members):
        """Create an event."""
        value = {"kind": "Pod", "apiVersion": "v1", **pod(name, **members)}
        return {"type": "ADDED", "object": value}

    def test_frames(self):
        """Events are separated by line breaks, by nothing, or by any white space."""
        values = [self.event(name) for name in "abc"]
        for between in (b"\n", b"", b"\r\n \t"):
            for indent in (None, 2):
                body = between.join(json.dumps(one, indent=indent).encode() for one in values)
                for pieces in cuts(body):
                    events = read_watch(JSON, pieces)
                    self.assertEqual([event.item.name for event in events], list("abc"))

    def test_at_once(self):
        """An event is returned with its last brace, before the next event."""
        reader = JSON.watch_reader(10_000)
        self.assertEqual(len(reader.feed(compact(self.event("a")))), 1)
        self.assertEqual(len(reader.feed(b"\n")), 0)
        self.assertEqual(len(reader.feed(b"\n" + compact(self.event("b")) + b"{")), 1)

    def test_large(self):
        """Events of 64 KB and of 1 MB are parsed in pieces of any size."""
        for size in (64_000, 2**20):
            body = compact(self.event("a", data="{}\n" * (size // 3))) + b"\n"
            for piece in (1000, 16_384, len(body)):
                pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
                (event,) = read_watch(JSON, pieces, 2**21)
                self.assertEqual(event.item.name, "a")

    def test_rejected(self):
        """These are not events."""
        good = self.event("a")
        for change in (
            {"type": "OTHER"},
            {"type": 7},
            {"object": None},
            {"object": []},
            {"object": {}},
            {"type": "BOOKMARK", "object": 7},
            {"type": "ERROR", "object": "x"},
        ):
            with self.assertRaises(BadBody, msg=change):
                read_watch(JSON, [compact({**good, **change}) + b"\n"])
        for body in (b'{"type":"ADDED"}\n', b"{]\n{}", b'{"type"}\n', b"{" * 10_001, b"{}x{}"):
            with self.assertRaises(BadBody, msg=body):
                read_watch(JSON, [body])


class TableTests(SynchronousTestCase):
    """Tables, whose items are rows."""

    table = codec_of("json", "Table")
    columns = b'[{"name":"Name","type":"string","format":"name"}]'
    type = TypeMeta(META, "Table")

    def row(self, name):
        """Create a row."""
        shown = {"kind": "PartialObjectMetadata", "apiVersion": META, **pod(name)}
        return {"cells": [name, "1/1"], "object": shown}

    def body(self, *rows):
        """Create a Table."""
        head = {"kind": "Table", "apiVersion": META, "metadata": {"resourceVersion": "9"}}
        return compact({**head, "columnDefinitions": json.loads(self.columns), "rows": rows})

    def test_list(self):
        """Rows are identified by their objects, and built into the same Table."""
        body = self.body(self.row("a"), self.row("b"), self.row("c")) + b"\n"
        for pieces in cuts(body):
            items, meta = read_list(self.table, pieces)
            self.assertEqual([one[:3] for one in items], [("n", name, "7") for name in "abc"])
            self.assertEqual(meta, ListMeta(self.type, "9", columns=self.columns))
        self.assertEqual(items[0].body, compact(self.row("a")))
        self.assertEqual(written_list(self.table, meta, [one.body for one in items]), body)

    def test_object(self):
        """A single object is a Table with one row; the caller adds its columns."""
        meta, item = self.table.read_object(self.body(self.row("a")))
        self.assertEqual((meta, item.name, item.body), (self.type, "a", compact(self.row("a"))))
        written = self.table.object(meta, item.body, self.columns)
        self.assertEqual(json.loads(written)["columnDefinitions"], json.loads(self.columns))
        self.assertEqual(self.table.read_object(written), (meta, item))

    def test_status(self):
        """A failure is a Status, and is not converted."""
        body = b'{"kind":"Status","apiVersion":"v1","metadata":{},"code":404}\n'
        meta, item = self.table.read_object(body)
        self.assertEqual(meta, TypeMeta("v1", "Status"))
        self.assertEqual(self.table.object(meta, item.body), body)

    def test_watch(self):
        """An event has one row, and columns only if they are given."""
        row = compact(self.row("a"))
        first = self.table.watch_event("ADDED", self.type, row, self.columns)
        second = self.table.watch_event("MODIFIED", self.type, row)
        self.assertIn(self.columns, first)
        self.assertIsNone(json.loads(second)["object"]["columnDefinitions"])
        mark = self.table.bookmark(self.type, "11", True)
        for pieces in cuts(first + second + mark):
            one, two, three = read_watch(self.table, pieces)
            self.assertEqual((one.meta, one.item.body), (self.type, row))
            self.assertEqual(two.item, one.item)
            self.assertEqual((three.item.version, three.initial_events_end), ("11", True))

    def test_rejected(self):
        """Objects that are not Tables, and rows without objects, are rejected."""
        plain = {"kind": "Pod", "apiVersion": "v1", **pod("a")}
        for body in (self.body(), self.body(self.row("a"), self.row("b")), compact(plain)):
            with self.assertRaises(BadBody):
                self.table.read_object(body)
        for row in ({"cells": ["a"]}, {"cells": ["a"], "object": None}):
            with self.assertRaises(BadBody):
                read_list(self.table, [self.body(row)])
        with self.assertRaises(BadBody):
            read_list(self.table, [compact(list_of(pod("a")))])
        with self.assertRaises(BadBody):
            read_watch(self.table, [compact({"type": "ADDED", "object": plain}) + b"\n"])
        mark = json.loads(self.body(self.row("a")))
        for change in ({"rows": []}, {"kind": "Other"}, {"kind": ""}, {"apiVersion": ""}):
            with self.assertRaises(BadBody):
                event = {"type": "BOOKMARK", "object": {**mark, **change}}
                read_watch(self.table, [compact(event) + b"\n"])
            with self.assertRaises(BadBody):
                self.table.read_object(compact({**mark, **change}))
        with self.assertRaises(BadBody):
            read_list(self.table, [compact({**mark, "apiVersion": ""})])

    def test_protobuf(self):
        """There are no Tables in protobuf."""
        with self.assertRaises(AssertionError):
            codec_of("protobuf", "Table")
