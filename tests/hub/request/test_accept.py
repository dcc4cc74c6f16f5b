"""The forms that clients accept."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.accept import MAX_ACCEPT
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.head import RequestHead
from yurttunnel.hub.request.accept import (
    document_form,
    document_forms,
    encoding_of,
    forms_of,
    json_forms,
    json_only,
)
from yurttunnel.hub.request.requests import Form

JSON, PROTOBUF = Form("json"), Form("protobuf")
PROTOBUF_TYPE = b"application/vnd.kubernetes.protobuf"
TABLE_TYPE = b"application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA_TYPE = b"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def forms(*values):
    """Return the forms for ``Accept`` fields."""
    fields = [(b"Accept", value.encode()) for value in values]
    return forms_of(RequestHead(b"GET", b"/", "1.1", fields))


class AcceptTests(SynchronousTestCase):
    """The header field ``Accept``."""

    def test_known_types(self):
        """JSON and Kubernetes protobuf are known, and ``*/*`` means JSON."""
        for value, expected in {
            "application/json": JSON,
            "application/json;stream=watch": JSON,
            "APPLICATION/JSON ; charset=utf-8": JSON,
            "*/*": JSON,
            "application/*": JSON,
            "application/vnd.kubernetes.protobuf": PROTOBUF,
            "application/vnd.kubernetes.protobuf;stream=watch": PROTOBUF,
        }.items():
            self.assertEqual((expected,), forms(value), value)

    def test_missing(self):
        """Without the field the form is JSON."""
        self.assertEqual((JSON,), forms())

    def test_the_best_comes_first(self):
        """The order counts, unless weights differ; weight zero excludes a type."""
        kubelet = "application/vnd.kubernetes.protobuf,application/json"
        self.assertEqual((PROTOBUF, JSON), forms(kubelet))
        self.assertEqual((JSON, PROTOBUF), forms("application/json", kubelet))
        self.assertEqual(
            (PROTOBUF, JSON),
            forms("application/json;q=0.5, application/vnd.kubernetes.protobuf; q=0.9"),
        )
        self.assertEqual(
            (PROTOBUF,), forms("application/json;q=0,application/vnd.kubernetes.protobuf")
        )
        self.assertEqual(
            (PROTOBUF,), forms("application/json;q=x,application/vnd.kubernetes.protobuf")
        )

    def test_transforms(self):
        """kubectl requests Tables, metadata informers request metadata."""
        kubectl = (
            "application/json;as=Table;v=v1;g=meta.k8s.io,"
            "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
        )
        tables = (Form("json", "Table", "v1"), Form("json", "Table", "v1beta1"))
        self.assertEqual((*tables, JSON), forms(kubectl))
        for kind in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            value = f"application/vnd.kubernetes.protobuf;as={kind};g=meta.k8s.io;v=v1"
            expected = (Form("protobuf", "PartialObjectMetadata", "v1"),)
            self.assertEqual(expected, forms(value))

    def test_unknown(self):
        """Unsupported forms are omitted, even if none is left."""
        for value in (
            "application/yaml",
            "application/cbor",
            "text/html",
            "",
            ";;,",
            "application/json;as=Chart;v=v1;g=meta.k8s.io",
            "application/json;as=Table;v=v2;g=meta.k8s.io",
            "application/json;as=Table;v=v1",
        ):
            self.assertEqual((), forms(value), value)
        self.assertEqual((JSON,), forms("application/cbor, application/json"))


class ContentTests(SynchronousTestCase):
    """The header field ``Content-Type``."""

    def test_media(self):
        """It determines the medium of a body."""
        self.assertEqual("json", encoding_of(b"Application/JSON; charset=utf-8"))
        self.assertEqual("protobuf", encoding_of(b"application/vnd.kubernetes.protobuf"))
        self.assertEqual("", encoding_of(b"application/yaml"))
        self.assertEqual("", encoding_of(b""))


