"""Certificate confusion: every wrong certificate at every place that requires one."""

from __future__ import annotations

from cryptography import x509
from OpenSSL import SSL
from twisted.internet.address import IPv4Address
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.adversarial.certificates import (
    CLIENT,
    HOUR,
    SERVER,
    CertificateSpec,
    attack,
    attacker_context,
)
from tests.pki.support import Issuer, handshake
from yurttunnel.pki.caller_contexts import HTTP_PROTOCOL, CallerContexts
from yurttunnel.pki.contexts import ClientContexts, ServerContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.interception import InterceptionContexts
from yurttunnel.pki.kubelets import KubeletContexts, KubeletVerification
from yurttunnel.pki.names import CALLER_NAME
from yurttunnel.tunnel.tls import ALPN as TUNNEL_PROTOCOL

VERSIONS = (SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION)


class Socket:
    """A stand-in for the socket that a listener asks for its local address."""

    def getHost(self) -> IPv4Address:
        """Return the address of the port."""
        return IPv4Address("TCP", "192.0.2.1", 10263)


class ClientCertificates:
    """How each listener that requires a client certificate treats a wrong one."""

    protocol: bytes
    name: str

    def setUp(self) -> None:
        """Make an authority, and the listener's contexts."""
        self.issuer = Issuer.make(self)
        self.contexts = self.make_contexts()
        self.good = CertificateSpec(self.name, CLIENT, self.names())

    def make_contexts(self) -> ServerContexts | CallerContexts | InterceptionContexts:
        """Make the contexts of the listener."""
        raise NotImplementedError  # Each listener is a class of its own below.

    def names(self) -> tuple[x509.GeneralName, ...]:
        """Return the subject alternative names of a good certificate."""
        return ()

    def handshake_error(self, credentials: Credentials | None, version: int) -> str | None:
        """Connect with ``credentials``. Return the error of the handshake, or ``None``."""
        server = self.contexts.serverConnectionForTLS(Socket())
        server.set_accept_state()
        return attack(attacker_context(credentials, [self.protocol], version), server)

    def refuses(self, credentials: Credentials | None, why: str) -> None:
        """Assert that ``credentials`` are rejected in both versions of TLS."""
        for version in VERSIONS:
            reason = self.handshake_error(credentials, version)
            self.assertIsNotNone(reason, "accepted")
            self.assertIn(why, reason)

    def test_a_good_one_is_accepted(self) -> None:
        """A good certificate is accepted, so each test below fails for its one change only."""
        for version in VERSIONS:
            self.assertIsNone(self.handshake_error(self.good.signed_by(self.issuer), version))

    def test_no_certificate(self) -> None:
        """A client without a certificate is rejected."""
        self.refuses(None, "did not return a certificate")

    def test_expired(self) -> None:
        """An expired certificate is rejected."""
        expired = self.good.altered(begin=-2 * HOUR, end=-HOUR)
        self.refuses(expired.signed_by(self.issuer), "has expired")

    def test_not_yet_valid(self) -> None:
        """A certificate that is not valid yet is rejected."""
        future = self.good.altered(begin=HOUR, end=2 * HOUR)
        self.refuses(future.signed_by(self.issuer), "is not valid yet")

    def test_foreign_authority(self) -> None:
        """A certificate of another authority is rejected."""
        self.refuses(self.good.signed_by(Issuer.make(self)), "is not from")

    def test_authority_of_the_same_name(self) -> None:
        """A certificate of another authority with the same name is rejected."""
        self.refuses(self.good.signed_by_impostor(self.issuer), "certificate")

    def test_signed_by_a_leaf(self) -> None:
        """A certificate that is signed with a node's certificate, or another leaf, is rejected."""
        leaf = self.good.signed_by(self.issuer)
        self.refuses(self.good.signed_by_leaf(leaf, self.issuer), "certificate")

    def test_wrong_usage(self) -> None:
        """A server certificate is rejected as a client certificate."""
        server = self.good.altered(usage=SERVER)
        self.refuses(server.signed_by(self.issuer), "is not valid for this use")

    def test_weak_key(self) -> None:
        """A certificate with a 1024-bit RSA key is rejected, although the authority signed it."""
        weak = self.good.altered(weak=True)
        self.refuses(weak.signed_by(self.issuer), "too weak")

    def test_old_versions(self) -> None:
        """TLS 1.0 and 1.1 are rejected."""
        for version in (SSL.TLS1_VERSION, SSL.TLS1_1_VERSION):
            reason = self.handshake_error(self.good.signed_by(self.issuer), version)
            self.assertIn("unsupported protocol", str(reason))


class AgentsPortTests(ClientCertificates, TestCase):
    """The port 10262 for nodes."""

    protocol = TUNNEL_PROTOCOL
    name = "edge-1"

    def make_contexts(self) -> ServerContexts:
        """Make the contexts of the agents' port."""
        return ServerContexts(self.issuer.server())


class ConnectPortTests(ClientCertificates, TestCase):
    """``--connect-endpoint ssl:`` for callers."""

    protocol = HTTP_PROTOCOL
    name = CALLER_NAME

    def make_contexts(self) -> CallerContexts:
        """Make the contexts of the CONNECT front end."""
        return CallerContexts(self.issuer.server(), (CALLER_NAME,))

    def test_name_among_alternative_names(self) -> None:
        """A certificate with the allowed name only among its alternative names is rejected."""
        other = self.good.altered(name="somebody", names=(x509.DNSName(CALLER_NAME),))
        self.refuses(other.signed_by(self.issuer), "is for 'somebody'")

    def test_similar_names(self) -> None:
        """A name that differs in case or at its end, or a wildcard, is rejected."""
        for name in (CALLER_NAME.upper(), CALLER_NAME + " ", CALLER_NAME + "\0x", "*"):
            self.refuses(self.good.altered(name=name).signed_by(self.issuer), "certificate is for")


