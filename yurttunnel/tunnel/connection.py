"""One TLS connection between agent and server: HELLOs first, then it carries a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
"""Connections to a port that may be before the end of their HELLO; the oldest makes room."""

CLOSE_TIMEOUT = 5.0
"""Seconds in which the peer has to take note of the end of TLS; it may never do so."""


class ConnectionOwner(Structure):
    """Who decides what a connection carries: the listener on the server, the agent's client."""

    def connection_ready(self, connection: SessionConnection) -> None:
        """TLS is up and the peer verified; the agent's side sends its HELLO now.

        On a port that others share the connection may have been handed over to one of them.
        """

    def hello_received(self, connection: SessionConnection, hello: Hello) -> None:
        """The peer's HELLO is here: :meth:`~SessionConnection.start` or refuse.

        May raise :class:`Violation`, with which the connection is then refused.
        """

    def connection_ended(self, connection: SessionConnection, reason: Failure) -> None:
        """The connection is over, whether it carried a session or not; called once."""


@implementer(IHandshakeListener)
class SessionConnection(Protocol):
    """The protocol above TLS; before :meth:`start` it reads a HELLO and nothing else.

    ``others`` are protocols that share the port: for each ALPN a callable that makes the
    protocol to which a connection that negotiated it is handed over. ``alpn`` is that of this one.
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
        self._greeted = False

    @property
    def greeted(self) -> bool:
        """Whether the peer's HELLO has come and a session has been started."""
        return self._greeted

    @property
    def handed_over(self) -> bool:
        """Whether the connection belongs to one of the other protocols of the port."""
        return self._other is not None

    @property
    def peer_certificate(self) -> x509.Certificate | None:
        """What the peer has shown, verified by TLS; there once the connection is ready."""
        certificate = self.transport.getPeerCertificate()
        return None if certificate is None else certificate.to_cryptography()

    # -- IProtocol, IHandshakeListener ---------------------------------------------------------

    def connectionMade(self) -> None:
        """Allow only so much time for the handshake and the HELLO."""
        self._deadline = self._clock.callLater(HELLO_TIMEOUT, self._too_late)

    def handshakeCompleted(self) -> None:
        """Begin, if the peer speaks this protocol at all."""
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
        """Read the HELLO; :meth:`start` puts the session in this method's place."""
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
                self._session.data_received(rest)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Notify the session, and the owner."""
        self._cancel_deadline()
        session, self._session = self._session, None
        if self._other is not None:
            self._other.connectionLost(reason)
        if session is not None:
            session.connection_lost(told=True)
        self._owner.connection_ended(self, self._error or reason)

    # -- for the owner -------------------------------------------------------------------------

    def send_hello(self, hello: Hello) -> None:
        """Send this end's HELLO."""
        self.transport.write(hello.encode())

    def start(self, session: TunnelSession, hello: Hello) -> None:
        """Carry ``session``, whose peer has sent ``hello``, from now on."""
        self._cancel_deadline()
        self._greeted = True
        self._session = session
        # Found once, so that each read is one call into the session, and each write one into TLS.
        self.dataReceived = session.data_received  # type: ignore[method-assign] # see above
        self.write = self.transport.write  # type: ignore[method-assign] # see above
        session.carry(self, hello.received)

    def refuse(self, code: Code, text: str) -> None:
        """Answer with CLOSE and hang up."""
        self._error = Failure(Violation(code, text))
        self.transport.write(frames.coded_frame(frames.CLOSE, 0, code, text))
        self.end()

    def evicted(self) -> None:
        """Hang up, so that there is room for a connection that is newer."""
        text = f"{MAX_UNFINISHED} newer connections have not sent their HELLO either"
        self._error = self._error or Failure(Violation(Code.OVERLOADED, text))
        self.abandon()

    # -- Carrier -------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send ``data``."""
        self.transport.write(data)

    def register_producer(self, producer: IPushProducer) -> None:
        """Pause ``producer`` while TLS or TCP has enough to send."""
        self.transport.registerProducer(producer, True)

    def end(self) -> None:
        """Close after what has been written; give the peer only so much time for it."""
        self._forget_session()
        self._cancel_deadline()
        self._deadline = self._clock.callLater(CLOSE_TIMEOUT, self.transport.abortConnection)
        self.transport.loseConnection()

    def abandon(self) -> None:
        """Abort, and tell the session nothing: it knows."""
        self._forget_session()
        self._cancel_deadline()
        self.transport.abortConnection()

    # -- helpers -------------------------------------------------------------------------------

    def _forget_session(self) -> None:
        self.dataReceived = self._ignore  # type: ignore[method-assign] # nobody reads it
        if self._session is not None:
            self._session = None
            self.transport.unregisterProducer()

    def _pass_on(self, data: bytes) -> None:
        # Looked up each time, because protocols may replace their dataReceived.
        self._other.dataReceived(data)  # type: ignore[union-attr] # there since it is handed over

    def _ignore(self, data: bytes) -> None:
        """Drop what comes after the end: no further CLOSE, and no new deadline, for it."""

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