class LengthTests(SynchronousTestCase):
    """The length of ``Accept``, which is parsed before authentication."""

    def test_the_longest(self):
        """Fields longer than any client's are rejected unparsed, as one or several."""
        most = b"application/json," * (MAX_ACCEPT // 17)
        one = (b"Accept", most)
        self.assertEqual((Form("json"),), forms_of(RequestHead(b"GET", b"/", "1.1", [one])))
        for fields in ([(b"Accept", b"a," * MAX_ACCEPT)], [one, one]):
            head = RequestHead(b"GET", b"/", "1.1", fields)
            self.assertEqual(400, self.assertRaises(RequestFailed, forms_of, head).status)


class DocumentTests(SynchronousTestCase):
    """The forms of discovery and OpenAPI."""

    V2 = "application/json;as=APIGroupDiscoveryList;g=apidiscovery.k8s.io;v=v2"

    def forms(self, value):
        """Return the forms for an ``Accept`` field."""
        return document_forms(RequestHead(b"GET", b"/apis", "1.1", [(b"Accept", value.encode())]))

    def test_discovery(self):
        """Aggregated discovery is another document than the list of groups."""
        kubectl = (
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
        )
        self.assertEqual((self.V2, "application/json"), self.forms(kubectl))
        answered = b"application/json; charset=utf-8;v=v2;g=apidiscovery.k8s.io"
        answered += b";as=APIGroupDiscoveryList"
        self.assertEqual(self.V2, document_form(answered))
        self.assertEqual("application/json", document_form(b"application/json"))

    def test_openapi(self):
        """OpenAPI in protobuf has an old and a new name."""
        old = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
        new = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
        self.assertEqual((new,), self.forms(old))
        self.assertEqual(new, document_form(new.encode()))

    def test_everything(self):
        """A client that accepts everything gets JSON."""
        for value in ("*/*", "", "application/json, */*;q=0.5"):
            self.assertEqual(("application/json",), self.forms(value))
        self.assertEqual(
            ("application/json",), document_forms(RequestHead(b"GET", b"/", "1.1", []))
        )


def asked(*accepts):
    """Return the fields that replace these."""
    fields = json_only([(b"Host", b"api"), *((b"accept", value) for value in accepts)])
    host, (name, value) = fields
    assert (host, name) == ((b"Host", b"api"), b"Accept"), fields
    return value


class FieldTests(SynchronousTestCase):
    """The field of a request to which a filter applies."""

    def test_kubelet(self):
        """Of protobuf and JSON only JSON is left."""
        self.assertEqual(b"application/json", asked(PROTOBUF_TYPE + b",application/json"))
        self.assertEqual(
            b"application/json;stream=watch",
            asked(b"application/json;stream=watch, " + PROTOBUF_TYPE + b";stream=watch"),
        )

    def test_nothing(self):
        """Without the field, or with any type, JSON is requested, too."""
        self.assertEqual(b"application/json", asked())
        self.assertEqual(b"application/json", asked(b"*/*"))
        self.assertEqual(b"application/json;q=0.5", asked(PROTOBUF_TYPE, b"application/*; q=0.5"))

    def test_kubectl(self):
        """A client that requests a Table gets objects."""
        self.assertEqual(
            b"application/json", asked(TABLE_TYPE + b"," + TABLE_TYPE + b",application/json")
        )

    def test_metadata(self):
        """Metadata may be requested in JSON."""
        protobuf = PROTOBUF_TYPE + b";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        self.assertEqual(METADATA_TYPE, asked(protobuf + b"," + METADATA_TYPE))


class FormTests(SynchronousTestCase):
    """The same for the parsed forms."""

    def test_cached(self):
        """Objects and metadata in JSON are left, in order."""
        metadata = Form("json", "PartialObjectMetadata", "v1")
        forms = (Form("protobuf"), metadata, Form("json", "Table", "v1"), Form("json"))
        self.assertEqual((metadata, Form("json")), json_forms(forms))

    def test_none(self):
        """A client that accepts no such form gets none."""
        self.assertEqual((), json_forms((Form("protobuf"), Form("json", "Table", "v1"))))
