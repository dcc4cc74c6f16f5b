"""Connecting a socket to an address."""

from __future__ import annotations

import os
import socket
from errno import ECONNREFUSED, EINPROGRESS
from ipaddress import ip_address
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import (
    ConnectError,
    NotConnectingError,
    TimeoutError,
    UserError,
    getConnectError,
)
from twisted.internet.interfaces import IAddress, IConnector, IDelayedCall, IReadWriteDescriptor
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.direct.transport import SocketTransport


@implementer(IConnector, IReadWriteDescriptor)
class SocketConnector:
    """One connection of ``factory`` to ``host``, an address, and ``port``.

    ``timeout`` is in seconds. The factory is told as by Twisted's connectors, never before
    :meth:`connect` has returned.
    """

    def __init__(
        self, reactor: Any, host: str, port: int, factory: ClientFactory, timeout: float
    ) -> None:
        self._reactor = reactor
        self._family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        self._host = host
        self._port = port
        self._factory = factory
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._timer: IDelayedCall | None = None
        self._transport: SocketTransport | None = None

    # -- IConnector ----------------------------------------------------------------------------

    def connect(self) -> None:
        """Begin an attempt."""
        if self._socket is not None or self._transport is not None:
            raise RuntimeError("an attempt is under way already")
        self._factory.doStart()
        self._factory.startedConnecting(self)
        try:
            connecting = socket.socket(self._family, socket.SOCK_STREAM)
        except OSError as error:
            # Out of descriptors, mostly.
            self._timer = self._reactor.callLater(0, self._failed, getConnectError(error))
            return
        connecting.setblocking(False)
        self._socket = connecting
        number = connecting.connect_ex((self._host, self._port))
        if number not in (0, EINPROGRESS):
            reason = getConnectError((number, os.strerror(number)))
            self._timer = self._reactor.callLater(0, self._failed, reason)
            return
        self._timer = self._reactor.callLater(self._timeout, self._failed, TimeoutError())
        self._reactor.addWriter(self)

    def stopConnecting(self) -> None:
        """Give up the attempt."""
        if self._timer is None:
            raise NotConnectingError()
        self._failed(UserError())

    def disconnect(self) -> None:
        """Give up the attempt, or close the connection that it has led to."""
        if self._timer is not None:
            self.stopConnecting()
        elif self._transport is not None:
            self._transport.loseConnection()

    def getDestination(self) -> IAddress:
        """Give the address."""
        kind = IPv6Address if self._family == socket.AF_INET6 else IPv4Address
        return kind("TCP", self._host, self._port)

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        """Give the descriptor of the socket that is being connected."""
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        """Name the factory in the log."""
        return type(self._factory).__name__

    def doRead(self) -> None:
        """Do what :meth:`doWrite` does: an attempt that fails may be reported either way."""
        self.doWrite()

    def doWrite(self) -> None:
        """Find out how the attempt went."""
        connected = self._socket
        if connected is None:
            return
        number = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._failed(getConnectError((number, os.strerror(number))))
            return
        if connected.getsockname() == connected.getpeername():
            # TCP's simultaneous open: an unused port of this host has been connected to itself.
            self._failed(getConnectError((ECONNREFUSED, os.strerror(ECONNREFUSED))))
            return
        self._finish()
        self._socket = None
        self._connected(connected)

    def connectionLost(self, reason: Failure) -> None:
        """Find out why the reactor reports a broken descriptor."""
        if self._socket is not None:
            number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._failed(getConnectError((number, os.strerror(number))))

    # -- helpers -------------------------------------------------------------------------------

    def _connected(self, connected: socket.socket) -> None:
        peer = self.getDestination()
        protocol = self._factory.buildProtocol(peer)
        if protocol is None:
            connected.close()
            self._factory.clientConnectionFailed(self, Failure(ConnectError("no protocol")))
            self._factory.doStop()
            return
        host = type(peer)("TCP", *connected.getsockname()[:2])
        self._transport = SocketTransport(
            self._reactor, connected, protocol, host, peer, self._connection_lost
        )
        self._transport.begin()

    def _connection_lost(self, reason: Failure) -> None:
        self._transport = None
        self._factory.clientConnectionLost(self, reason)
        self._factory.doStop()

    def _failed(self, error: Exception) -> None:
        self._finish()
        failed, self._socket = self._socket, None
        if failed is not None:
            failed.close()
        self._factory.clientConnectionFailed(self, Failure(error))
        self._factory.doStop()

    def _finish(self) -> None:
        if self._socket is not None:
            self._reactor.removeWriter(self)
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
