"""The certificates that stand in for kubelets', and who gets to see more than them."""

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
    """What a connection in memory has come to."""

    def __init__(self, address):
        self.address = address

    def getHost(self):
        """Return it."""
        return self.address


class InterceptionContextsTests(SynchronousTestCase):
    """What a caller is shown, and whether it gets through."""

    def setUp(self):
        """Make contexts, and a caller that they allow."""
        self.issuer = Issuer.make(self)
        self.contexts = InterceptionContexts(
            self.issuer.clock, self.issuer.authority, [CALLER_NAME], max_certificates=3
        )
        self.caller = self.issuer.caller()

    def connect(self, name, address="192.0.2.1", version=SSL.TLS1_3_VERSION, caller=...):
        """Run a handshake of a caller that asks for ``name``; give both sides, its first."""
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
        """Return the certificate that a caller is shown."""
        client, _ = self.connect(name, address, version)
        certificate = client.get_peer_certificate(as_cryptography=True)
        certificate.verify_directly_issued_by(self.issuer.authority.certificate)
        return certificate

    def test_names(self):
        """A caller that asks for a name is shown a certificate for it alone, in lower case."""
        for version in VERSIONS:
            self.assertEqual(["edge-1"], names_in(self.shown(b"edge-1", version=version)))
            self.assertEqual(
                ["edge-2.example"], names_in(self.shown(b"Edge-2.Example.", version=version))
            )

    def test_addresses(self):
        """Without a name it is the address that the connection has come to."""
        for version in VERSIONS:
            for address, shown in (
                ("192.0.2.1", "192.0.2.1"),
                ("2001:db8::1", "2001:db8::1"),
                ("::ffff:192.0.2.7", "192.0.2.7"),
                ("fe80::1%eth0", "fe80::1"),
            ):
                self.assertEqual([shown], names_in(self.shown(None, address, version)))

    def test_address_as_name(self):
        """An address that is sent as a name, against the standard, is an address all the same."""
        self.assertEqual(["192.0.2.9"], names_in(self.shown(b"192.0.2.9")))

    def test_what_cannot_be_named(self):
        """Nonsense gets a certificate for localhost, and nothing is printed."""
        for name in (b"a b", b"*", b"a..b", b"\xff", b"a" * 254, b"-"):
            self.assertEqual(["localhost"], names_in(self.shown(name)))
        client = SSL.Connection(client_context(self.caller, []), None)
        client.set_connect_state()
        server = self.contexts.serverConnectionForTLS(Transport(UNIXAddress("socket")))
        server.set_accept_state()
        handshake(client, server)
        self.assertEqual(["localhost"], names_in(client.get_peer_certificate(as_cryptography=True)))

    def test_kept(self):
        """Whoever asks for the same is shown the same, and all certificates have one key."""
        first = self.shown(b"edge-1")
        self.assertEqual(first, self.shown(b"edge-1"))
        self.assertEqual(first.public_key(), self.shown(b"edge-2").public_key())

    def test_bounded(self):
        """Those not asked for longest are forgotten, and issued again when asked for."""
        first = self.shown(b"edge-1")
        second = self.shown(b"edge-2")
        for name in (b"edge-3", b"edge-1", b"edge-4"):
            self.shown(name)
        self.assertEqual(first, self.shown(b"edge-1"))
        self.assertNotEqual(second, self.shown(b"edge-2"))
        self.assertEqual(3, len(self.contexts._certificates))

    def test_renewed(self):
        """A certificate near its end is replaced by another one."""
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
        """By a clock that is beyond the authority's end what there is is shown, which is told."""
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
            "no node certificate can be issued for callers: the server's authority ended at",
            formatEvent(event),
        )
        clock.ahead = 0.0
        self.assertEqual(["edge-1"], names_in(self.shown(b"edge-1")))

    def test_released(self):
        """After the handshake nothing leads from the connection back to what belongs to it."""
        for name in (b"edge-1", b"a b", None):
            _, server = self.connect(name)
            self.assertIs(None, server.get_app_data())

    def test_data(self):
        """Data passes, over HTTP/1.1 as both have agreed."""
        for version in VERSIONS:
            client, server = self.connect(b"edge-1", version=version)
            self.assertEqual(b"http/1.1", client.get_alpn_proto_negotiated())
            self.assertEqual(b"x", exchange(client, server, b"x"))

    def refuses(self, caller, words):
        """Assert that a caller does not get through, whatever it asks for, and is told why."""
        for version in VERSIONS:
            for name in (b"edge-1", b"a b", None):
                with self.assertRaises(SSL.Error) as caught:
                    self.connect(name, version=version, caller=caller)
                self.assertIn(words, str(caught.exception))

    def test_no_certificate(self):
        """Nobody gets through without a certificate."""
        self.refuses(None, "peer did not return a certificate")

    def test_nodes(self):
        """Nor with that of a node, and the refusal reaches no other connection."""
        self.refuses(self.issuer.node(), "its certificate is that of a node, 'edge-1'")
        self.connect(b"edge-1")
        self.connect(None)

    def test_other_authorities(self):
        """Nor with one of another authority."""
        self.refuses(Issuer.make(self).caller(), "is not from an authority that is trusted")

    def test_interface(self):
        """Twisted's TLS can use it."""
        verifyObject(IOpenSSLServerConnectionCreator, self.contexts)
