"""Protobuf that no encoder of Kubernetes writes, and that of future ones."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.hub.media.protobuf_encoding import MAGIC, body, field, frame, message, varint
from tests.hub.media.support import codec_of, read_list, read_watch, written_list
from yurttunnel.hub.media.interfaces import ListMeta, TypeMeta
from yurttunnel.hub.media.protobuf_lists import MAX_FIELD
from yurttunnel.kube.protobuf_fields import BadBody

POD = TypeMeta("v1", "Pod")
NAMESPACE = TypeMeta("v1", "Namespace")
PROTOBUF = codec_of("protobuf")
POD_LIST = message("TypeMeta", {"apiVersion": "v1", "kind": "PodList"})
LIST_META = field(1, field(2, "9"))


def pod(name, *more):
    """Create a pod with additional fields."""
    metadata = field(1, name) + field(3, "n") + field(6, "7") + field(11, field(1, "x"))
    return field(1, metadata) + b"".join(more)


def list_of(*items):
    """Create a list of pods."""
    return enveloped(LIST_META + b"".join(field(2, item) for item in items))


def enveloped(content, meta=POD_LIST, more=b""):
    """Create a body."""
    return MAGIC + field(1, meta) + field(2, content) + more


class ListTests(SynchronousTestCase):
    """Lists."""

    def test_further_fields(self):
        """Unknown fields are ignored; those of an item are unchanged."""
        known = pod("a", field(2, field(99, 7) + field(10, "edge-1")))
        future = [
            field(2000, "x"),
            field(2001, 2**64 - 1),
            varint(2002 << 3 | 1) + bytes(8),
            varint(2003 << 3 | 5) + bytes(4),
        ]
        item = known + b"".join(future)
        for more in future:
            data = enveloped(more + LIST_META + more + field(2, item) + more, more=more)
            for size in (1, 5, len(data)):
                pieces = [data[at : at + size] for at in range(0, len(data), size)]
                (found,), meta = read_list(PROTOBUF, pieces)
                self.assertEqual(found, ("n", "a", "7", {"x": ""}, "edge-1", item))
                self.assertEqual(meta, ListMeta(POD, "9"))
            written = PROTOBUF.object(POD, found.body)
            self.assertEqual(PROTOBUF.read_object(written), (POD, found))

    def test_large(self):
        """Items of a megabyte are parsed, in pieces of any size."""
        data = list_of(pod("a"), pod("b", field(9, "x" * 2**20)), pod("c"))
        for size in (16_384, 262_144, len(data)):
            pieces = [data[at : at + size] for at in range(0, len(data), size)]
            items, _ = read_list(PROTOBUF, pieces, 2**21)
            self.assertEqual([one.name for one in items], list("abc"))

    def test_rejected(self):
        """These are not lists of objects."""
        whole = list_of(pod("a"))
        for data in (
            b"k9s\0" + whole[4:],
            MAGIC,
            MAGIC + field(1, POD_LIST),
            MAGIC + field(2, LIST_META),
            MAGIC + field(2, LIST_META) + field(1, POD_LIST),
            whole + field(2, LIST_META),
            whole + b"\x1a",
            whole + field(3, "gzip"),
            whole + field(4, "application/json"),
            enveloped(LIST_META, message("TypeMeta", {"apiVersion": "v1", "kind": "Pod"})),
            enveloped(LIST_META, message("TypeMeta", {"kind": "PodList"})),
            enveloped(LIST_META, b""),
            enveloped(LIST_META, field(2, b"\xff")),
            enveloped(LIST_META + field(2, b"")),
            enveloped(LIST_META + field(2, field(1, b""))),
            enveloped(LIST_META + field(2, field(1, field(1, b"\xff")))),
            enveloped(field(1, field(2, b"\xff"))),
            MAGIC + field(1, b"x" * (MAX_FIELD + 1)),
        ):
            with self.assertRaises(BadBody, msg=data):
                read_list(PROTOBUF, [data])

    def test_bad_fields(self):
        """Invalid fields are rejected anywhere, before their data has arrived."""
        longest = 2**63
        for bad in (
            b"\x12" + varint(longest),
            b"\x12" + varint(2**64 - 1),
            b"\x12" + b"\xff" * 10 + b"\x01",
            b"\x08" + b"\x80" * 10 + b"\x00",
            b"\x80" * 10,
            b"\x00\x00",
            varint(2**29 << 3 | 2) + b"\x00",
            b"\x13\x14",
            b"\x0b\x0c",
            b"\x0e",
            b"\x0f",
        ):
            head = MAGIC + field(1, POD_LIST)
            for data in (
                head + (bad if bad[0] != 0x12 or len(bad) > 12 else b"\x1a" + bad[1:]) + bytes(20),
                head + b"\x12" + varint(1000) + bad + bytes(20),
                enveloped(LIST_META + field(2, bad)),
                enveloped(LIST_META + field(2, field(1, bad))),
                enveloped(LIST_META + field(2, pod("a", field(2, bad)))),
                enveloped(field(1, bad)),
            ):
                with self.assertRaises(BadBody, msg=(bad, data)):
                    PROTOBUF.list_reader(500).feed(data)

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.tuples(st.text(min_size=1), st.binary(max_size=300)), max_size=6),
        st.lists(st.integers(1, 90), min_size=1),
    )
    def test_any(self, pods, sizes):
        """Items are unchanged, whatever they contain and however they are split."""
        bodies = [pod(name, field(3, rest)) for name, rest in pods]
        data = list_of(*bodies)
        pieces, at = [], 0
        for size in sizes * len(data):
            pieces.append(data[at : at + size])
            at += size
            if at >= len(data):
                break
        items, meta = read_list(PROTOBUF, pieces)
        self.assertEqual([item.name for item in items], [name for name, _ in pods])
        self.assertEqual([item.body for item in items], bodies)
        written = written_list(PROTOBUF, meta, bodies)
        self.assertEqual(read_list(PROTOBUF, [written]), (items, meta))


class ObjectTests(SynchronousTestCase):
    """Single objects."""

    def test_node(self):
        """Only pods have a node."""
        spec = field(2, field(10, "edge-1"))
        for kind, version, node in (("Pod", "v1", "edge-1"), ("Pod", "x/v1", ""), ("A", "v1", "")):
            meta = message("TypeMeta", {"apiVersion": version, "kind": kind})
            _, item = PROTOBUF.read_object(enveloped(pod("a", spec), meta))
            self.assertEqual(item.node, node)
        (item,), _ = read_list(PROTOBUF, [list_of(pod("a", field(2, field(3, "Always"))))])
        self.assertEqual(item.node, "")

    def test_held(self):
        """A deleted object exists as long as it has a grace period or finalizers."""
        for more, deletion in (
            (b"", (False, False)),
            (field(10, 0), (False, False)),
            (field(9, b""), (True, False)),
            (field(9, b"") + field(10, 0), (True, False)),
            (field(9, b"") + field(10, 30), (True, True)),
            (field(10, 0) + field(14, "example.com/wait"), (False, True)),
        ):
            item = field(1, field(1, "a") + field(6, "7") + more) + field(2, field(14, "spec"))
            self.assertEqual(deletion, PROTOBUF.deletion(item, POD))

    def test_held_namespaces(self):
        """A terminating Namespace exists as long as it has finalizers of its own."""
        ending, there = field(9, field(1, 1735776000)), b""
        for type, more, spec, held in (
            (NAMESPACE, ending, field(1, "kubernetes"), True),
            (NAMESPACE, ending, b"", False),
            (NAMESPACE, there, field(1, "kubernetes"), False),
            (POD, ending, field(1, "kubernetes"), False),
        ):
            item = field(1, field(1, "a") + more) + field(2, spec) + field(3, field(1, "Active"))
            self.assertEqual((more == ending, held), PROTOBUF.deletion(item, type))

    def test_rejected(self):
        """These are not objects."""
        for data in (b"", b"k8s", b"{}", MAGIC + b"\x0a", enveloped(b"\x0a\x05")):
            with self.assertRaises(BadBody):
                PROTOBUF.read_object(data)

    def test_no_type(self):
        """Clients may omit the type of an object, the API may not."""
        for meta in (b"", field(1, "v1"), field(2, "Pod")):
            data = enveloped(pod("a"), meta)
            self.assertEqual(PROTOBUF.read_object(data)[1].name, "a")
            for type in ("ADDED", "BOOKMARK", "ERROR"):
                event = field(1, type) + field(2, field(1, data))
                with self.assertRaises(BadBody):
                    read_watch(PROTOBUF, [len(event).to_bytes(4) + event])


class WatchTests(SynchronousTestCase):
    """Watches."""

    def test_large(self):
        """Events of 64 KB and of 1 MB are parsed in pieces of any size."""
        for size in (64_000, 2**20):
            data = frame(
                "ADDED", "ConfigMap", {"metadata": {"name": "a"}, "data": {"x": "y" * size}}
            )
            for piece in (1000, 16_384, len(data)):
                pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
                (event,) = read_watch(PROTOBUF, pieces, 2**21)
                self.assertEqual(event.item.name, "a")

    def test_rejected(self):
        """These are not events; one that is too long is rejected by its length."""
        good = body("ConfigMap", {"metadata": {"name": "a"}})
        for event in (
            b"",
            field(1, "ADDED"),
            field(1, "OTHER") + field(2, field(1, good)),
            field(2, field(1, good)),
            field(1, b"\xff") + field(2, field(1, good)),
            field(1, "ADDED") + field(2, field(1, b"{}")),
            field(1, "ADDED") + field(2, field(1, body("ConfigMap", {}))),
            field(1, "ADDED") + field(2, b"\x0a\x7f"),
        ):
            with self.assertRaises(BadBody, msg=event):
                read_watch(PROTOBUF, [len(event).to_bytes(4) + event])
        with self.assertRaises(BadBody):
            PROTOBUF.watch_reader(1000).feed((1001).to_bytes(4))
        with self.assertRaises(BadBody):
            PROTOBUF.watch_reader(2**31).feed(b"\xff" * 4)
