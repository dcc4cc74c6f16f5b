"""Which forms clients accept."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.head import RequestHead
from yurttunnel.hub.request.accept import (
    LONGEST_ACCEPT,
    document_form,
    document_forms,
    forms_of,
    media_of,
)
from yurttunnel.hub.request.requests import Form

JSON, PROTOBUF = Form("json"), Form("protobuf")


def forms(*values):
    """Return what fields ``Accept`` ask for."""
    fields = [(b"Accept", value.encode()) for value in values]
    return forms_of(RequestHead(b"GET", b"/", "1.1", fields))


class AcceptTests(SynchronousTestCase):
    """The field ``Accept``."""

    def test_known_types(self):
        """JSON and Kubernetes protobuf are known, and everything means JSON."""
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
        """Who does not say gets JSON."""
        self.assertEqual((JSON,), forms())

    def test_the_best_comes_first(self):
        """The order counts, unless weights say something else; weight zero is no."""
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
        """kubectl asks for Tables, metadata informers for metadata only."""
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
        """What the hub cannot make is left out, even when nothing is left."""
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
    """The field ``Content-Type``."""

    def test_media(self):
        """It says in which media a body is."""
        self.assertEqual("json", media_of(b"Application/JSON; charset=utf-8"))
        self.assertEqual("protobuf", media_of(b"application/vnd.kubernetes.protobuf"))
        self.assertEqual("", media_of(b"application/yaml"))
        self.assertEqual("", media_of(b""))


class LengthTests(SynchronousTestCase):
    """What is accepted is read before anybody knows who asks."""

    def test_the_longest(self):
        """More than any client sends is refused unread, in one field or in several."""
        most = b"application/json," * (LONGEST_ACCEPT // 17)
        one = (b"Accept", most)
        self.assertEqual((Form("json"),), forms_of(RequestHead(b"GET", b"/", "1.1", [one])))
        for fields in ([(b"Accept", b"a," * LONGEST_ACCEPT)], [one, one]):
            head = RequestHead(b"GET", b"/", "1.1", fields)
            self.assertEqual(400, self.assertRaises(RequestFailed, forms_of, head).status)


class DocumentTests(SynchronousTestCase):
    """The forms of discovery and OpenAPI."""

    V2 = "application/json;as=APIGroupDiscoveryList;g=apidiscovery.k8s.io;v=v2"

    def forms(self, value):
        """Return what a field ``Accept`` asks for."""
        return document_forms(RequestHead(b"GET", b"/apis", "1.1", [(b"Accept", value.encode())]))

    def test_discovery(self):
        """What is all groups at once is another document than the list of groups."""
        kubectl = (
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
        )
        self.assertEqual((self.V2, "application/json"), self.forms(kubectl))
        answered = b"application/json; charset=utf-8;v=v2;g=apidiscovery.k8s.io"
        answered += b";as=APIGroupDiscoveryList"
        self.assertEqual(self.V2, document_form(answered))
        self.assertEqual("application/json", document_form(b"application/json"))

    def test_openapi(self):
        """OpenAPI in protobuf has an old name and a new one."""
        old = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
        new = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
        self.assertEqual((new,), self.forms(old))
        self.assertEqual(new, document_form(new.encode()))

    def test_everything(self):
        """Who takes everything gets JSON."""
        for value in ("*/*", "", "application/json, */*;q=0.5"):
            self.assertEqual(("application/json",), self.forms(value))
        self.assertEqual(
            ("application/json",), document_forms(RequestHead(b"GET", b"/", "1.1", []))
        )
