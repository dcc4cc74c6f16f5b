"""TLS contexts: verification of peers, and rotation."""

from __future__ import annotations

import dataclasses
import datetime
from functools import partial
from ipaddress import ip_address
from unittest import mock

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from OpenSSL import SSL
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
)
from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from tests.pki.support import (
    Issuer,
    accept,
    client_context,
    dial,
    exchange,
    handshake,
    peer_serial,
)
from yurttunnel.pki.caller_contexts import CallerContexts
from yurttunnel.pki.contexts import (
    ENROLMENT_PROTOCOL,
    ClientContexts,
    ExpectedServer,
    LiveContexts,
    ServerContexts,
    ServerNotTrusted,
)
from yurttunnel.pki.credentials import BadCredentials, Credentials, new_key
from yurttunnel.pki.names import host_is_address
from yurttunnel.tunnel.tls import ALPN as TUNNEL_PROTOCOL

VERSIONS = {"TLS 1.2": SSL.TLS1_2_VERSION, "TLS 1.3": SSL.TLS1_3_VERSION}


class ServerContextsTests(TestCase):
    """The agents' listener."""

    def setUp(self) -> None:
        """Create a listener for tunnels and enrolments."""
        self.issuer = Issuer.make(self)
        self.contexts = ServerContexts(self.issuer.server(), optional=(ENROLMENT_PROTOCOL,))

    def connect(
        self, credentials: Credentials | None, protocols: list[bytes], version: int
    ) -> SSL.Connection:
        """Run a handshake with the listener, and return the server's side."""
        client = SSL.Connection(client_context(credentials, protocols, version), None)
        client.set_connect_state()
        server = accept(self.contexts)
        handshake(client, server)
        return server

    def refuses(self, credentials: Credentials | None, protocols: list[bytes], why: str) -> None:
        """Assert that the client is rejected with both versions of TLS."""
        for name, version in VERSIONS.items():
            with self.subTest(name), self.assertRaises(SSL.Error) as caught:
                self.connect(credentials, protocols, version)
            self.assertIn(why, str(caught.exception))

    def test_tunnel(self) -> None:
        """A tunnel is accepted with a certificate of the authority."""
        node = self.issuer.node()
        for name, version in VERSIONS.items():
            with self.subTest(name):
                server = self.connect(node, [TUNNEL_PROTOCOL], version)
                self.assertEqual(server.get_alpn_proto_negotiated(), TUNNEL_PROTOCOL)
                self.assertEqual(peer_serial(server), node.certificate.serial_number)

    def test_tunnel_without_certificate(self) -> None:
        """A tunnel is rejected without a certificate."""
        self.refuses(None, [TUNNEL_PROTOCOL], "peer did not return a certificate")

    def test_tunnel_preferred(self) -> None:
        """A client that offers enrolment besides the tunnel still needs a certificate."""
        both = [ENROLMENT_PROTOCOL, TUNNEL_PROTOCOL]
        self.refuses(None, both, "peer did not return a certificate")

    def test_enrolment_without_certificate(self) -> None:
        """An enrolment is accepted without a certificate."""
        for name, version in VERSIONS.items():
            with self.subTest(name):
                server = self.connect(None, [ENROLMENT_PROTOCOL], version)
                self.assertEqual(server.get_alpn_proto_negotiated(), ENROLMENT_PROTOCOL)
                self.assertIsNone(server.get_peer_certificate(as_cryptography=True))

    def test_enrolment_with_certificate(self) -> None:
        """A renewal presents the certificate that it renews."""
        node = self.issuer.node()
        for name, version in VERSIONS.items():
            with self.subTest(name):
                server = self.connect(node, [ENROLMENT_PROTOCOL], version)
                self.assertEqual(peer_serial(server), node.certificate.serial_number)

    def test_enrolment_verifies(self) -> None:
        """A certificate that is presented for a renewal must be valid."""
        foreign = Issuer.make(self).node()
        self.refuses(foreign, [ENROLMENT_PROTOCOL], "not from this server's authority")

    def test_enrolment_relaxes_one_connection(self) -> None:
        """After an enrolment without a certificate, the tunnel still requires one."""
        self.connect(None, [ENROLMENT_PROTOCOL], SSL.TLS1_3_VERSION)
        self.test_tunnel_without_certificate()

    def test_other_protocols(self) -> None:
        """Other protocols are rejected, with or without a certificate."""
        for credentials in (None, self.issuer.node()):
            self.refuses(credentials, [b"h2", b"yurttunnel/2"], "no protocol that is served here")

    def test_no_protocol(self) -> None:
        """Clients without ALPN are rejected, with or without a certificate."""
        self.refuses(None, [], "peer did not return a certificate")
        self.refuses(self.issuer.node(), [], "does not say by ALPN")

    def test_enrolment_not_served(self) -> None:
        """Contexts without enrolment reject it."""
        self.contexts = ServerContexts(self.issuer.server())
        self.refuses(None, [ENROLMENT_PROTOCOL], "no protocol that is served here")

    def test_bad_certificates(self) -> None:
        """Expired and foreign certificates, and those not for clients, are rejected."""
        clock = self.issuer.clock
        clock.advance(3600)
        early = self.issuer.node()
        clock.rightNow -= 3600
        for credentials, why in (
            (Issuer.make(self).node(), "its certificate is not from this server's authority"),
            (self.issuer.expired_node(), "its certificate has expired"),
            (early, "its certificate is not valid yet: compare the two machines' clocks"),
            (self.issuer.server(), "its certificate is not valid for this use"),
        ):
            with self.subTest(why):
                self.refuses(credentials, [TUNNEL_PROTOCOL], why)

    def test_old_versions(self) -> None:
        """TLS 1.1 is rejected."""
        context = client_context(self.issuer.node(), [TUNNEL_PROTOCOL], SSL.TLS1_1_VERSION)
        # OpenSSL offers this old version only if its security level is lowered.
        context.set_cipher_list(b"DEFAULT:@SECLEVEL=0")
        client = SSL.Connection(context, None)
        client.set_connect_state()
        with self.assertRaises(SSL.Error) as caught:
            handshake(client, accept(self.contexts))
        self.assertIn("unsupported protocol", str(caught.exception))

    def test_no_resumption(self) -> None:
        """A session of an enrolment is not resumed as a tunnel."""
        for name, version in VERSIONS.items():
            with self.subTest(name):
                context = client_context(None, [ENROLMENT_PROTOCOL], version)
                first = SSL.Connection(context, None)
                first.set_connect_state()
                handshake(first, accept(self.contexts))
                session = first.get_session()
                second = SSL.Connection(context, None)
                second.set_alpn_protos([TUNNEL_PROTOCOL])
                second.set_connect_state()
                if session is not None:
                    second.set_session(session)
                with self.assertRaises(SSL.Error):
                    handshake(second, accept(self.contexts))

    def test_forward_secrecy(self) -> None:
        """Every connection uses an ephemeral key exchange and an authenticated cipher."""
        node = self.issuer.node()
        for name, version in VERSIONS.items():
            with self.subTest(name):
                cipher = self.connect(node, [TUNNEL_PROTOCOL], version).get_cipher_name()
                self.assertRegex(
                    str(cipher), "^(ECDHE-ECDSA-AES128-GCM|TLS_AES_128_GCM)-?_?SHA256$"
                )

    def test_interface(self) -> None:
        """The contexts provide the interface of Twisted's TLS for servers."""
        verifyObject(IOpenSSLServerConnectionCreator, self.contexts)


