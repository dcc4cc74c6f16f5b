"""The pickers of all virtual services."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from yurttunnel.proxy.balancing.picker import EndpointPicker
from yurttunnel.proxy.interfaces import IEndpointPicker, ILoadBalancer
from yurttunnel.proxy.state.virtual_services import Key, VirtualService


@implementer(ILoadBalancer)
class LoadBalancer:
    """Spreads connections; ``clock`` is that of affinity and of ejections."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._pickers: dict[Key, EndpointPicker] = {}

    def update(self, service: VirtualService) -> IEndpointPicker:
        """See :class:`ILoadBalancer`."""
        picker = self._pickers.get(service.key)
        if picker is None:
            picker = self._pickers[service.key] = EndpointPicker(self._clock)
        picker.update(service)
        return picker

    def remove(self, key: Key) -> None:
        """See :class:`ILoadBalancer`."""
        self._pickers.pop(key, None)