class InterceptionPortTests(ConnectPortTests):
    """The port 10263 for callers."""

    def make_contexts(self) -> InterceptionContexts:
        """Make the contexts of the HTTPS port."""
        return InterceptionContexts(self.issuer.clock, self.issuer.authority, [CALLER_NAME])


class FailureRecorder:
    """A client connection that records why the server's certificate was rejected."""

    reason: object = None

    def failVerification(self, failure) -> None:
        """Record the reason."""
        self.reason = failure.value


class ServerCertificates:
    """How each program that dials treats a wrong server certificate."""

    protocol: bytes
    name = "server.test"
    expired = "has expired"
    untrusted = "not from"

    def setUp(self) -> None:
        """Make an authority and the contents of a good certificate."""
        self.issuer = Issuer.make(self)
        self.good = CertificateSpec(self.name, SERVER, (x509.DNSName(self.name),))

    def creator(self) -> object:
        """Make the creator of the recorder program's TLS connections."""
        raise NotImplementedError  # Each program is a class of its own below.

    def handshake_error(
        self, credentials: Credentials, version: int = SSL.TLS1_3_VERSION
    ) -> str | None:
        """Connect to a server with ``credentials``. Return why it is rejected, or ``None``."""
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(version)
        context.set_max_proto_version(version)
        context.set_cipher_list(b"DEFAULT:@SECLEVEL=0")
        context.use_certificate(credentials.certificate)
        context.use_privatekey(credentials.key)
        for certificate in credentials.chain:
            context.add_extra_chain_cert(certificate)
        context.set_alpn_select_callback(lambda _, offered: self.protocol)
        server = SSL.Connection(context, None)
        server.set_accept_state()
        recorder = FailureRecorder()
        client = self.creator().clientConnectionForTLS(recorder)
        client.set_connect_state()
        try:
            handshake(client, server)
        except SSL.Error as error:
            return f"{recorder.reason} {error}"
        return None if recorder.reason is None else str(recorder.reason)

    def refuses(self, credentials: Credentials, *words: str) -> None:
        """Assert that the server is rejected in both versions of TLS."""
        for version in VERSIONS:
            reason = self.handshake_error(credentials, version)
            self.assertIsNotNone(reason, "accepted")
            for word in words:
                self.assertIn(word, reason)

    def test_a_good_one_is_accepted(self) -> None:
        """A good certificate is accepted, so each test below fails for its one change only."""
        for version in VERSIONS:
            self.assertIsNone(self.handshake_error(self.good.signed_by(self.issuer), version))

    def test_expired(self) -> None:
        """An expired certificate is rejected."""
        expired = self.good.altered(begin=-2 * HOUR, end=-HOUR)
        self.refuses(expired.signed_by(self.issuer), "expired")

    def test_not_yet_valid(self) -> None:
        """A certificate that is not valid yet is rejected."""
        future = self.good.altered(begin=HOUR, end=2 * HOUR)
        self.refuses(future.signed_by(self.issuer), "not valid yet")

    def test_foreign_authority(self) -> None:
        """A certificate of another authority is rejected."""
        self.refuses(self.good.signed_by(Issuer.make(self)))

    def test_authority_of_the_same_name(self) -> None:
        """A certificate of another authority with the same name is rejected."""
        self.refuses(self.good.signed_by_impostor(self.issuer))

    def test_signed_by_a_leaf(self) -> None:
        """A certificate that the holder of a good certificate has signed is rejected."""
        leaf = self.good.signed_by(self.issuer)
        self.refuses(self.good.signed_by_leaf(leaf, self.issuer))

    def test_wrong_usage(self) -> None:
        """A client certificate, such as a node's, is rejected as a server certificate."""
        self.refuses(self.good.altered(usage=CLIENT).signed_by(self.issuer))

    def test_weak_key(self) -> None:
        """A certificate with a 1024-bit RSA key is rejected, although the authority signed it."""
        self.refuses(self.good.altered(weak=True).signed_by(self.issuer), "too weak")

    def test_other_name(self) -> None:
        """A certificate for another name, or with only a common name, is rejected."""
        for names in ((), ("server.test.evil",), ("test",), ("*.test.evil",)):
            spec = self.good.altered(names=tuple(map(x509.DNSName, names)))
            self.refuses(spec.signed_by(self.issuer))

    def test_old_versions(self) -> None:
        """TLS 1.1 is rejected."""
        self.assertIsNotNone(
            self.handshake_error(self.good.signed_by(self.issuer), SSL.TLS1_1_VERSION)
        )


class AgentDialsTests(ServerCertificates, TestCase):
    """An agent that connects to its server."""

    protocol = TUNNEL_PROTOCOL

    def creator(self) -> object:
        """Make the agent's creator."""
        return ClientContexts(self.issuer.node()).creator(self.name)


class ServerDialsTests(ServerCertificates, SynchronousTestCase):
    """A server with ``--kubelet-verify=ca`` that connects to a kubelet."""

    protocol = b"http/1.1"

    def creator(self) -> object:
        """Make the server's creator."""
        issuer = self.issuer
        contexts = KubeletContexts(issuer.clock, issuer.kubelet_client(), KubeletVerification.CA)
        return contexts.creator(self.name, self.name)
