"""The requests that the signers of Kubernetes accept, and the certificates that they issue."""

from __future__ import annotations

import datetime
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from twisted.trial.unittest import SynchronousTestCase

from tests.apiserver.signing import (
    CLIENT,
    KUBELET_CLIENT,
    KUBELET_SERVING,
    NotSigned,
    SigningAuthority,
    check_request,
    lifetime,
)
from yurttunnel.pki.credentials import new_key

NOW = datetime.datetime(2025, 6, 15, tzinfo=datetime.UTC)
CLIENT_USAGES = ["digital signature", "key encipherment", "client auth"]
SERVER_USAGES = ["digital signature", "key encipherment", "server auth"]

DNS = x509.DNSName("edge-1")
IP = x509.IPAddress(ip_address("192.0.2.1"))
MAIL = x509.RFC822Name("a@b.example")
URI = x509.UniformResourceIdentifier("spiffe://a/b")


def request(name="system:node:edge-1", organizations=("system:nodes",), names=(), key=None):
    """Return a request."""
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else []
    attributes += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organizations]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    # A client cannot decide other extensions.
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    builder = builder.add_extension(constraints, critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key or new_key(), hashes.SHA256())


class CheckTests(SynchronousTestCase):
    """Accepted requests."""

    def problem(self, signer, usages, **fields):
        """Return why a request is not signed, or ``None`` if it is."""
        try:
            check_request(signer, request(**fields), usages)
        except NotSigned as error:
            return str(error)
        return None

    def test_clients(self):
        """Clients may have any name, but only usages of clients."""
        self.assertIsNone(self.problem(CLIENT, CLIENT_USAGES, name="x", organizations=("a", "b")))
        self.assertIsNone(self.problem(CLIENT, ["client auth"], names=[DNS, IP, MAIL, URI]))
        self.assertEqual(
            "missing required usage for client certificate: client auth",
            self.problem(CLIENT, ["digital signature"]),
        )
        self.assertEqual(
            "invalid usage for client certificate: server auth",
            self.problem(CLIENT, ["client auth", "server auth"]),
        )

    def test_kubelets_as_clients(self):
        """Kubelets have the common name of a kubelet, and no alternative names."""
        self.assertIsNone(self.problem(KUBELET_CLIENT, CLIENT_USAGES))
        self.assertIsNone(self.problem(KUBELET_CLIENT, ["client auth", "digital signature"]))
        for name, kind in ((DNS, "DNS"), (IP, "IP"), (MAIL, "Email"), (URI, "URI")):
            text = f"{kind} subjectAltNames are not allowed"
            self.assertEqual(text, self.problem(KUBELET_CLIENT, CLIENT_USAGES, names=[name]))
        self.assertEqual(
            "usages did not match [client auth digital signature key encipherment]",
            self.problem(KUBELET_CLIENT, ["client auth"]),
        )

    def test_kubelets_as_servers(self):
        """Serving certificates have DNS names or IP addresses, and no other names."""
        self.assertIsNone(self.problem(KUBELET_SERVING, SERVER_USAGES, names=[DNS]))
        self.assertIsNone(self.problem(KUBELET_SERVING, SERVER_USAGES, names=[IP]))
        for names, text in (
            ([], "DNS or IP subjectAltName is required"),
            ([DNS, MAIL], "Email subjectAltNames are not allowed"),
            ([DNS, URI], "URI subjectAltNames are not allowed"),
        ):
            self.assertEqual(text, self.problem(KUBELET_SERVING, SERVER_USAGES, names=names))
        self.assertEqual(
            "usages did not match [digital signature key encipherment server auth]",
            self.problem(KUBELET_SERVING, [*SERVER_USAGES, "client auth"], names=[DNS]),
        )

    def test_names_of_kubelets(self):
        """The only organization of both is the group of nodes."""
        for signer, usages in ((KUBELET_CLIENT, CLIENT_USAGES), (KUBELET_SERVING, SERVER_USAGES)):
            names = [DNS] if signer == KUBELET_SERVING else []
            for organizations in ((), ("x",), ("system:nodes", "x")):
                self.assertEqual(
                    "subject organization is not system:nodes",
                    self.problem(signer, usages, organizations=organizations, names=names),
                )
            for name in ("edge-1", ""):
                self.assertEqual(
                    "subject common name does not begin with system:node:",
                    self.problem(signer, usages, name=name, names=names),
                )


