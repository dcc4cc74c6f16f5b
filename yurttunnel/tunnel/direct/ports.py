"""Listening ports whose connections use :class:`SocketTransport`."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import tcp
from twisted.internet.interfaces import IProtocol
from twisted.logger import Logger

from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.direct.transport import NO_PROTOCOL, SocketTransport, address_of

MAX_ACCEPTED_PER_EVENT = 64
"""The maximum number of connections that one port accepts for one event."""


def take_over(port: tcp.Port, descriptors: DescriptorSet) -> None:
    """Add ``port``, which does not listen yet, to ``descriptors``.

    So data that a client sends at once is read in the same iteration of the reactor.
    """
    port.reactor = descriptors  # type: ignore[assignment] # it has what a port needs
    acceptor = _Acceptor(port, descriptors)
    port.transport = acceptor.transport  # type: ignore[assignment] # called like the class
    port.doRead = acceptor.accept  # type: ignore[method-assign] # found for each event


def transport_of(
    descriptors: DescriptorSet, connection: socket.socket, protocol: IProtocol, peer: Any
) -> SocketTransport:
    """Return the transport of a connected stream socket; then call ``protocol.makeConnection``."""
    connection.setblocking(False)
    transport = SocketTransport(descriptors, connection, protocol, peer)
    try:
        # The protocol can undo this by a pause in makeConnection.
        transport.resumeProducing()
    except OSError:
        # Out of watches. Closed here, because the traceback keeps a reference to the socket.
        connection.close()
        raise
    return transport


class _Acceptor:
    """Accepts the connections of ``port`` instead of Twisted."""

    _log = Logger()

    def __init__(self, port: tcp.Port, descriptors: DescriptorSet) -> None:
        self._port = port
        self._descriptors = descriptors
        # As many as the last time, or twice that if all of those were there.
        self._expected = 1

    def accept(self) -> None:
        """Accept the pending connections."""
        port = self._port
        accepted = 0
        while accepted < self._expected:
            try:
                connection, peer = port.socket.accept()
            except BlockingIOError:
                break
            except OSError:
                # Usually out of file descriptors; Twisted frees one, or logs the error.
                type(port).doRead(port)
                return
            accepted += 1
            try:
                self._connect(connection, peer)
            except Exception:
                # As in Twisted, a failed connection does not affect the port.
                self._log.failure("Defect: a connection could not be accepted")
        more = accepted == self._expected
        self._expected = min(2 * accepted, MAX_ACCEPTED_PER_EVENT) if more else max(1, accepted)

    def transport(
        self, connection: socket.socket, protocol: IProtocol, peer: Any, *_: object
    ) -> SocketTransport:
        """Return the transport of a connection that Twisted has accepted."""
        address = address_of(self._port.addressFamily, peer)
        return transport_of(self._descriptors, connection, protocol, address)

    def _connect(self, connection: socket.socket, peer: Any) -> None:
        port = self._port
        if port.addressFamily == socket.AF_INET6 and peer[3]:
            # The address has a zone, which is part of it.
            numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
            peer = (socket.getnameinfo(peer, numeric)[0], *peer[1:])
        address = address_of(port.addressFamily, peer)
        # First, since it may fail: a protocol that is never connected would never be disconnected
        # either, and factories count their protocols.
        transport = transport_of(self._descriptors, connection, NO_PROTOCOL, address)
        protocol = None
        try:
            protocol = port.factory.buildProtocol(address)  # type: ignore[union-attr] # it listens
        finally:
            if protocol is None:
                self._descriptors.remove(transport)
                connection.close()
        if protocol is not None:
            transport.protocol = protocol
            protocol.makeConnection(transport)
