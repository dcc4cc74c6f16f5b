"""``forwardkubesvctraffic``: the Service ``default/kubernetes`` leads to the hub.

kube-proxy sends what goes to the Service's own address, or its name in DNS, to the endpoints of the
EndpointSlice that the API servers keep; that is shown with the hub as the only one.
"""

from __future__ import annotations

from yurttunnel.hub.filters.interfaces import Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import KUBERNETES, members
from yurttunnel.hub.filters.reach import LeadingFilter


class ForwardKubeSvcTraffic(LeadingFilter):
    """The filter, which shows the hub's address and its port for TLS.

    A slice of the other family stays.
    """

    group, resource = "discovery.k8s.io", "endpointslices"
    only = KUBERNETES

    def _lead(self, obj: Object) -> None:
        if obj.get("addressType") != ("IPv6" if ":" in self._site.host else "IPv4"):
            return
        obj["endpoints"] = [{"addresses": [self._site.host], "conditions": {"ready": True}}]
        for port in members(obj, "ports"):
            if port.get("name") == "https":
                port["port"] = self._site.secure_port


maker = FilterMaker("forwardkubesvctraffic", ("kube-proxy", "yurtproxy"), ForwardKubeSvcTraffic)
