"""Parts of requests: bodies, queries, paths, and accepted types."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurtlab.api.errors import ApiError
from yurtlab.api.negotiation import (
    MAX_DEPTH,
    Form,
    accepted,
    choose_form,
    content_type,
    decode_body,
    decode_object,
)
from yurtlab.api.options import (
    DeleteOptions,
    WriteOptions,
    delete_options,
    flag,
    number,
    parse_query,
    write_options,
)
from yurtlab.api.resources import LEASES, NAMESPACES, NODES, PODS, RESOURCES, Routes, Target

KUBECTL_GET = (
    b"application/json;as=Table;v=v1;g=meta.k8s.io,"
    b"application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)


class BodyTests(SynchronousTestCase):
    """Bodies."""

    def refused(self, media_type, data):
        """Return the error of a body."""
        return self.assertRaises(ApiError, decode_body, media_type, data)

    def test_json(self):
        """JSON is decoded, also without a content type."""
        for media_type in ("", "application/json", "application/merge-patch+json"):
            self.assertEqual({"a": [1.5, None]}, decode_body(media_type, b'{"a": [1.5, null]}'))

    def test_yaml(self):
        """YAML is decoded as JSON: times stay strings, keys become strings."""
        text = b"a: 2025-06-15T15:06:40Z\nb: {1: yes}\nc: [x, 'y']"
        self.assertEqual(
            {"a": "2025-06-15T15:06:40Z", "b": {"1": True}, "c": ["x", "y"]},
            decode_body("application/apply-patch+yaml", text),
        )

    def test_malformed(self):
        """An invalid body, or one that JSON cannot express, is a BadRequest."""
        for media_type, data in (
            ("application/json", b""),
            ("application/json", b"{"),
            ("application/json", b'{"a": NaN}'),
            ("application/json", b"1e999"),
            ("application/json", b"\xff"),
            ("application/json", '{"a": "\\ud800"}'.encode("utf-16-le")),
            ("application/json", b"[" * 100_000),
            ("application/yaml", b"{"),
            ("application/yaml", b"\xff"),
            ("application/yaml", b"a: .inf"),
            ("application/yaml", b"a: 1\n---\nb: 2"),
            ("application/yaml", b"!!python/name:os.system"),
            ("application/yaml", b"? [1, 2]\n: 3"),
        ):
            error = self.refused(media_type, data)
            self.assertEqual((400, "BadRequest"), (error.status, error.reason), data[:20])

    def test_halves_of_pairs(self):
        """Unpaired surrogates become U+FFFD, as in Go: no encoder could send them."""
        for data, expected in (
            (b'{"a": "\\ud800", "\\udc00": "x\\ud800"}', {"a": "\ufffd", "\ufffd": "x\ufffd"}),
            (b'["\xed\xa0\x80"]', ["\ufffd"]),
            (b'["\\ud83d\\ude00", 1.5]', ["\U0001f600", 1.5]),
        ):
            self.assertEqual(expected, decode_body("application/json", data))

    def test_aliases(self):
        """YAML aliases are rejected: ten lines could expand to gigabytes."""
        error = self.refused("application/yaml", b"a: &x [1]\nb: *x")
        self.assertIn("aliases are not accepted", error.message)

    def test_depth(self):
        """Nesting is bounded."""
        deepest = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
        decode_body("application/json", deepest)
        error = self.refused("application/json", b"[" + deepest + b"]")
        self.assertIn("nested deeper than", error.message)

    def test_unknown_type(self):
        """A body in another format is an UnsupportedMediaType."""
        error = self.refused("application/xml", b"<a/>")
        self.assertEqual((415, "UnsupportedMediaType"), (error.status, error.reason))

    def test_object(self):
        """A body must be an object where one is required."""
        error = self.assertRaises(ApiError, decode_object, "", b"[]")
        self.assertEqual(400, error.status)


class NegotiationTests(SynchronousTestCase):
    """Content negotiation."""

    def test_json(self):
        """The default is JSON."""
        for accept in ([], [b"*/*"], [b"application/*"], [b"application/json, */*"]):
            self.assertEqual(Form(), choose_form(accept))

    def test_table(self):
        """kubectl get gets a table, in its preferred version."""
        self.assertEqual(Form(transform="Table"), choose_form([KUBECTL_GET]))
        old = [b"application/json;as=Table;v=v1beta1;g=meta.k8s.io"]
        self.assertEqual(Form(transform="Table", version="v1beta1"), choose_form(old))

    def test_partial(self):
        """A client may request metadata only."""
        accept = [b"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"]
        self.assertTrue(choose_form(accept).partial)
        self.assertFalse(Form().partial)

    def test_yaml(self):
        """YAML can be had."""
        form = choose_form([b"application/yaml"])
        self.assertEqual(b"a: 1\n", form.encode({"a": 1}))

    def test_fallback(self):
        """Unsupported types are ignored: protocol buffers, unknown transformations."""
        accept = [b"application/vnd.kubernetes.protobuf,application/json;as=Chart,application/json"]
        self.assertEqual(Form(), choose_form(accept))

    def test_weights(self):
        """Types with a higher weight come first, and those with weight 0 are excluded."""
        accept = [b"application/yaml;q=0.1, application/json;q=0.9, text/plain;q=0"]
        self.assertEqual(Form(), choose_form(accept))
        types = [one.type for one in accepted(accept)]
        self.assertEqual(["application/json", "application/yaml"], types)

    def test_nothing(self):
        """Without an acceptable type the response is NotAcceptable."""
        for accept in (b"text/html", b"text/html, application/json;q=0"):
            error = self.assertRaises(ApiError, choose_form, [accept])
            self.assertEqual((406, "NotAcceptable"), (error.status, error.reason))

    def test_content_type(self):
        """Parameters of a content type are ignored."""
        self.assertEqual("application/json", content_type([b"Application/JSON; charset=utf-8"]))
        self.assertEqual("", content_type([]))


class OptionTests(SynchronousTestCase):
    """Queries."""

    def test_flags_and_numbers(self):
        """Parameters are parsed as by kube-apiserver."""
        query = parse_query("a=true&b=false&c=1&d&e=0&n=-3")
        self.assertEqual(
            [True, False, True, False, False, False], [flag(query, name) for name in "abcdef"]
        )
        self.assertEqual((-3, None), (number(query, "n"), number(query, "x")))
        error = self.assertRaises(ApiError, number, query, "a")
        self.assertEqual(400, error.status)
        query = parse_query(f"a={2**63 - 1}&b={2**63}&c=-{2**63}")
        self.assertEqual([2**63 - 1, -(2**63)], [number(query, name) for name in "ac"])
        error = self.assertRaises(ApiError, number, query, "b")
        self.assertEqual((400, True), (error.status, "out of range" in error.message))

    def test_too_many(self):
        """A query has a bounded number of parameters."""
        self.assertRaises(ApiError, parse_query, "a&" * 1001)

    def test_writing(self):
        """Write options come from the query."""
        self.assertEqual(WriteOptions(), write_options({}))
        query = parse_query("dryRun=All&fieldValidation=Strict&fieldManager=me&force=true")
        self.assertEqual(WriteOptions(True, "Strict", "me"), write_options(query))
        for text in ("dryRun=Some", "fieldValidation=No"):
            error = self.assertRaises(ApiError, write_options, parse_query(text))
            self.assertIn("Unsupported value", error.message)

    def test_deleting(self):
        """Delete options come from the body, or from the query."""
        query = parse_query("gracePeriodSeconds=3&dryRun=All")
        self.assertEqual(DeleteOptions(3, dry_run=True), delete_options(query, {}))
        body = {
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": "u", "resourceVersion": "7"},
            "propagationPolicy": "Background",
            "dryRun": ["All"],
        }
        self.assertEqual(DeleteOptions(0, "u", "7", True), delete_options({}, body))
        for body in ({"gracePeriodSeconds": "1"}, {"preconditions": ["u"]}, {"dryRun": "All"}):
            self.assertRaises(ApiError, delete_options, {}, body)


class RoutingTests(SynchronousTestCase):
    """Paths."""

    def test_targets(self):
        """A path has a kind, a namespace, a name and a subresource."""
        routes = Routes(RESOURCES)
        for path, target in (
            ("/api/v1/pods", Target(PODS)),
            ("/api/v1/pods/", Target(PODS)),
            ("/api/v1/namespaces/a/pods", Target(PODS, "a")),
            ("/api/v1/namespaces/a/pods/b", Target(PODS, "a", "b")),
            ("/api/v1/namespaces/a/pods/b%2Fc", Target(PODS, "a", "b/c")),
            ("/api/v1/namespaces/a/pods/b/log", Target(PODS, "a", "b", "log")),
            ("/api/v1/namespaces", Target(NAMESPACES)),
            ("/api/v1/namespaces/a", Target(NAMESPACES, None, "a")),
            ("/api/v1/namespaces/a/status", Target(NAMESPACES, None, "a", "status")),
            ("/api/v1/nodes/n/proxy", Target(NODES, None, "n", "proxy")),
            ("/api/v1/nodes/n/proxy/", Target(NODES, None, "n", "proxy", "/")),
            ("/api/v1/nodes/n:1/proxy/a/b%20/", Target(NODES, None, "n:1", "proxy", "/a/b%20/")),
            ("/apis/coordination.k8s.io/v1/leases", Target(LEASES)),
            ("/apis/coordination.k8s.io/v1/namespaces/a/leases/b", Target(LEASES, "a", "b")),
        ):
            self.assertEqual(target, routes.find(path), path)

    def test_no_targets(self):
        """Other paths are invalid."""
        routes = Routes(RESOURCES)
        for path in (
            "",
            "/",
            "/api",
            "/api/v1",
            "/api/v2/pods",
            "/api/v1/cars",
            "/api/v1/pods/a",
            "/api/v1/namespaces/a/nodes",
            "/api/v1/namespaces/a/pods/b/fly",
            "/api/v1/namespaces/a/pods/b/log/c",
            "/apis/coordination.k8s.io/v1",
            "/apis/x/v1/leases",
        ):
            self.assertIsNone(routes.find(path), path)