class SignTests(SynchronousTestCase):
    """Issued certificates."""

    def setUp(self):
        """Create an authority."""
        self.authority = SigningAuthority.make("test", NOW, datetime.timedelta(days=1))

    def sign(self, asked, usages=CLIENT_USAGES, **span):
        """Sign a request."""
        span = datetime.timedelta(**span or {"hours": 1})
        return self.authority.sign(asked, usages, span, NOW)

    def test_content(self):
        """A certificate has the names and the key of its request, and is signed."""
        key = new_key()
        asked = request(names=[DNS, IP], key=key)
        made = self.sign(asked)
        made.verify_directly_issued_by(self.authority.certificate)
        self.assertEqual(asked.subject, made.subject)
        self.assertEqual(key.public_key(), made.public_key())
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        self.assertEqual([DNS, IP], list(names))

    def test_usages(self):
        """A certificate has the requested usages, and is no authority."""
        for usages, encipherment, purpose in (
            (CLIENT_USAGES, True, ExtendedKeyUsageOID.CLIENT_AUTH),
            (["digital signature", "server auth"], False, ExtendedKeyUsageOID.SERVER_AUTH),
        ):
            extensions = self.sign(request(), usages).extensions
            usage = extensions.get_extension_for_class(x509.KeyUsage).value
            self.assertEqual(
                (True, encipherment), (usage.digital_signature, usage.key_encipherment)
            )
            self.assertFalse(usage.key_cert_sign)
            extended = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            self.assertEqual([purpose], list(extended))
            self.assertFalse(extensions.get_extension_for_class(x509.BasicConstraints).value.ca)

    def test_what_is_critical(self):
        """The extensions for usages are critical (RFC 5280 4.2)."""
        authority = SigningAuthority.make("ca", NOW, datetime.timedelta(days=1)).certificate
        of_authority = {"basicConstraints": True, "keyUsage": True, "subjectKeyIdentifier": False}
        critical = {
            "basicConstraints": True,
            "authorityKeyIdentifier": False,
            "keyUsage": True,
            "extendedKeyUsage": False,
            "subjectAltName": False,
        }
        nameless = request(name="", organizations=(), names=[DNS])
        for certificate, expected in (
            (authority, of_authority),
            (self.sign(request(names=[DNS]), CLIENT_USAGES), critical),
            (self.sign(nameless, CLIENT_USAGES), {**critical, "subjectAltName": True}),
        ):
            found = {one.oid._name: one.critical for one in certificate.extensions}
            self.assertEqual(expected, found)
        usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
        self.assertEqual(
            (True, True, False), (usage.key_cert_sign, usage.crl_sign, usage.digital_signature)
        )
        constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
        self.assertEqual((True, None), (constraints.ca, constraints.path_length))

    def test_times(self):
        """The validity begins a little earlier, and never exceeds that of the authority."""
        five = datetime.timedelta(minutes=5)
        made = self.sign(request(), hours=1)
        self.assertEqual(NOW - five, made.not_valid_before_utc)
        self.assertEqual(NOW + datetime.timedelta(hours=1), made.not_valid_after_utc)
        made = self.sign(request(), hours=9)
        self.assertEqual(NOW + datetime.timedelta(hours=9) - five, made.not_valid_after_utc)
        made = self.sign(request(), days=2)
        self.assertEqual(self.authority.certificate.not_valid_after_utc, made.not_valid_after_utc)

    def test_lifetimes(self):
        """The duration is the requested one, within the bounds."""
        hour = datetime.timedelta(hours=1)
        for requested, longest, seconds in (
            (None, hour, 3600),
            (1200, hour, 1200),
            (7200, hour, 3600),
            (60, hour, 600),
            (2**62, hour, 3600),
            (600, datetime.timedelta(seconds=20), 20),
        ):
            self.assertEqual(seconds, lifetime(requested, longest).total_seconds())
