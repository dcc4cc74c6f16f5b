"""Selecting the endpoints for this node by readiness, traffic policies and topology.

The selection is kube-proxy's (k8s.io/kubernetes pkg/proxy/topology.go), with one addition: if the
slices of a Service with a ``trafficDistribution`` have no hints, because no controller wrote them,
the nodes and zones of its endpoints are used instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from yurttunnel.proxy.state.endpoint_slices import Condition, SliceEndpoint
from yurttunnel.proxy.state.services import Distribution
from yurttunnel.proxy.state.virtual_services import Endpoint

Candidates = Mapping[Endpoint, SliceEndpoint]
"""All endpoints of a port of a Service, of one address family."""


def local_endpoints(candidates: Candidates, node: str) -> list[Endpoint]:
    """Return the serving endpoints on ``node``, for the policy ``Local`` (KEP-2086, KEP-1669)."""
    here = {endpoint: each for endpoint, each in candidates.items() if each.node == node}
    return _in(here, Condition.READY) or _in(here, Condition.DRAINING)


def cluster_endpoints(
    candidates: Candidates, distribution: Distribution, node: str, zone: str
) -> list[Endpoint]:
    """Return the endpoints that serve clients on ``node``, which is in ``zone``, wherever they are.

    Terminating ones serve if none is ready, and then all of them.
    """
    ready = _in(candidates, Condition.READY)
    if not ready:
        return _in(candidates, Condition.DRAINING)
    for locations, location in _topologies(distribution, node, zone):
        wanted = [locations(candidates[endpoint]) for endpoint in ready]
        # If any has no hint, the slices are being rewritten: then no hints are used (KEP-2433).
        if location and all(wanted):
            nearby = [
                endpoint for endpoint, hints in zip(ready, wanted, strict=True) if location in hints
            ]
            if nearby:
                return nearby
    return ready


_Locations = Callable[[SliceEndpoint], Collection[str]]
"""Where an endpoint should be used."""


def _topologies(
    distribution: Distribution, node: str, zone: str
) -> Iterable[tuple[_Locations, str]]:
    """Yield the topologies in the order of preference, each with this node's place in it."""
    yield lambda each: each.for_nodes, node
    yield lambda each: each.for_zones, zone
    if distribution is Distribution.SAME_NODE:
        yield lambda each: (each.node,), node
    if distribution is not Distribution.ANY:
        yield lambda each: (each.zone,), zone


def _in(candidates: Candidates, condition: Condition) -> list[Endpoint]:
    return [endpoint for endpoint, each in candidates.items() if each.condition is condition]
