"""The common base of client and server connections: both directions and how they end.

A transport may read more than is wanted yet, and writes that belong together should leave in one
piece. :class:`ConnectionWriter` is the sending direction. :class:`HTTPConnection` is the receiving
direction, and hands both over to another protocol after an upgrade.
"""

from __future__ import annotations

import fcntl
import select
import termios
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IHalfCloseableProtocol, IProtocol, IPushProducer, ITransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.fields import Fields

_OF_ONE_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
"""Hop-by-hop fields that only the connection itself may add (RFC 9110 section 7.6.1)."""

_CHECKED = _OF_ONE_CONNECTION | {b"content-length"}
# A cheap first test: few other fields have a name of one of these lengths.
_LENGTHS = frozenset(map(len, _CHECKED))

_OF_AN_UPGRADE = frozenset({b"connection", b"upgrade"})


def declared_length(fields: Fields, upgrade: bool = False) -> int | None:
    """Check ``fields`` to be sent, and return the value of ``Content-Length``, if any.

    Raises ``ValueError`` for a bad length, and for fields that only the connection may add;
    ``Connection`` and ``Upgrade`` are allowed with ``upgrade``.
    """
    length = None
    for name, value in fields:
        if len(name) not in _LENGTHS or (lower := name.lower()) not in _CHECKED:
            continue
        if lower == b"content-length":
            if length is not None or not value.isdigit():
                raise ValueError("Content-Length is one decimal number")
            length = int(value)
        elif not (upgrade and lower in _OF_AN_UPGRADE):
            raise ValueError(f"{name.decode()} is for the connection to send")
    return length


def is_of_connection(name: bytes) -> bool:
    """Return whether a field frames its message or is hop-by-hop."""
    return name.lower() in _CHECKED


def is_secure(transport: Any) -> bool:
    """Return whether ``transport`` is TLS.

    No interface identifies TLS: ``ISSLTransport`` includes the methods of a TCP socket, which the
    TLS of :mod:`yurttunnel.tunnel.direct` does not have. All TLS transports have this method.
    """
    return hasattr(transport, "getPeerCertificate")


def has_hung_up(transport: Any) -> bool:
    """Return whether the peer has closed both directions, as far as the kernel knows (poll(2)).

    Over TCP the kernel detects this only when it sends something, over a Unix socket at once.
    """
    # No events are requested: poll always reports POLLHUP and POLLERR.
    return _poll_reports(transport, 0)


def has_ended(transport: Any) -> bool:
    """Return whether the peer has closed its sending direction, even if data is still unread.

    For TLS this is the state of the underlying TCP connection.
    """
    return _poll_reports(
        transport.transport if is_secure(transport) else transport, select.POLLRDHUP
    )


def _poll_reports(transport: Any, events: int) -> bool:
    handle = getattr(transport, "getHandle", None)
    if handle is None:
        return False
    poll = select.poll()
    poll.register(handle(), events)
    return bool(poll.poll(0))


def all_acknowledged(transport: Any) -> bool:
    """Return whether the peer has everything sent on ``transport``, with or without TLS."""
    return socket_all_acknowledged(transport.transport if is_secure(transport) else transport)


def socket_all_acknowledged(transport: Any) -> bool:
    """Return whether no data that was sent on a socket is in flight any more.

    Either the peer has all of it (``SIOCOUTQ`` in tcp(7) and unix(7)), or the connection was reset,
    after which that counter no longer changes. Returns false for a transport without a socket. Data
    that the transport itself buffers needs no check: then the socket's buffer is full.
    """
    handle = getattr(transport, "getHandle", None)
    if handle is None:
        return False
    waiting = fcntl.ioctl(handle(), termios.TIOCOUTQ, bytes(4))
    return not any(waiting) or has_hung_up(transport)


def _do_nothing() -> None:
    """Do nothing."""


@implementer(IPushProducer)
class ConnectionWriter:
    """The sending direction of ``transport``.

    It is registered as the transport's producer from the start, so ``congested`` is known even
    without a streaming producer. ``on_room`` is called when the congestion is over.
    """

    producer: IPushProducer | None = None
    """The streaming producer, which is paused while the transport is congested."""

    def __init__(self, transport: Any, on_room: Callable[[], object]) -> None:
        self.congested = False
        self._transport = transport
        self._write: Callable[[bytes], object] = transport.write
        self._on_room = on_room
        self._corked: list[bytes] | None = None
        self._registered = True
        transport.registerProducer(self, True)

    def write(self, data: bytes) -> None:
        """Send ``data``, or buffer it while corked."""
        if self._corked is None:
            self._write(data)
        else:
            self._corked.append(data)

    def cork(self) -> None:
        """Buffer writes until :meth:`uncork`, to send them together."""
        if self._corked is None:
            self._corked = []

    def uncork(self) -> None:
        """Send the buffered writes."""
        corked, self._corked = self._corked, None
        if corked:
            self._write(corked[0] if len(corked) == 1 else b"".join(corked))

    def register_producer(self, producer: Any) -> None:
        """Register a push producer; to forget it, ``producer`` is set to ``None``."""
        if self.producer is not None:
            raise RuntimeError("a producer is registered already")
        self.producer = producer
        if self.congested:
            producer.pauseProducing()

    def release(self) -> None:
        """Unregister from the transport, before it is handed over or closed.

        A transport with a producer does not close.
        """
        if self._corked is not None:
            self.uncork()
        self.producer = None
        if self._registered:
            self._registered = False
            self._transport.unregisterProducer()

    def forget(self) -> None:
        """Release the references to those who use it: the connection has ended."""
        self.producer = None
        self._on_room = _do_nothing

    def pauseProducing(self) -> None:
        """Pause the producer: the transport's buffer is full."""
        self.congested = True
        if self.producer is not None:
            self.producer.pauseProducing()

    def resumeProducing(self) -> None:
        """Resume the producer: the transport's buffer has drained."""
        self.congested = False
        if self.producer is not None:
            self.producer.resumeProducing()
        if not self.congested:
            # Otherwise the producer has filled the buffer again.
            self._on_room()

    def stopProducing(self) -> None:
        """Stop the producer; ``connectionLost`` follows with the reason."""
        self._registered = False
        if self.producer is not None:
            self.producer.stopProducing()


