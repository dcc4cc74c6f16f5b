"""A connector for outgoing TCP connections to an address."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from errno import EALREADY, ECONNREFUSED, EINPROGRESS, EISCONN, ENOSPC
from typing import Any

from twisted.internet.error import (
    ConnectError,
    NotConnectingError,
    TimeoutError,
    UserError,
    getConnectError,
)
from twisted.internet.interfaces import IAddress, IConnector, IDelayedCall, IReadWriteDescriptor
from twisted.internet.protocol import ClientFactory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.direct.transport import NO_PROTOCOL, SocketTransport, address_of


@implementer(IConnector, IReadWriteDescriptor)
class SocketConnector:
    """One connection of ``factory`` to ``host``, an address, and ``port``.

    ``timeout`` is in seconds. Raises ``OSError`` if ``host`` is not an address, or has a zone that
    does not exist here. Everything else is reported to the factory, as Twisted's connectors do, but
    never before :meth:`connect` has returned. ``prepare`` is called with each socket before any
    packet is sent.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: DescriptorSet,
        host: str,
        port: int,
        factory: ClientFactory,
        timeout: float,
        prepare: Callable[[socket.socket], object] | None = None,
    ) -> None:
        self._reactor = reactor
        self._prepare = prepare
        self._family, self._address = _socket_address(host, port)
        self._factory = factory
        self._timeout = timeout
        self._socket: socket.socket | None = None
        # Whether the reactor watches the socket.
        self._watched = False
        # The timeout of an attempt that is not complete at once, or a report that is due.
        self._timer: IDelayedCall | None = None
        self._transport: SocketTransport | None = None

    # -- IConnector ----------------------------------------------------------------------------

    def connect(self) -> None:
        """Start a connection attempt."""
        if self._is_connecting or self._transport is not None:
            raise RuntimeError("an attempt is under way already")
        self._factory.doStart()
        error = self._begin()
        if error is not None:
            self._timer = self._reactor.callLater(0, self._failed, error)
        self._factory.startedConnecting(self)

    def stopConnecting(self) -> None:
        if not self._is_connecting:
            raise NotConnectingError()
        self._failed(UserError())

    def disconnect(self) -> None:
        """Cancel the attempt, or close the established connection."""
        if self._is_connecting:
            self.stopConnecting()
        elif self._transport is not None:
            self._transport.loseConnection()

    def getDestination(self) -> IAddress:
        return address_of(self._family, self._address)

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        """Return the name of the factory for the log."""
        return type(self._factory).__name__

    def doRead(self) -> None:
        """Do nothing: an attempt is not registered for reading."""

    def doWrite(self) -> None:
        """Check the state of the attempt."""
        connecting = self._socket
        if connecting is None:
            return
        # If called again, connect(2) reports whether the attempt is in progress or has succeeded.
        # It may not report errors while the attempt is in progress; see _error_of.
        number = connecting.connect_ex(self._address)
        if number == EALREADY:
            number = _error_of(connecting)
            if not number:
                number = self._watch()
                if not number:
                    return
        if number not in (0, EISCONN):
            self._failed(_connect_error(number))
            return
        own = connecting.getsockname()
        if own[1] == self._address[1] and _leads_to(connecting, own):
            # TCP simultaneous open: an unused port of this host was connected to itself.
            self._failed(_connect_error(ECONNREFUSED))
        else:
            self._connected(connecting, address_of(self._family, own))

    def connectionLost(self, reason: Failure) -> None:
        """Fail the attempt: the reactor reports a broken descriptor, or it stops."""
        if self._socket is not None:
            number = _error_of(self._socket)
            self._failed(
                _connect_error(number) if number else ConnectError(string=reason.getErrorMessage())
            )

    # -- helpers -------------------------------------------------------------------------------

    @property
    def _is_connecting(self) -> bool:
        return self._socket is not None or self._timer is not None

    def _begin(self) -> Exception | None:
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        try:
            self._socket = socket.socket(self._family, kind)
        except OSError as error:
            # Usually out of file descriptors.
            return _connect_error(error.errno or 0)
        if self._prepare is not None:
            self._prepare(self._socket)
        number = self._socket.connect_ex(self._address)
        if number not in (0, EINPROGRESS):
            return _connect_error(number)
        # On the local host the attempt completes at once, so it need not be watched.
        self._reactor.call_soon(self._check, self._socket)
        return None

    def _check(self, connecting: socket.socket) -> None:
        if self._socket is connecting:
            self.doWrite()

    def _watch(self) -> int:
        """Watch the socket until the timeout; return an error number if that fails, else 0."""
        try:
            self._reactor.addWriter(self)
        except OSError as error:
            # Out of file descriptors, or of watches (fs.epoll.max_user_watches).
            return error.errno or ENOSPC
        self._watched = True
        if self._timer is None:
            self._timer = self._reactor.callLater(self._timeout, self._timed_out)
        return 0

    def _connected(self, connected: socket.socket, own: IAddress) -> None:
        self._finish()
        self._socket = None
        destination = self.getDestination()
        transport = SocketTransport(
            self._reactor, connected, NO_PROTOCOL, destination, self._connection_lost, own
        )
        try:
            # Before the protocol is built, which would otherwise wait for a connection in vain.
            transport.resumeProducing()
        except OSError as error:
            # As in _watch.
            connected.close()
            self._notify_failed(Failure(_connect_error(error.errno or 0)))
            return
        try:
            protocol = self._factory.buildProtocol(destination)
            if protocol is None:
                raise ConnectError(string="the factory has built no protocol")
        except Exception as error:
            self._reactor.remove(transport)
            connected.close()
            if not isinstance(error, ConnectError):
                self._log.failure("{factory} failed", factory=self.logPrefix())
            self._notify_failed(Failure(error))
            return
        transport.protocol = protocol
        self._transport = transport
        try:
            protocol.makeConnection(transport)
        except Exception as error:
            self._log.failure("{protocol} failed", protocol=transport.logPrefix())
            transport.connectionLost(Failure(error))

    def _connection_lost(self, reason: Failure) -> None:
        self._transport = None
        self._factory.clientConnectionLost(self, reason)
        self._factory.doStop()

    def _timed_out(self) -> None:
        self._failed(TimeoutError())

    def _failed(self, error: Exception) -> None:
        self._finish()
        failed, self._socket = self._socket, None
        if failed is not None:
            failed.close()
        self._notify_failed(Failure(error))

    def _notify_failed(self, reason: Failure) -> None:
        self._factory.clientConnectionFailed(self, reason)
        self._factory.doStop()

    def _finish(self) -> None:
        if self._watched:
            self._watched = False
            self._reactor.removeWriter(self)
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()


def _socket_address(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """Return the family and the address for the socket module; raises ``OSError``."""
    if ":" in host:
        # getaddrinfo converts the name of a zone to its number.
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        found = socket.getaddrinfo(host, port, socket.AF_INET6, socket.SOCK_STREAM, 0, numeric)
        return socket.AF_INET6, found[0][4]
    socket.inet_pton(socket.AF_INET, host)
    return socket.AF_INET, (host, port)


def _error_of(connecting: socket.socket) -> int:
    """Return the kernel's pending error of an attempt, 0 if there is none.

    If an ICMP message reports the target as unreachable, Linux 6.9 and later report an error and
    continue the attempt (RFC 1122 section 4.2.3.9). Until it ends, which takes minutes, connect(2)
    returns EALREADY, and only SO_ERROR has the reason.
    """
    return connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _leads_to(connected: socket.socket, address: tuple[Any, ...]) -> bool:
    """Return whether ``address`` is the peer of the connection."""
    with contextlib.suppress(OSError):
        return bool(address == connected.getpeername())
    # It has been reset meanwhile; its transport will notice.
    return False


def _connect_error(number: int) -> ConnectError:
    error: ConnectError = getConnectError((number, os.strerror(number)))
    return error
