"""``nodeportisolation``: opens node ports only in the pools that a Service lists.

=================  ========================================
annotation         pools with open ports
=================  ========================================
``a,b``            a and b
``*``              all
``-a,*``           all except a
``-a``             none: pools that are not listed are closed
=================  ========================================

If a pool is listed both with and without a minus sign, the first item counts. On a node without a
pool all ports are open, as in Kubernetes. Upstream hides the whole Service; here its cluster IP
continues to work.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.cluster.fields import text
from yurttunnel.hub.filters.interfaces import FilterMaker, FilterSite, IFilter, Object
from yurttunnel.hub.filters.members import READ_VERBS, matches, member, members
from yurttunnel.hub.request.requests import ApiRequest

ANNOTATION = "nodeport.openyurt.io/listen"

# Not a set: the type of a Service may be any JSON value, and not hashable.
_TYPES = ("NodePort", "LoadBalancer")


def listens(pools: str, own: str) -> bool:
    """Return whether ports are open in the pool ``own``, given a Service's annotation."""
    items = [item.strip() for item in pools.split(",")]
    for item in items:
        if item.removeprefix("-") == own:
            return not item.startswith("-")
    return "*" in items


@implementer(IFilter)
class NodePortIsolation:
    """The filter."""

    hides = False

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        self._pools = site.pools
        self._is_used = False
        self._last: str | None = None
        self._on_changed = changed
        site.pools.on_changed.append(self._pools_changed)

    def applies(self, request: ApiRequest) -> bool:
        """Return whether a request is for Services."""
        return matches(request, "", {"services"}, READ_VERBS)

    def change(self, obj: Object) -> Object:
        """Remove the node ports if they are closed in this pool."""
        annotations = member(member(obj, "metadata"), "annotations")
        spec = member(obj, "spec")
        if ANNOTATION not in annotations or spec.get("type") not in _TYPES:
            return obj
        own = self._own()
        if own and not listens(text(annotations[ANNOTATION]), own):
            spec.pop("healthCheckNodePort", None)
            for port in members(spec, "ports"):
                port.pop("nodePort", None)
        return obj

    def _own(self) -> str | None:
        self._is_used = True
        self._last = self._pools.own()
        return self._last

    def _pools_changed(self) -> None:
        if self._is_used:
            before = self._last
            if self._own() != before:
                self._on_changed()


maker = FilterMaker("nodeportisolation", {"kube-proxy", "yurtproxy"}, NodePortIsolation)
