"""Tables and metadata built from complete objects."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.media.codecs import codec_for
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta
from yurttunnel.hub.media.tables import conversion
from yurttunnel.hub.request.requests import Form
from yurttunnel.kube.protobuf_fields import encode_bytes, encode_varint

JSON, PROTOBUF = Form("json"), Form("protobuf")
TABLE = Form("json", "Table", "v1")
CREATED = 1_750_000_000
NOW = CREATED + 300

METADATA = {
    "name": "p",
    "namespace": "n",
    "resourceVersion": "7",
    "labels": {"app": "web"},
    "uid": "u",
    "creationTimestamp": "2025-06-15T15:06:40Z",
}


def item(body):
    """Create an item of a pod."""
    return Item("n", "p", "7", {"app": "web"}, "", body)


def pod_in_json():
    """Create an item in JSON."""
    return item(json.dumps({"metadata": METADATA, "spec": {"nodeName": "x"}}).encode())


def pod_in_protobuf():
    """Create an item in protobuf; the time is a message with seconds."""
    created = b"\x08" + encode_varint(CREATED)
    texts = {1: b"p", 3: b"n", 5: b"u", 6: b"7"}
    metadata = b"".join(encode_bytes(number, text) for number, text in texts.items())
    metadata += encode_bytes(8, created)
    metadata += encode_bytes(11, encode_bytes(1, b"app") + encode_bytes(2, b"web"))
    return item(encode_bytes(1, metadata) + encode_bytes(2, encode_bytes(10, b"edge-1")))


class TableTests(SynchronousTestCase):
    """Tables with the name and the age."""

    def table(self, kept, *items):
        """Return a Table of items that are cached in a form."""
        made = conversion(kept, TABLE, NOW)
        bodies = [made.body(one) for one in items]
        writer = codec_for(TABLE).list_writer(
            ListMeta(made.type, "9", columns=made.columns), [len(body) for body in bodies]
        )
        return json.loads(writer.head + writer.items(bodies) + writer.tail)

    def test_of_both_media(self):
        """The Tables from JSON and protobuf are the same."""
        for kept, one in ((JSON, pod_in_json()), (PROTOBUF, pod_in_protobuf())):
            table = self.table(kept, one)
            self.assertEqual(("Table", "meta.k8s.io/v1"), (table["kind"], table["apiVersion"]))
            self.assertEqual("9", table["metadata"]["resourceVersion"])
            names = [column["name"] for column in table["columnDefinitions"]]
            self.assertEqual(["Name", "Age"], names)
            (row,) = table["rows"]
            self.assertEqual(["p", "5m"], row["cells"])
            shown = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": METADATA,
            }
            self.assertEqual(shown, row["object"])

    def test_unknown_ages(self):
        """Without a valid creation time the age is unknown."""
        name = encode_bytes(1, b"p")
        for kept, body in (
            (JSON, b'{"metadata":{"name":"p","creationTimestamp":null}}'),
            (JSON, b'{"metadata":{"name":"p","creationTimestamp":7}}'),
            (JSON, b'{"metadata":{"name":"p","creationTimestamp":"soon"}}'),
            (PROTOBUF, encode_bytes(1, name)),
            (PROTOBUF, encode_bytes(1, name + encode_bytes(8, b"\x08" + encode_varint(2**63)))),
            (PROTOBUF, encode_bytes(1, name + encode_bytes(8, b"\x0b"))),
        ):
            (row,) = self.table(kept, item(body))["rows"]
            self.assertEqual(["p", "<unknown>"], row["cells"])

    def test_the_requested_version(self):
        """A Table has the requested version of meta.k8s.io."""
        made = conversion(JSON, Form("json", "Table", "v1beta1"), NOW)
        self.assertEqual(TypeMeta("meta.k8s.io/v1beta1", "Table"), made.type)


class MetadataTests(SynchronousTestCase):
    """Only the metadata."""

    def test_json(self):
        """From JSON it is JSON with all metadata."""
        made = conversion(JSON, Form("json", "PartialObjectMetadata", "v1"), NOW)
        self.assertEqual({"metadata": METADATA}, json.loads(made.body(pod_in_json())))
        self.assertEqual(TypeMeta("meta.k8s.io/v1", "PartialObjectMetadata"), made.type)

    def test_protobuf(self):
        """From protobuf it is protobuf: the same message without its other fields."""
        wanted = Form("protobuf", "PartialObjectMetadata", "v1")
        made = conversion(PROTOBUF, wanted, NOW)
        body = made.body(pod_in_protobuf())
        self.assertTrue(pod_in_protobuf().body.startswith(body))
        codec = codec_for(wanted)
        type, found = codec.read_object(codec.object(made.type, body))
        self.assertEqual(made.type, type)
        self.assertEqual(pod_in_protobuf()._replace(body=body), found)


class NothingTests(SynchronousTestCase):
    """Impossible conversions."""

    def test_nothing(self):
        """Complete objects cannot be built, nor metadata of another media type."""
        partial = Form("json", "PartialObjectMetadata", "v1")
        for kept, wanted in (
            (JSON, PROTOBUF),
            (JSON, JSON),
            (PROTOBUF, partial),
            (TABLE, partial),
            (JSON, Form("protobuf", "Table", "v1")),
        ):
            self.assertIsNone(conversion(kept, wanted, NOW), (kept, wanted))
