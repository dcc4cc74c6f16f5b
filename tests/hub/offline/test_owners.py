"""Who gets what without the cloud."""

from __future__ import annotations

from tests.hub.offline.world import NOW, OfflineTestCase, item
from tests.hub.request.tokens import jwt, service_account_token
from yurttunnel.hub.offline.placeholder import LIFETIME, SECRET_BYTES, PlaceholderTokens

ACCOUNT = "system:serviceaccount:kube-system:coredns"
TOKEN = service_account_token("kube-system", "coredns")
TARGET = "/api/v1/namespaces/n/secrets/a"


def bearer(token):
    """Make a field."""
    return b"Authorization: Bearer " + token.encode()


class LoopbackTests(OfflineTestCase):
    """By the loopback listener."""

    def setUp(self):
        """Keep a secret of kubelet's, and one of an account's."""
        super().setUp()
        self.keep_one("secrets.v1.core", item("a", owner="node"))
        self.keep_one("secrets.v1.core", item("a", owner=ACCOUNT), client=f"kubelet {ACCOUNT}")

    def test_the_node(self):
        """Without a token it is the node that asks."""
        _, content = self.ask_json(TARGET)
        self.assertEqual("node", content["owner"])

    def test_accepted_tokens(self):
        """A token that the API has accepted gets what its owner got, not what the node got."""
        self.accept(TOKEN)
        _, content = self.ask_json(TARGET, bearer(TOKEN))
        self.assertEqual(ACCOUNT, content["owner"])

    def test_nonsense(self):
        """A token that nobody has accepted gets nothing."""
        for token in ("nonsense", TOKEN, jwt({"sub": "", "iss": "x"})):
            self.assert_status(401, "Unauthorized", "was not accepted", TARGET, bearer(token))

    def test_expired_tokens(self):
        """A token that has expired meanwhile gets nothing any more."""
        self.accept(TOKEN, until=NOW + 60)
        self.assertEqual(200, self.ask(TARGET, bearer(TOKEN))[0])
        self.clock.advance(60)
        self.assert_status(401, "Unauthorized", "expired", TARGET, bearer(TOKEN))

    def test_impersonation(self):
        """Who may act for somebody else only the API says."""
        self.assert_status(
            503, "ServiceUnavailable", "act for somebody else", TARGET, b"Impersonate-User: admin"
        )


class PodsTests(OfflineTestCase):
    """By the listeners that pods reach."""

    local = False

    def setUp(self):
        """Keep a secret of kubelet's, and one of an account's."""
        super().setUp()
        self.keep_one("secrets.v1.core", item("a", owner="node"))
        self.keep_one("secrets.v1.core", item("a", owner=ACCOUNT), client=f"kubelet {ACCOUNT}")

    def test_no_credentials(self):
        """Without a token there is nothing, whatever the client calls itself."""
        for target in (TARGET, "/api/v1/pods", "/version", "/api/v1/pods?watch=1"):
            self.assert_status(401, "Unauthorized", "a bearer token is needed", target)
        self.assert_status(
            401, "Unauthorized", "", "/api/v1/namespaces/n/pods", method=b"POST", body=b"{}"
        )

    def test_a_client_that_claims_to_be_kubelet(self):
        """It sees what its owner has seen, and nothing of kubelet's."""
        self.accept(TOKEN)
        _, content = self.ask_json(TARGET, bearer(TOKEN))
        self.assertEqual(ACCOUNT, content["owner"])
        other = service_account_token("n", "other")
        self.accept(other)
        self.assert_status(503, "ServiceUnavailable", "never seen", TARGET, bearer(other))

    def test_kubectl_in_a_pod(self):
        """What kubelet knows is for people at the node, not for pods."""
        self.keep("pods.v1.core", item("p"))
        self.accept(TOKEN)
        target = "/api/v1/namespaces/n/pods"
        self.assert_status(
            503, "ServiceUnavailable", "", target, bearer(TOKEN), agent=b"kubectl/v1"
        )

    def test_placeholders(self):
        """The hub knows the account that it issued a placeholder for, until it expires."""
        token, expires = self.tokens.issue("kube-system", "coredns", [])
        self.assertEqual(NOW + LIFETIME, expires)
        _, content = self.ask_json(TARGET, bearer(token))
        self.assertEqual(ACCOUNT, content["owner"])
        self.clock.advance(LIFETIME)
        self.assert_status(401, "Unauthorized", "", TARGET, bearer(token))

    def test_placeholders_of_others(self):
        """A placeholder for others than the API is not for the API; nor is one that is forged."""
        vault, _ = self.tokens.issue("kube-system", "coredns", ["vault"])
        other = PlaceholderTokens(b"x" * SECRET_BYTES, self.clock.seconds)
        forged, _ = other.issue("kube-system", "coredns", [])
        good, _ = self.tokens.issue("kube-system", "coredns", [])
        unsigned = good.rpartition(".")[0] + "."
        mixed = ".".join([good.split(".")[0], vault.split(".")[1], good.split(".")[2]])
        for token in (vault, forged, unsigned, mixed, ".", "..", good + "x"):
            self.assert_status(401, "Unauthorized", "", TARGET, bearer(token))


class WithoutPlaceholdersTests(OfflineTestCase):
    """Switched off."""

    local = False
    placeholders = False

    def test_placeholders(self):
        """A placeholder is nobody's when none are issued."""
        self.keep_one("secrets.v1.core", item("a"), client=f"kubelet {ACCOUNT}")
        token, _ = self.tokens.issue("kube-system", "coredns", [])
        self.assert_status(401, "Unauthorized", "", TARGET, bearer(token))
