"""TLS over any transport, in pieces as large as they come.

One read of the socket is decrypted and handed on as one piece, however many records are in it;
one write is encrypted and sent at once. Twisted's layer hands on each record by itself and puts
writes off to the next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from OpenSSL import SSL
from OpenSSL.crypto import X509
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IAddress,
    IConsumer,
    IHandshakeListener,
    IProducer,
    IProtocol,
    IProtocolFactory,
    IPushProducer,
    ITransport,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.interfaces import IHalfCloseableTransport

RECORD = 16 * 1024
"""The longest plaintext of one record, bytes (RFC 8446 section 5.1)."""

RECORD_OVERHEAD = 64
"""More than header, tag and padding of a record take, bytes."""

HANDSHAKE_SIZE = 16 * 1024


@implementer(ITransport, IConsumer, IPushProducer)
class TLSTransport(Protocol):
    """The protocol of a plain transport, and the transport of ``wrappedProtocol``.

    ``make_connection(self)`` makes the TLS state over memory; ``is_client`` says which side
    this is. Data written before the handshake is over waits for its end.

    As with Twisted's layer a close waits for the peer's ``close_notify``; whoever closes bounds
    that by ``abortConnection``.
    """

    transport: IHalfCloseableTransport
    disconnecting = False

    def __init__(
        self,
        make_connection: Callable[[TLSTransport], SSL.Connection],
        is_client: bool,
        protocol: IProtocol,
    ) -> None:
        self.wrappedProtocol = protocol
        self._make_connection = make_connection
        self._is_client = is_client
        self._tls: SSL.Connection
        self._established = False
        self._ended = False
        self._aborted = False
        self._early: list[bytes] = []
        self._error: Failure | None = None

    # -- IProtocol: from the plain transport ---------------------------------------------------

    def connectionMade(self) -> None:
        """Begin the handshake."""
        self._tls = self._make_connection(self)
        if self._is_client:
            self._tls.set_connect_state()
        else:
            self._tls.set_accept_state()
        self.wrappedProtocol.makeConnection(self)
        if not self._aborted:
            self._shake_hands()

    def dataReceived(self, data: bytes) -> None:
        """Decrypt ``data`` and hand it on."""
        if self._aborted:
            return
        self._tls.bio_write(data)
        if not self._established:
            self._shake_hands()
            if not self._established:
                return
        self._read()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Tell the protocol; an end that TLS was not told of is a loss."""
        if self._established and not self._ended and reason.check(ConnectionDone):
            reason = Failure(ConnectionLost("the peer did not end TLS"))
        self._aborted = True
        self.wrappedProtocol.connectionLost(self._error or reason)

    # -- ITransport: for the protocol ----------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Encrypt ``data`` and send it now."""
        if self._aborted or self._ended:
            return
        if not self._established:
            self._early.append(data)
            return
        try:
            self._tls.sendall(data)
        except SSL.Error as error:
            self._fail(error)
            return
        self._send_encrypted(len(data) + RECORD_OVERHEAD * (len(data) // RECORD + 2))

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Send the pieces of ``data``."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """End TLS after what has been written, and close when the peer has ended it, too."""
        if self.disconnecting:
            return
        self.disconnecting = True
        if not self._established:
            self.transport.loseConnection()
        elif not self._aborted:
            self._end_tls()

    def abortConnection(self) -> None:
        """Reset the connection."""
        self.disconnecting = self._aborted = True
        self.transport.abortConnection()

    def getPeer(self) -> IAddress:
        """Give the address of the other end."""
        return self.transport.getPeer()

    def getHost(self) -> IAddress:
        """Give the address of this end."""
        return self.transport.getHost()

    # -- what TLS adds -------------------------------------------------------------------------

    def getPeerCertificate(self) -> X509 | None:
        """Give what the peer has shown, verified; there once the handshake is over."""
        return self._tls.get_peer_certificate()

    @property
    def negotiatedProtocol(self) -> bytes | None:
        """What ALPN has agreed on, if anything."""
        return self._tls.get_alpn_proto_negotiated() or None

    def getHandle(self) -> SSL.Connection:
        """Give the TLS state."""
        return self._tls

    def failVerification(self, reason: Failure) -> None:
        """Have ``reason`` told as the reason why the handshake fails."""
        self._error = reason

    # -- producers: the plain transport knows best ---------------------------------------------

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Pause ``producer`` while the plain transport has enough to send."""
        self.transport.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        self.transport.unregisterProducer()

    def pauseProducing(self) -> None:
        """Read no more for now."""
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Read again."""
        self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """Close."""
        self.loseConnection()

    # -- helpers -------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            self._send_encrypted(HANDSHAKE_SIZE)
            return
        except SSL.Error as error:
            self._send_encrypted(HANDSHAKE_SIZE)
            self._fail(error)
            return
        self._established = True
        self._send_encrypted(HANDSHAKE_SIZE)
        if IHandshakeListener.providedBy(self.wrappedProtocol):
            IHandshakeListener(self.wrappedProtocol).handshakeCompleted()
        early, self._early = self._early, []
        if early:
            self.writeSequence(early)
        if self.disconnecting and not self._aborted:
            self._end_tls()

    def _read(self) -> None:
        pieces: list[bytes] = []
        receive = self._tls.recv
        error: SSL.Error | None = None
        try:
            while True:
                pieces.append(receive(RECORD))
        except SSL.WantReadError:
            # All that has come has been read.
            pass
        except SSL.ZeroReturnError:
            self._ended = True
        except SSL.Error as failed:
            error = failed
        if pieces:
            self.wrappedProtocol.dataReceived(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._aborted:
            return
        if error is not None:
            self._send_encrypted(HANDSHAKE_SIZE)
            self._fail(error)
        elif self._ended:
            self._end_tls()
            self.transport.loseConnection()

    def _send_encrypted(self, size: int) -> None:
        """Send what TLS has produced, expected to be less than ``size`` bytes."""
        try:
            encrypted = self._tls.bio_read(size)
            while encrypted:
                self.transport.write(encrypted)
                encrypted = self._tls.bio_read(size) if len(encrypted) == size else b""
        except SSL.WantReadError:
            # TLS has produced nothing.
            return

    def _end_tls(self) -> None:
        try:
            self._tls.shutdown()
        except SSL.Error as error:
            self._fail(error)
            return
        self._send_encrypted(HANDSHAKE_SIZE)

    def _fail(self, error: SSL.Error) -> None:
        if self._error is None:
            self._error = Failure(error)
        self._aborted = True
        # Not aborted: the alert that says what was wrong is on its way.
        self.transport.loseConnection()


class TLSFactory(Factory):
    """Puts :class:`TLSTransport` under the protocols of ``factory``."""

    noisy = False

    def __init__(
        self,
        make_connection: Callable[[TLSTransport], SSL.Connection],
        is_client: bool,
        factory: IProtocolFactory,
    ) -> None:
        self._make_connection = make_connection
        self._is_client = is_client
        self._factory = factory

    def buildProtocol(self, addr: Any) -> TLSTransport | None:
        """Make both protocols of a connection."""
        protocol = self._factory.buildProtocol(addr)
        if protocol is None:
            return None
        return TLSTransport(self._make_connection, self._is_client, protocol)

    def doStart(self) -> None:
        """Start the inner factory."""
        self._factory.doStart()
        super().doStart()

    def doStop(self) -> None:
        """Stop the inner factory."""
        self._factory.doStop()
        super().doStop()
