"""Certificate confusion: every wrong certificate at every place that demands one."""

from __future__ import annotations

from cryptography import x509
from OpenSSL import SSL
from twisted.internet.address import IPv4Address
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.adversarial.certificates import CLIENT, HOUR, SERVER, Wish, attack, attacker
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
    """What a listener asks its connection: where it has arrived."""

    def getHost(self) -> IPv4Address:
        """Return the address of the port."""
        return IPv4Address("TCP", "192.0.2.1", 10263)


class ClientCertificates:
    """What each listener that demands a client's certificate does with a wrong one."""

    protocol: bytes
    name: str

    def setUp(self) -> None:
        """Make an authority, and the listener's contexts."""
        self.issuer = Issuer.make(self)
        self.contexts = self.make_contexts()
        self.good = Wish(self.name, CLIENT, self.names())

    def make_contexts(self) -> ServerContexts | CallerContexts | InterceptionContexts:
        """Make the contexts of the listener."""
        raise NotImplementedError  # Each listener is a class of its own below.

    def names(self) -> tuple[x509.GeneralName, ...]:
        """Return the other names of a good certificate."""
        return ()

    def try_with(self, credentials: Credentials | None, version: int) -> str | None:
        """Connect with ``credentials``; give why that fails."""
        server = self.contexts.serverConnectionForTLS(Socket())
        server.set_accept_state()
        return attack(attacker(credentials, [self.protocol], version), server)

    def refuses(self, credentials: Credentials | None, why: str) -> None:
        """Assert that neither version of TLS lets ``credentials`` in."""
        for version in VERSIONS:
            reason = self.try_with(credentials, version)
            self.assertIsNotNone(reason, "let in")
            self.assertIn(why, reason)

    def test_a_good_one_is_accepted(self) -> None:
        """What is wrong below is the one thing that is changed."""
        for version in VERSIONS:
            self.assertIsNone(self.try_with(self.good.signed_by(self.issuer), version))

    def test_none(self) -> None:
        """Without a certificate nobody gets in."""
        self.refuses(None, "did not return a certificate")

    def test_expired(self) -> None:
        """One that has ended is refused."""
        expired = self.good.but(begin=-2 * HOUR, end=-HOUR)
        self.refuses(expired.signed_by(self.issuer), "has expired")

    def test_not_yet_valid(self) -> None:
        """One of the future is refused."""
        future = self.good.but(begin=HOUR, end=2 * HOUR)
        self.refuses(future.signed_by(self.issuer), "is not valid yet")

    def test_foreign_authority(self) -> None:
        """One of another authority is refused."""
        self.refuses(self.good.signed_by(Issuer.make(self)), "is not from")

    def test_authority_of_the_same_name(self) -> None:
        """One of somebody who calls himself like the authority is refused."""
        self.refuses(self.good.signed_by_impostor(self.issuer), "certificate")

    def test_signed_by_a_leaf(self) -> None:
        """One that a node, or whoever has a good certificate, has signed is refused."""
        leaf = self.good.signed_by(self.issuer)
        self.refuses(self.good.signed_by_leaf(leaf, self.issuer), "certificate")

    def test_wrong_usage(self) -> None:
        """A server's certificate is not a client's."""
        server = self.good.but(usage=SERVER)
        self.refuses(server.signed_by(self.issuer), "is not valid for this use")

    def test_weak_key(self) -> None:
        """One with an RSA key of 1024 bits is refused, though the authority has signed it."""
        weak = self.good.but(weak=True)
        self.refuses(weak.signed_by(self.issuer), "too weak")

    def test_old_versions(self) -> None:
        """TLS 1.0 and 1.1 are refused."""
        for version in (SSL.TLS1_VERSION, SSL.TLS1_1_VERSION):
            reason = self.try_with(self.good.signed_by(self.issuer), version)
            self.assertIn("unsupported protocol", str(reason))


class AgentsPortTests(ClientCertificates, TestCase):
    """10262: nodes."""

    protocol = TUNNEL_PROTOCOL
    name = "edge-1"

    def make_contexts(self) -> ServerContexts:
        """Make those of the agents' port."""
        return ServerContexts(self.issuer.server())


class ConnectPortTests(ClientCertificates, TestCase):
    """--connect-endpoint ssl: callers."""

    protocol = HTTP_PROTOCOL
    name = CALLER_NAME

    def make_contexts(self) -> CallerContexts:
        """Make those of the CONNECT front end."""
        return CallerContexts(self.issuer.server(), (CALLER_NAME,))

    def test_the_name_somewhere_else(self) -> None:
        """A certificate for another name that has the caller's among its others is refused."""
        other = self.good.but(name="somebody", names=(x509.DNSName(CALLER_NAME),))
        self.refuses(other.signed_by(self.issuer), "is for 'somebody'")

    def test_almost_the_name(self) -> None:
        """The name is compared byte by byte, to its end."""
        for name in (CALLER_NAME.upper(), CALLER_NAME + " ", CALLER_NAME + "\0x", "*"):
            self.refuses(self.good.but(name=name).signed_by(self.issuer), "certificate is for")


