"""Scripted kubelets: HTTP servers behind the agent.

They parse requests with h11, which shares no code with the tested parser, write the bytes that the
script returns, and record everything that they receive.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address

import h11
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import Factory
from twisted.internet.ssl import Certificate, CertificateOptions, trustRootFromCertificates
from twisted.python.failure import Failure
from twisted.python.log import err
from zope.interface import implementer

from tests.certificates import certificate_builder, common_name
from tests.e2e.certificates import Identity
from tests.e2e.clients import Incomplete, Peer

HELLO = b"hello from the edge\n"

KEPT = 64 * 1024
"""The number of bytes of a body that are stored; the rest is only counted and hashed."""

_LONGEST_HEAD = 1024 * 1024

Fields = Iterable[tuple[bytes, bytes]]


def serving_identity(
    issuer: Identity | None, names: Iterable[str] = (), addresses: Iterable[str] = ()
) -> Identity:
    """Create a kubelet's certificate; without an ``issuer`` it is self-signed, as kubelets' are."""
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [x509.DNSName(name) for name in names]
    alternatives += [x509.IPAddress(ip_address(address)) for address in addresses]
    issuer_name = issuer.certificate.subject if issuer else None
    certificate = (
        certificate_builder(common_name("system:node:edge"), key.public_key(), issuer_name)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .sign(issuer.key if issuer else key, hashes.SHA256())
    )
    return Identity(certificate, key)


def response(status: int, body: bytes = b"", fields: Fields = ()) -> bytes:
    """Return a complete response with its length."""
    return response_head(status, [*fields, (b"Content-Length", b"%d" % len(body))]) + body


def response_head(status: int, fields: Fields = ()) -> bytes:
    """Return the head of a response."""
    lines = b"".join(b"%b: %b\r\n" % field for field in fields)
    return b"HTTP/1.1 %d Whatever\r\n%b\r\n" % (status, lines)


def chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body; without data it is the last one (without trailers)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Request:
    """One request as received by a kubelet; ``fields`` have their original spelling and order."""

    def __init__(self, connection: KubeletConnection, event: h11.Request) -> None:
        self.connection = connection
        self.method: bytes = event.method
        self.target: bytes = event.target
        self.version: bytes = event.http_version
        self.fields: list[tuple[bytes, bytes]] = list(event.headers.raw_items())
        self.body = b""
        self.size = 0
        self.trailers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self._hash = hashlib.sha256()
        self._waiters: list[Deferred[None]] = []

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0]

    @property
    def digest(self) -> str:
        """The SHA-256 of the body so far."""
        return self._hash.hexdigest()

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all fields with this name."""
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def send(self, data: bytes) -> None:
        """Write raw bytes; do nothing if the connection is closed."""
        if self.connection.lost_reason is None:
            self.connection.transport.write(data)

    def answer(self, status: int = 200, body: bytes = HELLO, fields: Fields = ()) -> None:
        """Write a whole response."""
        self.send(response(status, body, fields))

    def finish_and_close(self) -> None:
        """Close once the written data has been sent, as a server closes its connection.

        Further data is read and dropped until the other side closes: a reset would overtake the
        written data.
        """
        self.connection.close()

    def abort(self) -> None:
        """Reset the connection."""
        self.connection.drop()

    def switch(self, peer: Peer, fields: Fields = (), early: bytes = b"") -> None:
        """Respond with 101 and ``early`` in one write, and pass the connection to ``peer``."""
        self.send(response_head(101, fields) + early)
        self.connection.hand_over(peer)

    def ended(self) -> Deferred[None]:
        """Fire once the request is complete; fail if it is truncated."""
        waiter: Deferred[None] = Deferred()
        if self.complete:
            waiter.callback(None)
        elif self.connection.lost_reason is not None:
            waiter.errback(Incomplete("the request broke off"))
        else:
            self._waiters.append(waiter)
        return waiter

    def take(self, data: bytes) -> None:
        """Count and hash a chunk of the body."""
        self.size += len(data)
        self._hash.update(data)
        if len(self.body) < KEPT:
            self.body += data

    def finish(self, trailers: Fields) -> None:
        """Record that the body is complete."""
        self.trailers = list(trailers)
        self.complete = True
        self._wake(None)

    def abort_body(self) -> None:
        """Record that the connection is lost."""
        self._wake(Incomplete(f"{self.target!r}: the request broke off"))

    def _wake(self, error: Exception | None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if error is None:
                waiter.callback(None)
            else:
                waiter.errback(error)


Script = Callable[[Request], Awaitable[None]]


@implementer(IHandshakeListener)
class KubeletConnection(Peer):
    """One connection: reads requests sequentially, and runs the script for each."""

    def __init__(self, kubelet: Kubelet) -> None:
        super().__init__()
        self.targets: list[bytes] = []
        """The targets of the requests on this connection."""
        self._kubelet = kubelet
        self._parser = _parser()
        self._request: Request | None = None
        self._answered = True
        self._closing = False
        self._user: Peer | None = None

    @property
    def is_secure(self) -> bool:
        """Whether it uses TLS."""
        return self._kubelet.secure

    def connectionMade(self) -> None:
        """Send without delay."""
        self.transport.setTcpNoDelay(True)
        super().connectionMade()

    def handshakeCompleted(self) -> None:
        """Count the handshake, and record the caller's name."""
        self._kubelet.handshakes += 1
        certificate = self.transport.getPeerCertificate()
        if certificate is not None:
            self._kubelet.callers.add(certificate.get_subject().commonName)

    def dataReceived(self, data: bytes) -> None:
        """Parse bytes of a request, or pass them to the protocol of an upgrade."""
        super().dataReceived(data)
        if self._user is not None:
            self._user.dataReceived(data)
        elif not self._closing:
            self._parser.receive_data(data)
            self._read_on()

    def readConnectionLost(self) -> None:
        """Close after the other side, unless the protocol of an upgrade handles the half-close."""
        super().readConnectionLost()
        if self._user is not None:
            self._user.readConnectionLost()
        else:
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure) -> None:
        """Notify the users of the connection."""
        super().connectionLost(reason)
        if self._user is not None:
            self._user.connectionLost(reason)
        if self._request is not None:
            self._request.abort_body()

    def close(self) -> None:
        """Send the FIN, then drop the received data until the other side has finished."""
        self._closing = True
        if self.lost_reason is not None:
            return
        if self.is_secure:
            self.transport.loseConnection()
        else:
            self.transport.loseWriteConnection()

    def hand_over(self, peer: Peer) -> None:
        """Pass the connection to ``peer``, with the data received after the request's head."""
        self._user = peer
        early, _ = self._parser.trailing_data
        peer.makeConnection(self.transport)
        if early:
            peer.dataReceived(early)

    def _read_on(self) -> None:
        try:
            while not self._closing and self._user is None:
                event = self._parser.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                self._take(event)
        except h11.RemoteProtocolError as error:
            self._kubelet.violation(f"what came is not HTTP: {error}")
            self.drop()

    def _take(self, event) -> None:
        if isinstance(event, h11.Request):
            request = self._request = Request(self, event)
            self._answered = False
            self.targets.append(request.target)
            self._kubelet.requests.append(request)
            running = Deferred.fromCoroutine(self._kubelet.script(request))
            running.addErrback(_unless_broken_off)
            running.addErrback(err, f"the script for {request.target!r}")
            running.addCallback(lambda _: self._script_done(request))
        elif isinstance(event, h11.Data):
            self._request.take(event.data)
        elif isinstance(event, h11.EndOfMessage):
            self._request.finish(event.headers.raw_items())
            self._next_when_done()

    def _script_done(self, request: Request) -> None:
        self._answered = True
        if request is self._request:
            self._next_when_done()

    def _next_when_done(self) -> None:
        """Start the next request once this one has been read and responded to."""
        request = self._request
        if request is None or not (request.complete and self._answered):
            return
        if self._user is not None or self._closing:
            return
        early, _ = self._parser.trailing_data
        if early:
            self._kubelet.violation(f"{early[:40]!r} came behind a request before its answer")
        self._request = None
        self._parser = _parser()