class ClientContextsTests(TestCase):
    """Verification of servers by an agent."""

    def setUp(self) -> None:
        """Create an agent's contexts."""
        self.issuer = Issuer.make(self)
        self.contexts = ClientContexts(self.issuer.node())
        self.refusals: list[ServerNotTrusted] = []

    def connect(self, server_name: str, credentials: Credentials) -> SSL.Connection:
        """Run a handshake with a server, and return the server's side."""
        accepting = accept(ServerContexts(credentials))
        handshake(dial(self.contexts, server_name, self.refusals.append), accepting)
        return accepting

    def refuses(self, server_name: str, credentials: Credentials, why: str) -> None:
        """Assert that the agent rejects the server, with a reason."""
        self.refusals.clear()
        with self.assertRaises(SSL.Error):
            self.connect(server_name, credentials)
        self.assertEqual(len(self.refusals), 1)
        self.assertIn(why, str(self.refusals[0]))
        self.assertIn(server_name, str(self.refusals[0]))

    def server(self, *names: str) -> Credentials:
        """Issue a certificate for names and addresses."""
        key = new_key()
        hosts = [name for name in names if not host_is_address(name)]
        addresses = [ip_address(name) for name in names if host_is_address(name)]
        certificate = self.issuer.authority.sign_server(key.public_key(), hosts, addresses)
        return self.issuer.authority.credentials(key, certificate)

    def test_name(self) -> None:
        """A server is verified by its name, which is sent in SNI."""
        server = self.connect("server.test", self.server("server.test"))
        self.assertEqual(server.get_servername(), b"server.test")

    def test_addresses(self) -> None:
        """A server is verified by its address, which is not sent in SNI."""
        for address in ("192.0.2.1", "2001:db8::1"):
            server = self.connect(address, self.server(address))
            self.assertIsNone(server.get_servername())

    def test_zone(self) -> None:
        """The zone of a link-local address is ignored, since no certificate contains one."""
        self.connect("fe80::1%eth0", self.server("fe80::1"))
        self.refuses("fe80::2%eth0", self.server("fe80::1"), "is for fe80::1 and not for")

    def test_wrong_name(self) -> None:
        """A server with a certificate for other names is rejected, and the error lists them."""
        self.refuses(
            "other.test", self.server("server.test", "192.0.2.1"), "is for server.test, 192.0.2.1"
        )
        self.refuses("192.0.2.2", self.server("server.test", "192.0.2.1"), "--cert-ips")

    def test_advice(self) -> None:
        """Contexts for other servers than ours have other advice."""
        self.contexts = ClientContexts(
            self.issuer.node(), expected=ExpectedServer(advice="or buy another one")
        )
        self.refuses("other.test", self.server("server.test"), "these, or buy another one")

    def test_certificate_kept_back(self) -> None:
        """Contexts can trust by credentials without presenting them."""
        for present_certificate in (True, False):
            self.contexts = ClientContexts(
                self.issuer.node(), ENROLMENT_PROTOCOL, present_certificate=present_certificate
            )
            contexts = ServerContexts(self.server("server.test"), (), (ENROLMENT_PROTOCOL,))
            accepting = accept(contexts)
            handshake(dial(self.contexts, "server.test", self.refusals.append), accepting)
            self.assertIs(present_certificate, accepting.get_peer_certificate() is not None)

    def test_no_authority_is_presented(self) -> None:
        """Root certificates are not sent to the server, but other certificates of the chain are."""
        node = self.issuer.node()
        between = Issuer.make(self).server().certificate
        link = self.link(node.authorities[0])
        for chain, sent in (
            ((), []),
            (node.chain, []),
            ((between, *node.chain), [between]),
            # A server may need a cross-certificate from a new key of its authority to the old one.
            ((link,), [link]),
        ):
            self.contexts = ClientContexts(
                Credentials(node.key, node.certificate, chain, node.authorities)
            )
            accepting = accept(ServerContexts(self.server("server.test")))
            handshake(dial(self.contexts, "server.test", self.refusals.append), accepting)
            # A server's list lacks the node's own certificate (SSL_get_peer_cert_chain(3)).
            self.assertEqual(sent, accepting.get_peer_cert_chain(as_cryptography=True) or [])

    def link(self, authority: x509.Certificate) -> x509.Certificate:
        """Return a certificate with equal subject and issuer that another key has signed."""
        builder = x509.CertificateBuilder(
            authority.subject,
            authority.subject,
            new_key().public_key(),
            x509.random_serial_number(),
            authority.not_valid_before_utc,
            authority.not_valid_after_utc,
        )
        return builder.sign(new_key(), SHA256())

    def test_foreign_authority(self) -> None:
        """A server of another authority is rejected."""
        foreign = Issuer.make(self).server()
        both = Credentials(
            foreign.key, foreign.certificate, foreign.chain, self.contexts.credentials.authorities
        )
        self.refuses("server.test", both, "not from the authority that is trusted here")

    def test_nodes_are_no_servers(self) -> None:
        """A node's certificate is not accepted as a server's, whatever its names."""
        node = self.issuer.node("server.test")
        self.refuses("server.test", node, "not valid for this use")

    def test_expired_server(self) -> None:
        """An expired server certificate is rejected with the reason."""
        key = new_key()
        certificate = self.issuer.authority.sign_server(
            key.public_key(), ["server.test"], (), lifetime=-1
        )
        expired = self.issuer.authority.credentials(key, certificate)
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        words = f"has expired (it is valid from {begin:%F %T} to {end:%F %T} UTC)"
        self.refuses("server.test", expired, words)

    def test_interface(self) -> None:
        """The creator provides the interface of Twisted's TLS for clients."""
        verifyObject(IOpenSSLClientConnectionCreator, self.contexts.creator("server.test"))


