"""TLS for callers: who gets through, in both versions, with and without ALPN."""

from __future__ import annotations

import datetime

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from tests.pki.support import Issuer, client_context, handshake, peer_serial
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.callers import CallerContexts, OptionalCallerContexts
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
        """Run a handshake, and give both sides, the caller's first."""
        client = SSL.Connection(client_context(credentials, protocols, version), None)
        client.set_connect_state()
        server = self.contexts.serverConnectionForTLS(None)
        server.set_accept_state()
        handshake(client, server)
        return client, server

    def refuses(
        self, credentials: Credentials | None, why: str, protocols: tuple[bytes, ...] = ()
    ) -> None:
        """Assert that neither version of TLS lets the caller in."""
        for version in VERSIONS:
            with self.assertRaises(SSL.Error) as caught:
                self.connect(credentials, list(protocols), version)
            self.assertIn(why, str(caught.exception))


class CallerContextsTests(World):
    """Who gets through to the listeners of callers."""

    def setUp(self) -> None:
        """Make contexts that allow the name of callers."""
        self.issuer = Issuer.make(self)
        self.contexts = CallerContexts(self.issuer.server(), (CALLER_NAME,))

    def test_callers(self) -> None:
        """A caller's certificate is enough, without ALPN and with that of HTTP/1.1."""
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
        """Who offers other protocols only is refused."""
        self.refuses(self.issuer.caller(), "other protocols than http/1.1", (b"h2",))
        self.refuses(self.issuer.caller(), "other protocols", (b"yurttunnel/1",))

    def test_no_certificate(self) -> None:
        """Nobody gets through without a certificate."""
        self.refuses(None, "peer did not return a certificate")
        self.refuses(None, "peer did not return a certificate", (b"http/1.1",))

    def test_nodes(self) -> None:
        """A node's certificate does not open the way to other nodes, whatever its name is."""
        for contexts in (self.contexts, CallerContexts(self.issuer.server(), None)):
            self.contexts = contexts
            for name in ("edge-1", CALLER_NAME):
                node = self.issuer.node(name, parse_identifiers(f"host={name}"))
                self.refuses(node, f"its certificate is that of a node, '{name}'")

    def test_other_names(self) -> None:
        """A certificate for another name is refused, and both are named."""
        self.contexts = CallerContexts(self.issuer.server(), ("somebody", "else"))
        self.refuses(
            self.issuer.caller(), f"is for '{CALLER_NAME}', allowed are 'else', 'somebody'"
        )

    def test_any_name(self) -> None:
        """Where no names are given, every caller of the authority is allowed."""
        self.contexts = CallerContexts(self.issuer.server(), None)
        for version in VERSIONS:
            self.connect(self.issuer.caller(), [], version)

    def test_bad_certificates(self) -> None:
        """Expired and foreign certificates, and those of servers, are refused with a reason."""
        for credentials, why in (
            (Issuer.make(self).caller(), "is not from an authority that is trusted here"),
            (self.issuer.caller(lifetime=-1), "has expired"),
            (self.issuer.server(), "is not valid for this use"),
        ):
            self.refuses(credentials, why)

    def test_rotation(self) -> None:
        """New callers see the new certificate, and connections that exist go on."""
        old = self.connect(self.issuer.caller(), [], SSL.TLS1_3_VERSION)
        new = self.issuer.server()
        self.contexts.rotate(new, utc_now(self.issuer.clock))
        client, _ = self.connect(self.issuer.caller(), [], SSL.TLS1_3_VERSION)
        self.assertEqual(peer_serial(client), new.certificate.serial_number)
        old[0].send(b"x")
        old[1].bio_write(old[0].bio_read(1000))
        self.assertEqual(old[1].recv(1), b"x")

    def test_rotation_to_unusable(self) -> None:
        """Credentials that have expired, this instant even, leave the old ones in use."""
        old, new = self.contexts.credentials, self.issuer.server()
        end = new.certificate.not_valid_after_utc
        for late in (datetime.timedelta(1), datetime.timedelta()):
            self.assertRaises(BadCredentials, self.contexts.rotate, new, end + late)
        client, _ = self.connect(self.issuer.caller(), [], SSL.TLS1_3_VERSION)
        self.assertEqual(peer_serial(client), old.certificate.serial_number)

    def test_interface(self) -> None:
        """Twisted's TLS can use it."""
        verifyObject(IOpenSSLServerConnectionCreator, self.contexts)


class OptionalCallerContextsTests(World):
    """Who gets through where a certificate is not needed."""

    def setUp(self) -> None:
        """Make contexts."""
        self.issuer = Issuer.make(self)
        self.contexts = OptionalCallerContexts(self.issuer.server())

    def test_no_certificate(self) -> None:
        """A caller without a certificate gets through, with ALPN and without."""
        for version in VERSIONS:
            for offered, chosen in (([], b""), ([b"h2", b"http/1.1"], b"http/1.1")):
                _, server = self.connect(None, offered, version)
                self.assertEqual(server.get_alpn_proto_negotiated(), chosen)
                self.assertIsNone(server.get_peer_certificate())

    def test_certificates(self) -> None:
        """Those of the authority get through whatever their names are, and can be read."""
        node = self.issuer.node("edge-1", parse_identifiers("host=edge-1"))
        for credentials in (self.issuer.caller(), node):
            for version in VERSIONS:
                _, server = self.connect(credentials, [], version)
                self.assertEqual(peer_serial(server), credentials.certificate.serial_number)

    def test_bad_certificates(self) -> None:
        """Who presents a certificate that does not do is refused: it is not as if he had none."""
        for credentials, why in (
            (Issuer.make(self).caller(), "is not from an authority that is trusted here"),
            (self.issuer.caller(lifetime=-1), "has expired"),
            (self.issuer.server(), "is not valid for this use"),
        ):
            self.refuses(credentials, why)

    def test_other_protocols(self) -> None:
        """Who offers other protocols only is refused."""
        self.refuses(None, "other protocols than http/1.1", (b"h2",))

    def test_rotation(self) -> None:
        """After a rotation callers see the new certificate and need not have one."""
        new = self.issuer.server()
        self.contexts.rotate(new, utc_now(self.issuer.clock))
        client, _ = self.connect(None, [], SSL.TLS1_3_VERSION)
        self.assertEqual(peer_serial(client), new.certificate.serial_number)

    def test_interface(self) -> None:
        """Twisted's TLS can use it."""
        verifyObject(IOpenSSLServerConnectionCreator, self.contexts)
