"""Authentication and authorization."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL.crypto import X509
from twisted.trial.unittest import SynchronousTestCase

from tests.yurtlab.api.support import PODS_PATH, ApiTestCase, certificate, user
from yurtlab.api.access import Certificates, is_public


class Transport:
    """A TLS transport with or without a client certificate."""

    def __init__(self, certificate=None):
        self._certificate = certificate

    def getPeerCertificate(self):
        """Return the certificate."""
        return None if self._certificate is None else X509.from_cryptography(self._certificate)


class Exchange:
    """The part of an exchange that identifies the client."""

    def __init__(self, transport=None):
        self.secure = transport is not None
        self.transport = transport


def identify(exchange):
    """Return the user of an exchange."""
    return Certificates().authenticate(exchange)


class CertificateTests(SynchronousTestCase):
    """Authentication by certificates."""

    def test_certificate(self):
        """The name and groups of a user come from the client certificate."""
        user = identify(Exchange(Transport(certificate(("bob",), ("team", "admins")))))
        self.assertEqual("bob", user.name)
        self.assertEqual(("team", "admins", "system:authenticated"), user.groups)

    def test_credential(self):
        """The user has the certificate's ID as an extra attribute, as in Kubernetes."""
        presented = certificate(("bob",), ("team",))
        fingerprint = hashlib.sha256(presented.public_bytes(Encoding.DER)).hexdigest()
        self.assertEqual(
            {"authentication.kubernetes.io/credential-id": (f"X509SHA256={fingerprint}",)},
            identify(Exchange(Transport(presented))).extra,
        )

    def test_nobody(self):
        """Without TLS, a certificate or a unique name the user is unknown."""
        for transport in (
            None,
            Transport(),
            Transport(certificate((), ("team",))),
            Transport(certificate(("ada", "bob"))),
        ):
            self.assertIsNone(identify(Exchange(transport)))

    def test_public(self):
        """Probes and the version are public."""
        for path in ("/healthz", "/livez", "/readyz", "/readyz/x", "/version"):
            self.assertTrue(is_public(path))
        for path in ("/", "/api", "/healthzz", "/version/x", "/openapi/v2"):
            self.assertFalse(is_public(path))


class AuthenticationContract:
    """Authentication by an API, in a test case of it."""

    def test_nobody(self):
        """Without credentials every response is Unauthorized."""
        for method, path in (("GET", PODS_PATH), ("GET", "/api"), ("GET", "/no"), ("POST", "/")):
            answer = self.call(method, path, known=False)
            self.assert_error(answer, 401, "Unauthorized", "Unauthorized")

    def test_other_proof(self):
        """Passwords and unknown tokens are not accepted as credentials."""
        for value in ("Basic YWRhOnNlc2FtZQ==", "Bearer sesame"):
            fields = [f"Authorization: {value}"]
            status, _, _ = self.exchange("GET", PODS_PATH, known=False, fields=fields)
            self.assertEqual(401, status)


class AccessTests(AuthenticationContract, ApiTestCase):
    """Authorization."""

    def test_others(self):
        """Another user with a certificate of the authority, such as an agent, is forbidden
        everything."""
        text = (
            'forbidden: User "edge-1" is not in the group system:masters, which alone may use this'
            " API"
        )
        for method, path in (("GET", PODS_PATH), ("GET", "/api"), ("POST", "/no")):
            answer = self.call(method, path, known=user("edge-1", "system:nodes"))
            self.assert_error(answer, 403, "Forbidden", text)

    def test_for_anybody(self):
        """Probes and the version are served to everyone, authenticated or not."""
        for path in ("/readyz", "/version"):
            self.assertEqual(200, self.exchange("GET", path, known=False)[0])
