"""Tokens of service accounts: requests, authentication and expiry."""

from __future__ import annotations

import base64
import json

from cryptography.hazmat.primitives.asymmetric import rsa
from twisted.trial.unittest import SynchronousTestCase

from tests.apiserver.bootstrap_roles import rule
from tests.apiserver.jwt import MAX_TOKEN_CHARACTERS, BadToken, TokenSigner
from tests.apiserver.support import ApiTestCase
from tests.apiserver.tokens import ISSUER
from tests.yurtlab.api.support import NOW, PODS_PATH, pod, user
from yurtlab.api.resources import NODES, PODS, SECRETS, SERVICE_ACCOUNTS
from yurttunnel.pki.credentials import new_key

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
TOKEN = f"{ACCOUNTS}/agent/token"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
AGENT = "system:serviceaccount:default:agent"
EXTRA = "authentication.kubernetes.io/"


def part(text):
    """Decode a part of a token."""
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


class SignerTests(SynchronousTestCase):
    """Signatures."""

    def test_keys(self):
        """Keys of both types sign, and verify their signatures."""
        for key, algorithm in (
            (new_key(), "ES256"),
            (rsa.generate_private_key(65537, 2048), "RS256"),
        ):
            signer = TokenSigner(key)
            token = signer.sign({"sub": "ada"})
            self.assertEqual(algorithm, part(token.split(".")[0])["alg"])
            self.assertEqual({"sub": "ada"}, signer.read(token))

    def test_others(self):
        """Tokens with another key's signature, or without one, are rejected."""
        signer = TokenSigner(new_key())
        header, claims, signature = signer.sign({"sub": "ada"}).split(".")
        none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
        for token in (
            TokenSigner(new_key()).sign({"sub": "ada"}),
            TokenSigner(rsa.generate_private_key(65537, 2048)).sign({"sub": "ada"}),
            f"{none}.{claims}.",
            f"{header}.{claims}.",
            f"{header}.{claims}.{signature[:-4]}",
            f"{header}.{claims[:-2]}.{signature}",
            f"{header}.{claims}.*",
            f"W10.{claims}.{signature}",
            f"\xe4.{claims}.{signature}",
            "sesame",
            "a.b.c",
            f"{header}.{'x' * MAX_TOKEN_CHARACTERS}.{signature}",
        ):
            self.assertRaises(BadToken, signer.read, token)


class TokenTestCase(ApiTestCase):
    """A test case with a service account."""

    def setUp(self):
        """Create the account."""
        super().setUp()
        self.create({"metadata": {"name": "agent"}}, ACCOUNTS)

    def request(self, **spec):
        """Request a token."""
        return self.create({"spec": spec}, TOKEN)["status"]["token"]

    def who(self, token):
        """Return the user of a token."""
        status, answer = self.call("POST", WHO, {}, token=token)
        return answer["status"]["userInfo"] if status == 201 else status