class LiveContextsTests(TestCase):
    """Several contexts that use one certificate."""

    def test_all_or_none(self) -> None:
        """If one of them cannot use new credentials, none does."""
        issuer = Issuer.make(self)
        old, new = issuer.server(), issuer.server()
        current = [old]
        live = LiveContexts(issuer.clock)
        listener = live.follow(lambda: current[0], ServerContexts)
        callers = live.follow(lambda: current[0], partial(CallerContexts, names=None))
        current[0] = new
        with mock.patch.object(callers, "_build", side_effect=BadCredentials("no")):
            self.assertRaises(BadCredentials, live.update)
        for contexts in (listener, callers):
            self.assertIs(contexts.credentials, old)
        live.update()
        for contexts in (listener, callers):
            self.assertIs(contexts.credentials, new)

    def test_clock_that_is_ahead(self) -> None:
        """Authorities are replaced even while a certificate has expired by the clock."""
        issuer = Issuer.make(self)
        former = issuer.node()
        live = LiveContexts(issuer.clock)
        current = [former]
        contexts = live.follow(lambda: current[0], ClientContexts)
        others = (Issuer.make(self).authority.certificate,)
        current[0] = dataclasses.replace(former, authorities=others)
        issuer.clock.advance(365 * 86400)
        live.update()
        self.assertEqual(others, contexts.credentials.authorities)


