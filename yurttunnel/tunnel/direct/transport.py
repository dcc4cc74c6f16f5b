"""A connected socket as a transport that sends at once.

Twisted's own transports put every ``write`` off to the next turn of the reactor: register for
writing, wait, send, unregister. This one sends when it is asked to, and waits only for what the
kernel did not take. It stands on the reactor's public descriptor interface (``IReactorFDSet``),
and behaves like ``tcp.Connection`` otherwise.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet import main
from twisted.internet.error import ConnectionAborted, ConnectionLost
from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableDescriptor,
    IHalfCloseableProtocol,
    IProducer,
    IProtocol,
    IPullProducer,
    IPushProducer,
    IReadWriteDescriptor,
    ISystemHandle,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.interfaces import IHalfCloseableTransport

READ_SIZE = 64 * 1024
"""Bytes asked of the kernel at once; above 128 KiB malloc would map and unmap memory each time."""

SEND_SIZE = 256 * 1024
"""Bytes offered to the kernel at once, when more than one piece waits."""

BUSY_ABOVE = 64 * 1024
"""The producer is paused while more than this waits, as Twisted's transports do it."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@implementer(IHalfCloseableTransport, IHalfCloseableDescriptor, IReadWriteDescriptor, ISystemHandle)
class SocketTransport:
    """Owns ``connection``, a connected non-blocking stream socket, and serves ``protocol``.

    Reading begins with :meth:`begin`. ``on_lost`` is called after the protocol's
    ``connectionLost``, with its reason.
    """

    disconnecting = False

    def __init__(
        self,
        reactor: Any,
        connection: socket.socket,
        protocol: IProtocol,
        host: IAddress,
        peer: IAddress,
        on_lost: Callable[[Failure], object] | None = None,
    ) -> None:
        self.protocol = protocol
        self._on_lost = on_lost
        self._reactor = reactor
        self._socket = connection
        self._send = connection.send
        self._receive = connection.recv
        self._host = host
        self._peer = peer
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_size = 0
        self._producer: IPushProducer | IPullProducer | None = None
        self._streaming = False
        self._producer_paused = False
        self._connected = True
        self._read_ended = False
        self._write_ending = False
        self._write_ended = False
        self._error: Exception | None = None

    def begin(self) -> None:
        """Give the protocol its transport and start to read."""
        self.protocol.makeConnection(self)
        self.resumeProducing()

    # -- ITransport ----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send ``data`` now; keep what the kernel does not take."""
        if not data or not self._connected or self._write_ending:
            return
        if not self._waiting:
            try:
                sent = self._send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._fail(error)
                return
            if sent == len(data):
                return
            self._reactor.addWriter(self)
            self._keep(memoryview(data)[sent:] if sent else data)
        else:
            self._keep(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Send the pieces of ``data``."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Close after everything has been sent, that of a producer that is paused included."""
        if self._connected and not self.disconnecting:
            self.disconnecting = True
            self._reactor.removeReader(self)
            self._reactor.addWriter(self)

    def loseWriteConnection(self) -> None:
        """End the sending direction after everything has been sent."""
        if self._connected and not self._write_ending:
            self._write_ending = True
            if not self._waiting:
                self._end_writing()

    def abortConnection(self) -> None:
        """Reset the connection."""
        if self._connected and self._error is None:
            self.disconnecting = True
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._fail(ConnectionAborted())

    def getPeer(self) -> IAddress:
        """Give the address of the other end."""
        return self._peer

    def getHost(self) -> IAddress:
        """Give the address of this end."""
        return self._host

    def getHandle(self) -> socket.socket:
        """Give the socket, for its options."""
        return self._socket

    def getTcpNoDelay(self) -> bool:
        """Whether small writes are sent at once."""
        return bool(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Send small writes at once, or do not."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, enabled)

    def getTcpKeepAlive(self) -> bool:
        """Whether the kernel probes a silent peer."""
        return bool(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Have the kernel probe a silent peer, or do not."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, enabled)

    # -- producers -----------------------------------------------------------------------------

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Pause ``producer`` while more waits than the kernel takes."""
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        if not self._connected:
            producer.stopProducing()
            return
        self._streaming = streaming
        if streaming:
            self._producer = IPushProducer(producer)
            self._pause_producer_if_busy()
        else:
            self._producer = IPullProducer(producer)
            self._reactor.addWriter(self)

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        self._producer = None
        self._producer_paused = False
        if self._connected and self.disconnecting:
            self._reactor.addWriter(self)

    def pauseProducing(self) -> None:
        """Read no more for now."""
        self._reactor.removeReader(self)

    def resumeProducing(self) -> None:
        """Read again, if the peer has not ended."""
        if self._connected and not self.disconnecting and not self._read_ended:
            self._reactor.addReader(self)

    def stopProducing(self) -> None:
        """Close."""
        self.loseConnection()

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        """Give the descriptor, -1 when it is closed."""
        return self._socket.fileno()

    def logPrefix(self) -> str:
        """Name the protocol in the log."""
        return type(self.protocol).__name__

    def doRead(self) -> Any:
        """Read once and hand it on."""
        try:
            data = self._receive(READ_SIZE)
        except BlockingIOError:
            return None
        except OSError:
            return main.CONNECTION_LOST
        if not data:
            return main.CONNECTION_DONE
        self.protocol.dataReceived(data)
        return None

    def doWrite(self) -> Any:
        """Send what waits, then do what was to be done after it."""
        waiting = self._waiting
        if waiting:
            data = waiting[0] if len(waiting) == 1 else self._join_waiting()
            try:
                sent = self._send(data)
            except BlockingIOError:
                return None
            except OSError:
                return main.CONNECTION_LOST
            self._waiting_size -= sent
            if sent < len(data):
                waiting[0] = memoryview(data)[sent:]
                return None
            waiting.popleft()
            if waiting:
                return None
        return self._drained()

    def connectionLost(self, reason: Failure) -> None:
        """Close the socket and tell the protocol, once."""
        if not self._connected:
            return
        self._connected = False
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()
        self._waiting.clear()
        self._socket.close()
        self.protocol.connectionLost(reason)
        if self._on_lost is not None:
            self._on_lost(reason)

    def readConnectionLost(self, reason: Failure) -> None:
        """Tell a protocol that knows half-close; close for any other."""
        self._read_ended = True
        if IHalfCloseableProtocol.providedBy(self.protocol):
            IHalfCloseableProtocol(self.protocol).readConnectionLost()
        else:
            self.connectionLost(reason)

    def writeConnectionLost(self, reason: Failure) -> None:
        """Close: a direction that breaks takes the other with it."""
        self.connectionLost(reason)

    # -- helpers -------------------------------------------------------------------------------

    def _keep(self, data: bytes | memoryview) -> None:
        self._waiting.append(data)
        self._waiting_size += len(data)
        self._pause_producer_if_busy()

    def _pause_producer_if_busy(self) -> None:
        if self._waiting_size > BUSY_ABOVE and self._streaming and not self._producer_paused:
            producer = self._producer
            if producer is not None:
                self._producer_paused = True
                IPushProducer(producer).pauseProducing()

    def _join_waiting(self) -> bytes:
        pieces: list[bytes | memoryview] = []
        size = 0
        while self._waiting and size < SEND_SIZE:
            piece = self._waiting.popleft()
            pieces.append(piece)
            size += len(piece)
        joined = b"".join(pieces)
        self._waiting.appendleft(joined)
        return joined

    def _drained(self) -> Exception | None:
        producer = self._producer
        if producer is None or self._streaming:
            self._reactor.removeWriter(self)
        if self._write_ending and not self._write_ended:
            self._end_writing()
        if producer is not None and (self._producer_paused or not self._streaming):
            # It has more to come, which is sent even before a close.
            self._producer_paused = False
            producer.resumeProducing()
        elif self.disconnecting:
            return main.CONNECTION_DONE
        return None

    def _end_writing(self) -> None:
        self._write_ended = True
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._fail(error)
            return
        if IHalfCloseableProtocol.providedBy(self.protocol):
            IHalfCloseableProtocol(self.protocol).writeConnectionLost()

    def _fail(self, error: Exception) -> None:
        """Lose the connection in the next turn: whoever wrote does not expect it now."""
        if self._error is None:
            self._error = error
            self._reactor.removeReader(self)
            self._reactor.removeWriter(self)
            self._reactor.callLater(0, self.connectionLost, Failure(as_lost(error)))


def as_lost(error: Exception) -> Exception:
    """Give the error with which Twisted's transports report ``error`` of a socket."""
    return ConnectionLost(str(error)) if isinstance(error, OSError) else error
