"""Listening ports whose connections are :class:`SocketTransport`."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

from twisted.internet import tcp
from twisted.internet.interfaces import IProtocol

from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.direct.transport import SocketTransport, address_of


def accepted(
    descriptors: DescriptorSet,
    connection: socket.socket,
    protocol: IProtocol,
    peer: Any,
    *_: object,
) -> SocketTransport:
    """Make the transport of a connection that a port of Twisted's has accepted."""
    connection.setblocking(False)
    transport = SocketTransport(
        descriptors, connection, protocol, address_of(connection.family, peer)
    )
    # The port calls makeConnection next; a pause in there takes this back.
    transport.resumeProducing()
    return transport


class DirectPort(tcp.Port):
    """A TCP port."""

    def __init__(self, descriptors: DescriptorSet, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Called like the class that is there otherwise.
        self.transport = partial(accepted, descriptors)  # type: ignore[assignment]