class RotationTests(TestCase):
    """New certificates are used for later handshakes only."""

    def setUp(self) -> None:
        """Connect an agent and a server."""
        self.issuer = Issuer.make(self)
        self.now = datetime.datetime.now(datetime.UTC)
        self.server = ServerContexts(self.issuer.server())
        self.client = ClientContexts(self.issuer.node())
        self.live = self.connect()

    def connect(self) -> tuple[SSL.Connection, SSL.Connection]:
        """Run a handshake with the current contexts."""
        client = dial(self.client, "server.test", self.fail)
        server = accept(self.server)
        handshake(client, server)
        return client, server

    def serials(self, pair: tuple[SSL.Connection, SSL.Connection]) -> tuple[int, int]:
        """Return the certificates that client and server have presented."""
        client, server = pair
        return peer_serial(server), peer_serial(client)

    def test_rotation(self) -> None:
        """An existing connection keeps its certificates and continues; the next has new ones."""
        before = self.serials(self.live)
        new_node, new_server = self.issuer.node(), self.issuer.server()
        self.client.prepare(new_node, self.now)()
        self.server.prepare(new_server, self.now)()
        client, server = self.live
        self.assertEqual(exchange(client, server, b"still here"), b"still here")
        self.assertEqual(exchange(server, client, b"so am I"), b"so am I")
        self.assertEqual(self.serials(self.live), before)
        self.assertEqual(
            self.serials(self.connect()),
            (new_node.certificate.serial_number, new_server.certificate.serial_number),
        )

    def test_broken_credentials(self) -> None:
        """Unusable credentials are rejected, and the old ones stay in use."""
        good, other = self.issuer.node(), self.issuer.node()
        expired = self.issuer.expired_node()
        before = self.serials(self.live)
        for reason, bad in {
            "does not belong": Credentials(
                other.key, good.certificate, good.chain, good.authorities
            ),
            "expired": expired,
            "no authority": Credentials(good.key, good.certificate, good.chain, ()),
        }.items():
            for contexts in (self.client, self.server):
                error = self.assertRaises(BadCredentials, contexts.prepare, bad, self.now)
                self.assertIn(reason, str(error))
        self.assertEqual(self.serials(self.connect()), before)
