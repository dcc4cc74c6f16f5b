"""Helpers for the tests of certificates: a clock, an authority, and connections in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cryptography import x509
from OpenSSL import SSL
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import (
    IOpenSSLServerConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.internet.task import Clock
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.test.iosim import FakeTransport, IOPump
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from yurttunnel.pki.authority import Authority
from yurttunnel.pki.contexts import ClientContexts, ServerContexts
from yurttunnel.pki.credentials import Credentials, new_key
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.pki.identity import Identifiers, parse_identifiers
from yurttunnel.pki.names import CALLER_NAME, KUBELET_CLIENT_NAME, NODE_ORGANIZATION

EDGE_1 = parse_identifiers("host=edge-1&ipv4=192.0.2.7")


def clock_now(offset: float = 0.0) -> Clock:
    """Create a clock with the real time, to which OpenSSL compares certificates."""
    clock = Clock()
    clock.advance(time.time() + offset)
    return clock


class SteppedClock(Clock):
    """A clock whose time of day is ``ahead`` seconds ahead of others."""

    def __init__(self, ahead: float = 0.0) -> None:
        super().__init__()
        self.rightNow = float(int(time.time()))
        self.ahead = ahead

    def time_of_day(self) -> float:
        """Return the time of day."""
        return self.seconds() + self.ahead


def state_directory(test: TestCase) -> StateDirectory:
    """Create an empty state directory for one test."""
    return StateDirectory.open(test.mktemp())


@dataclass
class Issuer:
    """An authority with helpers for each kind of credentials."""

    authority: Authority
    clock: Clock

    @classmethod
    def make(cls, test: TestCase, clock: Clock | None = None) -> Issuer:
        """Create an authority with a directory of its own."""
        clock = clock or clock_now()
        return cls(Authority.open(clock, state_directory(test)), clock)

    def server(self, *hosts: str) -> Credentials:
        """Create a server's credentials, by default for ``server.test``."""
        key = new_key()
        certificate = self.authority.sign_server(key.public_key(), hosts or ("server.test",), ())
        return self.authority.credentials(key, certificate)

    def node(
        self,
        node: str = "edge-1",
        identifiers: Identifiers = EDGE_1,
        lifetime: float = 3600.0,
        enrolment: str = "ab",
    ) -> Credentials:
        """Create a node's credentials."""
        key = new_key()
        certificate = self.authority.sign_node(
            node, identifiers, key.public_key(), enrolment, lifetime
        )
        return self.authority.credentials(key, certificate)

    def caller(self, lifetime: float = 3600.0) -> Credentials:
        """Create a caller's credentials."""
        key = new_key()
        certificate = self.authority.sign_client(key.public_key(), CALLER_NAME, lifetime=lifetime)
        return self.authority.credentials(key, certificate)

    def kubelet_client(self) -> Credentials:
        """Create the server's credentials for kubelets."""
        key = new_key()
        certificate = self.authority.sign_client(
            key.public_key(), KUBELET_CLIENT_NAME, NODE_ORGANIZATION
        )
        return self.authority.credentials(key, certificate)

    def expired_node(self) -> Credentials:
        """Create a node's credentials that expired a second ago, at the end of the backdating."""
        return self.node(lifetime=-1)


def client_context(
    credentials: Credentials | None,
    protocols: list[bytes],
    version: int = SSL.TLS1_3_VERSION,
) -> SSL.Context:
    """Create the context of a client that verifies nothing and has the given options."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(version)
    context.set_max_proto_version(version)
    if protocols:
        context.set_alpn_protos(protocols)
    if credentials is not None:
        context.use_certificate(credentials.certificate)
        context.use_privatekey(credentials.key)
    return context


def accept(contexts: ServerContexts) -> SSL.Connection:
    """Create the server's side of a connection in memory."""
    connection = contexts.serverConnectionForTLS(None)
    connection.set_accept_state()
    return connection


class _Dialing:
    """A stand-in for Twisted's TLS protocol that raises why a server is rejected."""

    def __init__(self, refused: Callable[[BaseException], object]) -> None:
        self._refused = refused

    def failVerification(self, reason: Failure) -> None:
        """Store the error."""
        self._refused(reason.value)


def dial(
    contexts: ClientContexts, server_name: str, refused: Callable[[BaseException], object]
) -> SSL.Connection:
    """Create the agent's side of a connection in memory."""
    connection = contexts.creator(server_name).clientConnectionForTLS(_Dialing(refused))
    connection.set_connect_state()
    return connection


def handshake(client: SSL.Connection, server: SSL.Connection) -> None:
    """Run a handshake in memory to its end; raises the error of either side."""
    for _ in range(10):
        for one, other in ((client, server), (server, client)):
            _step(one.do_handshake)
            _move(one, other)
    # In TLS 1.3 the client learns of a rejection only when it reads.
    _step(lambda: client.recv(1))


def exchange(sender: SSL.Connection, receiver: SSL.Connection, data: bytes) -> bytes:
    """Send data over a connection in memory, and return the data received."""
    sender.send(data)
    _move(sender, receiver)
    return receiver.recv(len(data))


def _step(operation: Callable[[], object]) -> None:
    try:
        operation()
    except SSL.WantReadError:
        pass  # the other side's turn


def _move(sender: SSL.Connection, receiver: SSL.Connection) -> None:
    try:
        receiver.bio_write(sender.bio_read(1 << 20))
    except SSL.WantReadError:
        pass  # nothing to move


@implementer(IStreamClientEndpoint)
class MemoryServer:
    """An endpoint for a TLS server in memory; :meth:`settle` transfers data."""

    def __init__(
        self, clock: Clock, creator: IOpenSSLServerConnectionCreator, factory: IProtocolFactory
    ) -> None:
        self._clock = clock
        self._factory = TLSMemoryBIOFactory(creator, False, factory, clock)
        self._pumps: list[IOPump] = []
        self.reachable = True
        self.frozen = False
        self.connections = 0

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect at once, or fail."""
        if not self.reachable:
            return Deferred.fromCoroutine(_refused())
        self.connections += 1
        client, server = protocolFactory.buildProtocol(None), self._factory.buildProtocol(None)
        client_io, server_io = FakeTransport(client, False), FakeTransport(server, True)
        pump = IOPump(client, server, client_io, server_io, False)
        self._pumps.append(pump)
        server.makeConnection(server_io)
        client.makeConnection(client_io)
        return succeed(client)

    def settle(self) -> None:
        """Deliver all pending data."""
        if self.frozen:
            return
        moved = True
        while moved:
            self._clock.advance(0)
            moved = False
            for pump in self._pumps:
                moved = bool(pump.pump()) or moved

    @property
    def open_connections(self) -> int:
        """The number of connections that neither side has closed."""
        return sum(
            1
            for pump in self._pumps
            if not (pump.clientIO.disconnected or pump.serverIO.disconnected)
        )


async def _refused() -> IProtocol:
    raise ConnectionRefusedError()


def peer_serial(connection: SSL.Connection) -> int:
    """Return the serial number of the peer's certificate."""
    certificate = connection.get_peer_certificate(as_cryptography=True)
    assert isinstance(certificate, x509.Certificate)
    return certificate.serial_number
