"""``masterservice``: makes pods use the hub as their API server.

The kubelet sets ``KUBERNETES_SERVICE_HOST`` and ``..._PORT`` of each container from the Service
``default/kubernetes``, so the filter sets the address and port of that Service to the hub's.
"""

from __future__ import annotations

from yurttunnel.hub.filters.interfaces import Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import KUBERNETES, member, members
from yurttunnel.hub.filters.redirect import RedirectFilter


class MasterService(RedirectFilter):
    """The filter, which sets the hub's address and TLS port."""

    resource = "services"
    only = KUBERNETES

    def _redirect(self, obj: Object) -> None:
        spec = member(obj, "spec")
        spec["clusterIP"] = self._site.host
        if "clusterIPs" in spec:
            spec["clusterIPs"] = [self._site.host]
        for port in members(spec, "ports"):
            if port.get("name") == "https":
                port["port"] = self._site.secure_port


maker = FilterMaker("masterservice", ("kubelet",), MasterService)
