"""``discardcloudservice``: load balancers of the cloud are left out on edge nodes.

Hidden are Services of the type LoadBalancer that say so, and the one by which upstream's tunnel is
reached within the cloud (openyurt #1926; before that all LoadBalancers were, unless they said not).
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterSite, IFilter, Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import FOLLOWING, Name, asks_for, member, name_of
from yurttunnel.hub.request.requests import ApiRequest

ANNOTATION = "svc.openyurt.io/discard"

ALWAYS = Name("kube-system", "x-tunnel-server-internal-svc")


@implementer(IFilter)
class DiscardCloudService:
    """The filter."""

    hides = True

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        """Need nothing."""

    def applies(self, request: ApiRequest) -> bool:
        """Return whether it is about Services."""
        return asks_for(request, "", {"services"}, FOLLOWING)

    def change(self, obj: Object) -> Object | None:
        """Hide it or not."""
        annotations = member(member(obj, "metadata"), "annotations")
        balances = member(obj, "spec").get("type") == "LoadBalancer"
        hidden = balances and annotations.get(ANNOTATION) == "true"
        return None if hidden or name_of(obj) == ALWAYS else obj


maker = FilterMaker("discardcloudservice", ("kube-proxy", "yurtproxy"), DiscardCloudService)
