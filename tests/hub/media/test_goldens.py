"""Bodies of kube-apiserver, in JSON and in protobuf, split at every byte and built again."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hub.media.goldens import golden, goldens
from tests.hub.media.support import codec_of, cuts, read_list, read_watch, written_list
from tests.yurtlab.api.test_protobuf import NAMESPACE
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta
from yurttunnel.hub.media.json_shapes import PARTIAL
from yurttunnel.hub.media.protobuf_objects import ENVELOPE_TAIL
from yurttunnel.kube.protobuf_fields import BadBody

POD = TypeMeta("v1", "Pod")
CONFIG_MAP = TypeMeta("v1", "ConfigMap")
METADATA = TypeMeta("meta.k8s.io/v1", PARTIAL)
PODS = [
    ("shop", "web-1", "1007", {"app": "web", "zone": ""}, "edge-1"),
    ("shop", "späti", "1008", {}, ""),
    ("kube-system", "agent", "1009", {}, "edge-2"),
]


class GoldenTests(SynchronousTestCase):
    """The files."""

    def test_written(self):
        """They match the schema's encoding of the objects."""
        for name, content in goldens().items():
            self.assertEqual(golden(name), content, name)

    def test_real(self):
        """Data sent by kubectl is parsed, and the encoder of these tests writes the same."""
        codec = codec_of("protobuf")
        meta, item = codec.read_object(NAMESPACE)
        self.assertEqual((meta, item.name), (TypeMeta("v1", "Namespace"), "team"))
        self.assertEqual(codec.object(meta, item.body), NAMESPACE)