class RequestTests(TokenTestCase):
    """Token requests."""

    def test_defaults(self):
        """By default a token is for the API, and valid for an hour."""
        made = self.create(
            {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}, TOKEN
        )
        self.assertEqual("TokenRequest", made["kind"])
        self.assertEqual({"expirationSeconds": 3600, "audiences": [ISSUER]}, made["spec"])
        self.assertEqual("2025-06-15T16:06:40Z", made["status"]["expirationTimestamp"])
        self.assertEqual(
            ("agent", "default"), (made["metadata"]["name"], made["metadata"]["namespace"])
        )

    def test_claims(self):
        """The claims are the account, the audience and the validity."""
        claims = part(self.request(audiences=["a"], expirationSeconds=600).split(".")[1])
        account = self.store.get(SERVICE_ACCOUNTS, "default", "agent")["metadata"]
        self.assertEqual(36, len(claims.pop("jti")))
        self.assertEqual(
            {
                "aud": ["a"],
                "exp": NOW + 600,
                "iat": NOW,
                "iss": ISSUER,
                "kubernetes.io": {
                    "namespace": "default",
                    "serviceaccount": {"name": "agent", "uid": account["uid"]},
                },
                "nbf": NOW,
                "sub": AGENT,
            },
            claims,
        )

    def test_refused(self):
        """The duration must be within bounds, and the account must exist."""
        for seconds, text in (
            (599, "may not specify a duration less than 10 minutes"),
            (2**32 + 1, "may not specify a duration larger than 2^32 seconds"),
        ):
            answer = self.call("POST", TOKEN, {"spec": {"expirationSeconds": seconds}})
            message = (
                'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds:'
                f" Invalid value: {seconds}: {text}"
            )
            self.assert_error(answer, 422, "Invalid", message)
        answer = self.call("POST", f"{ACCOUNTS}/other/token", {})
        self.assert_error(answer, 404, "NotFound", 'serviceaccounts "other" not found')
        self.assertEqual(405, self.call("GET", TOKEN)[0])

    def test_bound(self):
        """A token can be bound only to a pod with this account."""
        self.create(pod(serviceAccountName="agent"))
        self.create(pod("other"))
        for reference, status, text in (
            (
                {"kind": "Pod", "apiVersion": "v1", "name": "other"},
                400,
                "cannot bind token for serviceaccount",
            ),
            ({"kind": "Pod", "apiVersion": "v1", "name": "gone"}, 404, 'pods "gone" not found'),
            (
                {"kind": "Car", "apiVersion": "v1", "name": "x"},
                400,
                "cannot bind token to object of type",
            ),
            (
                {"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": "x"},
                409,
                "does not match the UID in record",
            ),
        ):
            found, answer = self.call("POST", TOKEN, {"spec": {"boundObjectRef": reference}})
            self.assertEqual(status, found, answer)
            self.assertIn(text, answer["message"])

    def test_token_of_the_default_account(self):
        """Each namespace has a default account, whose tokens end with the namespace."""
        self.create({"metadata": {"name": "shop"}}, "/api/v1/namespaces")
        for namespace in ("default", "shop"):
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
            made = self.create({"spec": {}}, path)
            self.assertTrue(made["status"]["token"])
        self.call("DELETE", "/api/v1/namespaces/shop")
        self.assertEqual(404, self.call("GET", "/api/v1/namespaces/shop")[0])


