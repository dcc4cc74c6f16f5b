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

from yurttunnel.tunnel.direct.openssl import RECORD, TLSState, state_of
from yurttunnel.tunnel.transports import IHalfCloseableTransport

HEADER = 5
"""Type, version and length of a record, bytes (RFC 8446 section 5.1)."""

HANDSHAKE_RECORD = 22
"""The type of records of a handshake (RFC 8446 section 5.1)."""

RECORD_EXPANSION = 2048
"""What a record may be longer than its plaintext, bytes (RFC 5246 section 6.2.3)."""

MOST_ANSWERS = 4 * 1024
"""Bytes that TLS may answer a peer with by itself between two writes of ours: 151 changes of keys,
27 bytes each, of which honest peers make one in gigabytes. Who takes none of the answers has them
all kept, and no producer can be paused for them."""

ConnectionMaker = Callable[[Any], SSL.Connection]
"""A method of Twisted's connection creators; they are annotated for Twisted's own layer."""


@implementer(ITransport, IConsumer, IPushProducer)
class TLSTransport(Protocol):
    """The protocol of a plain transport, and the transport of ``wrappedProtocol``.

    ``make_connection(self)`` makes the TLS state over memory; ``is_client`` says which side
    this is. Data written before the handshake is over waits for its end.

    As with Twisted's layer a close waits for the peer's ``close_notify``; whoever closes bounds
    that by ``abortConnection``.

    A ``KeyUpdate`` is answered by OpenSSL in front of the next data, as RFC 8446 section 4.6.3 asks
    for, or when another one comes before; the renegotiation of TLS 1.2, which contexts must not
    allow (``OP_NO_RENEGOTIATION``), by an alert that refuses it. Both are sent, but a peer that
    wants more of them than :data:`MOST_ANSWERS` loses the connection.
    """

    transport: IHalfCloseableTransport
    disconnecting = False

    def __init__(
        self,
        make_connection: ConnectionMaker,
        is_client: bool,
        protocol: IProtocol,
    ) -> None:
        self.wrappedProtocol = protocol
        self._make_connection = make_connection
        self._is_client = is_client
        self._tls: SSL.Connection
        self._state: TLSState
        # What a server has got of the first record, until that is complete.
        self._first: bytes | None = None if is_client else b""
        self._records = RecordCounter()
        self._early: list[bytes] | None = []
        # How much TLS has answered by itself since the last write, bytes.
        self._answered = 0
        self._established = False
        # Our close_notify has been sent, the peer's has come, nothing goes in or out any more.
        self._sealed = False
        self._ended = False
        self._closed = False
        self._error: Failure | None = None
        self._producer: IProducer | None = None

    # -- IProtocol: from the plain transport ---------------------------------------------------

    def connectionMade(self) -> None:
        """Begin the handshake, if this side does."""
        if self._is_client:
            self._make_tls().set_connect_state()
        self.wrappedProtocol.makeConnection(self)
        if self._is_client and not self._closed:
            self._shake_hands()

    def dataReceived(self, data: bytes) -> None:
        """Decrypt ``data`` and hand it on."""
        if self._closed:
            return
        if self._first is not None:
            data = self._first + data
            if lacks_first_record(data):
                self._first = data
                return
            self._first = None
            self._make_tls().set_accept_state()
        self._state.feed(data)
        records = self._records.feed(data)
        if not self._established:
            self._shake_hands()
            if not self._established or self._closed:
                return
        if records:
            self._read(records)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Notify the protocol; an end that TLS was not told of is a loss."""
        if not self._ended and isinstance(reason.value, ConnectionDone):
            reason = Failure(ConnectionLost("the peer did not end TLS"))
        self._closed = True
        self._producer = None
        try:
            self.wrappedProtocol.connectionLost(self._error or reason)
        finally:
            # Its buffers are as large as the largest chunk, and it is part of a cycle, so that it
            # would be kept until the garbage collector looks at what is old.
            self.__dict__.pop("_tls", None)
            self.__dict__.pop("_state", None)

    # -- ITransport: for the protocol ----------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Encrypt ``data`` and send it now."""
        if self._sealed or self._ended or self._closed:
            return
        if self._early is not None:
            self._early.append(data)
            return
        try:
            encrypted = self._state.write(data)
        except SSL.Error as error:
            self._fail(error)
            return
        self._answered = 0
        if encrypted:
            self.transport.write(encrypted)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Send the pieces of ``data``."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """End TLS after what has been written, and close when the peer has ended it, too.

        As with Twisted's layer a registered producer goes on until it is unregistered, and a
        connection on which nothing waits for the end of the handshake is aborted before it.
        """
        if self.disconnecting or self._closed:
            return
        if self._established or self._early:
            self.disconnecting = True
            self._end_when_sent()
        else:
            self.abortConnection()

    def abortConnection(self) -> None:
        """Reset the connection."""
        self.disconnecting = self._closed = True
        self.transport.abortConnection()

    def getPeer(self) -> IAddress:
        """Return the address of the other end."""
        return self.transport.getPeer()

    def getHost(self) -> IAddress:
        """Return the address of this end."""
        return self.transport.getHost()

    # -- what TLS adds -------------------------------------------------------------------------

    def getPeerCertificate(self) -> X509 | None:
        """Return what the peer has shown, verified; there from the handshake until the end."""
        return self._tls.get_peer_certificate()

    @property
    def negotiatedProtocol(self) -> bytes | None:
        """What ALPN has agreed on, if anything."""
        return self._tls.get_alpn_proto_negotiated() or None

    def getHandle(self) -> SSL.Connection:
        """Return the TLS state."""
        return self._tls

    def failVerification(self, reason: Failure) -> None:
        """Have the handshake fail, if it does not do so by itself, and ``reason`` told."""
        self._error = reason

    # -- producers: the plain transport knows best ---------------------------------------------

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Pause ``producer`` while the plain transport has enough to send."""
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        if self._closed:
            producer.stopProducing()
        else:
            self._producer = producer
            self.transport.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        if self._producer is not None:
            self._producer = None
            self.transport.unregisterProducer()
            self._end_when_sent()

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

    def _make_tls(self) -> SSL.Connection:
        self._tls = self._make_connection(self)
        self._state = state_of(self._tls)
        return self._tls

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            self._send_produced()
            if self._error is not None:
                self.abortConnection()
            return
        except SSL.Error as error:
            self._fail(error)
            return
        if self._error is not None:
            # Verified by a callback that cannot make OpenSSL's handshake fail.
            self.abortConnection()
            return
        self._established = True
        if IHandshakeListener.providedBy(self.wrappedProtocol):
            IHandshakeListener(self.wrappedProtocol).handshakeCompleted()
        early, self._early = self._early, None
        # Sends the last of the handshake, too, and what was written just now.
        self.writeSequence(early or ())
        if not self._closed:
            self._state.shrink()
        self._end_when_sent()

    def _read(self, records: int) -> None:
        """Read as often as there can be something: to be told "not now" is dear."""
        pieces: list[bytes] = []
        error: SSL.Error | None = None
        try:
            self._state.read(records, pieces)
        except SSL.WantReadError:
            # Some records held no data: the handshake's, a key update.
            self._answer()
            if self._closed:
                return
        except SSL.ZeroReturnError:
            self._ended = True
        except SSL.Error as failed:
            error = failed
        if pieces:
            self.wrappedProtocol.dataReceived(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._closed:
            return
        if error is not None:
            self._fail(error)
        elif self._ended:
            self._end_tls()
            self._close()

    def _answer(self) -> None:
        """Send what TLS answers by itself, and end with a peer that wants too much of it."""
        answers = self._state.produced()
        self._answered += len(answers)
        if self._answered > MOST_ANSWERS:
            text = "the peer changes keys, or renegotiates, more often than an honest one does"
            self._error = Failure(ConnectionLost(text))
            # Not closed: that would wait for a peer that may take nothing.
            self.abortConnection()
        elif answers:
            self.transport.write(answers)

    def _send_produced(self) -> None:
        """Send what TLS has to say by itself, if anything."""
        produced = self._state.produced()
        if produced:
            self.transport.write(produced)

    def _end_when_sent(self) -> None:
        """Do what is left to do of a close, if one has been asked for."""
        if self.disconnecting and not self._early and self._producer is None and not self._closed:
            self._end_tls()

    def _end_tls(self) -> None:
        if self._sealed:
            return
        self._sealed = True
        try:
            self._tls.shutdown()
        except SSL.Error as error:
            self._fail(error)
            return
        self._send_produced()

    def _fail(self, error: SSL.Error) -> None:
        if self._error is None:
            self._error = Failure(error)
        # Not aborted: the alert that says what was wrong is on its way.
        self._send_produced()
        self._close()

    def _close(self) -> None:
        """Close the plain transport after everything has been sent: TLS is over."""
        self._closed = True
        producer, self._producer = self._producer, None
        if producer is not None:
            self.transport.unregisterProducer()
            producer.stopProducing()
        self.transport.loseConnection()


def lacks_first_record(data: bytes) -> bool:
    """Return whether more has to come before a server has what a client begins TLS with.

    What cannot become a record of a handshake lacks nothing: OpenSSL says what it is.
    """
    if data and data[0] != HANDSHAKE_RECORD:
        return False
    if len(data) < HEADER:
        return True
    length = data[3] << 8 | data[4]
    return len(data) < HEADER + length and length <= RECORD + RECORD_EXPANSION


class RecordCounter:
    """Follows the records of TLS in a stream of bytes (RFC 8446 section 5.1)."""

    __slots__ = ("_between", "_header", "_missing")

    def __init__(self) -> None:
        # Whether the last record is complete and nothing of the next one has come.
        self._between = True
        # What has come of a header that is not complete, or what is to come of a record.
        self._header = b""
        self._missing = 0

    def feed(self, data: bytes) -> int:
        """Return how many records ``data`` completes, counting one that is too long to be true."""
        end = len(data)
        if self._between and end > HEADER and end == HEADER + (data[3] << 8 | data[4]):
            # One record, as most of what is not bulk.
            return 1
        if self._header:
            data = self._header + data
            self._header = b""
            end = len(data)
        position = self._missing
        complete = 1 if 0 < position <= end else 0
        while end - position >= HEADER:
            length = (data[position + 3] << 8) | data[position + 4]
            position += HEADER + length
            if position <= end or length > RECORD + RECORD_EXPANSION:
                complete += 1
        self._missing = max(0, position - end)
        if not self._missing:
            self._header = data[position:]
        self._between = not self._missing and not self._header
        return complete


class TLSFactory(Factory):
    """Puts :class:`TLSTransport` under the protocols of ``factory``."""

    noisy = False

    def __init__(
        self,
        make_connection: ConnectionMaker,
        is_client: bool,
        factory: IProtocolFactory,
    ) -> None:
        self._make_connection = make_connection
        self._is_client = is_client
        self.wrappedFactory = factory

    def buildProtocol(self, addr: Any) -> TLSTransport | None:
        """Make both protocols of a connection."""
        protocol = self.wrappedFactory.buildProtocol(addr)
        if protocol is None:
            return None
        transport = TLSTransport(self._make_connection, self._is_client, protocol)
        # Twisted's creators ask it for the protocols to negotiate.
        transport.factory = self
        return transport

    def doStart(self) -> None:
        """Start the inner factory."""
        self.wrappedFactory.doStart()
        super().doStart()

    def doStop(self) -> None:
        """Stop the inner factory."""
        self.wrappedFactory.doStop()
        super().doStop()
