"""``masterservice``: pods find the hub where they look for the API.

kubelet makes the variables ``KUBERNETES_SERVICE_HOST`` and ``..._PORT`` of each container from the
Service ``default/kubernetes``, so that is shown with the hub's address and port.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterSite, IFilter, Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import (
    KUBERNETES,
    READING,
    asks_for,
    member,
    members,
    name_of,
)
from yurttunnel.hub.request.requests import ApiRequest


@implementer(IFilter)
class MasterService:
    """The filter; it does nothing while pods do not reach the hub."""

    hides = False

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        self._site = site
        site.reach.on_changed.append(changed)

    def applies(self, request: ApiRequest) -> bool:
        """Return whether it is about that Service."""
        return bool(self._site.host) and asks_for(request, "", {"services"}, READING, KUBERNETES)

    def change(self, obj: Object) -> Object:
        """Show the hub's address and its port for TLS."""
        if name_of(obj) != KUBERNETES or not self._site.reach.reached:
            return obj
        spec = member(obj, "spec")
        spec["clusterIP"] = self._site.host
        if "clusterIPs" in spec:
            spec["clusterIPs"] = [self._site.host]
        for port in members(spec, "ports"):
            if port.get("name") == "https":
                port["port"] = self._site.secure_port
        return obj


maker = FilterMaker("masterservice", ("kubelet",), MasterService)
