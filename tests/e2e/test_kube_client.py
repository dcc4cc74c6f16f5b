"""The client of the Kubernetes API over real connections: its trust and its credentials."""

from __future__ import annotations

import datetime
import json
import socket
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from OpenSSL import SSL
from twisted.internet import reactor, ssl
from twisted.internet._resolver import GAIResolver
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase
from twisted.web.resource import Resource as Page
from twisted.web.server import NOT_DONE_YET, Site

from tests.logged import Logged
from yurttunnel.kube import client as client_module
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import FileCredentials
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.reloaded_file import ReloadedFile
from yurttunnel.kube.resources import NODES
from yurttunnel.tunnel.direct.reactor import with_transports

DAY = datetime.timedelta(days=1)


class Greeting(Protocol):
    """A server that does not speak TLS, and begins."""

    def connectionMade(self):
        """Greet the client."""
        self.transport.write(b"220 mail.example\r\n")


class Authority:
    """Signs certificates for names and addresses."""

    def __init__(self, name):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name.from_rfc4514_string(f"CN={name}")
        basic = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = self._sign(self.name, self.key, basic)
        self.pem = self.certificate.public_bytes(Encoding.PEM)

    def issue(self, name, *alternatives):
        """Return a certificate and its key, both in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(list(alternatives))
        subject = x509.Name.from_rfc4514_string(f"CN={name}")
        certificate = self._sign(subject, key, *([names] if alternatives else []))
        return (
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )

    def _sign(self, subject, key, *extensions):
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            self.name, subject, key.public_key(), x509.random_serial_number(), now - DAY, now + DAY
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256())


class Api(Page):
    """Returns the caller and the connection; a watch starts, and stays open."""

    isLeaf = True

    def __init__(self):
        super().__init__()
        self.requests = []
        self.watching = []

    def render_GET(self, request):
        """Respond."""
        certificate = request.transport.getPeerCertificate()
        name = None if certificate is None else certificate.get_subject().CN
        connection = request.transport.getHandle()
        self.requests.append((name, request.getHeader("Authorization")))
        request.setHeader(b"Content-Type", b"application/json")
        if b"watch" in request.args:
            event = {"type": "ADDED", "object": {"metadata": {"name": "n1"}}}
            request.write(json.dumps(event).encode() + b"\n")
            ended = request.notifyFinish()
            self.watching.append(ended)
            ended.addErrback(lambda failure: None)
            return NOT_DONE_YET
        answer = {
            "name": name,
            "peer": request.transport.getPeer().port,
            "protocol": connection.get_protocol_version_name(),
            "alpn": connection.get_alpn_proto_negotiated().decode(),
        }
        return json.dumps(answer).encode()


class KubeClientTests(TestCase):
    """A client and a server with TLS, over Twisted's transports."""

    transports = "twisted"

    def setUp(self):
        """Start a server for ``api.example`` and the loopback address."""
        self.directory = Path(self.mktemp())
        self.directory.mkdir()
        self.ours, self.others = Authority("ours"), Authority("others")
        self.api = Api()
        self.write("ca.crt", self.ours.pem)
        self.write_client("first")
        self.serve(x509.DNSName("api.example"), x509.IPAddress(ip_address("127.0.0.1")))

    def serve(self, *names, **options):
        """Listen, with a certificate for ``names``."""
        certificate, key = self.ours.issue("api", *names)
        trusted = ssl.trustRootFromCertificates([ssl.Certificate.loadPEM(self.ours.pem)])
        context = ssl.CertificateOptions(
            certificate=x509.load_pem_x509_certificate(certificate),
            privateKey=ssl.KeyPair.load(key, SSL.FILETYPE_PEM).original.to_cryptography_key(),
            trustRoot=trusted,
            acceptableProtocols=[b"http/1.1"],
            **options,
        )
        # Who has no certificate is served, too: by the token.
        context.getContext().set_verify(SSL.VERIFY_PEER, lambda *arguments: arguments[-1])
        port = reactor.listenSSL(0, Site(self.api), context, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        self.port = port.getHost().port

    def write(self, name, content):
        """Replace a file."""
        new = self.directory / f"{name}.new"
        new.write_bytes(content)
        new.rename(self.directory / name)

    def write_client(self, name):
        """Write a certificate for the client."""
        certificate, key = self.ours.issue(name)
        self.write("client.key", key)
        self.write("client.crt", certificate)

    def client(self, host="127.0.0.1", server_name="", **credentials):
        """Make a client."""
        configuration = KubeConfiguration(
            f"https://{host}:{self.port}",
            "default",
            ReloadedFile(self.directory / "ca.crt").read,
            FileCredentials(**credentials),
            server_name,
        )
        client = KubeClient(with_transports(reactor, self.transports), configuration)
        self.addCleanup(self.close, client)
        return client

    async def close(self, client):
        """Close it, and wait until the server has noticed."""
        await client.close()
        await deferLater(reactor, 0.05)

    def certified(self):
        """Return credentials with the client's certificate."""
        return {
            "certificate": ReloadedFile(self.directory / "client.crt"),
            "key": ReloadedFile(self.directory / "client.key"),
        }

    async def refused(self, client):
        """Return the reason why no request is sent."""
        try:
            await client.get(NODES, "n1")
        except ApiUnreachable as error:
            self.assertEqual([], self.api.requests)
            return str(error)
        raise self.failureException("it was asked")

    async def test_address(self):
        """An API with a certificate for its address is used, over TLS 1.3 and HTTP/1.1."""
        answer = await self.client(token="secret").get(NODES, "n1")
        self.assertEqual([(None, "Bearer secret")], self.api.requests)
        self.assertEqual(("TLSv1.3", "http/1.1"), (answer["protocol"], answer["alpn"]))

    async def test_dead_connections(self):
        """TCP keepalive detects a lost API, and a closed client leaves no connection."""
        client = self.client(token="secret")
        await client.get(NODES, "n1")
        [connection] = client._connections
        sock = connection.transport.transport.getHandle()
        self.assertTrue(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        self.assertEqual(45_000, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        await client.close()
        self.assertEqual(-1, sock.fileno())

    async def test_quiet(self):
        """Opening and closing connections is not logged."""
        logged = Logged(self)
        client = self.client(token="secret")
        await client.get(NODES, "n1")
        await client.close()
        self.assertEqual([], [line for line in logged if "factory" in line])

    async def test_server_name(self):
        """The name in the certificate may differ from the host's if it is configured."""
        await self.client(server_name="api.example").get(NODES, "n1")
        text = await self.refused_other(self.client(server_name="other.example"))
        self.assertIn("other.example", text)

    async def refused_other(self, client):
        """Return the reason; another server has received the request."""
        self.api.requests.clear()
        return await self.refused(client)

    async def test_wrong_address(self):
        """An API with a certificate for another name gets no token."""
        self.serve(x509.DNSName("api.example"))
        self.assertIn("127.0.0.1", await self.refused(self.client(token="secret")))

    async def test_wrong_authority(self):
        """An API with a certificate of another authority gets no token."""
        self.write("ca.crt", self.others.pem)
        self.assertIn("certificate verify failed", await self.refused(self.client(token="secret")))

    async def test_bad_authorities(self):
        """Invalid authorities are an error; once they are valid the API is used."""
        self.write("ca.crt", b"nonsense")
        client = self.client()
        self.assertIn("certificate authorities", await self.refused(client))
        self.write("ca.crt", self.ours.pem)
        await client.get(NODES, "n1")

    async def test_old_protocol(self):
        """An API that supports only TLS 1.1 or older is rejected."""
        self.serve(
            x509.IPAddress(ip_address("127.0.0.1")),
            insecurelyLowerMinimumTo=ssl.TLSVersion.TLSv1_0,
            lowerMaximumSecurityTo=ssl.TLSVersion.TLSv1_1,
        )
        await self.refused(self.client())

    async def test_port_without_tls(self):
        """The error of a port that does not speak TLS names the cause."""
        plain = reactor.listenTCP(0, Factory.forProtocol(Greeting), interface="127.0.0.1")
        self.addCleanup(plain.stopListening)
        self.port = plain.getHost().port
        self.assertIn("it does not speak TLS", await self.refused(self.client()))

    async def test_new_certificate(self):
        """A new certificate is used from the next call on, with a new connection."""
        client = self.client(**self.certified())
        first = await client.get(NODES, "n1")
        again = await client.get(NODES, "n1")
        self.assertEqual((first["name"], first["peer"]), (again["name"], again["peer"]))
        self.write_client("second")
        second = await client.get(NODES, "n1")
        self.assertEqual("second", second["name"])
        self.assertNotEqual(first["peer"], second["peer"])

    async def test_half_written_certificate(self):
        """While certificate and key do not match, the previous ones are used."""
        certificate, key = self.ours.issue("second")
        client = self.client(**self.certified())
        await client.get(NODES, "n1")
        self.write("client.key", key)
        self.assertEqual("first", (await client.get(NODES, "n1"))["name"])
        self.write("client.crt", certificate)
        self.assertEqual("second", (await client.get(NODES, "n1"))["name"])

    async def test_wrong_key(self):
        """A certificate with another key is an error."""
        _, key = self.ours.issue("second")
        self.write("client.key", key)
        text = await self.refused(self.client(**self.certified()))
        self.assertIn("the client certificate cannot be used: key values mismatch", text)

    async def test_new_authorities(self):
        """The authorities in the file apply to each call, also on open connections."""
        client = self.client()
        await client.get(NODES, "n1")
        self.write("ca.crt", b"nonsense")
        await client.get(NODES, "n1")
        self.write("ca.crt", self.others.pem)
        self.assertIn("certificate verify failed", await self.refused_other(client))
        self.write("ca.crt", self.others.pem + self.ours.pem)
        await client.get(NODES, "n1")

    async def test_watch(self):
        """A watch continues across a change of certificates; when cancelled, it ends at the API."""
        client = self.client(**self.certified())
        event = Deferred()
        watching = client.watch(
            NODES, lambda kind, obj: event.callback(obj), resource_version="1", timeout=60
        )
        self.assertEqual("n1", (await event)["metadata"]["name"])
        self.write_client("second")
        await client.get(NODES, "n1")
        self.assertFalse(watching.called)
        watching.addErrback(lambda failure: None)
        watching.cancel()
        await self.api.watching[0]

    async def test_a_silent_address_of_several(self):
        """After a call without a response, the next one dials another address of the name."""
        self.patch(client_module, "CALL_SECONDS", 0.5)
        silent = socket.create_server(("127.0.0.2", self.port))
        self.addCleanup(silent.close)
        known = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, self.port))
            for address in ("127.0.0.2", "127.0.0.1")
        ]
        previous = reactor.installNameResolver(GAIResolver(reactor, getaddrinfo=lambda *_: known))
        self.addCleanup(reactor.installNameResolver, previous)
        client = self.client("api.example", server_name="api.example", token="secret")
        calls = [client.get(NODES, name) for name in ("n1", "n2")]
        for call in calls:
            await self.assertFailure(call, ApiUnreachable)
        self.patch(client_module, "CALL_SECONDS", 30.0)
        await client.get(NODES, "n1")

    async def test_refused_connection(self):
        """The error of an unreachable API has its address."""
        client = self.client()
        self.port = 1
        text = await self.refused(self.client())
        self.assertIn("GET https://127.0.0.1:1/api/v1/nodes/n1: ", text)
        self.assertIn("refused", text)
        await client.get(NODES, "n1")


class DirectTests(KubeClientTests):
    """The same over this project's transports, which all programs use."""

    transports = "direct"
