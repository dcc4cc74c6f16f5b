"""The embedded authority and the certificates that it signs."""

from __future__ import annotations

import datetime
import stat
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import TestCase

from tests.pki.support import EDGE_1, Issuer, clock_now, state_directory
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.authority import (
    Authority,
    BadRequest,
    key_of_request,
    request_certificate,
)
from yurttunnel.pki.credentials import is_issued_by, key_to_pem, new_key, pin_of
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.identity import identity_from_certificate
from yurttunnel.pki.names import CALLER_NAME, BadIdentity


class AuthorityStateTests(TestCase):
    """``ca.crt`` and ``ca.key``."""

    def setUp(self) -> None:
        """Choose an empty directory."""
        self.clock = clock_now()
        self.directory = state_directory(self)

    def open(self) -> Authority:
        """Open the authority, as at each start."""
        return Authority.open(self.clock, self.directory)

    def test_created_once(self) -> None:
        """The first start creates the pair, later ones load it."""
        first = self.open()
        self.assertEqual(self.open().certificate, first.certificate)
        self.assertEqual(first.pin, pin_of(first.certificate))

    def test_key_is_closed(self) -> None:
        """The key is accessible to its owner only; another mode is an error."""
        self.open()
        key = self.directory.path / "ca.key"
        self.assertEqual(stat.S_IMODE(key.stat().st_mode), 0o600)
        key.chmod(0o644)
        self.assertIn("chmod 0600", str(self.assertRaises(StateError, self.open)))

    def test_interrupted_creation(self) -> None:
        """A key without a certificate, from a start that was killed, gets its certificate."""
        self.open()
        key = self.directory.read("ca.key")
        self.directory.remove("ca.crt")
        self.open()
        self.assertEqual(self.directory.read("ca.key"), key)

    def test_missing_key(self) -> None:
        """A certificate without a key is an error; no new authority is created."""
        self.open()
        self.directory.remove("ca.key")
        self.assertIn("ca.key is missing", str(self.assertRaises(StateError, self.open)))

    def test_mismatch(self) -> None:
        """A key of another certificate is an error."""
        self.open()
        other = state_directory(self)
        Authority.open(self.clock, other)
        self.directory.write("ca.key", other.read("ca.key") or b"")
        self.assertIn("does not belong", str(self.assertRaises(StateError, self.open)))

    def test_broken_files(self) -> None:
        """Files that are not PEM, and keys of unsupported types, are errors."""
        self.open()
        edwards = ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        for name in ("ca.key", "ca.crt"):
            for content in (b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAA==\n", edwards):
                kept = self.directory.read(name) or b""
                self.directory.write(name, content)
                error = self.assertRaises(StateError, self.open)
                self.assertIn(f"{name}: it", str(error))
                self.directory.write(name, kept)

    def test_expired(self) -> None:
        """An expired authority is an error with the fix."""
        authority = self.open()
        self.clock.advance(11 * 365 * 86400)
        said = str(self.assertRaises(StateError, self.open))
        self.assertIn(f"ca.crt ended at {authority.certificate.not_valid_after_utc:%F %T}", said)
        self.assertIn(f"the clock of this machine says {utc_now(self.clock):%F %T} UTC", said)
        self.assertIn("If the clock is wrong, set it", said)

    def test_made_by_no_clock(self) -> None:
        """None is created while the clock was never set, since it would expire when it is set."""
        right = self.clock.seconds()
        for begun in (False, True):
            self.clock.rightNow = 10.0
            said = str(self.assertRaises(StateError, self.open))
            self.assertIn("the clock of this machine says 1970-01-01 00:00:10 UTC", said)
            self.assertIn("set it", said)
            self.clock.rightNow = right
            if not begun:
                self.assertEqual([], self.directory.names())
                # The state after a start that was killed between the two writes.
                self.directory.write("ca.key", key_to_pem(new_key()))
        self.assertGreater(self.open().certificate.not_valid_after_utc, utc_now(self.clock))

    def test_loaded_by_no_clock(self) -> None:
        """An existing authority is loaded whatever the clock, which may be set later."""
        authority = self.open()
        self.assertIsNone(authority.problem())
        self.clock.rightNow = 10.0
        self.assertEqual(authority.certificate, self.open().certificate)

    def test_made_by_a_clock_that_was_ahead(self) -> None:
        """An authority from a clock that was ahead is reported as not valid yet, with the fix."""
        right = self.clock.seconds()
        self.clock.advance(4 * 365 * 86400)
        authority = self.open()
        begin = authority.certificate.not_valid_before_utc
        self.clock.rightNow = right
        said = str(authority.problem())
        self.assertIn(f"begins at {begin:%F %T} UTC", said)
        self.assertIn(f"the clock of this machine says {utc_now(self.clock):%F %T} UTC", said)
        self.assertIn("enroll all nodes again", said)
        with capturedLogs() as events:
            self.open()
        [line] = [formatEvent(event) for event in events]
        self.assertEqual(f"no agent can connect yet: {said}", line)


class SigningTests(TestCase):
    """The certificates it signs."""

    def setUp(self) -> None:
        """Create an authority."""
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.authority = self.issuer.authority
        self.now = datetime.datetime.fromtimestamp(int(self.clock.seconds()), datetime.UTC)

    def usages(self, certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
        """Return the extended key usages."""
        return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)

    def test_node(self) -> None:
        """A node's certificate is for clients, lasts 30 days and is backdated."""
        certificate = self.authority.sign_node("edge-1", EDGE_1, new_key().public_key(), "ab")
        self.assertEqual(self.usages(certificate), [ExtendedKeyUsageOID.CLIENT_AUTH])
        self.assertEqual(certificate.not_valid_before_utc, self.now - datetime.timedelta(minutes=5))
        self.assertEqual(certificate.not_valid_after_utc, self.now + datetime.timedelta(days=30))
        self.assertTrue(is_issued_by(certificate, self.authority.certificate))

    def test_not_an_authority(self) -> None:
        """Its certificates cannot sign further certificates."""
        certificate = self.issuer.node().certificate
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        self.assertEqual((constraints.critical, constraints.value.ca), (True, False))
        own = self.authority.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        self.assertEqual((own.critical, own.value.path_length), (True, 0))

    def test_never_beyond_the_authority(self) -> None:
        """No certificate outlives the authority's own."""
        self.clock.advance(10 * 365 * 86400 - 3600)
        self.assertEqual(
            self.issuer.node(lifetime=86400).certificate.not_valid_after_utc,
            self.authority.certificate.not_valid_after_utc,
        )

    def test_bad_names(self) -> None:
        """Names that no node can have are not signed."""
        key = new_key().public_key()
        for name in ("Edge", "a/b", "a\nb", "", "x" * 65):
            self.assertRaises(BadIdentity, self.authority.sign_node, name, EDGE_1, key, "ab")

    def test_server(self) -> None:
        """The server's certificate is for servers, with the given names."""
        certificate = self.authority.sign_server(
            new_key().public_key(), ["b.test", "a.test"], [ip_address("192.0.2.1")]
        )
        self.assertEqual(self.usages(certificate), [ExtendedKeyUsageOID.SERVER_AUTH])
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        self.assertEqual(names.get_values_for_type(x509.DNSName), ["a.test", "b.test"])
        self.assertEqual(names.get_values_for_type(x509.IPAddress), [ip_address("192.0.2.1")])

    def test_caller(self) -> None:
        """A caller's certificate has kube-apiserver's name, and is not a node's."""
        certificate = self.authority.sign_client(new_key().public_key(), CALLER_NAME)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        self.assertEqual([name.value for name in names], ["kube-apiserver-kubelet-client"])
        self.assertEqual(self.usages(certificate), [ExtendedKeyUsageOID.CLIENT_AUTH])
        self.assertRaises(BadIdentity, identity_from_certificate, certificate)


class RequestTests(TestCase):
    """Certificate requests."""

    def test_key(self) -> None:
        """The key of a valid request is accepted, P-256 or RSA."""
        for key in (new_key(), rsa.generate_private_key(65537, 2048)):
            self.assertEqual(key_of_request(request_certificate(key)), key.public_key())

    def test_garbage(self) -> None:
        """An invalid request is rejected with a sentence."""
        good = request_certificate(new_key())
        lines = good.splitlines()
        for text in (
            "",
            "nonsense",
            "\N{SNOWMAN}",
            good[: len(good) // 2],
            "\n".join([lines[0], "AAAA", lines[-1]]),
            good.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
        ):
            error = self.assertRaises(BadRequest, key_of_request, text)
            self.assertIn("is not a PKCS #10 request", str(error))

    def test_signature(self) -> None:
        """A request that is not signed by its own key is rejected."""
        one, other = new_key(), new_key()
        der = x509.load_pem_x509_csr(request_certificate(one).encode()).public_bytes(
            serialization.Encoding.DER
        )
        encoding = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        forged = der.replace(
            one.public_key().public_bytes(*encoding), other.public_key().public_bytes(*encoding)
        )
        self.assertNotEqual(forged, der)
        pem = x509.load_der_x509_csr(forged).public_bytes(serialization.Encoding.PEM).decode()
        error = self.assertRaises(BadRequest, key_of_request, pem)
        self.assertIn("not signed by the key", str(error))

    def test_weak_keys(self) -> None:
        """Short keys, and keys of unsupported types, are rejected."""
        for key in (
            rsa.generate_private_key(65537, 1024),
            ec.generate_private_key(ec.SECP192R1()),
            ec.generate_private_key(ec.SECP256K1()),
            dsa.generate_private_key(1024),
            ed25519.Ed25519PrivateKey.generate(),
        ):
            algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
            builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
            request = builder.sign(key, algorithm)
            pem = request.public_bytes(serialization.Encoding.PEM).decode()
            error = self.assertRaises(BadRequest, key_of_request, pem)
            self.assertIn("too weak, too long or of an unsupported kind", str(error))
