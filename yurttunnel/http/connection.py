"""What both sides of an HTTP connection have in common: its two directions, and their end.

A transport reads too much (what follows may not be wanted yet) and is told to write in pieces
that belong together. :class:`ConnectionWriter` is the direction that sends, :class:`HTTPConnection`
deals with the one that receives, and with handing both over after an upgrade.
"""

from __future__ import annotations

import fcntl
import select
import termios
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IProtocol,
    IPushProducer,
    ITransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.http.fields import Fields

_OF_ONE_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
"""Fields that the connection adds by itself, or nobody (RFC 9110 section 7.6.1)."""

_CHECKED = _OF_ONE_CONNECTION | {b"content-length"}
# Few others have a name of one of these lengths.
_LENGTHS = frozenset(map(len, _CHECKED))

_OF_AN_UPGRADE = frozenset({b"connection", b"upgrade"})


def declared_length(fields: Fields, upgrade: bool = False) -> int | None:
    """Check ``fields`` that are to be sent, and give what ``Content-Length`` says, if any.

    Raises ``ValueError`` for a bad length, and for fields that are the business of the
    connection; those of an upgrade are allowed with ``upgrade``.
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
    """Return whether a field frames its message, or concerns one connection only."""
    return name.lower() in _CHECKED


def is_secure(transport: Any) -> bool:
    """Return whether ``transport`` is TLS.

    No interface tells: ``ISSLTransport`` promises the methods of a TCP socket, which the TLS of
    :mod:`yurttunnel.tunnel.direct` has not. What all TLS transports have is this method.
    """
    return hasattr(transport, "getPeerCertificate")


def has_hung_up(transport: Any) -> bool:
    """Return whether the peer has closed both directions, as far as the kernel knows (poll(2)).

    Over TCP the kernel learns that only when it sends something, over a Unix socket at once.
    """
    # Events need not be asked for: POLLHUP and POLLERR are always told.
    return _is_told(transport, 0)


def has_ended(transport: Any) -> bool:
    """Return whether the peer has closed its direction, also behind what has not been read yet.

    Of TLS it is the connection below that counts.
    """
    return _is_told(transport.transport if is_secure(transport) else transport, select.POLLRDHUP)


def _is_told(transport: Any, events: int) -> bool:
    handle = getattr(transport, "getHandle", None)
    if handle is None:
        return False
    poll = select.poll()
    poll.register(handle(), events)
    return bool(poll.poll(0))


def all_taken(transport: Any) -> bool:
    """Return whether nothing that was sent on ``transport``, TLS or not, is on its way any more."""
    return socket_all_taken(transport.transport if is_secure(transport) else transport)


def socket_all_taken(transport: Any) -> bool:
    """Return whether nothing that was sent on a socket is on its way any more.

    The peer's kernel has all of it (``SIOCOUTQ`` of tcp(7) and unix(7)), or has reset the
    connection, after which that figure stays as it was. False where there is no kernel to be
    asked. A transport that holds data back itself has a socket that is full.
    """
    handle = getattr(transport, "getHandle", None)
    if handle is None:
        return False
    waiting = fcntl.ioctl(handle(), termios.TIOCOUTQ, bytes(4))
    return not any(waiting) or has_hung_up(transport)


@implementer(IPushProducer)
class ConnectionWriter:
    """The sending direction of ``transport``.

    It is the transport's producer from the beginning: so ``congested`` is known also while
    nobody streams, and ``on_room`` is called when that is over.
    """

    def __init__(self, transport: Any, on_room: Callable[[], object]) -> None:
        self.congested = False
        self._transport = transport
        self._write: Callable[[bytes], object] = transport.write
        self._on_room = on_room
        self._corked: list[bytes] | None = None
        self._producer: IPushProducer | None = None
        self._registered = True
        transport.registerProducer(self, True)

    def write(self, data: bytes) -> None:
        """Send ``data``, or keep it while corked."""
        if self._corked is None:
            self._write(data)
        else:
            self._corked.append(data)

    def cork(self) -> None:
        """Keep what is written until :meth:`uncork`, to send it at once."""
        if self._corked is None:
            self._corked = []

    def uncork(self) -> None:
        """Send what was kept."""
        corked, self._corked = self._corked, None
        if corked:
            self._write(corked[0] if len(corked) == 1 else b"".join(corked))

    def register_producer(self, producer: Any) -> None:
        """Pause ``producer``, a push producer, while the transport has enough to send."""
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        self._producer = producer
        if self.congested:
            producer.pauseProducing()

    def unregister_producer(self) -> None:
        """Forget the producer."""
        self._producer = None

    def release(self) -> None:
        """Leave the transport, for its next user or for its end, which waits for producers."""
        if self._corked is not None:
            self.uncork()
        self._producer = None
        if self._registered:
            self._registered = False
            self._transport.unregisterProducer()

    def pauseProducing(self) -> None:
        """Pass it on: the transport has enough to send."""
        self.congested = True
        if self._producer is not None:
            self._producer.pauseProducing()

    def resumeProducing(self) -> None:
        """Pass it on: the transport has sent."""
        self.congested = False
        if self._producer is not None:
            self._producer.resumeProducing()
        if not self.congested:
            # Else the producer has filled it again.
            self._on_room()

    def stopProducing(self) -> None:
        """Pass it on; ``connectionLost`` follows and says why."""
        self._registered = False
        if self._producer is not None:
            self._producer.stopProducing()


@implementer(IHalfCloseableProtocol)
class HTTPConnection(Protocol):
    """The receiving direction, one consumer at a time.

    ``_take`` is what comes in is given to: a method that uses what it can and puts the rest into
    ``_held``, or ``None`` while nobody wants anything. Then at most one read is held, and the
    transport is paused. So nothing that is read early gets lost or out of order.

    ``secure`` tells that the transport is TLS. TLS has no half-close here: an end of one
    direction ends both, and Twisted passes ``loseWriteConnection`` on to the socket below TLS,
    which destroys data.
    """

    transport: Any  # ITransport, its consumer and producer, and what sockets add to it
    secure: bool
    lost = False
    """The connection has ended."""

    writer: ConnectionWriter
    """The sending direction; for exchanges."""

    def __init__(self) -> None:
        self._take: Callable[[bytes], object] | None = None
        self._held = b""
        self._taking = False
        self._reading = True
        # The consumer of a body wants nothing for now.
        self._body_paused = False
        # The peer has ended its direction.
        self._input_ended = False
        self._user: IProtocol | None = None

    def makeConnection(self, transport: ITransport) -> None:
        """Begin on ``transport``."""
        self.secure = is_secure(transport)
        self.writer = ConnectionWriter(transport, self.room_made)
        super().makeConnection(transport)

    def dataReceived(self, data: bytes) -> None:
        """Take ``data``, after what is held."""
        self._held = self._held + data if self._held else data
        self.advance()

    def advance(self) -> None:
        """Deliver what is held to whoever takes it, as long as somebody does."""
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

    def set_reading(self) -> None:
        """Pause or resume the transport where that has changed."""
        reading = not self._held and not self._body_paused
        if reading is not self._reading and self._user is None and not self.lost:
            self._reading = reading
            if not reading:
                self.transport.pauseProducing()
            elif not self._input_ended:
                # Resumed after its end a socket would tell of it once more.
                self.transport.resumeProducing()

    def pause_body(self) -> None:
        """Read no more for now."""
        self._body_paused = True
        self.set_reading()

    def resume_body(self) -> None:
        """Read again."""
        self._body_paused = False
        self.set_reading()

    def room_made(self) -> None:
        """The transport has sent enough to be given more; for subclasses."""

    def hand_over(self, user: IProtocol, transport: Any) -> None:
        """Make ``user`` the protocol of the connection, and give it what is held.

        ``transport`` is what it writes to: that of the connection, or one around it.
        """
        self.writer.release()
        self._take = None
        if not self._reading and not self._input_ended:
            self._reading = True
            self.transport.resumeProducing()
        self._user = user
        held, self._held = self._held, b""
        user.makeConnection(transport)
        # Found once, after the user has had a chance to say what it is: no HTTP code touches the
        # bytes from here on.
        self.dataReceived = user.dataReceived  # type: ignore[method-assign] # see above
        if held:
            user.dataReceived(held)
        if self._input_ended:
            self.readConnectionLost()

    def readConnectionLost(self) -> None:
        """Notify whoever uses the connection that the peer has ended its direction."""
        self._input_ended = True
        user = self._user
        if user is None:
            self.input_ended()
        elif IHalfCloseableProtocol.providedBy(user):
            IHalfCloseableProtocol(user).readConnectionLost()
        else:
            self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        """Notify whoever uses the connection that what was written has been sent and ended."""
        user = self._user
        if user is None:
            self.output_ended()
        elif IHalfCloseableProtocol.providedBy(user):
            IHalfCloseableProtocol(user).writeConnectionLost()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Notify whoever uses the connection that it has ended."""
        self.lost = True
        self.writer.unregister_producer()
        user = self._user
        if user is not None:
            user.connectionLost(reason)
        self.connection_ended(reason)

    def input_ended(self) -> None:
        """The peer has ended its direction; for subclasses."""

    def output_ended(self) -> None:
        """All has been sent, and our direction is ended; for subclasses."""

    def connection_ended(self, reason: Failure) -> None:
        """The connection has ended; for subclasses."""
