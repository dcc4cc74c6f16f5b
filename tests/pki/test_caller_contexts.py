"""TLS for callers, in both versions, with and without ALPN."""

from __future__ import annotations

import datetime

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from tests.pki.support import Issuer, client_context, handshake, peer_serial
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.caller_contexts import CallerContexts, OptionalCallerContexts
from yurttunnel.pki.credentials import BadCredentials, Credentials
from yurttunnel.pki.identity import parse_identifiers
from yurttunnel.pki.names import CALLER_NAME

VERSIONS = (SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION)


class World(TestCase):
    """Connections of callers in memory."""

    contexts: OptionalCallerContexts

    def connect(
        self, credentials: Credentials | None, protocols: list[bytes], version: int
    ) -> tuple[SSL.Connection, SSL.Connection]:
        """Run a handshake, and return both sides, the caller's first."""
        client = SSL.Connection(client_context(credentials, protocols, version), None)
        client.set_connect_state()
        server = self.contexts.serverConnectionForTLS(None)
        server.set_accept_state()
        handshake(client, server)
        return client, server

    def refuses(
        self, credentials: Credentials | None, why: str, protocols: tuple[bytes, ...] = ()
    ) -> None:
        """Assert that the caller is rejected with both versions of TLS."""
        for version in VERSIONS:
            with self.assertRaises(SSL.Error) as caught:
                self.connect(credentials, list(protocols), version)
            self.assertIn(why, str(caught.exception))


class CallerContextsTests(World):
    """Listeners that require a caller's certificate."""

    def setUp(self) -> None:
        """Create contexts that allow the name of callers."""
        self.issuer = Issuer.make(self)
        self.contexts = CallerContexts(self.issuer.server(), (CALLER_NAME,))

    def test_callers(self) -> None:
        """A caller's certificate is accepted, without ALPN and with that of HTTP/1.1."""
        caller = self.issuer.caller()
        for version in VERSIONS:
            for offered, chosen in (
                ([], b""),
                ([b"http/1.1"], b"http/1.1"),
                ([b"h2", b"http/1.1"], b"http/1.1"),
            ):
                _, server = self.connect(caller, offered, version)
                self.assertEqual(server.get_alpn_proto_negotiated(), chosen)
                self.assertEqual(peer_serial(server), caller.certificate.serial_number)

    def test_other_protocols(self) -> None:
        """A caller that offers only other protocols is rejected."""
        self.refuses(self.issuer.caller(), "other protocols than http/1.1", (b"h2",))
        self.refuses(self.issuer.caller(), "other protocols", (b"yurttunnel/1",))

    def test_no_certificate(self) -> None:
        """A caller without a certificate is rejected."""
        self.refuses(None, "peer did not return a certificate")
        self.refuses(None, "peer did not return a certificate", (b"http/1.1",))

    def test_nodes(self) -> None:
        """A node's certificate is rejected, whatever its name is."""
        for contexts in (self.contexts, CallerContexts(self.issuer.server(), None)):
            self.contexts = contexts
            for name in ("edge-1", CALLER_NAME):
                node = self.issuer.node(name, parse_identifiers(f"host={name}"))
                self.refuses(node, f"its certificate is that of a node, '{name}'")

    def test_other_names(self) -> None:
        """A certificate for another name is rejected, and the error contains both names."""
        self.contexts = CallerContexts(self.issuer.server(), ("somebody", "else"))
        self.refuses(
            self.issuer.caller(), f"is for '{CALLER_NAME}', allowed are 'else', 'somebody'"
        )

    def test_any_name(self) -> None:
        """Without a list of names, every caller of the authority is accepted."""
        self.contexts = CallerContexts(self.issuer.server(), None)
        for version in VERSIONS:
            self.connect(self.issuer.caller(), [], version)

    def test_bad_certificates(self) -> None:
        """Expired and foreign certificates, and those of servers, are rejected with a reason."""
        for credentials, why in (
            (Issuer.make(self).caller(), "is not from an authority that is trusted here"),
            (self.issuer.caller(lifetime=-1), "has expired"),
            (self.issuer.server(), "is not valid for this use"),
        ):
            self.refuses(credentials, why)

    def test_rotation(self) -> None:
        """New connections use the new certificate, and existing ones continue."""
        old = self.connect(self.issuer.caller(), [], SSL.TLS1_3_VERSION)
        new = self.issuer.server()
        self.contexts.prepare(new, utc_now(self.issuer.clock))()
        client, _ = self.connect(self.issuer.caller(), [], SSL.TLS1_3_VERSION)
        self.assertEqual(peer_serial(client), new.certificate.serial_number)
        old[0].send(b"x")
        old[1].bio_write(old[0].bio_read(1000))
        self.assertEqual(old[1].recv(1), b"x")

    def test_rotation_to_unusable(self) -> None:
        """Credentials that expire at this instant are rejected, and the old ones stay in use."""
        old, new = self.contexts.credentials, self.issuer.server()
        end = new.certificate.not_valid_after_utc
        for late in (datetime.timedelta(1), datetime.timedelta()):
            self.assertRaises(BadCredentials, self.contexts.prepare, new, end + late)
        client, _ = self.connect(self.issuer.caller(), [], SSL.TLS1_3_VERSION)
        self.assertEqual(peer_serial(client), old.certificate.serial_number)

    def test_interface(self) -> None:
        """The contexts provide the interface of Twisted's TLS."""
        verifyObject(IOpenSSLServerConnectionCreator, self.contexts)


class OptionalCallerContextsTests(World):
    """Listeners for which a certificate is optional."""

    def setUp(self) -> None:
        """Create contexts."""
        self.issuer = Issuer.make(self)
        self.contexts = OptionalCallerContexts(self.issuer.server())

    def test_no_certificate(self) -> None:
        """A caller without a certificate is accepted, with and without ALPN."""
        for version in VERSIONS:
            for offered, chosen in (([], b""), ([b"h2", b"http/1.1"], b"http/1.1")):
                _, server = self.connect(None, offered, version)
                self.assertEqual(server.get_alpn_proto_negotiated(), chosen)
                self.assertIsNone(server.get_peer_certificate())

    def test_certificates(self) -> None:
        """Certificates of the authority are accepted with any name, and can be read."""
        node = self.issuer.node("edge-1", parse_identifiers("host=edge-1"))
        for credentials in (self.issuer.caller(), node):
            for version in VERSIONS:
                _, server = self.connect(credentials, [], version)
                self.assertEqual(peer_serial(server), credentials.certificate.serial_number)

    def test_bad_certificates(self) -> None:
        """A caller with an invalid certificate is rejected, although none is required."""
        for credentials, why in (
            (Issuer.make(self).caller(), "is not from an authority that is trusted here"),
            (self.issuer.caller(lifetime=-1), "has expired"),
            (self.issuer.server(), "is not valid for this use"),
        ):
            self.refuses(credentials, why)

    def test_other_protocols(self) -> None:
        """A caller that offers only other protocols is rejected."""
        self.refuses(None, "other protocols than http/1.1", (b"h2",))

    def test_rotation(self) -> None:
        """After a rotation, callers get the new certificate and still need none."""
        new = self.issuer.server()
        self.contexts.prepare(new, utc_now(self.issuer.clock))()
        client, _ = self.connect(None, [], SSL.TLS1_3_VERSION)
        self.assertEqual(peer_serial(client), new.certificate.serial_number)

    def test_interface(self) -> None:
        """The contexts provide the interface of Twisted's TLS."""
        verifyObject(IOpenSSLServerConnectionCreator, self.contexts)
