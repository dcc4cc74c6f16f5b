"""Proxy sockets of both protocols."""

from __future__ import annotations

from zope.interface import implementer

from yurttunnel.proxy.interfaces import IEndpointPicker, IProxySocket, IProxySockets
from yurttunnel.proxy.state.virtual_services import Protocol, VirtualService


@implementer(IProxySockets)
class ProxySockets:
    """Opens each virtual service at ``tcp`` or ``udp``."""

    def __init__(self, tcp: IProxySockets, udp: IProxySockets) -> None:
        self._by_protocol = {Protocol.TCP: tcp, Protocol.UDP: udp}

    def open(self, service: VirtualService, picker: IEndpointPicker) -> IProxySocket:
        """Listen for ``service``; see :class:`IProxySockets`."""
        return self._by_protocol[service.key.protocol].open(service, picker)
