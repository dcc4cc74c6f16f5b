"""TLS over any transport, in pieces of any size.

One read of the socket is decrypted and delivered as one piece, regardless of the number of records;
one write is encrypted and sent at once. Twisted's layer delivers each record separately, and defers
writes to the next iteration of the reactor.
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
from yurttunnel.tunnel.direct.transport import NO_PROTOCOL
from yurttunnel.tunnel.transports import IHalfCloseableTransport

HEADER = 5
"""The size of a record's type, version and length in bytes (RFC 8446 section 5.1)."""

HANDSHAKE_RECORD = 22
"""The type of handshake records (RFC 8446 section 5.1)."""

RECORD_EXPANSION = 2048
"""How many bytes a record may be longer than its plaintext (RFC 5246 section 6.2.3)."""

MAX_REPLY_BYTES = 4 * 1024
"""The number of bytes that TLS may send in reply to a peer by itself between two writes: 151 key
updates of 27 bytes; a legitimate peer sends gigabytes between two of them. The replies to a peer
that does not read are buffered, and there is no producer that could be paused for them."""

ConnectionMaker = Callable[[Any], SSL.Connection]
"""A method of Twisted's connection creators; they are annotated for Twisted's own layer."""


@implementer(ITransport, IConsumer, IPushProducer)
class TLSTransport(Protocol):
    """The protocol of a plain transport, and the transport of ``wrappedProtocol``.

    ``make_connection(self)`` creates the TLS state over memory BIOs; ``is_client`` sets the side.
    Data written before the end of the handshake is buffered until then.

    As with Twisted's layer, a close waits for the peer's ``close_notify``; the caller implements
    the timeout with ``abortConnection``.

    OpenSSL answers a ``KeyUpdate`` before the next data, as RFC 8446 section 4.6.3 requires, or
    when another one arrives first. It rejects renegotiation in TLS 1.2, which contexts must disable
    (``OP_NO_RENEGOTIATION``), by an alert. Both replies are sent, but a peer that causes more than
    :data:`MAX_REPLY_BYTES` bytes of them is disconnected.
    """

    transport: IHalfCloseableTransport
    disconnecting = False

    def __init__(
        self, make_connection: ConnectionMaker, is_client: bool, protocol: IProtocol
    ) -> None:
        self.wrappedProtocol = protocol
        self._make_connection = make_connection
        self._is_client = is_client
        self._tls: SSL.Connection
        self._state: TLSState
        # On a server: the incomplete first record.
        self._first: bytes | None = None if is_client else b""
        self._records = RecordCounter()
        self._early: list[bytes] | None = []
        # The number of bytes that TLS has sent by itself since the last write.
        self._reply_bytes = 0
        self._established = False
        # Whether close_notify was sent, whether it was received, and whether all I/O has ended.
        self._close_notify_sent = False
        self._peer_ended = False
        self._closed = False
        self._error: Failure | None = None
        self._producer: IProducer | None = None

    # -- IProtocol: from the plain transport ---------------------------------------------------

    def connectionMade(self) -> None:
        """Start the handshake, if this is the client."""
        if self._is_client:
            self._make_tls().set_connect_state()
        self.wrappedProtocol.makeConnection(self)
        if self._is_client and not self._closed:
            self._shake_hands()

    def dataReceived(self, data: bytes) -> None:
        """Decrypt ``data`` and deliver it."""
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
        """Notify the protocol; an end without ``close_notify`` is a lost connection."""
        if not self._peer_ended and isinstance(reason.value, ConnectionDone):
            reason = Failure(ConnectionLost("the peer did not end TLS"))
        self._closed = True
        self._producer = None
        protocol, self.wrappedProtocol = self.wrappedProtocol, NO_PROTOCOL
        try:
            protocol.connectionLost(self._error or reason)
        finally:
            # The TLS state has buffers of the size of the largest chunk, and the protocol may live
            # on, with this transport.
            self.__dict__.pop("_tls", None)
            self.__dict__.pop("_state", None)

    # -- ITransport: for the protocol ----------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Encrypt ``data`` and send it now."""
        if self._close_notify_sent or self._peer_ended or self._closed:
            return
        if self._early is not None:
            self._early.append(data)
            return
        try:
            encrypted = self._state.write(data)
        except SSL.Error as error:
            self._fail(error)
            return
        self._reply_bytes = 0
        if encrypted:
            self.transport.write(encrypted)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """End TLS once written data is flushed, and close when the peer has ended it, too.

        As with Twisted's layer, a registered producer continues until it is unregistered, and a
        connection without buffered data is aborted if the handshake is not complete.
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
        return self.transport.getPeer()

    def getHost(self) -> IAddress:
        return self.transport.getHost()

    # -- what TLS adds -------------------------------------------------------------------------

    def getPeerCertificate(self) -> X509 | None:
        """Return the peer's verified certificate, available from the handshake to the end."""
        return self._tls.get_peer_certificate()

    @property
    def negotiatedProtocol(self) -> bytes | None:
        """The protocol negotiated by ALPN, if any."""
        return self._tls.get_alpn_proto_negotiated() or None

    def getHandle(self) -> SSL.Connection:
        """Return the TLS state."""
        return self._tls

    def failVerification(self, reason: Failure) -> None:
        """Make the handshake fail, if it does not do so by itself, with ``reason``."""
        self._error = reason

    # -- producers: delegated to the plain transport -------------------------------------------

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Register a producer, which is paused while the plain transport is congested."""
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        if self._closed:
            producer.stopProducing()
        else:
            self._producer = producer
            self.transport.registerProducer(producer, streaming)

    def unregisterProducer(self) -> None:
        if self._producer is not None:
            self._producer = None
            self.transport.unregisterProducer()
            self._end_when_sent()

    def pauseProducing(self) -> None:
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
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
            # The verification callback cannot make OpenSSL's handshake fail itself.
            self.abortConnection()
            return
        self._established = True
        if IHandshakeListener.providedBy(self.wrappedProtocol):
            IHandshakeListener(self.wrappedProtocol).handshakeCompleted()
        early, self._early = self._early, None
        # This also sends the last flight of the handshake, and data written in the call above.
        self.writeSequence(early or ())
        if not self._closed:
            self._state.shrink()
        self._end_when_sent()

    def _read(self, records: int) -> None:
        """Read once for each complete record: a read that only fails is expensive."""
        pieces: list[bytes] = []
        error: SSL.Error | None = None
        try:
            self._state.read(records, pieces)
        except SSL.WantReadError:
            # Some records held no data, such as handshake messages or a key update.
            self._send_replies()
            if self._closed:
                return
        except SSL.ZeroReturnError:
            self._peer_ended = True
        except SSL.Error as failed:
            error = failed
        if pieces:
            self.wrappedProtocol.dataReceived(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._closed:
            return
        if error is not None:
            self._fail(error)
        elif self._peer_ended:
            self._end_tls()
            self._close()

    def _send_replies(self) -> None:
        """Send the replies that TLS generates itself; abort if the peer causes too many."""
        replies = self._state.produced()
        self._reply_bytes += len(replies)
        if self._reply_bytes > MAX_REPLY_BYTES:
            text = "the peer updates keys or renegotiates too often"
            self._error = Failure(ConnectionLost(text))
            # Aborted rather than closed: a close would wait for a peer that may read nothing.
            self.abortConnection()
        elif replies:
            self.transport.write(replies)

    def _send_produced(self) -> None:
        """Send the output that TLS generates itself, if any."""
        produced = self._state.produced()
        if produced:
            self.transport.write(produced)

    def _end_when_sent(self) -> None:
        """Complete a requested close once nothing is left to send."""
        if self.disconnecting and not self._early and self._producer is None and not self._closed:
            self._end_tls()

    def _end_tls(self) -> None:
        if self._close_notify_sent:
            return
        self._close_notify_sent = True
        try:
            self._tls.shutdown()
        except SSL.Error as error:
            self._fail(error)
            return
        self._send_produced()

    def _fail(self, error: SSL.Error) -> None:
        if self._error is None:
            self._error = Failure(error)
        # Not aborted, so that the alert with the reason is still sent.
        self._send_produced()
        self._close()

    def _close(self) -> None:
        """Close the plain transport once everything is sent: TLS has ended."""
        self._closed = True
        producer, self._producer = self._producer, None
        if producer is not None:
            self.transport.unregisterProducer()
            producer.stopProducing()
        self.transport.loseConnection()


def lacks_first_record(data: bytes) -> bool:
    """Return whether the first record that a server receives is still incomplete.

    Returns false for data that cannot become a handshake record; OpenSSL reports that error.
    """
    if data and data[0] != HANDSHAKE_RECORD:
        return False
    if len(data) < HEADER:
        return True
    length = data[3] << 8 | data[4]
    return len(data) < HEADER + length and length <= RECORD + RECORD_EXPANSION


class RecordCounter:
    """Tracks TLS records in a stream of bytes (RFC 8446 section 5.1)."""

    __slots__ = ("_between", "_header", "_missing")

    def __init__(self) -> None:
        # Whether the last record is complete and no byte of the next one has arrived.
        self._between = True
        # The bytes of an incomplete header, or the number of missing bytes of a record.
        self._header = b""
        self._missing = 0

    def feed(self, data: bytes) -> int:
        """Return how many records ``data`` completes; an overlong record counts as complete."""
        end = len(data)
        if self._between and end > HEADER and end == HEADER + (data[3] << 8 | data[4]):
            # Exactly one record, the common case except for bulk data.
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
    """Wraps the protocols of ``factory`` in :class:`TLSTransport`."""

    noisy = False

    def __init__(
        self, make_connection: ConnectionMaker, is_client: bool, factory: IProtocolFactory
    ) -> None:
        self._make_connection = make_connection
        self._is_client = is_client
        self.wrappedFactory = factory

    def buildProtocol(self, addr: Any) -> TLSTransport | None:
        """Build both protocols of a connection."""
        protocol = self.wrappedFactory.buildProtocol(addr)
        if protocol is None:
            return None
        transport = TLSTransport(self._make_connection, self._is_client, protocol)
        # Twisted's connection creators ask the factory for the ALPN protocols.
        transport.factory = self
        return transport

    def doStart(self) -> None:
        self.wrappedFactory.doStart()
        super().doStart()

    def doStop(self) -> None:
        self.wrappedFactory.doStop()
        super().doStop()
