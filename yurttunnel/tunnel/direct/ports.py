"""Listening ports whose connections are :class:`SocketTransport`."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import tcp
from twisted.internet.interfaces import IProtocol
from twisted.logger import Logger

from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.direct.transport import NOBODY, SocketTransport, address_of

MOST_ACCEPTED = 64
"""Connections of one port that are accepted before others of the round are served."""


def take_over(port: tcp.Port, descriptors: DescriptorSet) -> None:
    """Make ``port``, which does not listen yet, one of ``descriptors``.

    So what a caller sends at once is read in the same turn of the reactor.
    """
    port.reactor = descriptors  # type: ignore[assignment] # it has what a port needs
    acceptor = _Acceptor(port, descriptors)
    port.transport = acceptor.transport  # type: ignore[assignment] # called like the class
    port.doRead = acceptor.accept  # type: ignore[method-assign] # found for each event


def transport_of(
    descriptors: DescriptorSet, connection: socket.socket, protocol: IProtocol, peer: Any
) -> SocketTransport:
    """Make the transport of a connected stream socket; ``protocol.makeConnection`` comes next."""
    connection.setblocking(False)
    transport = SocketTransport(descriptors, connection, protocol, peer)
    try:
        # A pause in makeConnection takes this back.
        transport.resumeProducing()
    except OSError:
        # No watch is left. Whoever keeps the error would keep the socket with it.
        connection.close()
        raise
    return transport


class _Acceptor:
    """Accepts the connections of ``port`` in the place of Twisted."""

    _log = Logger()

    def __init__(self, port: tcp.Port, descriptors: DescriptorSet) -> None:
        self._port = port
        self._descriptors = descriptors
        # As many as the last time, and more if there were that many.
        self._expected = 1

    def accept(self) -> None:
        """Accept what waits."""
        port = self._port
        accepted = 0
        while accepted < self._expected:
            try:
                connection, peer = port.socket.accept()
            except BlockingIOError:
                break
            except OSError:
                # Out of descriptors, mostly: Twisted makes room, or tells of it.
                type(port).doRead(port)
                return
            accepted += 1
            try:
                self._connect(connection, peer)
            except Exception:
                # As Twisted has it: one connection does not take the port with it.
                self._log.failure("Defect: a connection could not be taken")
        more = accepted == self._expected
        self._expected = min(2 * accepted, MOST_ACCEPTED) if more else max(1, accepted)

    def transport(
        self, connection: socket.socket, protocol: IProtocol, peer: Any, *_: object
    ) -> SocketTransport:
        """Make the transport of a connection that Twisted has accepted."""
        address = address_of(self._port.addressFamily, peer)
        return transport_of(self._descriptors, connection, protocol, address)

    def _connect(self, connection: socket.socket, peer: Any) -> None:
        port = self._port
        if port.addressFamily == socket.AF_INET6 and peer[3]:
            # With a zone, which belongs to the address.
            numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
            peer = (socket.getnameinfo(peer, numeric)[0], *peer[1:])
        address = address_of(port.addressFamily, peer)
        # First, since it may fail: a protocol that is never connected would never end either, and
        # factories count theirs.
        transport = transport_of(self._descriptors, connection, NOBODY, address)
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
