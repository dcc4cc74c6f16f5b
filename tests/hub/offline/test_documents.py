"""Versions, discovery and OpenAPI while offline."""

from __future__ import annotations

from tests.hub.offline.world import OfflineTestCase

V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
V2_FORM = "application/json;as=APIGroupDiscoveryList;g=apidiscovery.k8s.io;v=v2"


class DocumentTests(OfflineTestCase):
    """Responses that are not objects."""

    def test_everybody_gets_them(self):
        """All clients share the documents, in their media types."""
        for path in ("/version", "/api", "/apis", "/apis/discovery.k8s.io/v1", "/openapi/v3"):
            self.store_document(path, b'{"x":1}')
            for agent in (b"coredns", b"kubectl/v1", b"curl"):
                status, fields, body = self.send_request(path + "?timeout=32s", agent=agent)
                self.assertEqual((200, b'{"x":1}'), (status, body))
                self.assertEqual(b"application/json", fields[b"content-type"])

    def test_representations(self):
        """Aggregated discovery is served to clients that request it."""
        self.store_document("/apis", b"list")
        self.store_document("/apis", b"aggregated", V2, V2_FORM)
        kubectl = b"Accept: " + V2.encode() + b",application/json"
        status, fields, body = self.send_request("/apis", kubectl)
        self.assertEqual((200, b"aggregated"), (status, body))
        self.assertEqual(V2.encode(), fields[b"content-type"])
        self.assertEqual(b"list", self.send_request("/apis")[2])

    def test_missing(self):
        """A missing document is not a 404, which would mean that the API group does not exist."""
        status = self.assert_status(503, "ServiceUnavailable", "was never requested", "/apis/x/v1")
        self.assertNotIn("details", status)
        self.assertNotIn(b"retry-after", self.send_request("/apis/x/v1")[1])

    def test_health(self):
        """The API's health is not reported."""
        self.assert_status(503, "ServiceUnavailable", "", "/readyz")

    def test_posts(self):
        """Documents cannot be posted."""
        self.assert_status(503, "ServiceUnavailable", "", "/version", method=b"POST", body=b"{}")
