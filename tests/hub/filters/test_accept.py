"""What is asked of the API when a filter has to look into the answer."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.filters.accept import json_forms, json_only
from yurttunnel.hub.request.requests import Form

PROTOBUF = b"application/vnd.kubernetes.protobuf"
TABLE = b"application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = b"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def asked(*accepts):
    """Return what is asked for in place of this."""
    fields = json_only([(b"Host", b"api"), *((b"accept", value) for value in accepts)])
    host, (name, value) = fields
    assert (host, name) == ((b"Host", b"api"), b"Accept"), fields
    return value


class FieldTests(SynchronousTestCase):
    """The field of the request."""

    def test_kubelet(self):
        """Of protobuf and JSON it is JSON."""
        self.assertEqual(b"application/json", asked(PROTOBUF + b",application/json"))
        self.assertEqual(
            b"application/json;stream=watch",
            asked(b"application/json;stream=watch, " + PROTOBUF + b";stream=watch"),
        )

    def test_nothing(self):
        """Without the field, or with any type, JSON is asked for, too."""
        self.assertEqual(b"application/json", asked())
        self.assertEqual(b"application/json", asked(b"*/*"))
        self.assertEqual(b"application/json;q=0.5", asked(PROTOBUF, b"application/*; q=0.5"))

    def test_kubectl(self):
        """Who asks for a Table gets objects."""
        self.assertEqual(b"application/json", asked(TABLE + b"," + TABLE + b",application/json"))

    def test_metadata(self):
        """The metadata may be asked for, in JSON."""
        protobuf = PROTOBUF + b";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        self.assertEqual(METADATA, asked(protobuf + b"," + METADATA))


class FormTests(SynchronousTestCase):
    """The same of the forms that were read from it."""

    def test_kept(self):
        """Objects and their metadata in JSON are left, in their order."""
        metadata = Form("json", "PartialObjectMetadata", "v1")
        forms = (Form("protobuf"), metadata, Form("json", "Table", "v1"), Form("json"))
        self.assertEqual((metadata, Form("json")), json_forms(forms))

    def test_none(self):
        """A client that takes no such form gets nothing."""
        self.assertEqual((), json_forms((Form("protobuf"), Form("json", "Table", "v1"))))