class InterceptionPortTests(ConnectPortTests):
    """10263: callers."""

    def make_contexts(self) -> InterceptionContexts:
        """Make those of the port for HTTPS."""
        return InterceptionContexts(self.issuer.clock, self.issuer.authority, [CALLER_NAME])


class Dialing:
    """What is told why a server is refused."""

    reason: object = None

    def failVerification(self, failure) -> None:
        """Keep why."""
        self.reason = failure.value


class ServerCertificates:
    """What each program that dials does with the wrong certificate of a server."""

    protocol: bytes
    name = "server.test"
    expired = "has expired"
    untrusted = "not from"

    def setUp(self) -> None:
        """Make an authority, and what dials."""
        self.issuer = Issuer.make(self)
        self.good = Wish(self.name, SERVER, (x509.DNSName(self.name),))

    def creator(self) -> object:
        """Make what makes the connections of who dials."""
        raise NotImplementedError  # Each program is a class of its own below.

    def try_with(self, credentials: Credentials, version: int = SSL.TLS1_3_VERSION) -> str | None:
        """Lead a connection to a server with ``credentials``; give why that fails."""
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
        dialing = Dialing()
        client = self.creator().clientConnectionForTLS(dialing)
        client.set_connect_state()
        try:
            handshake(client, server)
        except SSL.Error as error:
            return f"{dialing.reason} {error}"
        return None if dialing.reason is None else str(dialing.reason)

    def refuses(self, credentials: Credentials, *words: str) -> None:
        """Assert that the server is not believed in either version of TLS."""
        for version in VERSIONS:
            reason = self.try_with(credentials, version)
            self.assertIsNotNone(reason, "believed")
            for word in words:
                self.assertIn(word, reason)

    def test_a_good_one_is_accepted(self) -> None:
        """What is wrong below is the one thing that is changed."""
        for version in VERSIONS:
            self.assertIsNone(self.try_with(self.good.signed_by(self.issuer), version))

    def test_expired(self) -> None:
        """One that has ended is refused."""
        expired = self.good.but(begin=-2 * HOUR, end=-HOUR)
        self.refuses(expired.signed_by(self.issuer), "expired")

    def test_not_yet_valid(self) -> None:
        """One of the future is refused."""
        future = self.good.but(begin=HOUR, end=2 * HOUR)
        self.refuses(future.signed_by(self.issuer), "not valid yet")

    def test_foreign_authority(self) -> None:
        """One of another authority is refused."""
        self.refuses(self.good.signed_by(Issuer.make(self)))

    def test_authority_of_the_same_name(self) -> None:
        """One of somebody who calls himself like the authority is refused."""
        self.refuses(self.good.signed_by_impostor(self.issuer))

    def test_signed_by_a_leaf(self) -> None:
        """One that a node, or whoever has a good certificate, has signed is refused."""
        leaf = self.good.signed_by(self.issuer)
        self.refuses(self.good.signed_by_leaf(leaf, self.issuer))

    def test_wrong_usage(self) -> None:
        """A client's certificate, such as a node's, is not a server's."""
        self.refuses(self.good.but(usage=CLIENT).signed_by(self.issuer))

    def test_weak_key(self) -> None:
        """One with an RSA key of 1024 bits is refused, though the authority has signed it."""
        self.refuses(self.good.but(weak=True).signed_by(self.issuer), "too weak")

    def test_other_name(self) -> None:
        """One for another name is refused, be it longer, shorter, or only a common name."""
        for names in ((), ("server.test.evil",), ("test",), ("*.test.evil",)):
            wish = self.good.but(names=tuple(map(x509.DNSName, names)))
            self.refuses(wish.signed_by(self.issuer))

    def test_old_versions(self) -> None:
        """TLS 1.1 is refused."""
        self.assertIsNotNone(self.try_with(self.good.signed_by(self.issuer), SSL.TLS1_1_VERSION))


class AgentDialsTests(ServerCertificates, TestCase):
    """An agent, and the server that it joins."""

    protocol = TUNNEL_PROTOCOL

    def creator(self) -> object:
        """Dial as an agent."""
        return ClientContexts(self.issuer.node()).creator(self.name)


class ServerDialsTests(ServerCertificates, SynchronousTestCase):
    """A server with ``--kubelet-verify=ca``, and a kubelet."""

    protocol = b"http/1.1"

    def creator(self) -> object:
        """Dial as a server."""
        issuer = self.issuer
        contexts = KubeletContexts(issuer.clock, issuer.kubelet_client(), KubeletVerification.CA)
        return contexts.creator(self.name, self.name)
