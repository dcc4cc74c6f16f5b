"""A TLS connection between agent and server: exchanges HELLOs, then carries a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol as Structure

from cryptography import x509
from twisted.internet.interfaces import (
    IDelayedCall,
    IHandshakeListener,
    IProtocol,
    IPushProducer,
    IReactorTime,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.tls import ALPN
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code, Refused
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Hello, HelloReader

HELLO_TIMEOUT = 10.0
"""Seconds from the TCP connection to the peer's complete HELLO, TLS handshake included."""

MAX_UNFINISHED = 1024
"""The number of connections to a port without a complete HELLO, or whose agent may still refuse its
new session; above it the oldest is evicted."""

CLOSE_TIMEOUT = 5.0
"""Seconds for the peer to acknowledge the end of TLS; it may never do so."""


class ConnectionOwner(Structure):
    """The owner of a connection: the listener on the server, the client on the agent."""

    def connection_ready(self, connection: SessionConnection) -> None:
        """Handle a completed TLS handshake with a verified peer; the agent now sends its HELLO.

        On a shared port the connection may have been handed over to another protocol.
        """

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """Handle the peer's HELLO: call :meth:`~SessionConnection.start` or ``refuse``.

        May raise :class:`Violation`, with which the connection is then refused.
        """

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """Handle the end of the connection, with or without a session; called once."""


