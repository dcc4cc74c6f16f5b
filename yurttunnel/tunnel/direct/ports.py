"""Listening ports whose connections are :class:`SocketTransport`."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import tcp
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IAddress, IProtocol

from yurttunnel.tunnel.direct.transport import SocketTransport


def accepted_tcp(
    connection: socket.socket, protocol: IProtocol, peer: Any, port: Any, _: int, reactor: Any
) -> SocketTransport:
    """Make the transport of a connection that a TCP port has accepted."""
    kind = IPv6Address if connection.family == socket.AF_INET6 else IPv4Address
    host = kind("TCP", *connection.getsockname()[:2])
    return _serve(reactor, connection, protocol, host, kind("TCP", *peer[:2]))


def accepted_unix(
    connection: socket.socket, protocol: IProtocol, peer: Any, port: Any, _: int, reactor: Any
) -> SocketTransport:
    """Make the transport of a connection that a Unix socket has accepted."""
    return _serve(reactor, connection, protocol, port.getHost(), UNIXAddress(peer or None))


def _serve(
    reactor: Any, connection: socket.socket, protocol: IProtocol, host: IAddress, peer: IAddress
) -> SocketTransport:
    connection.setblocking(False)
    transport = SocketTransport(reactor, connection, protocol, host, peer)
    # The port calls makeConnection next; a pause in there takes this back.
    transport.resumeProducing()
    return transport


class DirectPort(tcp.Port):
    """A TCP port."""

    transport = staticmethod(accepted_tcp)  # type: ignore[assignment] # called like the class
