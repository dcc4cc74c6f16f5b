"""Discovery of a cluster's authorities by a bootstrap token."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.apiserver.bootstrap_tokens import signed
from tests.hub.cluster import TOKEN, Cluster
from tests.kube.misfits import MISFITS
from tests.pki.support import Issuer
from yurtlab.api.resources import CONFIG_MAPS
from yurttunnel.pki.discovery import (
    BadBootstrapToken,
    BootstrapToken,
    DiscoveryFailed,
    discover,
    is_signed_by,
    parse_pin,
)

# From k8s.io/cluster-bootstrap/token/jws, jws_test.go.
PUBLISHED_CONTENT = "Hello from the other side. I must have called a thousand times."
PUBLISHED_TOKEN = ("joshua", "my voice is my passcode")
PUBLISHED = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"


class TextTests(SynchronousTestCase):
    """Tokens, pins and signatures."""

    def test_token(self):
        """A token has two parts, and its secret is not in logs."""
        token = BootstrapToken.parse(f" {TOKEN}\n")
        self.assertEqual(("abcdef", "0123456789abcdef"), (token.id, token.secret))
        self.assertEqual(TOKEN, token.bearer)
        self.assertNotIn("0123456789abcdef", repr(token))

    def test_no_token(self):
        """Invalid tokens are rejected, and not repeated in the error."""
        for text in ("", "abcdef", "abcdef.0123", "ABCDEF.0123456789abcdef", f"{TOKEN}x"):
            error = self.assertRaises(BadBootstrapToken, BootstrapToken.parse, text)
            self.assertNotIn(text or "''", str(error))

    def test_pin(self):
        """A pin has the format of kubeadm."""
        self.assertEqual("ab" * 32, parse_pin("sha256:" + "AB" * 32))
        for text in ("ab" * 32, "sha256:ab", "sha512:" + "ab" * 32, "sha256:" + "zz" * 32):
            self.assertRaises(ValueError, parse_pin, text)

    def test_published_signature(self):
        """A signature published by Kubernetes is valid, and only for that content."""
        token = BootstrapToken(*PUBLISHED_TOKEN)
        self.assertTrue(is_signed_by(PUBLISHED_CONTENT, PUBLISHED, token))
        self.assertFalse(is_signed_by(PUBLISHED_CONTENT + " ", PUBLISHED, token))
        other = BootstrapToken("joshua", "other")
        self.assertFalse(is_signed_by(PUBLISHED_CONTENT, PUBLISHED, other))

    def test_bad_signatures(self):
        """Malformed signatures are invalid, without an exception."""
        token = BootstrapToken.parse(TOKEN)
        good = signed("x", token.id, token.secret)
        header, _, mac = good.split(".")
        of_another = signed("x", "ghijkl", token.secret).split(".")[0]
        for text in (
            "",
            "..",
            header,
            f"{header}..",
            f"{header}..{mac[:-4]}",
            f"{header}.eA.{mac}",
            f"{of_another}..{mac}",
            f"W10..{mac}",
            f"{header}..{mac}.",
            f"\u00e4..{mac}",
        ):
            self.assertFalse(is_signed_by("x", text, token), text)
        self.assertTrue(is_signed_by("x", good, token))
        self.assertFalse(is_signed_by("\ud800", good, token))


class DiscoveryTests(TestCase):
    """The two requests to the API."""

    def setUp(self):
        """Start the API."""
        self.cluster = Cluster(reactor, self.mktemp())
        self.addCleanup(lambda: Deferred.fromCoroutine(self.cluster.close()))
        self.token = BootstrapToken.parse(TOKEN)
        self.foreign = Issuer.make(self).authority

    def discover(self, *pins, token=None):
        """Run the discovery."""
        asked = discover(reactor, self.cluster.url, token or self.token, pins)
        return Deferred.fromCoroutine(asked)

    async def fails(self, words, *pins, token=None):
        """Assert the error, on one line without the secret."""
        error = await self.assertFailure(self.discover(*pins, token=token), DiscoveryFailed)
        self.assertIn(words, str(error))
        self.assertNotIn("\n", str(error))
        self.assertNotIn(self.token.secret, str(error))

    async def test_pinned(self):
        """The pinned authority is found."""
        self.assertEqual((self.cluster.authority,), await self.discover(self.cluster.pin))

    async def test_without_pins(self):
        """Without pins, the token's signature suffices."""
        self.assertEqual((self.cluster.authority,), await self.discover())

    async def test_another_pin(self):
        """Another authority than the pinned one is rejected, and named."""
        await self.fails(f"but sha256:{self.cluster.pin}", "00" * 32)

    async def test_a_bundle(self):
        """In a rotation, one pinned authority suffices; all are returned."""
        both = (self.foreign.certificate, self.cluster.authority)
        self.cluster.publish(*both)
        self.assertEqual(both, await self.discover(self.cluster.pin))

    async def test_somebody_in_between(self):
        """A holder of the token cannot add an authority to the pinned one.

        The API's certificate has to be from a pinned authority, not from any in the list.
        """
        self.cluster.publish(self.foreign.certificate, self.cluster.authority)
        await self.fails("certificate", self.foreign.pin)

    async def test_unknown_token(self):
        """The error for an unknown token says that it may have expired."""
        unknown = BootstrapToken("ghijkl", "0" * 16)
        await self.fails("does not know the bootstrap token ghijkl", token=unknown)

    async def test_wrong_secret(self):
        """A token with another secret is rejected."""
        await self.fails("is not signed", token=BootstrapToken(self.token.id, "0" * 16))

    async def test_forged(self):
        """Content that was changed after the signature is rejected."""
        path = (CONFIG_MAPS, "kube-public", "cluster-info")
        found = self.cluster.store.get(*path)
        found["data"]["kubeconfig"] += " "
        self.cluster.store.replace(*path, found)
        await self.fails("is not signed")

    async def test_unusable(self):
        """A signed kubeconfig without authorities is reported as such."""
        wrong = ("", "[]", "clusters: []", "a: b: c", "clusters: [{cluster: {}}]", *MISFITS)
        for kubeconfig in wrong:
            path = (CONFIG_MAPS, "kube-public", "cluster-info")
            found = self.cluster.store.get(*path)
            signature = signed(kubeconfig, self.token.id, self.token.secret)
            found["data"] = {"kubeconfig": kubeconfig, "jws-kubeconfig-abcdef": signature}
            self.cluster.store.replace(*path, found)
            await self.fails("cannot be used")

    async def test_no_cluster_info(self):
        """For a cluster without the ConfigMap, the error contains the alternative."""
        self.cluster.store.remove(CONFIG_MAPS, "kube-public", "cluster-info")
        await self.fails("--bootstrap-file")

    async def test_nobody_there(self):
        """The error for an unreachable API contains its address."""
        await self.cluster.port.stopListening()
        await self.fails(self.cluster.url)
