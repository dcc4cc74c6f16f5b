"""A transport for a connected socket that sends at once.

Twisted's own transports defer every ``write`` to the next iteration of the reactor: register for
writing, wait, send, unregister. This one sends immediately, and waits only for data that the kernel
did not accept. It uses the reactor's public descriptor interface (``IReactorFDSet``), and otherwise
behaves like ``tcp.Connection``: a protocol's ``connectionLost`` and ``writeConnectionLost`` are
never called from within a method that the protocol has called.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterable
from errno import EAGAIN, ENOBUFS
from typing import Any

from twisted.internet import main
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
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
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.transports import IHalfCloseableTransport
from yurttunnel.wire.pieces import append_piece

READ_SIZE = 128 * 1024 - 64
"""The size of a read in bytes. With the object header it is the largest allocation for which malloc
does not map and unmap memory each time (mallopt(3), M_MMAP_THRESHOLD)."""

SEND_SIZE = 256 * 1024
"""The number of bytes to send in one call, if more than one piece is buffered."""

BUSY_ABOVE = 64 * 1024
"""The producer is paused while more bytes than this are buffered, as in Twisted's transports."""

NO_PROTOCOL = Protocol()
"""The protocol of a socket that is watched already, until its own has been built, and of a lost
connection, so that a transport and its user are no reference cycle."""

_NOT_NOW = frozenset({EAGAIN, ENOBUFS})

