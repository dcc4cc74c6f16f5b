"""Discovery and OpenAPI of all kinds."""

from __future__ import annotations

from tests.apiserver.support import ApiTestCase


class DocumentTests(ApiTestCase):
    """What clients read before they ask for objects."""

    def test_groups(self):
        """The groups are listed."""
        _, groups = self.call("GET", "/apis")
        self.assertEqual(
            [
                "coordination.k8s.io",
                "apps",
                "batch",
                "certificates.k8s.io",
                "rbac.authorization.k8s.io",
                "discovery.k8s.io",
                "policy",
                "authentication.k8s.io",
                "authorization.k8s.io",
            ],
            [group["name"] for group in groups["groups"]],
        )

    def test_only_what_can_be_done(self):
        """Operations are listed only where the kind has them."""
        _, document = self.call("GET", "/openapi/v3/apis/authentication.k8s.io/v1")
        paths = document["paths"]
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        self.assertEqual({"post"}, set(paths[path]))
