"""Real TLS clients and kubelets that verify each other through the pass-through, on sockets."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import ssl
from pathlib import Path
from threading import Thread

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase

from tests.cluster.fakes import EDGE, FakeInformers, node
from tests.fakes import FakeSession, FakeStream
from tests.pki.support import Issuer
from tests.steering.redirecting import (
    REDIRECTED,
    TRANSLATED,
    redirecting_network,
)
from tests.tunnel.certificates import ThrowAwayAuthority
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.kube.resources import NODES
from yurttunnel.pki.caller_contexts import OptionalCallerContexts
from yurttunnel.server.frontends.passthrough.listener import PassthroughFactory, Refusal
from yurttunnel.server.frontends.passthrough.nodes import PassthroughNodes
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import with_transports
from yurttunnel.tunnel.relay import LocalConnection

SIZE = 5_000_000
TIMEOUT = 60.0
"""The timeout in seconds for anything that takes milliseconds on an idle machine."""

NODE_ADDRESSES = ("192.0.2.9", "2001:db8::9")
UPWARD = random.Random(1).randbytes(SIZE)
DOWNWARD = random.Random(2).randbytes(SIZE)


def digest(data):
    """Return the SHA-256."""
    return hashlib.sha256(data).hexdigest()


def read_to_end(connection):
    """Read until the peer closes its direction of TCP; closing TLS would close both."""
    pieces = []
    while piece := connection.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def end_direction(connection):
    """Close one direction of the TCP connection, beneath TLS."""
    socket.socket.shutdown(connection, socket.SHUT_WR)


def in_thread(work, *arguments):
    """Call ``work`` in a new thread, which is in the network of its creator."""
    done = Deferred()

    def run():
        try:
            result = work(*arguments)
        except Exception as error:
            # Passed to the test, whatever it is.
            reactor.callFromThread(done.errback, error)
        else:
            reactor.callFromThread(done.callback, result)

    Thread(target=run, daemon=True).start()
    return done


class Greeter(Protocol):
    """Sends hello."""

    def connectionMade(self):
        """Send it, and close."""
        self.transport.write(b"hello")
        self.transport.loseConnection()


class DirectSession(FakeSession):
    """A session whose agent is on this machine, and dials the kubelet whatever is requested."""

    def __init__(self, name, kubelet_port):
        super().__init__(name)
        self._kubelet_port = kubelet_port

    def open_stream(self, host, port, timeout, request_id, holder):
        """Connect to the kubelet."""
        self.dials.append((host, port))
        near, far = FakeStream.pair(request_id)
        local = LocalConnection()
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", self._kubelet_port)

        def joined(_):
            local.join(far)
            return near

        return connectProtocol(endpoint, local).addCallback(joined)


class Certificates:
    """The cluster's authority, and files with certificates that it issued."""

    def __init__(self, directory):
        directory.mkdir()
        self._directory = directory
        self._authority = ThrowAwayAuthority("cluster")
        self._ca = self._authority.certificate.public_bytes(Encoding.PEM).decode()

    def context(self, purpose, name):
        """Return a context with the certificate ``name`` that requires one of the authority."""
        key, certificate = self._authority.issue(name)
        both = self._directory / f"{name}.pem"
        both.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + certificate.public_bytes(Encoding.PEM)
        )
        context = ssl.SSLContext(purpose)
        context.load_cert_chain(both)
        context.load_verify_locations(cadata=self._ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # The end of a direction without close_notify is tested here.
        context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
        return context


class EndToEndTestCase(TestCase):
    """A listener in front of one kubelet."""

    timeout = 2 * TIMEOUT
    transports = "direct"
    interface = "127.0.0.1"
    port = 0

    def setUp(self):
        """Listen on all addresses."""
        self.prepare_network()
        certificates = Certificates(Path(self.mktemp()))
        self.caller = certificates.context(ssl.PROTOCOL_TLS_CLIENT, "kube-apiserver")
        self.kubelet_tls = certificates.context(ssl.PROTOCOL_TLS_SERVER, "edge-1")
        self.kubelet = socket.create_server(("127.0.0.1", 0))
        self.kubelet.settimeout(TIMEOUT)
        self.addCleanup(self.kubelet.close)
        self.session = DirectSession("edge-1", self.kubelet.getsockname()[1])
        registry = SessionRegistry(reactor)
        registry.add(self.session)
        informers = FakeInformers(True)
        informers.put(NODES, node("edge-1", *NODE_ADDRESSES, labels=EDGE))
        self.factory = PassthroughFactory(
            reactor,
            registry,
            PassthroughNodes(
                registry,
                Nodes(informers),
                ClusterAddresses(informers, "kube-system"),
                iptables=True,
            ),
            frozenset({REDIRECTED, TRANSLATED}),
        )
        self.listening = with_transports(reactor, self.transports).listenTCP(
            self.port, self.factory, interface=self.interface
        )
        self.addCleanup(self.stop)

    def prepare_network(self):
        """Use the existing network."""

    async def stop(self):
        """Close everything, and wait for the ends of connections."""
        await self.listening.stopListening()
        self.factory.close()
        ended = Deferred()
        reactor.callLater(0, ended.callback, None)
        await ended
        self.assertEqual(self.factory.connections, set())

    def serve(self):
        """Act as the kubelet for one connection: read, then respond; return what was received."""
        connection, _ = self.kubelet.accept()
        connection.settimeout(TIMEOUT)
        with self.kubelet_tls.wrap_socket(connection, server_side=True) as secured:
            subject = dict(pair for (pair,) in secured.getpeercert()["subject"])
            received = digest(read_to_end(secured))
            secured.sendall(DOWNWARD)
            end_direction(secured)
            return subject["commonName"], received

    def call(self, host, port, name):
        """Act as kube-apiserver: send, close this direction, read; return what was received."""
        plain = socket.create_connection((host, port), timeout=TIMEOUT)
        with self.caller.wrap_socket(plain, server_hostname=name) as secured:
            subject = dict(pair for (pair,) in secured.getpeercert()["subject"])
            secured.sendall(UPWARD)
            end_direction(secured)
            return subject["commonName"], digest(read_to_end(secured))

    async def exchange(self, host, port, name):
        """Let both ends exchange data, and check each other's identity."""
        served = in_thread(self.serve)
        called = in_thread(self.call, host, port, name)
        seen_by_kubelet, seen_by_caller = await gatherResults([served, called], consumeErrors=True)
        self.assertEqual(seen_by_kubelet, ("kube-apiserver", digest(UPWARD)))
        self.assertEqual(seen_by_caller, ("edge-1", digest(DOWNWARD)))


class NamedTests(EndToEndTestCase):
    """Callers that connect to the listener itself, by the name of the node."""

    async def test_both_ends_verify_each_other(self):
        """Five megabytes go each way, the second after the first direction has ended."""
        await self.exchange("127.0.0.1", self.listening.getHost().port, "edge-1")
        self.assertEqual(self.session.dials, [(NODE_ADDRESSES[0], 10250)])
        self.assertEqual(self.factory.stats.passed, 1)

    async def test_a_name_of_no_node(self):
        """For a name of no node the caller gets the TLS alert unrecognized_name."""
        port = self.listening.getHost().port
        calling = in_thread(self.call, "127.0.0.1", port, "edge-2")
        error = await self.assertFailure(calling, ssl.SSLError)
        self.assertIn("UNRECOGNIZED_NAME", error.reason)
        self.assertEqual(self.factory.stats.refused, {Refusal.UNKNOWN_NAME: 1})

    async def test_no_name(self):
        """Without a name TLS ends at the server, as for a client that does not verify; the kubelet
        is not dialed.
        """
        creator = OptionalCallerContexts(Issuer.make(self).server("edge-1"))
        transports = with_transports(reactor, self.transports)
        self.factory.no_sni_factory = tls.server_side(
            transports, creator, Factory.forProtocol(Greeter)
        )

        def call():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            address = ("127.0.0.1", self.listening.getHost().port)
            plain = socket.create_connection(address, TIMEOUT)
            with context.wrap_socket(plain) as secured:
                return secured.recv(100)

        self.assertEqual(await in_thread(call), b"hello")
        self.assertEqual(self.session.dials, [])

    async def test_no_tls(self):
        """Other protocols are reset."""

        def speak():
            address = ("127.0.0.1", self.listening.getHost().port)
            with contextlib.closing(socket.create_connection(address, TIMEOUT)) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                return plain.recv(1)

        await self.assertFailure(in_thread(speak), ConnectionResetError)
        self.assertEqual(self.factory.stats.refused, {Refusal.NOT_TLS: 1})


class NamedTwistedTests(NamedTests):
    """``NamedTests`` with Twisted's own transports."""

    transports = "twisted"


class RedirectedTests(EndToEndTestCase):
    """Callers that connect to the node's address, and that the kernel redirects to the listener."""

    interface = "::"
    port = 7000

    def prepare_network(self):
        """Create a separate network."""
        redirecting_network(self, self.port)

    async def test_both_ends_verify_each_other(self):
        """In both families, redirected or translated, without a name in TLS."""
        self.caller.check_hostname = False
        expected = []
        for host in NODE_ADDRESSES:
            for port in (REDIRECTED, TRANSLATED):
                await self.exchange(host, port, None)
                expected.append((host, port))
        self.assertEqual(self.session.dials, expected)
        self.assertEqual(self.factory.stats.passed, 4)

    async def test_an_address_of_no_node(self):
        """For other addresses, such as a Service's by kube-proxy, the name determines the node."""
        await self.exchange("203.0.113.7", TRANSLATED, "edge-1")
        self.assertEqual(self.session.dials, [(NODE_ADDRESSES[0], TRANSLATED)])


class RedirectedTwistedTests(RedirectedTests):
    """``RedirectedTests`` with Twisted's own transports."""

    transports = "twisted"