class Kubelet:
    """A listening loopback port; with ``identity`` it uses TLS.

    With ``callers_authority`` it requires a client certificate issued by it. ``script`` is called
    with each request as soon as its head is complete, and may be replaced at any time.
    """

    def __init__(
        self,
        reactor,
        script: Script,
        identity: Identity | None = None,
        callers_authority: x509.Certificate | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.script = script
        self.secure = identity is not None
        self.requests: list[Request] = []
        self.connections: list[KubeletConnection] = []
        self.handshakes = 0
        self.callers: set[str] = set()
        """The common names of the presented certificates."""
        factory = Factory.forProtocol(self._accept)
        if identity is None:
            self._listener = reactor.listenTCP(port, factory, 50, address)
        else:
            options = _tls_options(identity, callers_authority)
            self._listener = reactor.listenSSL(port, factory, options, 50, address)
        self.port: int = self._listener.getHost().port

    @property
    def open(self) -> list[KubeletConnection]:
        """The open connections."""
        return [each for each in self.connections if each.lost_reason is None]

    @property
    def received(self) -> int:
        """The number of bytes received on all connections."""
        return sum(each.received for each in self.connections)

    def seen(self, target: bytes) -> list[Request]:
        """Return the requests for this target."""
        return [request for request in self.requests if request.target == target]

    def violation(self, what: str) -> None:
        """Record a message that is never allowed; the test fails."""
        err(AssertionError(what), "a kubelet complains")

    def close_idle(self) -> None:
        """Close all connections, as kubelets close idle ones."""
        for connection in self.open:
            connection.close()

    async def stop(self) -> None:
        """Close the port and all connections, and wait until they are closed."""
        await self._listener.stopListening()
        for connection in self.open:
            connection.drop()
            await connection.when_lost()

    def _accept(self) -> KubeletConnection:
        connection = KubeletConnection(self)
        self.connections.append(connection)
        return connection


async def hello(request: Request) -> None:
    """Respond with a greeting."""
    await request.ended()
    request.answer()


async def describe(request: Request) -> None:
    """Respond with a description of the request in JSON."""
    await request.ended()
    request.answer(200, json.dumps(description(request)).encode())


def description(request: Request) -> dict:
    """Return the description of a request, as :func:`describe` sends it."""
    return {
        "method": request.method.decode(),
        "target": request.target.decode(),
        "fields": _texts(request.fields),
        "body": request.body.decode("latin-1"),
        "size": request.size,
        "digest": request.digest,
        "trailers": _texts(request.trailers),
    }


def routes(**scripts: Script) -> Script:
    """Return a script that selects one by path: a slash and the script's name."""

    async def route(request: Request) -> None:
        name = request.path.decode().removeprefix("/").replace("-", "_")
        await scripts[name](request)

    return route


def _texts(fields: Fields) -> list[list[str]]:
    return [[name.decode("latin-1"), value.decode("latin-1")] for name, value in fields]


def _parser() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_HEAD)


def _unless_broken_off(reason: Failure) -> None:
    reason.trap(Incomplete)


def _tls_options(
    identity: Identity, callers_authority: x509.Certificate | None
) -> CertificateOptions:
    extra = {}
    if callers_authority is not None:
        pem = callers_authority.public_bytes(Encoding.PEM).decode()
        extra["trustRoot"] = trustRootFromCertificates([Certificate.loadPEM(pem)])
    return CertificateOptions(
        privateKey=identity.key,
        certificate=identity.certificate,
        acceptableProtocols=[b"http/1.1"],
        **extra,
    )
