"""``forwardkubesvctraffic``: routes traffic for the Service ``default/kubernetes`` to the hub.

kube-proxy sends traffic for the Service's cluster IP, and so for its DNS name, to the endpoints of
the EndpointSlice that the API servers maintain; the filter replaces these with the hub.
"""

from __future__ import annotations

from yurttunnel.hub.filters.interfaces import Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import KUBERNETES, members
from yurttunnel.hub.filters.redirect import RedirectFilter


class ForwardKubeSvcTraffic(RedirectFilter):
    """The filter, which replaces the endpoints with the hub's address and TLS port.

    A slice of the other address family stays unchanged.
    """

    group, resource = "discovery.k8s.io", "endpointslices"
    only = KUBERNETES

    def _redirect(self, obj: Object) -> None:
        if obj.get("addressType") != ("IPv6" if ":" in self._site.host else "IPv4"):
            return
        obj["endpoints"] = [{"addresses": [self._site.host], "conditions": {"ready": True}}]
        for port in members(obj, "ports"):
            if port.get("name") == "https":
                port["port"] = self._site.secure_port


maker = FilterMaker("forwardkubesvctraffic", ("kube-proxy", "yurtproxy"), ForwardKubeSvcTraffic)
