"""TLS to kubelets: each verification mode, and its warnings."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.logged import Logged
from tests.pki.support import Issuer, handshake, peer_serial
from tests.tunnel.certificates import ThrowAwayAuthority
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.caller_contexts import CallerContexts
from yurttunnel.pki.credentials import BadCredentials, Credentials, new_key
from yurttunnel.pki.kubelets import (
    KubeletContexts,
    KubeletNotTrusted,
    KubeletVerification,
    Verdict,
)
from yurttunnel.pki.names import CALLER_NAME, KUBELET_CLIENT_NAME

VERSIONS = (SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION)
AUTO, CA, SKIP = KubeletVerification.AUTO, KubeletVerification.CA, KubeletVerification.SKIP


class Dialing:
    """A stand-in for Twisted's TLS protocol that stores why a kubelet is rejected."""

    def __init__(self):
        self.reasons = []

    def failVerification(self, reason):
        """Store the error."""
        self.reasons.append(reason.value)


class KubeletContextsTests(SynchronousTestCase):
    """Handshakes with kubelets in memory."""

    def setUp(self):
        """Create an authority and the server's certificate for kubelets."""
        self.issuer = Issuer.make(self)
        self.stranger = Issuer.make(self)
        self.client = self.issuer.kubelet_client()
        self.warnings = Logged(self, level=LogLevel.warn)

    def contexts(self, mode, *authorities):
        """Create contexts that trust ``authorities``, by default the server's."""
        used = replace(self.client, authorities=authorities or self.client.authorities)
        return KubeletContexts(self.issuer.clock, used, mode)

    def kubelet(self, issuer, *names, addresses=(), lifetime=3600.0):
        """Create a kubelet's credentials."""
        key = new_key()
        certificate = issuer.authority.sign_server(
            key.public_key(), names, map(ip_address, addresses), lifetime
        )
        return issuer.authority.credentials(key, certificate)

    def connect(self, contexts, credentials, host="192.0.2.7", version=SSL.TLS1_3_VERSION):
        """Run a handshake; return the verdict, and store why the kubelet was rejected."""
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_max_proto_version(version)
        context.use_certificate(credentials.certificate)
        context.use_privatekey(credentials.key)
        for certificate in credentials.chain:
            context.add_extra_chain_cert(certificate)
        context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
        self.dialing = Dialing()
        creator = contexts.creator("edge-1", host)
        verifyObject(IOpenSSLClientConnectionCreator, creator)
        near = creator.clientConnectionForTLS(self.dialing)
        near.set_connect_state()
        self.far = SSL.Connection(context, None)
        self.far.set_accept_state()
        handshake(near, self.far)
        return creator.verdict

    def refuses(self, contexts, credentials, words, host="192.0.2.7"):
        """Assert that a kubelet is rejected, with a sentence that contains ``words``."""
        for version in VERSIONS:
            with self.assertRaises(SSL.Error):
                self.connect(contexts, credentials, host, version)
            [reason] = self.dialing.reasons
            self.assertIsInstance(reason, KubeletNotTrusted)
            self.assertIn(words, str(reason))
            self.assertIn("its certificate ", str(reason))
            self.assertIn("--kubelet-verify", str(reason))

    def test_verified(self):
        """A kubelet of the authority for the host or the node is verified, without a warning."""
        for mode in (AUTO, CA):
            for version in VERSIONS:
                for names, addresses, host in (
                    (["edge-1"], [], "192.0.2.7"),
                    (["edge-1"], [], "edge-1"),
                    (["other.example"], [], "other.example"),
                    ([], ["192.0.2.7"], "192.0.2.7"),
                    ([], ["2001:db8::7"], "2001:db8::7"),
                ):
                    kubelet = self.kubelet(self.issuer, *names, addresses=addresses)
                    verdict = self.connect(self.contexts(mode), kubelet, host, version)
                    self.assertIs(Verdict.VERIFIED, verdict)
        self.assertEqual([], self.warnings)

    def test_foreign(self):
        """``auto`` accepts a kubelet of another authority with a warning, ``ca`` rejects it."""
        kubelet = self.kubelet(self.stranger, "edge-1")
        for version in VERSIONS:
            verdict = self.connect(self.contexts(AUTO), kubelet, version=version)
            self.assertIs(Verdict.UNVERIFIED, verdict)
        self.refuses(self.contexts(CA), kubelet, "is not from an authority of --kubelet-ca")

    def test_self_signed(self):
        """The same holds for a self-signed certificate, whatever else is wrong with it."""
        own = ThrowAwayAuthority("edge-1")
        kubelet = Credentials(own._key, own.certificate, (), ())
        self.assertIs(Verdict.UNVERIFIED, self.connect(self.contexts(AUTO), kubelet))
        expired = self.kubelet(self.stranger, lifetime=-1)
        self.assertIs(Verdict.UNVERIFIED, self.connect(self.contexts(AUTO), expired))
        self.refuses(self.contexts(CA), kubelet, "is not from an authority")

    def test_forged(self):
        """The same holds for a certificate that names the authority but has another signature."""
        kubelet = self.forged("edge-1")
        for version in VERSIONS:
            verdict = self.connect(self.contexts(AUTO), kubelet, version=version)
            self.assertIs(Verdict.UNVERIFIED, verdict)
        self.assertEqual(len(VERSIONS), len(self.warnings))
        self.refuses(self.contexts(CA), kubelet, "is not from an authority of --kubelet-ca")

    def forged(self, name):
        """Create a kubelet's credentials whose issuer only has the authority's name and key id."""
        true = self.kubelet(self.issuer, name)
        builder = x509.CertificateBuilder(
            issuer_name=true.certificate.issuer,
            subject_name=true.certificate.subject,
            public_key=true.certificate.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=true.certificate.not_valid_before_utc,
            not_valid_after=true.certificate.not_valid_after_utc,
            extensions=list(true.certificate.extensions),
        )
        return replace(true, certificate=builder.sign(new_key(), hashes.SHA256()))

    def test_warned(self):
        """The warning names the node and the flags, and is rate-limited."""
        contexts = self.contexts(AUTO)
        kubelet = self.kubelet(self.stranger, "edge-1")
        for _ in range(3):
            self.connect(contexts, kubelet)
        [warning] = self.warnings
        for words in ("edge-1", "192.0.2.7", "--kubelet-ca", "--kubelet-verify skip"):
            self.assertIn(words, warning)
        self.issuer.clock.advance(61)
        self.connect(contexts, kubelet)
        self.assertIn("2 more like this", self.warnings[1])

    def test_other_name(self):
        """A certificate of the authority for another name is rejected, also with ``auto``."""
        kubelet = self.kubelet(self.issuer, "edge-2", addresses=["192.0.2.8"])
        for mode in (AUTO, CA):
            self.refuses(
                self.contexts(mode),
                kubelet,
                "is for edge-2, 192.0.2.8 and for neither 192.0.2.7 nor edge-1: dial one of these",
            )

    def test_bad_certificate(self):
        """The same holds for one that has expired or is not a server's."""
        for mode in (AUTO, CA):
            expired = self.kubelet(self.issuer, "edge-1", lifetime=-1)
            self.refuses(self.contexts(mode), expired, "has expired")
            self.refuses(self.contexts(mode), self.issuer.node(), "is not valid for this use")

    def test_skip(self):
        """``skip`` accepts all kubelets, without warnings."""
        for kubelet in (
            self.kubelet(self.stranger, "edge-9"),
            self.kubelet(self.issuer, "edge-9", lifetime=-1),
        ):
            for version in VERSIONS:
                verdict = self.connect(self.contexts(SKIP), kubelet, version=version)
                self.assertIs(Verdict.SKIPPED, verdict)
        self.assertEqual([], self.warnings)

    def test_other_authorities(self):
        """The authorities can be replaced; the previous ones are no longer trusted."""
        contexts = self.contexts(CA)
        others = self.contexts(CA, self.stranger.authority.certificate).credentials
        contexts.prepare(others, utc_now(self.issuer.clock))()
        kubelet = self.kubelet(self.stranger, "edge-1")
        self.assertIs(Verdict.VERIFIED, self.connect(contexts, kubelet))
        self.refuses(contexts, self.kubelet(self.issuer, "edge-1"), "is not from an authority")

    def test_no_authorities(self):
        """An empty list of authorities is rejected, and the previous ones stay in use."""
        contexts = self.contexts(CA)
        nobody = replace(self.client, authorities=())
        self.assertRaises(BadCredentials, contexts.prepare, nobody, utc_now(self.issuer.clock))
        kubelet = self.kubelet(self.issuer, "edge-1")
        self.assertIs(Verdict.VERIFIED, self.connect(contexts, kubelet))

    def test_pinned(self):
        """A kubelet's own certificate among the authorities is trusted, for its names."""
        kubelet = self.kubelet(self.stranger, "edge-1")
        contexts = self.contexts(CA, kubelet.certificate)
        self.assertIs(Verdict.VERIFIED, self.connect(contexts, kubelet))
        self.refuses(contexts, self.kubelet(self.stranger, "edge-1"), "is not from an authority")

    def test_server_name(self):
        """SNI contains the dialed name, but never an address."""
        kubelet = self.kubelet(self.issuer, "edge-1")
        for host, name in (("edge-1", b"edge-1"), ("192.0.2.7", None), ("2001:db8::7", None)):
            self.connect(self.contexts(AUTO), kubelet, host)
            self.assertEqual(name, self.far.get_servername())

    def test_absolute_name(self):
        """The final dot of an absolute name is not used in TLS and certificates."""
        kubelet = self.kubelet(self.issuer, "edge-2.example")
        verdict = self.connect(self.contexts(CA), kubelet, "edge-2.example.")
        self.assertIs(Verdict.VERIFIED, verdict)
        self.assertEqual(b"edge-2.example", self.far.get_servername())

    def test_presented(self):
        """The kubelet gets the server's certificate, and caller ports that allow it accept it."""
        self.connect(self.contexts(AUTO), self.kubelet(self.issuer, "edge-1"))
        self.assertEqual(self.client.certificate.serial_number, peer_serial(self.far))
        self.assertEqual(
            "O=openyurt:yurttunnel,CN=tunnel-proxy-client",
            ",".join(
                f"{a.rfc4514_attribute_name}={a.value}" for a in self.client.certificate.subject
            ),
        )

    def test_accepted_as_caller(self):
        """Where its name is allowed it is accepted, but a node of that name is not."""
        stand_in = CallerContexts(self.issuer.server("edge-1"), {CALLER_NAME, KUBELET_CLIENT_NAME})

        def connect(near):
            far = stand_in.serverConnectionForTLS(None)
            far.set_accept_state()
            near.set_connect_state()
            handshake(near, far)

        contexts = self.contexts(AUTO)
        connect(contexts.creator("edge-1", "edge-1").clientConnectionForTLS(Dialing()))
        contexts.prepare(
            self.issuer.node(KUBELET_CLIENT_NAME), self.client.certificate.not_valid_before_utc
        )()
        near = contexts.creator("edge-1", "edge-1").clientConnectionForTLS(Dialing())
        error = self.assertRaises(SSL.Error, connect, near)
        self.assertIn("is that of a node", str(error))
