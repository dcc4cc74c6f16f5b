"""Which endpoints serve here: what readiness, traffic policies and topology leave of them.

As kube-proxy chooses them (k8s.io/kubernetes pkg/proxy/topology.go), with one addition: where the
slices of a Service with a ``trafficDistribution`` have no hints, since no controller wrote them,
the nodes and zones of its endpoints stand in for these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from yurttunnel.proxy.state.endpoint_slices import Condition, SliceEndpoint
from yurttunnel.proxy.state.services import Distribution
from yurttunnel.proxy.state.virtual_services import Endpoint

Candidates = Mapping[Endpoint, SliceEndpoint]
"""All endpoints that there are of a port of a Service, in one family of addresses."""


def local_endpoints(candidates: Candidates, node: str) -> list[Endpoint]:
    """Return those on ``node`` that serve, with the policy ``Local`` (KEP-2086, KEP-1669)."""
    here = {endpoint: each for endpoint, each in candidates.items() if each.node == node}
    return _in(here, Condition.READY) or _in(here, Condition.DRAINING)


def cluster_endpoints(
    candidates: Candidates, distribution: Distribution, node: str, zone: str
) -> list[Endpoint]:
    """Return those that serve a client on ``node``, which is in ``zone``, wherever they are.

    Those that end serve where none is ready, and then wherever they are.
    """
    ready = _in(candidates, Condition.READY)
    if not ready:
        return _in(candidates, Condition.DRAINING)
    for places, place in _topologies(distribution, node, zone):
        wanted = [places(candidates[endpoint]) for endpoint in ready]
        # Where one has no hint, the slices are being rewritten: then none counts (KEP-2433).
        if place and all(wanted):
            near = [
                endpoint for endpoint, where in zip(ready, wanted, strict=True) if place in where
            ]
            if near:
                return near
    return ready


_Places = Callable[[SliceEndpoint], Collection[str]]
"""Where an endpoint should be used."""


def _topologies(distribution: Distribution, node: str, zone: str) -> Iterable[tuple[_Places, str]]:
    """Go through what is tried, one after the other, with where this is in each."""
    yield lambda each: each.for_nodes, node
    yield lambda each: each.for_zones, zone
    if distribution is Distribution.SAME_NODE:
        yield lambda each: (each.node,), node
    if distribution is not Distribution.ANY:
        yield lambda each: (each.zone,), zone


def _in(candidates: Candidates, condition: Condition) -> list[Endpoint]:
    return [endpoint for endpoint, each in candidates.items() if each.condition is condition]