_UNNAMED = UNIXAddress(None)
"""The address of a Unix socket without a name, as clients' are."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@implementer(IHalfCloseableTransport, IHalfCloseableDescriptor, IReadWriteDescriptor, ISystemHandle)
class SocketTransport:
    """Owns ``connection``, a connected non-blocking stream socket, and serves ``protocol``.

    The creator starts reading by ``resumeProducing`` and *then* calls ``makeConnection``, in which
    the protocol may pause. ``on_lost`` is called after the protocol's ``connectionLost``, with its
    reason. ``host`` is the address of this end, if it is known already.
    """

    disconnecting = False

    _log = Logger()

    def __init__(
        self,
        reactor: DescriptorSet,
        connection: socket.socket,
        protocol: IProtocol,
        peer: IAddress,
        on_lost: Callable[[Failure], object] | None = None,
        host: IAddress | None = None,
    ) -> None:
        self.protocol = protocol
        self._on_lost = on_lost
        self._reactor = reactor
        self._socket = connection
        self._send = connection.send
        self._receive = connection.recv
        self._peer = peer
        self._host = host
        # A list: an empty deque would take 0.7 KiB in each idle connection.
        self._unsent: list[bytes | memoryview] = []
        self._unsent_size = 0
        self._producer: IPushProducer | IPullProducer | None = None
        self._pulling = False
        self._pull_scheduled = False
        self._producer_paused = False
        self._connected = True
        # Whether reading is paused; the socket is unregistered only when data arrives.
        self._paused = False
        # Whether reading is possible, and whether written data is sent rather than dropped.
        self._readable = True
        self._writable = True
        self._write_ending = False
        self._failed = False

    # -- ITransport ----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send ``data`` now; buffer what the kernel does not accept."""
        if not data or not self._writable:
            return
        if self._unsent:
            self._buffer(data)
            return
        try:
            sent = self._send(data)
        except OSError as error:
            if error.errno not in _NOT_NOW:
                self._fail(ConnectionLost(str(error)))
                return
            sent = 0
        if sent < len(data):
            self._reactor.addWriter(self)
            self._buffer(memoryview(data)[sent:] if sent else data)
        elif self._pulling:
            self._pull_later()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Close once everything is sent, and a pull producer has been unregistered."""
        if self._connected and not self.disconnecting:
            self.disconnecting = True
            self._readable = False
            self._reactor.removeReader(self)
            self._reactor.call_soon(self._close_when_sent)

    def loseWriteConnection(self) -> None:
        if self._writable:
            self._writable = False
            self._write_ending = True
            if not self._unsent:
                self._end_writing()

    def abortConnection(self) -> None:
        if self._connected and not self._failed:
            self.disconnecting = True
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._fail(ConnectionAborted())

    def getPeer(self) -> IAddress:
        return self._peer

    def getHost(self) -> IAddress:
        """Return the address of this end; the socket must be open."""
        return self._host or address_of(self._socket.family, self._socket.getsockname())

    def getHandle(self) -> socket.socket:
        return self._socket

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Enable or disable TCP_NODELAY; protocols of ``twisted.web`` call this."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, enabled)

    # -- producers -----------------------------------------------------------------------------

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Register a producer; a push producer is paused while more than 64 KiB are buffered.

        A pull producer is called at once, and again each time all written data is in the kernel,
        but never from within ``write``.
        """
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        if not self._connected:
            producer.stopProducing()
        elif streaming:
            self._producer = IPushProducer(producer)
        else:
            pulled = self._producer = IPullProducer(producer)
            self._pulling = True
            pulled.resumeProducing()

    def unregisterProducer(self) -> None:
        self._producer = None
        self._pulling = False
        self._producer_paused = False
        if self._connected and self.disconnecting:
            self._reactor.call_soon(self._close_when_sent)

    def pauseProducing(self) -> None:
        """Pause reading.

        The socket stays registered until data arrives: most pauses are shorter than that, and
        unregistering and registering again costs as much as a read.
        """
        self._paused = True

    def resumeProducing(self) -> None:
        """Resume reading; after the peer's end this reports the end again."""
        self._paused = False
        if self._readable:
            self._reactor.addReader(self)

    def stopProducing(self) -> None:
        """Close."""
        self.loseConnection()

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor, or -1 if the socket is closed."""
        return self._socket.fileno()

    def logPrefix(self) -> str:
        """Return the name of the protocol for the log."""
        return type(self.protocol).__name__

    def doRead(self) -> Any:
        """Read once and deliver the data; while paused, unregister from reading."""
        if self._paused:
            self._reactor.removeReader(self)
            return None
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
        """Send buffered data, then continue what waited for that."""
        unsent = self._unsent
        data = unsent[0] if len(unsent) == 1 else self._join_unsent()
        try:
            sent = self._send(data)
        except OSError as error:
            return None if error.errno in _NOT_NOW else main.CONNECTION_LOST
        self._unsent_size -= sent
        if sent < len(data):
            unsent[0] = memoryview(data)[sent:]
            return None
        del unsent[0]
        return None if unsent else self._drained()

    def connectionLost(self, reason: Failure) -> None:
        """Close the socket and notify the protocol, once."""
        if not self._connected:
            return
        self._connected = self._readable = self._writable = False
        self._reactor.remove(self)
        self._socket.close()
        self._unsent.clear()
        producer, self._producer = self._producer, None
        try:
            if producer is not None:
                producer.stopProducing()
        finally:
            protocol, self.protocol = self.protocol, NO_PROTOCOL
            on_lost, self._on_lost = self._on_lost, None
            try:
                protocol.connectionLost(reason)
            finally:
                if on_lost is not None:
                    on_lost(reason)

    def readConnectionLost(self, reason: Failure) -> None:
        """Notify a protocol that supports half-close; close for any other."""
        if IHalfCloseableProtocol.providedBy(self.protocol):
            self._call(IHalfCloseableProtocol(self.protocol).readConnectionLost)
        else:
            self.connectionLost(reason)

    def writeConnectionLost(self, reason: Failure) -> None:
        """Close: an error in one direction ends both."""
        self.connectionLost(reason)

    # -- helpers -------------------------------------------------------------------------------

    def _buffer(self, data: bytes | memoryview) -> None:
        append_piece(self._unsent, data)
        self._unsent_size += len(data)
        if (
            self._unsent_size > BUSY_ABOVE
            and self._producer is not None
            and not self._pulling
            and not self._producer_paused
        ):
            self._producer_paused = True
            IPushProducer(self._producer).pauseProducing()

    def _join_unsent(self) -> bytes:
        unsent = self._unsent
        count = size = 0
        while count < len(unsent) and size < SEND_SIZE:
            size += len(unsent[count])
            count += 1
        joined = b"".join(unsent[:count])
        unsent[:count] = [joined]
        return joined

    def _drained(self) -> Exception | None:
        self._reactor.removeWriter(self)
        if self._write_ending:
            self._end_writing()
        producer = self._producer
        if producer is not None and (self._pulling or self._producer_paused):
            self._producer_paused = False
            producer.resumeProducing()
        elif self.disconnecting and not self._failed:
            return main.CONNECTION_DONE
        return None

    def _pull_later(self) -> None:
        if not self._pull_scheduled:
            self._pull_scheduled = True
            self._reactor.call_soon(self._pull)

    def _pull(self) -> None:
        self._pull_scheduled = False
        if self._pulling and self._producer is not None and not self._unsent and not self._failed:
            self._call(self._producer.resumeProducing)

    def _close_when_sent(self) -> None:
        if not self._unsent and not self._pulling and not self._failed:
            self.connectionLost(connectionDone)

    def _end_writing(self) -> None:
        self._write_ending = False
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._fail(ConnectionLost(str(error)))
            return
        if IHalfCloseableProtocol.providedBy(self.protocol):
            self._reactor.call_soon(self._notify_write_ended)

    def _notify_write_ended(self) -> None:
        if self._connected and not self._failed:
            self._call(IHalfCloseableProtocol(self.protocol).writeConnectionLost)

    def _call(self, method: Callable[[], object]) -> None:
        """Call a method of the protocol or producer; log an exception and close."""
        try:
            method()
        except Exception as error:
            self._log.failure("{protocol} failed", protocol=self.logPrefix())
            self.connectionLost(Failure(error))

    def _fail(self, error: Exception) -> None:
        """End the connection after returning to the reactor: the writer does not expect it now."""
        if not self._failed:
            self._failed = True
            self._readable = self._writable = False
            self._reactor.remove(self)
            self._reactor.call_soon(self.connectionLost, Failure(error))


def address_of(family: int, address: Any) -> IAddress:
    """Return Twisted's address object for ``address`` of the socket module."""
    if family == socket.AF_INET:
        return IPv4Address("TCP", *address)
    if family == socket.AF_INET6:
        return IPv6Address("TCP", *address)
    return UNIXAddress(address) if address else _UNNAMED
