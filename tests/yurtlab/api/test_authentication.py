"""Who asks."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL.crypto import X509
from twisted.trial.unittest import SynchronousTestCase

from tests.yurtlab.api.support import certificate
from yurtlab.api.authentication import identify, is_public


class Transport:
    """A TLS transport with a client's certificate, or without."""

    def __init__(self, certificate=None):
        self._certificate = certificate

    def getPeerCertificate(self):
        """Return the certificate."""
        return None if self._certificate is None else X509.from_cryptography(self._certificate)


class Exchange:
    """What an exchange says of who asks."""

    def __init__(self, transport=None):
        self.secure = transport is not None
        self.transport = transport


class AuthenticationTests(SynchronousTestCase):
    """Who asks."""

    def test_certificate(self):
        """A client certificate tells name and groups."""
        user = identify(Exchange(Transport(certificate(("bob",), ("team", "admins")))))
        self.assertEqual("bob", user.name)
        self.assertEqual(("team", "admins", "system:authenticated"), user.groups)

    def test_credential(self):
        """Which certificate it was is told along, as Kubernetes does it."""
        presented = certificate(("bob",), ("team",))
        fingerprint = hashlib.sha256(presented.public_bytes(Encoding.DER)).hexdigest()
        self.assertEqual(
            {"authentication.kubernetes.io/credential-id": (f"X509SHA256={fingerprint}",)},
            identify(Exchange(Transport(presented))).extra,
        )

    def test_nobody(self):
        """Without TLS, a certificate or one name it cannot be said."""
        for transport in (
            None,
            Transport(),
            Transport(certificate((), ("team",))),
            Transport(certificate(("ada", "bob"))),
        ):
            self.assertIsNone(identify(Exchange(transport)))

    def test_public(self):
        """Probes and the version are for anybody."""
        for path in ("/healthz", "/livez", "/readyz", "/readyz/x", "/version"):
            self.assertTrue(is_public(path))
        for path in ("/", "/api", "/healthzz", "/version/x", "/openapi/v2"):
            self.assertFalse(is_public(path))
