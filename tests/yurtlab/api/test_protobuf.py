"""Bodies in protocol buffers, as kubectl sends them since 1.32."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hub.media.protobuf_encoding import field, varint
from tests.yurtlab.api.support import PODS_PATH, ApiTestCase
from yurtlab.api.errors import ApiError
from yurtlab.api.protobuf import MESSAGES, PROTOBUF, decode_protobuf
from yurtlab.api.resources import NAMESPACES

# What kubectl 1.33 sends for: create namespace team
NAMESPACE = bytes.fromhex(
    "6b3873000a0f0a02763112094e616d657370616365121c0a140a047465616d12001a0022002a003200380042"
    "0012001a020a001a002200"
)


def body(kind, message, api_version="v1"):
    """Wrap a message."""
    meta = field(1, api_version) + field(2, kind)
    return b"k8s\x00" + field(1, meta) + field(2, message) + field(3, "") + field(4, "")


def entry(key, value):
    """Encode an entry of a map."""
    return field(1, key) + field(2, value)


def type_of(one):
    """Name the type of a field."""
    return f"map of {one.values}" if one.values else one.type


METADATA = field(1, field(1, "a"))


class MessageTests(ApiTestCase):
    """The supported messages."""

    maxDiff = None

    def test_fields(self):
        """Fields have the numbers and types of generated.proto; ! marks those kept when zero."""
        lines = [
            f"{name}: "
            + "; ".join(
                f"{number} {one.name}{'[]' * one.repeated}{'!' * one.kept} {type_of(one)}"
                for number, one in fields.items()
            )
            for name, fields in MESSAGES.items()
        ]
        written = Path(__file__).with_name("messages.txt").read_text()
        self.assertEqual(written, "\n".join(lines) + "\n")


class DecodeTests(ApiTestCase):
    """Decoding."""

    def decode(self, kind, message):
        """Decode a message, without its kind and version."""
        value = decode_protobuf(body(kind, message))
        self.assertEqual((kind, "v1"), (value.pop("kind"), value.pop("apiVersion")))
        return value

    def test_of_kubectl(self):
        """Messages of kubectl are decoded; zeros are left out."""
        value = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        self.assertEqual(value, decode_protobuf(NAMESPACE))

    def test_certificate_request(self):
        """The approval of a certificate request by kubectl is decoded: times, and lists in maps."""
        extra = field(1, "v") + field(1, "w")
        spec = field(1, b"x") + field(5, "any") + field(6, entry("k", extra)) + field(8, 600)
        times = field(4, field(1, 1_750_000_000) + field(2, 0)) + field(5, b"")
        condition = field(1, "Approved") + field(6, "True") + times
        status = field(1, condition) + field(2, b"")
        message = METADATA + field(2, spec) + field(3, status)
        self.assertEqual(
            {
                "metadata": {"name": "a"},
                "spec": {
                    "request": "eA==",
                    "usages": ["any"],
                    "extra": {"k": ["v", "w"]},
                    "expirationSeconds": 600,
                },
                "status": {
                    "conditions": [
                        {
                            "type": "Approved",
                            "status": "True",
                            "lastUpdateTime": "2025-06-15T15:06:40Z",
                        }
                    ]
                },
            },
            self.decode("CertificateSigningRequest", message),
        )
        late = field(3, field(1, field(4, field(1, 1 << 62))))
        self.assertRaises(ApiError, self.decode, "CertificateSigningRequest", late)

    def test_maps(self):
        """Maps have strings, or bytes, which are base64 in JSON."""
        message = METADATA + field(2, entry("k", "v")) + field(2, entry("l", "")) + field(2, b"")
        message += field(3, entry("b", b"\x00\xff")) + field(4, 0)
        self.assertEqual(
            {
                "metadata": {"name": "a"},
                "data": {"k": "v", "l": "", "": ""},
                "binaryData": {"b": "AP8="},
                "immutable": False,
            },
            self.decode("ConfigMap", message),
        )

    def test_lists_and_numbers(self):
        """Lists, numbers, and values that are a number or a string are decoded."""
        number = field(1, 0) + field(2, 8080) + field(3, "")
        text = field(1, 1) + field(2, 0) + field(3, "web")
        ports = [
            field(1, "a") + field(3, 80) + field(4, number) + field(5, 0),
            field(3, 443) + field(4, text) + field(5, 30443),
        ]
        message = METADATA + field(2, b"".join(field(1, port) for port in ports))
        self.assertEqual(
            [
                {"name": "a", "port": 80, "targetPort": 8080},
                {"port": 443, "targetPort": "web", "nodePort": 30443},
            ],
            self.decode("Service", message)["spec"]["ports"],
        )

    def test_pointers(self):
        """Explicit zeros and negative numbers are kept."""
        message = field(1, 0) + field(2, field(1, "u")) + field(5, "All")
        expected = {"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "dryRun": ["All"]}
        self.assertEqual(expected, self.decode("DeleteOptions", message))
        negative = self.decode("DeleteOptions", field(1, (1 << 64) - 1))
        self.assertEqual({"gracePeriodSeconds": -1}, negative)

    def test_unknown_fields(self):
        """Unknown fields of every type are skipped."""
        unknown = field(99, "x") + field(98, 1) + varint(97 << 3 | 1) + bytes(8)
        unknown += varint(96 << 3 | 5) + bytes(4)
        self.assertEqual({"metadata": {"name": "a"}}, self.decode("Namespace", unknown + METADATA))

    def test_unknown_kind(self):
        """The error for an unknown kind suggests JSON."""
        error = self.assertRaises(ApiError, decode_protobuf, body("Pod", METADATA))
        self.assertEqual(415, error.status)
        self.assertIn("send application/json", error.message)

    def test_malformed(self):
        """Anything else is a BadRequest."""
        whole = body("Namespace", METADATA)
        for data in (
            b"",
            b"k8s",
            b"x" + whole,
            whole[:5],
            whole[:10],
            whole[:-5],
            body("Namespace", field(1, 5)),
            body("Namespace", field(1, field(1, 5))),
            body("Namespace", field(1, field(1, b"\xff"))),
            body("ConfigMap", field(2, 5)),
            body("ConfigMap", field(2, field(1, 5))),
            body("DeleteOptions", field(1, "x")),
            body("Namespace", b"\x0b"),
            body("Namespace", b"\xff" * 11),
        ):
            error = self.assertRaises(ApiError, decode_protobuf, data)
            self.assertEqual((400, "BadRequest"), (error.status, error.reason), data)


class RequestTests(ApiTestCase):
    """Requests."""

    fields = (f"Content-Type: {PROTOBUF}", f"Accept: {PROTOBUF},application/json")

    def test_create(self):
        """An object is created, and the response is JSON."""
        status, fields, answer = self.exchange(
            "POST", "/api/v1/namespaces", NAMESPACE, fields=self.fields
        )
        self.assertEqual((201, b"application/json"), (status, fields[b"content-type"]))
        self.assertEqual("team", json.loads(answer)["metadata"]["name"])
        self.assertIn("team", self.names(NAMESPACES))

    def test_delete(self):
        """DeleteOptions are decoded."""
        self.create()
        options = body("DeleteOptions", field(1, 0))
        status, _, _ = self.exchange("DELETE", f"{PODS_PATH}/web", options, fields=self.fields)
        self.assertEqual((200, []), (status, self.names()))
