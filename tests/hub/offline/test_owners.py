"""Authentication while offline."""

from __future__ import annotations

from tests.hub.offline.world import NOW, OfflineTestCase, item
from tests.hub.request.tokens import jwt, service_account_token
from yurttunnel.hub.offline.placeholder import LIFETIME, SECRET_BYTES, PlaceholderTokens

ACCOUNT = "system:serviceaccount:kube-system:coredns"
TOKEN = service_account_token("kube-system", "coredns")
TARGET = "/api/v1/namespaces/n/secrets/a"


def bearer(token):
    """Create a header field."""
    return b"Authorization: Bearer " + token.encode()


class SecretsTestCase(OfflineTestCase):
    """A cached Secret of the kubelet, and one of an account."""

    def setUp(self):
        """Cache both."""
        super().setUp()
        self.store_one("secrets.v1.core", item("a", owner="node"))
        self.store_one("secrets.v1.core", item("a", owner=ACCOUNT), client=f"kubelet {ACCOUNT}")


class LoopbackTests(SecretsTestCase):
    """On the loopback listener."""

    def test_the_node(self):
        """A request without a token is the node's."""
        _, content = self.get_json(TARGET)
        self.assertEqual("node", content["owner"])

    def test_accepted_tokens(self):
        """An accepted token gets its owner's data, not the node's."""
        self.accept(TOKEN)
        _, content = self.get_json(TARGET, bearer(TOKEN))
        self.assertEqual(ACCOUNT, content["owner"])

    def test_invalid(self):
        """A token that was never accepted is rejected."""
        for token in ("nonsense", TOKEN, jwt({"sub": "", "iss": "x"})):
            self.assert_status(401, "Unauthorized", "was not accepted", TARGET, bearer(token))

    def test_expired_tokens(self):
        """A token that has expired meanwhile is rejected."""
        self.accept(TOKEN, until=NOW + 60)
        self.assertEqual(200, self.send_request(TARGET, bearer(TOKEN))[0])
        self.clock.advance(60)
        self.assert_status(401, "Unauthorized", "expired", TARGET, bearer(TOKEN))

    def test_impersonation(self):
        """Impersonation needs the API."""
        self.assert_status(
            503,
            "ServiceUnavailable",
            "can authorize impersonation",
            TARGET,
            b"Impersonate-User: admin",
        )


class PodsTests(SecretsTestCase):
    """On the listeners for pods."""

    local = False

    def test_no_credentials(self):
        """A request without a token is rejected, whatever its User-Agent is."""
        for target in (TARGET, "/api/v1/pods", "/version", "/api/v1/pods?watch=1"):
            self.assert_status(401, "Unauthorized", "a bearer token is needed", target)
        self.assert_status(
            401, "Unauthorized", "", "/api/v1/namespaces/n/pods", method=b"POST", body=b"{}"
        )

    def test_a_client_that_claims_to_be_kubelet(self):
        """A pod that claims to be the kubelet gets its own account's data only."""
        self.accept(TOKEN)
        _, content = self.get_json(TARGET, bearer(TOKEN))
        self.assertEqual(ACCOUNT, content["owner"])
        other = service_account_token("n", "other")
        self.accept(other)
        self.assert_status(503, "ServiceUnavailable", "never received", TARGET, bearer(other))

    def test_kubectl_in_a_pod(self):
        """The kubelet's data is for users on the node, not for pods."""
        self.store("pods.v1.core", item("p"))
        self.accept(TOKEN)
        target = "/api/v1/namespaces/n/pods"
        self.assert_status(
            503, "ServiceUnavailable", "", target, bearer(TOKEN), agent=b"kubectl/v1"
        )

    def test_placeholders(self):
        """The account of a placeholder is known until it expires."""
        token, expires = self.tokens.issue("kube-system", "coredns", [])
        self.assertEqual(NOW + LIFETIME, expires)
        _, content = self.get_json(TARGET, bearer(token))
        self.assertEqual(ACCOUNT, content["owner"])
        self.clock.advance(LIFETIME)
        self.assert_status(401, "Unauthorized", "", TARGET, bearer(token))

    def test_placeholders_of_others(self):
        """Placeholders for other audiences, and forged ones, are rejected."""
        vault, _ = self.tokens.issue("kube-system", "coredns", ["vault"])
        other = PlaceholderTokens(b"x" * SECRET_BYTES, self.clock.seconds)
        forged, _ = other.issue("kube-system", "coredns", [])
        good, _ = self.tokens.issue("kube-system", "coredns", [])
        unsigned = good.rpartition(".")[0] + "."
        mixed = ".".join([good.split(".")[0], vault.split(".")[1], good.split(".")[2]])
        for token in (vault, forged, unsigned, mixed, ".", "..", good + "x"):
            self.assert_status(401, "Unauthorized", "", TARGET, bearer(token))


class WithoutPlaceholdersTests(OfflineTestCase):
    """Disabled placeholders."""

    local = False
    placeholders = False

    def test_placeholders(self):
        """A placeholder is rejected if none are issued."""
        self.store_one("secrets.v1.core", item("a"), client=f"kubelet {ACCOUNT}")
        token, _ = self.tokens.issue("kube-system", "coredns", [])
        self.assert_status(401, "Unauthorized", "", TARGET, bearer(token))
