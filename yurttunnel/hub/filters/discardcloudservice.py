"""``discardcloudservice``: hides load balancers of the cloud on edge nodes.

It hides Services of the type LoadBalancer with the annotation, and the Service of upstream's tunnel
server for the cloud (openyurt #1926; before that all LoadBalancers were hidden unless annotated).
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterMaker, FilterSite, IFilter, Object
from yurttunnel.hub.filters.members import LIST_VERBS, Name, matches, member, name_of
from yurttunnel.hub.request.requests import ApiRequest

ANNOTATION = "svc.openyurt.io/discard"

ALWAYS = Name("kube-system", "x-tunnel-server-internal-svc")


@implementer(IFilter)
class DiscardCloudService:
    """The filter."""

    hides = True

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        """Needs nothing of the site."""

    def applies(self, request: ApiRequest) -> bool:
        """Return whether a request is for Services."""
        return matches(request, "", {"services"}, LIST_VERBS)

    def change(self, obj: Object) -> Object | None:
        """Hide a Service, or return it unchanged."""
        annotations = member(member(obj, "metadata"), "annotations")
        balances = member(obj, "spec").get("type") == "LoadBalancer"
        hidden = balances and annotations.get(ANNOTATION) == "true"
        return None if hidden or name_of(obj) == ALWAYS else obj


maker = FilterMaker("discardcloudservice", {"kube-proxy", "yurtproxy"}, DiscardCloudService)
