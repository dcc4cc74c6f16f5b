"""``servicetopology``: keeps traffic for a Service on the node or in its pool.

An annotation of the Service selects the endpoints:

==================================================  ===================================
``openyurt.io/topologyKeys``                        endpoints
==================================================  ===================================
``kubernetes.io/hostname``                          on this node
``openyurt.io/nodepool``, ``kubernetes.io/zone``    in its pool; without a pool, on this node
any other value                                     all
==================================================  ===================================

Endpoints without a node are removed, as with the traffic policies of Kubernetes. An object without
remaining endpoints stays, but is empty: if it were hidden, clients would continue to use the
endpoints that they know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from zope.interface import implementer

from yurttunnel.cluster.fields import mapping, text
from yurttunnel.hub.filters.interfaces import FilterMaker, FilterSite, IFilter, Object
from yurttunnel.hub.filters.members import READ_VERBS, Name, matches, member, members, name_of
from yurttunnel.hub.request.requests import ApiRequest
from yurttunnel.kube.interfaces import InformerSpec
from yurttunnel.kube.resources import SERVICES

ANNOTATION = "openyurt.io/topologyKeys"
NODE = "kubernetes.io/hostname"
POOL = "openyurt.io/nodepool"

_SERVICE_NAME = "kubernetes.io/service-name"
_ADDRESSES = ("addresses", "notReadyAddresses")


def topology_of(service: Object) -> str:
    """Return the topology of a Service: :data:`NODE`, :data:`POOL`, or an empty string."""
    annotations = mapping(mapping(service.get("metadata")).get("annotations"))
    value = text(annotations.get(ANNOTATION)).strip()
    return {NODE: NODE, POOL: POOL, "kubernetes.io/zone": POOL}.get(value, "")


SPEC = InformerSpec(SERVICES, topology_of)


@implementer(IFilter)
class ServiceTopology:
    """The filter; it changes nothing while the nodes of the pool are not known."""

    hides = False

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        self._node = site.node
        self._pools = site.pools
        self._on_changed = changed
        self._by_pool = False
        self._services = site.informers.informer(SPEC)
        self._services.add_handler(self._service_changed)
        site.pools.on_changed.append(self._pools_changed)

    def applies(self, request: ApiRequest) -> bool:
        """Return whether a request is for Endpoints or EndpointSlices."""
        return matches(request, "", {"endpoints"}, READ_VERBS) or matches(
            request, "discovery.k8s.io", {"endpointslices"}, READ_VERBS
        )

    def change(self, obj: Object) -> Object:
        """Remove the endpoints on other nodes."""
        nodes = self._nodes(self._services.get(_service(obj).name, _service(obj).namespace))
        if nodes is None:
            return obj
        if isinstance(obj.get("endpoints"), list):
            remaining = [each for each in members(obj, "endpoints") if _node_of(each) in nodes]
            obj["endpoints"] = remaining
        if isinstance(obj.get("subsets"), list):
            obj["subsets"] = [each for each in members(obj, "subsets") if _reduce(each, nodes)]
        return obj

    def _nodes(self, topology: str | None) -> Collection[str] | None:
        """Return the nodes whose endpoints stay, ``None`` for all."""
        if not topology:
            return None
        if topology == NODE:
            return {self._node}
        mates = self._pools.mates()
        return mates if mates or mates is None else {self._node}

    def _service_changed(self, old: str | None, new: str | None) -> None:
        if new == POOL and not self._by_pool:
            self._by_pool = True
            # Start the informers, so that the pool is known when endpoints are requested.
            self._pools.mates()
        if new is not None and (old or "") != new:
            self._on_changed()

    def _pools_changed(self) -> None:
        if self._by_pool:
            self._on_changed()


def _service(obj: Object) -> Name:
    """Return the Service of an EndpointSlice, or of Endpoints, which have the Service's name."""
    name = name_of(obj)
    labels = member(member(obj, "metadata"), "labels")
    return Name(
        name.namespace, text(labels.get(_SERVICE_NAME)) if "endpoints" in obj else name.name
    )


def _node_of(endpoint: Object) -> str:
    """Return the node of an endpoint; before Kubernetes 1.21 it was in the topology."""
    return text(endpoint.get("nodeName") or member(endpoint, "topology").get(NODE))


def _reduce(subset: Object, nodes: Collection[str]) -> bool:
    """Remove the addresses of other nodes; return whether any are left."""
    for key in _ADDRESSES:
        if isinstance(subset.get(key), list):
            subset[key] = [
                each for each in members(subset, key) if text(each.get("nodeName")) in nodes
            ]
    return any(subset.get(key) for key in _ADDRESSES)


maker = FilterMaker(
    "servicetopology",
    {"kube-proxy", "yurtproxy", "coredns", "nginx-ingress-controller"},
    ServiceTopology,
)
