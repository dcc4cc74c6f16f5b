"""``masterservice``: pods find the hub where they look for the API.

kubelet makes the variables ``KUBERNETES_SERVICE_HOST`` and ``..._PORT`` of each container from the
Service ``default/kubernetes``, so that is shown with the hub's address and port.
"""

from __future__ import annotations

from yurttunnel.hub.filters.interfaces import Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import KUBERNETES, member, members
from yurttunnel.hub.filters.reach import LeadingFilter


class MasterService(LeadingFilter):
    """The filter, which shows the hub's address and its port for TLS."""

    resource = "services"
    only = KUBERNETES

    def _lead(self, obj: Object) -> None:
        spec = member(obj, "spec")
        spec["clusterIP"] = self._site.host
        if "clusterIPs" in spec:
            spec["clusterIPs"] = [self._site.host]
        for port in members(spec, "ports"):
            if port.get("name") == "https":
                port["port"] = self._site.secure_port


maker = FilterMaker("masterservice", ("kubelet",), MasterService)
