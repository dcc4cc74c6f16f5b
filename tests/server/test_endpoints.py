"""Endpoint strings of ``--connect-endpoint``."""

from __future__ import annotations

import os
import stat

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from OpenSSL import SSL
from twisted.internet.defer import fail, succeed
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.ssl import CertificateOptions
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import SynchronousTestCase

from tests.certificates import certificate_builder, common_name
from tests.logged import Logged
from tests.pki.support import Issuer, client_context, handshake
from yurttunnel.ops.listen import CannotListen
from yurttunnel.pki.credentials import certificates_to_pem, key_to_pem
from yurttunnel.server import endpoints
from yurttunnel.server.endpoints import (
    ListenOptions,
    SystemdEndpoint,
    TcpEndpoint,
    TlsEndpoint,
    UnixEndpoint,
    parse_endpoint,
)


class ParseTests(SynchronousTestCase):
    """``parse_endpoint`` parses endpoint strings like Twisted, with safer defaults."""

    def test_endpoints(self):
        """Paths, ports, addresses and files; a backslash escapes a colon."""
        for text, expected in {
            "unix:/run/a.sock": UnixEndpoint("/run/a.sock"),
            "unix:/run/a\\:b:mode=600:backlog=7": UnixEndpoint("/run/a:b", 0o600, 7),
            "tcp:9000": TcpEndpoint(9000, "127.0.0.1"),
            "tcp:9000:interface=0.0.0.0:backlog=7": TcpEndpoint(9000, "0.0.0.0", 7),
            "tcp:9000:interface=\\:\\:1": TcpEndpoint(9000, "::1"),
            "tcp:9000:interface=[::1]": TcpEndpoint(9000, "::1"),
            "tcp:interface=[\\:\\:1]:9000": TcpEndpoint(9000, "::1"),
            "ssl:9443:interface=[2001:db8:0:1::15]:backlog=7": (
                TlsEndpoint(9443, "2001:db8:0:1::15", 7)
            ),
            "ssl:9443:interface=[192.0.2.1]": TlsEndpoint(9443, "192.0.2.1"),
            "tcp6:interface=[fe80::1%eth0]:9000": TcpEndpoint(9000, "fe80::1%eth0"),
            "unix:/run/[a:mode=600": UnixEndpoint("/run/[a", 0o600),
            "ssl:9443": TlsEndpoint(9443),
            "ssl:9443:interface=192.0.2.1:privateKey=k:certKey=c:extraCertChain=e:caCerts=a": (
                TlsEndpoint(9443, "192.0.2.1", private_key="k", certificate="c", chain="e", ca="a")
            ),
            "tcp6:9000": TcpEndpoint(9000, "::1"),
            "tcp6:9000:interface=\\:\\:": TcpEndpoint(9000, "::"),
            "systemd:domain=INET:index=0": SystemdEndpoint("systemd:domain=INET:index=0"),
        }.items():
            self.assertEqual(parse_endpoint(text), expected)

    def test_anything_else_is_refused_in_one_line(self):
        """The message quotes the text."""
        for text in (
            "",
            "unix",
            "unix:",
            "unix:/a:/b",
            "unix:/a:mode=rw",
            "unix:/a:lock=1",
            "tcp:",
            "tcp:http",
            "tcp:0",
            "tcp:1:interface=localhost",
            "tcp:1:interface=[localhost]",
            "tcp:1:interface=[]",
            "tcp:1:interface=[::1",
            "tcp:1:interface=[::1]x",
            "tcp:1:interface=[[::1]]",
            "tcp:1:interface=[[\\:\\:1]]",
            "tcp:1:interface=::1",
            "tcp:1:backlog=x",
            "/run/a.sock",
            "127.0.0.1:9000",
            "ssl:1:privateKey=k",
            "ssl:1:caCerts=a",
            "ssl:1:certKey=c",
            "unix:/a\\",
            "tcp6:http",
            "tcp6:1:interface=localhost",
            "haproxy:tcp\\:1",
            "stdio:",
            "nonsense:9000",
        ):
            error = self.assertRaises(ValueError, parse_endpoint, text)
            self.assertIn(repr(text), str(error))
            self.assertNotIn("\n", str(error))


