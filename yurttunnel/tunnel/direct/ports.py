"""Listening ports whose connections are :class:`SocketTransport`."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import tcp
from twisted.internet.interfaces import IProtocol

from yurttunnel.tunnel.direct.transport import SocketTransport, address_of


def accepted(
    connection: socket.socket, protocol: IProtocol, peer: Any, port: Any, _: int, reactor: Any
) -> SocketTransport:
    """Make the transport of a connection that a port of Twisted's has accepted."""
    connection.setblocking(False)
    transport = SocketTransport(reactor, connection, protocol, address_of(connection.family, peer))
    # The port calls makeConnection next; a pause in there takes this back.
    transport.resumeProducing()
    return transport


class DirectPort(tcp.Port):
    """A TCP port."""

    transport = staticmethod(accepted)  # type: ignore[assignment] # called like the class