@implementer(IHandshakeListener)
class SessionConnection(Protocol):
    """The protocol above TLS; before :meth:`start` it accepts only a HELLO.

    ``others`` are the other protocols of a shared port: for each ALPN value a callable that returns
    the protocol to which a connection that negotiated it is handed over. ``alpn`` is the value of
    this protocol.
    """

    transport: TLSMemoryBIOProtocol

    def __init__(
        self,
        clock: IReactorTime,
        owner: ConnectionOwner,
        others: Mapping[bytes, Callable[[], IProtocol]] | None = None,
        alpn: bytes = ALPN,
    ) -> None:
        self._clock = clock
        self._owner = owner
        self._others = others or {}
        self._alpn = alpn
        self._other: IProtocol | None = None
        self._reader = HelloReader()
        self._session: TunnelSession | None = None
        self._deadline: IDelayedCall | None = None
        self._error: Failure | None = None
        self.session_started = False
        """Whether the peer's HELLO was received and a session started."""

    @property
    def handed_over(self) -> bool:
        """Whether the connection was handed over to another protocol of the port."""
        return self._other is not None

    @property
    def peer_certificate(self) -> x509.Certificate | None:
        """The peer's certificate, verified by TLS; available once the connection is ready."""
        certificate = self.transport.getPeerCertificate()
        return None if certificate is None else certificate.to_cryptography()

    # -- IProtocol, IHandshakeListener ---------------------------------------------------------

    def connectionMade(self) -> None:
        """Start the timeout for the handshake and the HELLO."""
        self._deadline = self._clock.callLater(HELLO_TIMEOUT, self._too_late)

    def handshakeCompleted(self) -> None:
        """Notify the owner, hand the connection over, or abort, depending on ALPN."""
        protocol = self.transport.negotiatedProtocol
        if protocol == self._alpn:
            self._owner.connection_ready(self)
        elif protocol is not None and protocol in self._others:
            self._cancel_deadline()
            self._other = self._others[protocol]()
            self._other.makeConnection(self.transport)
            self.dataReceived = self._pass_on  # type: ignore[method-assign] # its own from now on
            self._owner.connection_ready(self)
        else:
            self._error = Failure(
                Violation(Code.PROTOCOL, f"the peer does not speak {self._alpn.decode()} (ALPN)")
            )
            self.transport.abortConnection()

    def dataReceived(self, data: bytes) -> None:
        """Read the HELLO; :meth:`start` replaces this method by that of the session."""
        try:
            hello, rest = self._reader.feed(data)
            if hello is not None:
                self._owner.hello_received(self, hello)
        except Refused as refused:
            self._error = Failure(refused)
            self.transport.abortConnection()
        except Violation as violation:
            self.refuse(violation.code, violation.text)
        else:
            if rest and self._session is not None:
                self.dataReceived(rest)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Notify the session and the owner."""
        self._cancel_deadline()
        session, self._session = self._session, None
        if self._other is not None:
            self._other.connectionLost(reason)
        if session is not None:
            session.connection_lost(by_peer=True)
        self._owner.connection_ended(self, self._error or reason)

    # -- for the owner -------------------------------------------------------------------------

    def send_hello(self, hello: Hello) -> None:
        """Send this end's HELLO."""
        self.transport.write(hello.encode())

    def start(
        self, session: TunnelSession, hello: Hello, on_used: Callable[[], object] | None = None
    ) -> None:
        """Start to carry ``session``, whose peer has sent ``hello``.

        ``on_used()`` is called once the peer has sent anything but CLOSE in the session.
        """
        self._cancel_deadline()
        self.session_started = True
        self._session = session
        # Looked up once: each read is one call into the session, and each write one into TLS.
        receive = session.data_received
        if on_used is not None:
            receive = partial(self._first_received, on_used)
        self.dataReceived = receive  # type: ignore[method-assign] # see above
        self.write = self.transport.write  # type: ignore[method-assign] # see above
        session.carry(self, hello.received)

    def refuse(self, code: Code, text: str) -> None:
        """Send CLOSE and close the connection."""
        self._error = Failure(Violation(code, text))
        self.transport.write(frames.coded_frame(frames.CLOSE, 0, code, text))
        self.end()

    def evicted(self) -> None:
        """Abort the connection to make room for a newer one."""
        text = f"{MAX_UNFINISHED} newer connections have no session that is used either"
        self._error = self._error or Failure(Violation(Code.OVERLOADED, text))
        # Reported like a connection without a session: the agent has not used its session.
        self.session_started = False
        session = self._session
        self.abandon()
        if session is not None:
            session.connection_lost(by_peer=False)

    # -- for the session -----------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send ``data``."""
        self.transport.write(data)

    def register_producer(self, producer: IPushProducer) -> None:
        """Register a push producer, which is paused while the send buffer is full."""
        self.transport.registerProducer(producer, True)

    def end(self) -> None:
        """Close the connection once written data is flushed, with a timeout."""
        self._forget_session()
        self._cancel_deadline()
        self._deadline = self._clock.callLater(CLOSE_TIMEOUT, self.transport.abortConnection)
        self.transport.loseConnection()

    def abandon(self) -> None:
        """Abort the connection without notifying the session, which knows already."""
        self._forget_session()
        self._cancel_deadline()
        self.transport.abortConnection()

    # -- helpers -------------------------------------------------------------------------------

    def _first_received(self, on_used: Callable[[], object], data: bytes) -> None:
        session = self._session
        assert session is not None
        self.dataReceived = session.data_received  # type: ignore[method-assign] # see start()
        session.data_received(data)
        if not session.closed:
            on_used()

    def _forget_session(self) -> None:
        self.dataReceived = self._ignore  # type: ignore[method-assign] # not used again
        if self._session is not None:
            self._session = None
            self.transport.unregisterProducer()

    def _pass_on(self, data: bytes) -> None:
        # Looked up each time, because protocols may replace their dataReceived.
        self._other.dataReceived(data)  # type: ignore[union-attr] # set at the handover

    def _ignore(self, data: bytes) -> None:
        """Drop data after the end: it triggers neither another CLOSE nor a new deadline."""

    def _too_late(self) -> None:
        self._deadline = None
        self._error = Failure(
            Violation(Code.TIMEOUT, f"no TLS handshake and HELLO within {HELLO_TIMEOUT:g} s")
        )
        self.transport.abortConnection()

    def _cancel_deadline(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None and deadline.active():
            deadline.cancel()