class ListenTests(SynchronousTestCase):
    """Each kind of endpoint listens at once."""

    def setUp(self):
        """Create a factory."""
        self.reactor = MemoryReactorClock()
        self.factory = ServerFactory()

    def listen(self, text, credentials=None):
        """Listen on the endpoint ``text``."""
        return parse_endpoint(text).listen(
            ListenOptions(self.reactor, "--flag", self.factory, credentials)
        )

    def assert_cannot_listen(self, text, words):
        """Check that it fails with one line that has the flag and ``words``."""
        error = self.assertRaises(CannotListen, self.listen, text)
        self.assertTrue(error.code.startswith("--flag: "), error.code)
        self.assertIn(words, error.code)
        self.assertNotIn("\n", error.code)

    def test_unix(self):
        """The socket exists, with its mode."""
        path = self.mktemp()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        path = os.path.relpath(path)
        port = self.listen(f"unix:{path}:mode=600")
        self.addCleanup(port.stopListening)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)

    def test_tcp(self):
        """The port is bound on the loopback address."""
        self.listen("tcp:9000")
        self.assertEqual(self.reactor.tcpServers[0][0], 9000)
        self.assertEqual(self.reactor.tcpServers[0][3], "127.0.0.1")

    def test_tls_with_the_servers_own_credentials(self):
        """``ssl:`` without files wraps the factory with the server's own credentials."""
        self.listen("ssl:9443", CertificateOptions())
        port, factory, _, interface = self.reactor.tcpServers[0]
        self.assertEqual((port, interface), (9443, "127.0.0.1"))
        self.assertIsInstance(factory, TLSMemoryBIOFactory)
        self.assertIs(factory.wrappedFactory, self.factory)

    def test_tls_without_any_credentials(self):
        """The error says what to add."""
        self.assert_cannot_listen("ssl:9443", "add privateKey=")

    def test_tls_with_files(self):
        """Key, certificate and authorities are read from files."""
        pem = self.write(*make_certificate())
        self.listen(f"ssl:9443:privateKey={pem}:caCerts={pem}")
        self.assertIsInstance(self.reactor.tcpServers[0][1], TLSMemoryBIOFactory)

    def test_tls_with_files_rejects_nodes(self):
        """A node's certificate gives no access to other nodes, whatever the authorities."""
        issuer = Issuer.make(self)
        own = issuer.server()
        pem = self.write(key_to_pem(own.key), certificates_to_pem([own.certificate]))
        ca = self.write(certificates_to_pem(own.authorities))
        self.listen(f"ssl:9443:privateKey={pem}:caCerts={ca}")
        self.factory.protocol = Protocol
        secured = self.reactor.tcpServers[0][1]
        for credentials, refused in ((issuer.caller(), False), (issuer.node(), True)):
            client = SSL.Connection(client_context(credentials, []), None)
            client.set_connect_state()
            server = secured.buildProtocol(None)
            server.makeConnection(StringTransport())
            if refused:
                with self.assertRaises(SSL.Error) as caught:
                    handshake(client, server.getHandle())
                self.assertIn("that of a node", str(caught.exception))
            else:
                handshake(client, server.getHandle())

    def test_tls_with_bad_files(self):
        """Missing, empty or mismatched files are named."""
        key, certificate = make_certificate()
        pem = self.write(key, certificate)
        other = self.write(*make_certificate())
        empty = self.write()
        self.assert_cannot_listen(f"ssl:1:privateKey=none:caCerts={pem}", "cannot read none")
        for options in (
            f"privateKey={empty}:caCerts={pem}",
            f"privateKey={pem}:certKey={other}:caCerts={pem}",
            f"privateKey={pem}:caCerts={empty}",
            f"privateKey={pem}:certKey={empty}:caCerts={pem}",
        ):
            self.assert_cannot_listen(f"ssl:1:{options}", "no usable key and certificates in ")

    def test_networks_without_certificates(self):
        """A warning is logged if other machines can connect without a certificate."""
        logged = Logged(self)
        self.listen("tcp:1")
        self.listen("tcp6:2")
        self.assertEqual([], [event for event in logged.events if "flag" in event])
        self.listen("tcp6:3:interface=\\:\\:")
        self.listen("tcp:4:interface=0.0.0.0")
        self.assertEqual([3, 4], [event["port"] for event in logged.events if "flag" in event])
        # With permissions a caller does not reach every node.
        wide = parse_endpoint("tcp:5:interface=0.0.0.0")
        wide.listen(ListenOptions(self.reactor, "--flag", self.factory, restricted=True))
        self.assertEqual([3, 4], [event["port"] for event in logged.events if "flag" in event])
        bound = ["127.0.0.1", "::1", "::", "0.0.0.0", "0.0.0.0"]
        self.assertEqual(bound, [interface for _, _, _, interface in self.reactor.tcpServers])

    def test_sockets_of_systemd(self):
        """Sockets of systemd are adopted; a missing one causes a one-line error."""
        port = object()
        self.patch(endpoints, "serverFromString", lambda reactor, text: Adopting(succeed(port)))
        self.assertIs(port, self.listen("systemd:domain=UNIX:index=0"))
        self.patch(
            endpoints, "serverFromString", lambda reactor, text: Adopting(fail(OSError("taken")))
        )
        self.assert_cannot_listen("systemd:domain=UNIX:index=0", "cannot listen on 'systemd:")
        self.patch(endpoints, "serverFromString", serverFromString)
        for socket in ("index=9999", "name=nobody"):
            self.assert_cannot_listen(f"systemd:domain=UNIX:{socket}", "has passed no socket")
        for text in ("systemd:", "systemd:domain=UNIX", "systemd:domain=NONE:index=0"):
            self.assert_cannot_listen(text, "")

    def write(self, *contents):
        """Write a file."""
        path = self.mktemp()
        with open(path, "wb") as file:
            file.write(b"".join(contents))
        return path


class Adopting:
    """An endpoint that listens with a given result."""

    def __init__(self, result):
        self.result = result

    def listen(self, factory):
        """Return it."""
        return self.result


def make_certificate():
    """Return a key and a self-signed certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = certificate_builder(common_name("test"), key.public_key())
    certificate = builder.sign(key, hashes.SHA256())
    encoding = serialization.Encoding.PEM
    return (
        key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        certificate.public_bytes(encoding),
    )