class AuthenticationTests(TokenTestCase):
    """Authentication with tokens."""

    def test_who(self):
        """The user has the name, groups and UID of the account."""
        token = self.request()
        info = self.who(token)
        uid = self.store.get(SERVICE_ACCOUNTS, "default", "agent")["metadata"]["uid"]
        extra = info.pop("extra")
        self.assertEqual(
            {f"{EXTRA}credential-id": [f"JTI={part(token.split('.')[1])['jti']}"]}, extra
        )
        self.assertEqual(
            {
                "username": AGENT,
                "uid": uid,
                "groups": [
                    "system:serviceaccounts",
                    "system:serviceaccounts:default",
                    "system:authenticated",
                ],
            },
            info,
        )

    def test_pod_and_node(self):
        """With a token that is bound to a pod, the user has the pod and its node."""
        made = self.create(pod(serviceAccountName="agent", nodeName="edge-1"))
        node = self.store.get(NODES, None, "edge-1")
        reference = {"kind": "Pod", "apiVersion": "v1", "name": "web"}
        extra = self.who(self.request(boundObjectRef=reference))["extra"]
        del extra[f"{EXTRA}credential-id"]
        self.assertEqual(
            {
                f"{EXTRA}node-name": ["edge-1"],
                f"{EXTRA}node-uid": [node["metadata"]["uid"]],
                f"{EXTRA}pod-name": ["web"],
                f"{EXTRA}pod-uid": [made["metadata"]["uid"]],
            },
            extra,
        )

    def test_authorized(self):
        """An account has the permissions that are granted to it."""
        token = self.request()
        status, answer = self.call("GET", PODS_PATH, token=token)
        self.assertEqual(403, status)
        self.assertIn(f'User "{AGENT}" cannot list resource "pods"', answer["message"])
        path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        body = {"metadata": {"name": "r"}, "rules": [rule("list", "", "pods")]}
        self.create(body, f"{path}/roles")
        body = {
            "metadata": {"name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "agent"}],
            "roleRef": {"kind": "Role", "name": "r"},
        }
        self.create(body, f"{path}/rolebindings")
        self.assertEqual(200, self.call("GET", PODS_PATH, token=token)[0])

    def test_time(self):
        """A token expires, with a tolerance for differences of clocks."""
        token = self.request(expirationSeconds=600)
        self.clock.advance(600 + 60)
        self.assertEqual(AGENT, self.who(token)["username"])
        self.clock.advance(1)
        self.assertEqual(401, self.who(token))

    def test_audience(self):
        """A token for another audience is not valid for the API."""
        self.assertEqual(401, self.who(self.request(audiences=["vault"])))
        self.assertEqual(AGENT, self.who(self.request(audiences=["vault", ISSUER]))["username"])

    def test_ends_with_its_account(self):
        """A token is valid as long as its account exists, and not for a later one of the name."""
        token = self.request()
        self.call("DELETE", f"{ACCOUNTS}/agent")
        self.assertEqual(401, self.who(token))
        self.create({"metadata": {"name": "agent"}}, ACCOUNTS)
        self.assertEqual(401, self.who(token))

    def test_ends_with_what_it_is_bound_to(self):
        """A token is valid as long as its pod, Secret or node exists."""
        self.create(pod(serviceAccountName="agent"))
        self.create({"metadata": {"name": "s"}}, "/api/v1/namespaces/default/secrets")
        for kind, namespace, name in (
            (PODS, "default", "web"),
            (SECRETS, "default", "s"),
            (NODES, None, "edge-1"),
        ):
            reference = {"kind": kind.kind, "apiVersion": "v1", "name": name}
            token = self.request(boundObjectRef=reference)
            self.assertEqual(AGENT, self.who(token)["username"])
            self.store.remove(kind, namespace, name)
            self.assertEqual(401, self.who(token))

    def test_a_bad_token_is_not_nobody(self):
        """A request with an invalid token is rejected even for the version, which is public."""
        status, _ = self.call("GET", "/version", token="sesame")
        self.assertEqual(401, status)

    def test_spaces(self):
        """A token after two spaces is ignored, even a valid one."""
        token = self.request()
        self.assertEqual(AGENT, self.who(token)["username"])
        self.assertEqual(401, self.who(f" {token}"))

    def test_certificates_come_first(self):
        """A client certificate takes precedence over a token."""
        fields = ["Authorization: Bearer sesame"]
        status, _, body = self.exchange("POST", WHO, {}, fields=fields)
        self.assertEqual((201, "ada"), (status, json.loads(body)["status"]["userInfo"]["username"]))


class TokenReviewTests(TokenTestCase):
    """Token reviews."""

    def review(self, token, **spec):
        """Request a review; return the response."""
        return self.create({"spec": {"token": token, **spec}}, REVIEWS)["status"]

    def test_good(self):
        """The response has the user, and the matching audiences."""
        token = self.request(audiences=["a", "b"])
        answer = self.review(token, audiences=["b", "c"])
        self.assertEqual((True, ["b"]), (answer["authenticated"], answer["audiences"]))
        self.assertEqual(AGENT, answer["user"]["username"])

    def test_bad(self):
        """The response for a token that is invalid, or for another audience, has an error."""
        answer = self.review("sesame")
        self.assertNotIn("authenticated", answer)
        self.assertIn("invalid bearer token", answer["error"])
        answer = self.review(self.request(), audiences=["a"])
        self.assertIn(
            f'token audiences ["{ISSUER}"] is invalid for the target audiences ["a"]',
            answer["error"],
        )

    def test_no_token(self):
        """A review without a token is invalid."""
        answer = self.call("POST", REVIEWS, {"spec": {}})
        text = "token is required for TokenReview in authentication"
        self.assert_error(answer, 400, "BadRequest", text)

    def test_permission(self):
        """Token reviews require permission."""
        self.assertEqual(403, self.call("POST", REVIEWS, {}, known=user("bob"))[0])


class AccessReviewTests(TokenTestCase):
    """Access reviews."""

    path = "/apis/authorization.k8s.io/v1"

    def setUp(self):
        """Grant bob some permissions."""
        super().setUp()
        self.grant(
            "bob", rule("get", "", "nodes/proxy"), {"verbs": ["get"], "nonResourceURLs": ["/x"]}
        )

    def may(self, **spec):
        """Request a review of a user; return the response."""
        return self.create({"spec": spec}, f"{self.path}/subjectaccessreviews")["status"]

    def test_resources(self):
        """The response is whether a user may access a resource, with the reason."""
        requested = {"verb": "get", "resource": "nodes", "subresource": "proxy", "name": "n"}
        answer = self.may(user="bob", resourceAttributes=requested)
        self.assertTrue(answer["allowed"])
        self.assertEqual(
            'RBAC: allowed by ClusterRoleBinding "of-bob" of ClusterRole "of-bob" to User "bob"',
            answer["reason"],
        )
        self.assertEqual({"allowed": False}, self.may(user="eve", resourceAttributes=requested))
        self.assertTrue(
            self.may(user="eve", groups=["system:masters"], resourceAttributes=requested)["allowed"]
        )

    def test_paths(self):
        """The response is whether a user may access a path."""
        for path, allowed in (("/x", True), ("/y", False)):
            requested = {"verb": "get", "path": path}
            self.assertEqual(
                allowed, self.may(user="bob", nonResourceAttributes=requested)["allowed"]
            )

    def test_not_recorded(self):
        """The review is recorded as a request, the reviewed access is not."""
        self.audit.clear()
        self.may(user="bob", nonResourceAttributes={"verb": "get", "path": "/x"})
        self.assertEqual(["create"], [what.verb for _, what, _ in self.audit])

    def test_invalid(self):
        """A review must have a user, and either a resource or a path."""
        for spec, field in (
            ({"user": "bob"}, "spec.resourceAttributes"),
            ({"resourceAttributes": {}}, "spec.user"),
            (
                {"user": "bob", "resourceAttributes": {}, "nonResourceAttributes": {}},
                "spec.nonResourceAttributes",
            ),
        ):
            status, answer = self.call("POST", f"{self.path}/subjectaccessreviews", {"spec": spec})
            self.assertEqual(422, status)
            self.assertEqual(field, answer["details"]["causes"][0]["field"])

    def test_oneself(self):
        """All users can review their own access."""
        path = f"{self.path}/selfsubjectaccessreviews"
        for verb, allowed in (("get", True), ("delete", False)):
            requested = {"verb": verb, "resource": "nodes", "subresource": "proxy"}
            status, answer = self.call(
                "POST", path, {"spec": {"resourceAttributes": requested}}, known=user("bob")
            )
            self.assertEqual((201, allowed), (status, answer["status"]["allowed"]))
        self.assertEqual(422, self.call("POST", path, {"spec": {}})[0])

    def test_rules(self):
        """All users can list their own permissions."""
        path = f"{self.path}/selfsubjectrulesreviews"
        _, answer = self.call("POST", path, {"spec": {"namespace": "default"}}, known=user("bob"))
        status = answer["status"]
        self.assertIn(rule("get", "", "nodes/proxy"), status["resourceRules"])
        self.assertIn({"verbs": ["get"], "nonResourceURLs": ["/x"]}, status["nonResourceRules"])
        self.assertFalse(status["incomplete"])
        self.assertEqual(400, self.call("POST", path, {})[0])