@implementer(IHalfCloseableProtocol)
class HTTPConnection(Protocol):
    """The receiving direction, with one consumer at a time.

    Received data is passed to ``_take``, a method that consumes what it can and stores the rest in
    ``_held``. While ``_take`` is ``None`` at most one read is held and the transport is paused. So
    data that is read early is neither lost nor reordered.

    ``secure`` is true if the transport is TLS. There is no half-close over TLS: the end of one
    direction ends both, and Twisted passes ``loseWriteConnection`` on to the socket below TLS,
    which destroys data.
    """

    transport: Any  # ITransport, its consumer and producer, and what sockets add to it
    secure: bool
    lost = False
    """Whether the connection has ended."""

    writer: ConnectionWriter
    """The sending direction, which exchanges use."""

    def __init__(self) -> None:
        self._take: Callable[[bytes], object] | None = None
        self._held = b""
        self._taking = False
        self._reading = True
        # Whether the consumer of the body is paused.
        self._body_paused = False
        # Whether the peer has ended its sending direction.
        self._input_ended = False
        self._user: IProtocol | None = None

    def makeConnection(self, transport: ITransport) -> None:
        """Begin on ``transport``."""
        self.secure = is_secure(transport)
        self.writer = ConnectionWriter(transport, self.room_made)
        super().makeConnection(transport)

    def advance(self, data: bytes = b"") -> None:
        """Append ``data`` to what is held, and deliver it for as long as there is a consumer."""
        self._held = self._held + data if self._held else data
        if self._taking:
            return
        self._taking = True
        try:
            while self._held and self._take is not None:
                data, self._held = self._held, b""
                self._take(data)
        finally:
            self._taking = False
        if self._reading is not (not self._held and not self._body_paused):
            self.set_reading()

    dataReceived = advance

    def set_reading(self) -> None:
        """Pause or resume the transport if that state has changed."""
        reading = not self._held and not self._body_paused
        if reading is not self._reading and self._user is None and not self.lost:
            self._reading = reading
            if not reading:
                self.transport.pauseProducing()
            elif not self._input_ended:
                # A socket that is resumed after its end would report the end again.
                self.transport.resumeProducing()

    def pause_body(self) -> None:
        """Pause reading."""
        self._body_paused = True
        self.set_reading()

    def resume_body(self) -> None:
        """Resume reading."""
        self._body_paused = False
        self.set_reading()

    def room_made(self) -> None:
        """Handle the end of congestion in the sending direction; for subclasses."""

    def hand_over(self, user: IProtocol, transport: Any) -> None:
        """Make ``user`` the protocol of the connection, and deliver the held data to it.

        ``user`` writes to ``transport``, which is the connection's own or a wrapper of it.
        """
        self.writer.release()
        self._take = None
        if not self._reading and not self._input_ended:
            self._reading = True
            self.transport.resumeProducing()
        self._user = user
        held, self._held = self._held, b""
        user.makeConnection(transport)
        # Looked up once, after makeConnection, where the user may replace its dataReceived: no
        # HTTP code handles the bytes from here on.
        self.dataReceived = user.dataReceived  # type: ignore[assignment] # see above
        if held:
            user.dataReceived(held)
        if self._input_ended:
            self.readConnectionLost()

    def readConnectionLost(self) -> None:
        """Notify the user of the connection that the peer has ended its sending direction."""
        self._input_ended = True
        user = self._user
        if user is None:
            self.input_ended()
        elif IHalfCloseableProtocol.providedBy(user):
            IHalfCloseableProtocol(user).readConnectionLost()
        else:
            self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        """Notify the user of the connection that its sending direction is flushed and ended."""
        user = self._user
        if user is None:
            self.output_ended()
        elif IHalfCloseableProtocol.providedBy(user):
            IHalfCloseableProtocol(user).writeConnectionLost()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Notify the user of the connection that it has ended."""
        self.lost = True
        self.writer.forget()
        user = self._user
        if user is not None:
            user.connectionLost(reason)
        self.connection_ended(reason)

    def input_ended(self) -> None:
        """Handle the end of the peer's sending direction; for subclasses."""

    def output_ended(self) -> None:
        """Handle the end of the sending direction, after all data was sent; for subclasses."""

    def connection_ended(self, reason: Failure) -> None:
        """Handle the end of the connection; for subclasses."""