class MediaTests:
    """Tests of one medium."""

    encoding = ""
    ending = ""

    def read(self, name, transform=""):
        """Parse a golden list; check that the result does not depend on the pieces."""
        codec, data = codec_of(self.encoding, transform), golden(f"{name}.{self.ending}")
        whole = read_list(codec, [data])
        for pieces in cuts(data):
            self.assertEqual(read_list(codec, pieces), whole)
        items, meta = whole
        self.assertEqual(written_list(codec, meta, [item.body for item in items]), data)
        return whole

    def test_pods(self):
        """Pods have name, version, labels and node; the list is built as it was."""
        items, meta = self.read("pods")
        self.assertEqual([item[:5] for item in items], PODS)
        self.assertEqual(meta, ListMeta(POD, "1010"))

    def test_page(self):
        """A page has a continue token; cluster-scoped objects have no namespace."""
        items, meta = self.read("page")
        self.assertEqual([item[:5] for item in items], [("", "settings", "", {}, "")])
        self.assertEqual(meta, ListMeta(CONFIG_MAP, "1010", "bmV4dA", 4501))

    def test_empty(self):
        """A list may be empty."""
        self.assertEqual(self.read("empty"), ([], ListMeta(POD, "1010")))

    def test_partial(self):
        """Metadata are parsed like objects; they have no node."""
        items, meta = self.read("partial", PARTIAL)
        self.assertEqual([item[:5] for item in items], [(*pod[:4], "") for pod in PODS])
        self.assertEqual(meta, ListMeta(METADATA, "1010"))

    def test_other_transform(self):
        """Objects of another transform are rejected."""
        with self.assertRaises(BadBody):
            read_list(codec_of(self.encoding, PARTIAL), [golden(f"pods.{self.ending}")])

    def test_incomplete(self):
        """An incomplete list is rejected."""
        data = golden(f"pods.{self.ending}")
        reading = codec_of(self.encoding).list_reader(10_000)
        # The fields of the envelope after the list may be missing in protobuf.
        end = data.rindex(b"}") if self.encoding == "json" else len(data) - len(ENVELOPE_TAIL)
        for octet in data[:end]:
            with self.assertRaises(BadBody):
                reading.finish()
            reading.feed(bytes([octet]))

    def test_watch(self):
        """Events are returned once they are complete, however frames are split."""
        codec, data = codec_of(self.encoding), golden(f"watch.{self.ending}")
        whole = read_watch(codec, [data])
        for pieces in cuts(data):
            self.assertEqual(read_watch(codec, pieces), whole)
        types = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "BOOKMARK", "ERROR"]
        self.assertEqual([event.type for event in whole], types)
        self.assertEqual([event.item[:5] for event in whole[:3]], PODS)
        self.assertEqual({event.meta for event in whole[:5]}, {POD})

    def test_watch_items(self):
        """Objects of a watch have the form of a list's items."""
        codec = codec_of(self.encoding)
        items, _ = read_list(codec, [golden(f"pods.{self.ending}")])
        events = read_watch(codec, [golden(f"watch.{self.ending}")])
        self.assertEqual([event.item for event in events[:3]], items)

    def test_events_written(self):
        """A watch is built as it was, bookmarks with the relevant fields."""
        codec, data = codec_of(self.encoding), golden(f"watch.{self.ending}")
        events = read_watch(codec, [data])
        frames = [codec.watch_event(*event[:2], event.item.body) for event in events[:3]]
        self.assertTrue(data.startswith(b"".join(frames)))
        error = events[-1]
        self.assertTrue(data.endswith(codec.watch_event(*error[:2], error.status)))

    def test_bookmarks(self):
        """A bookmark has a version, and may mark the end of the initial events."""
        codec = codec_of(self.encoding)
        marks = read_watch(codec, [golden(f"watch.{self.ending}")])[3:5]
        self.assertEqual(
            [(mark.item, mark.initial_events_end) for mark in marks],
            [
                (Item("", "", "1011", {}, "", b""), True),
                (Item("", "", "1012", {}, "", b""), False),
            ],
        )
        written = [
            codec.bookmark(mark.meta, mark.item.version, mark.initial_events_end) for mark in marks
        ]
        self.assertEqual(read_watch(codec, written), marks)

    def test_error(self):
        """An error has no item, but a Status."""
        codec = codec_of(self.encoding)
        error = read_watch(codec, [golden(f"watch.{self.ending}")])[-1]
        self.assertIsNone(error.item)
        self.assertEqual(error.meta, TypeMeta("v1", "Status"))
        meta, status = codec.read_object(codec.object(error.meta, error.status))
        self.assertEqual((meta.kind, status.name), ("Status", ""))

    def test_objects(self):
        """An item of a list is converted to a complete object, and back."""
        codec = codec_of(self.encoding)
        items, meta = read_list(codec, [golden(f"pods.{self.ending}")])
        for item in items:
            self.assertEqual(codec.read_object(codec.object(meta.type, item.body)), (POD, item))

    def test_largest(self):
        """An item over the maximum size is rejected, in lists and watches."""
        codec, data = codec_of(self.encoding), golden(f"pods.{self.ending}")
        items, _ = read_list(codec, [data])
        largest = max(len(item.body) for item in items)
        self.assertEqual(read_list(codec, [data], largest)[0], items)
        for pieces in cuts(data):
            with self.assertRaises(BadBody):
                read_list(codec, pieces, largest - 1)
        with self.assertRaises(BadBody):
            read_watch(codec, [golden(f"watch.{self.ending}")], largest)

    def test_invalid(self):
        """Other data is rejected with a one-line message, early or at its end."""
        codec = codec_of(self.encoding)
        for data in (b"", b"[]", b"null", b"x" * 5000, b"\x80" * 50, b"\xff" * 50, b"{}", b"  "):
            with self.assertRaises(BadBody) as caught:
                read_list(codec, [data])
            self.assertNotIn("\n", str(caught.exception))
        for data in (b"[[]]", b"null", b"x" * 5000, b"\x80" * 50, b"\xff" * 50, b"{ }\n"):
            with self.assertRaises(BadBody) as caught:
                read_watch(codec, [data])
            self.assertNotIn("\n", str(caught.exception))


class JsonTests(MediaTests, SynchronousTestCase):
    """JSON."""

    encoding, ending = "json", "json"


class ProtobufTests(MediaTests, SynchronousTestCase):
    """Kubernetes protobuf."""

    encoding, ending = "protobuf", "pb"
