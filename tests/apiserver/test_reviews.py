"""Reviews, which are requested by creating an object."""

from __future__ import annotations

from tests.apiserver.support import ApiTestCase
from tests.yurtlab.api.test_access import AuthenticationContract

CREDENTIAL = "authentication.kubernetes.io/credential-id"


class ReviewTests(ApiTestCase):
    """Reviews of the caller itself."""

    def test_who(self):
        """The response has the caller's user; nothing is stored."""
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        answer = self.create({"kind": "SelfSubjectReview"}, path)
        self.assertEqual("SelfSubjectReview", answer["kind"])
        info = {"username": "ada", "groups": ["system:masters", "system:authenticated"]}
        user = answer["status"]["userInfo"]
        self.assertRegex(user.pop("extra")[CREDENTIAL][0], "^X509SHA256=[0-9a-f]{64}$")
        self.assertEqual(info, user)
        self.assertEqual(405, self.call("GET", path)[0])

    def test_may(self):
        """All authenticated users are allowed to do everything."""
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        spec = {"resourceAttributes": {"verb": "delete", "resource": "nodes"}}
        answer = self.create({"spec": spec}, path)
        self.assertEqual((spec, True), (answer["spec"], answer["status"]["allowed"]))


class AuthenticationTests(AuthenticationContract, ApiTestCase):
    """Authentication."""
