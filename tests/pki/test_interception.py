"""The certificates that the server presents in place of kubelets'."""

from __future__ import annotations

from OpenSSL import SSL
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.pki.support import Issuer, SteppedClock, client_context, exchange, handshake
from yurttunnel.pki.contexts import names_in
from yurttunnel.pki.interception import InterceptionContexts
from yurttunnel.pki.names import CALLER_NAME

VERSIONS = (SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION)
DAY = 86400


class Transport:
    """A connection in memory with a local address."""

    def __init__(self, address):
        self.address = address

    def getHost(self):
        """Return the local address."""
        return self.address


class InterceptionContextsTests(SynchronousTestCase):
    """The certificates for callers, and their authentication."""

    def setUp(self):
        """Create contexts, and a caller that they allow."""
        self.issuer = Issuer.make(self)
        self.contexts = InterceptionContexts(
            self.issuer.clock, self.issuer.authority, [CALLER_NAME], max_certificates=3
        )
        self.caller = self.issuer.caller()

    def connect(self, name, address="192.0.2.1", version=SSL.TLS1_3_VERSION, caller=...):
        """Run a caller's handshake for ``name``; return both sides, the caller's first."""
        credentials = self.caller if caller is ... else caller
        client = SSL.Connection(client_context(credentials, [b"http/1.1"], version), None)
        if name is not None:
            client.set_tlsext_host_name(name)
        client.set_connect_state()
        kind = IPv6Address if ":" in address else IPv4Address
        server = self.contexts.serverConnectionForTLS(Transport(kind("TCP", address, 10263)))
        server.set_accept_state()
        handshake(client, server)
        return client, server

    def shown(self, name, address="192.0.2.1", version=SSL.TLS1_3_VERSION):
        """Return the certificate that a caller gets."""
        client, _ = self.connect(name, address, version)
        certificate = client.get_peer_certificate(as_cryptography=True)
        certificate.verify_directly_issued_by(self.issuer.authority.certificate)
        return certificate

    def test_names(self):
        """A caller that requests a name gets a certificate for only that name, in lower case."""
        for version in VERSIONS:
            self.assertEqual(["edge-1"], names_in(self.shown(b"edge-1", version=version)))
            self.assertEqual(
                ["edge-2.example"], names_in(self.shown(b"Edge-2.Example.", version=version))
            )

    def test_addresses(self):
        """Without a name, the certificate is for the local address of the connection."""
        for version in VERSIONS:
            for address, shown in (
                ("192.0.2.1", "192.0.2.1"),
                ("2001:db8::1", "2001:db8::1"),
                ("::ffff:192.0.2.7", "192.0.2.7"),
                ("fe80::1%eth0", "fe80::1"),
            ):
                self.assertEqual([shown], names_in(self.shown(None, address, version)))

    def test_address_as_name(self):
        """An address that is sent in SNI, against the standard, is treated as an address."""
        self.assertEqual(["192.0.2.9"], names_in(self.shown(b"192.0.2.9")))

    def test_what_cannot_be_named(self):
        """For an invalid name the certificate is for localhost, and nothing is printed."""
        for name in (b"a b", b"*", b"a..b", b"\xff", b"a" * 254, b"-"):
            self.assertEqual(["localhost"], names_in(self.shown(name)))
        client = SSL.Connection(client_context(self.caller, []), None)
        client.set_connect_state()
        server = self.contexts.serverConnectionForTLS(Transport(UNIXAddress("socket")))
        server.set_accept_state()
        handshake(client, server)
        self.assertEqual(["localhost"], names_in(client.get_peer_certificate(as_cryptography=True)))

    def test_kept(self):
        """The same name gets the same certificate, and all certificates have one key."""
        first = self.shown(b"edge-1")
        self.assertEqual(first, self.shown(b"edge-1"))
        self.assertEqual(first.public_key(), self.shown(b"edge-2").public_key())

    def test_bounded(self):
        """The least recently used certificates are evicted, and issued again on demand."""
        first = self.shown(b"edge-1")
        second = self.shown(b"edge-2")
        for name in (b"edge-3", b"edge-1", b"edge-4"):
            self.shown(name)
        self.assertEqual(first, self.shown(b"edge-1"))
        self.assertNotEqual(second, self.shown(b"edge-2"))
        self.assertEqual(3, len(self.contexts._certificates))

    def test_renewed(self):
        """A certificate near its end is replaced."""
        first = self.shown(b"edge-1")
        self.issuer.clock.advance(59 * DAY)
        self.assertEqual(first, self.shown(b"edge-1"))
        self.issuer.clock.advance(2 * DAY)
        self.assertNotEqual(first, self.shown(b"edge-1"))

    def test_begins_in_the_future(self):
        """A certificate from a clock that was ahead is replaced once the clock is right."""
        clock = SteppedClock()
        self.issuer = Issuer.make(self, clock)
        self.contexts = InterceptionContexts(clock, self.issuer.authority, [CALLER_NAME])
        self.caller = self.issuer.caller()
        clock.ahead = 3600.0
        first = self.shown(b"edge-1")
        self.assertEqual(first, self.shown(b"edge-1"))
        clock.ahead = 0.0
        begin = self.shown(b"edge-1").not_valid_before_utc
        self.assertLessEqual(begin.timestamp(), clock.time_of_day())

    def test_beyond_the_end(self):
        """With an authority that has expired, existing certificates are used, with a warning."""
        clock = SteppedClock()
        self.issuer = Issuer.make(self, clock)
        self.contexts = InterceptionContexts(clock, self.issuer.authority, [CALLER_NAME])
        self.caller = self.issuer.caller()
        clock.ahead = 11 * 365 * DAY
        with capturedLogs() as events:
            for _ in range(2):
                self.assertEqual(["localhost"], names_in(self.shown(b"edge-1")))
        (event,) = events
        self.assertIs(LogLevel.warn, event["log_level"])
        self.assertIn(
            "no node certificate can be issued for callers: the server's authority expired at",
            formatEvent(event),
        )
        clock.ahead = 0.0
        self.assertEqual(["edge-1"], names_in(self.shown(b"edge-1")))

    def test_released(self):
        """After the handshake, the connection has no reference back to its protocol."""
        for name in (b"edge-1", b"a b", None):
            _, server = self.connect(name)
            self.assertIs(None, server.get_app_data())

    def test_data(self):
        """Data is transferred, over HTTP/1.1 by ALPN."""
        for version in VERSIONS:
            client, server = self.connect(b"edge-1", version=version)
            self.assertEqual(b"http/1.1", client.get_alpn_proto_negotiated())
            self.assertEqual(b"x", exchange(client, server, b"x"))

    def refuses(self, caller, words):
        """Assert that a caller is rejected for all names, with a reason."""
        for version in VERSIONS:
            for name in (b"edge-1", b"a b", None):
                with self.assertRaises(SSL.Error) as caught:
                    self.connect(name, version=version, caller=caller)
                self.assertIn(words, str(caught.exception))

    def test_no_certificate(self):
        """A caller without a certificate is rejected."""
        self.refuses(None, "peer did not return a certificate")

    def test_nodes(self):
        """A node's certificate is rejected, without an effect on other connections."""
        self.refuses(self.issuer.node(), "its certificate is that of a node, 'edge-1'")
        self.connect(b"edge-1")
        self.connect(None)

    def test_other_authorities(self):
        """A certificate of another authority is rejected."""
        self.refuses(Issuer.make(self).caller(), "is not from an authority that is trusted")

    def test_interface(self):
        """The contexts provide the interface of Twisted's TLS."""
        verifyObject(IOpenSSLServerConnectionCreator, self.contexts)
