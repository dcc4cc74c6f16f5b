"""``forwardkubesvctraffic``: the Service ``default/kubernetes`` leads to the hub.

kube-proxy sends what goes to the Service's own address, or its name in DNS, to the endpoints of the
EndpointSlice that the API servers keep; that is shown with the hub as the only one.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterSite, IFilter, Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import KUBERNETES, READING, asks_for, members, name_of
from yurttunnel.hub.request.requests import ApiRequest


@implementer(IFilter)
class ForwardKubeSvcTraffic:
    """The filter; it does nothing while pods do not reach the hub."""

    hides = False

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        self._site = site
        site.reach.on_changed.append(changed)
        self._family = "IPv6" if ":" in site.host else "IPv4"

    def applies(self, request: ApiRequest) -> bool:
        """Return whether it is about that EndpointSlice."""
        return bool(self._site.host) and asks_for(
            request, "discovery.k8s.io", {"endpointslices"}, READING, KUBERNETES
        )

    def change(self, obj: Object) -> Object:
        """Show the hub's address and its port for TLS; a slice of the other family stays."""
        if name_of(obj) != KUBERNETES or not self._site.reach.reached:
            return obj
        if obj.get("addressType") != self._family:
            return obj
        obj["endpoints"] = [{"addresses": [self._site.host], "conditions": {"ready": True}}]
        for port in members(obj, "ports"):
            if port.get("name") == "https":
                port["port"] = self._site.secure_port
        return obj


maker = FilterMaker("forwardkubesvctraffic", ("kube-proxy", "yurtproxy"), ForwardKubeSvcTraffic)
