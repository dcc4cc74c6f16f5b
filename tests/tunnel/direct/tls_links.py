"""TLS connections in memory, with either layer."""

from __future__ import annotations

from collections.abc import Iterator

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from OpenSSL import SSL
from twisted.internet import ssl
from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.interfaces import IHandshakeListener
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.tunnel.certificates import ClientTLS, ServerTLS, authority
from tests.tunnel.direct.users import User
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import with_transports

MUCH = bytes(range(256)) * 4 * 10 * 1024
"""10 MiB."""


@implementer(IHandshakeListener)
class TLSUser(User):
    """A :class:`User` that is notified of the end of the handshake."""

    def handshakeCompleted(self) -> None:
        """Record the event."""
        self.note("shaken")


class Plain:
    """A plain transport that stores written data, and records calls."""

    disconnecting = False
    aborted = False
    paused = False
    producer = None

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Store the data."""
        if not self.aborted:
            self.sent.append(data)

    def loseConnection(self) -> None:
        """Record the call."""
        self.disconnecting = True

    def abortConnection(self) -> None:
        """Record the call."""
        self.aborted = True

    def registerProducer(self, producer, streaming: bool) -> None:
        """Record the call."""
        assert self.producer is None
        self.producer = producer

    def unregisterProducer(self) -> None:
        """Record the call."""
        self.producer = None

    def pauseProducing(self) -> None:
        """Record the call."""
        self.paused = True

    def resumeProducing(self) -> None:
        """Record the call."""
        self.paused = False


class Keys:
    """The record protection keys of a link's peer: pyOpenSSL cannot trigger a key update.

    The peer itself can send nothing once this has sent a record.
    """

    def __init__(self, is_client: bool) -> None:
        self._label = f"{'CLIENT' if is_client else 'SERVER'}_TRAFFIC_SECRET_0".encode()
        # A server has sent two tickets.
        self._number = 0 if is_client else 2

    def change(self) -> bytes:
        """Return a record that updates the keys, and requests the same from the other side."""
        record = self.seal(22, b"\x18\0\0\1\1")
        self._begin(self._expand(b"traffic upd", 48))
        self._number = 0
        return record

    def seal(self, kind: int, data: bytes) -> bytes:
        """Return the next record."""
        header = b"\x17\x03\x03" + (len(data) + 17).to_bytes(2, "big")
        nonce = (int.from_bytes(self._vector, "big") ^ self._number).to_bytes(12, "big")
        self._number += 1
        return header + self._cipher.encrypt(nonce, data + bytes([kind]), header)

    def note(self, connection: SSL.Connection, line: bytes) -> None:
        """Process a line of OpenSSL's key log."""
        label, _, secret = line.split()
        if label == self._label:
            assert connection.get_cipher_name() == "TLS_AES_256_GCM_SHA384"
            self._begin(bytes.fromhex(secret.decode()))

    def _begin(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(self._expand(b"key", 32))
        self._vector = self._expand(b"iv", 12)

    def _expand(self, label: bytes, size: int) -> bytes:
        """Derive a key from the secret (RFC 8446 section 7.1)."""
        info = size.to_bytes(2, "big") + bytes([6 + len(label)]) + b"tls13 " + label + b"\0"
        return HKDFExpand(hashes.SHA384(), size, info).derive(self._secret)


class Link:
    """A user above the tested layer, with OpenSSL as its peer."""

    def __init__(
        self,
        transports: str,
        is_client: bool = False,
        creator=None,
        peer_certificate="edge-1",
        keys: Keys | None = None,
    ) -> None:
        self.clock = Clock()
        self.user = TLSUser()
        reactor = with_transports(self.clock, transports)
        factory = Factory.forProtocol(lambda: self.user)
        server, client = ServerTLS([b"a"]), ClientTLS([b"a"], peer_certificate)
        if keys is not None:
            (server if is_client else client)._context.set_keylog_callback(keys.note)
        if is_client:
            self.peer = server.serverConnectionForTLS(None)
            self.peer.set_accept_state()
            secured = tls.client_side(reactor, creator or client, factory)
        else:
            self.peer = client.clientConnectionForTLS(None)
            self.peer.set_connect_state()
            secured = tls.server_side(reactor, creator or server, factory)
        self.plain = Plain()
        self.layer = secured.buildProtocol(None)
        self.received = bytearray()
        self.peer_ended = False
        self.peer_error: SSL.Error | None = None
        self.is_over = False

    def start(self) -> Link:
        """Connect, and complete the handshake."""
        self.layer.makeConnection(self.plain)
        return self.run()

    def run(self) -> Link:
        """Transfer data between both until nothing moves any more."""
        while True:
            self.clock.advance(0)
            self.to_peer()
            data = b"" if self.plain.paused else self.from_peer()
            if data and not self.plain.disconnecting and not self.plain.aborted:
                self.layer.dataReceived(data)
            elif not self.plain.sent and not self.clock.getDelayedCalls():
                break
        self.close_plain()
        return self

    def to_peer(self) -> None:
        """Pass the sent data to OpenSSL."""
        sent, self.plain.sent = b"".join(self.plain.sent), []
        if sent:
            self.peer.bio_write(sent)
        try:
            while True:
                self.received += self.peer.recv(1 << 16)
        except SSL.WantReadError:
            pass
        except SSL.ZeroReturnError:
            self.peer_ended = True
        except SSL.Error as error:
            self.peer_error = self.peer_error or error

    def from_peer(self) -> bytes:
        """Return the output of OpenSSL."""
        try:
            return self.peer.bio_read(1 << 25)
        except SSL.WantReadError:
            return b""

    def close_plain(self) -> None:
        """Simulate a socket in the next iteration."""
        if not self.is_over and (self.plain.disconnecting or self.plain.aborted):
            self.lose(ConnectionAborted() if self.plain.aborted else ConnectionDone())

    def lose(self, error: Exception) -> None:
        """Lose the plain connection."""
        self.is_over = True
        producer, self.plain.producer = self.plain.producer, None
        if producer is not None:
            producer.stopProducing()
        self.layer.connectionLost(Failure(error))
        self.clock.advance(0)


def creator_for(host: str):
    """Return the creator for clients of ``twisted.internet.ssl``, with its own verification."""
    pem = authority().certificate.public_bytes(serialization.Encoding.PEM)
    trusted = ssl.trustRootFromCertificates([ssl.Certificate.loadPEM(pem)])
    return ssl.optionsForClientTLS(host, trustRoot=trusted)


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Yield each byte separately."""
    return (data[number : number + 1] for number in range(len(data)))
