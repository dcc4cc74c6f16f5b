"""Services, EndpointSlices and Nodes in the format of the API."""

from __future__ import annotations

from yurttunnel.ops.slices import at_once
from yurttunnel.proxy.state import desired_state as desired_state_module
from yurttunnel.proxy.state.endpoint_slices import TRIGGERED, endpoint_slice_from
from yurttunnel.proxy.state.services import service_from
from yurttunnel.proxy.state.virtual_services import NodeFacts, PortalKind

HERE = NodeFacts("here", zone="a")
"""The node of the tests."""


def port(number=80, name="", **more):
    """Return a port of a Service."""
    return {"port": number, "protocol": "TCP"} | ({"name": name} if name else {}) | more


def service(
    name="web",
    *ips,
    ports=None,
    external=(),
    ingress=(),
    namespace="default",
    labels=None,
    annotations=None,
    created="2026-01-01T00:00:00Z",
    **spec,
):
    """Return a Service with these cluster IPs; ``ingress`` are IPs of its load balancer."""
    ips = ips or ("10.96.0.1",)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "creationTimestamp": created,
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": ips[0],
            "clusterIPs": list(ips),
            "ports": [port()] if ports is None else list(ports),
            "externalIPs": list(external),
            **spec,
        },
        "status": {"loadBalancer": {"ingress": [{"ip": each} for each in ingress]}},
    }


def endpoint(address="10.1.0.1", node="", zone="", for_zones=(), for_nodes=(), **conditions):
    """Return an endpoint of a slice."""
    found = {"addresses": [address], "conditions": conditions}
    if node:
        found["nodeName"] = node
    if zone:
        found["zone"] = zone
    if for_zones or for_nodes:
        found["hints"] = {
            "forZones": [{"name": each} for each in for_zones],
            "forNodes": [{"name": each} for each in for_nodes],
        }
    return found


def endpoint_slice(
    *endpoints, of="web", name=None, ports=None, version=4, namespace="default", triggered=None
):
    """Return an EndpointSlice of the Service ``of``; an endpoint may be just an address.

    ``triggered`` is the time of the event that caused the change, in the API's format.
    """
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name or f"{of}-abcde",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": of},
            **({"annotations": {TRIGGERED: triggered}} if triggered else {}),
        },
        "addressType": f"IPv{version}",
        "ports": [port(8080)] if ports is None else list(ports),
        "endpoints": [endpoint(each) if isinstance(each, str) else each for each in endpoints],
    }


def taken(*objects):
    """Return what is kept of Services and of EndpointSlices."""
    services = [service_from(each) for each in objects if each["kind"] == "Service"]
    slices = [endpoint_slice_from(each) for each in objects if each["kind"] == "EndpointSlice"]
    return [each for each in services if each], [each for each in slices if each]


def desired_state(*arguments):
    """Return the desired state, computed at once."""
    return at_once(desired_state_module.desired_state(*arguments))


def shown(state):
    """Return portals and endpoints, by the text of each key."""
    return {
        str(key): ([_portal(each) for each in made.portals], [str(each) for each in made.endpoints])
        for key, made in state.services.items()
    }


def problem_texts(state):
    """Return the problems as sentences."""
    return [f"{problem.what}: {problem.text}" for problem in state.problems]


def _portal(portal):
    if portal.kind is PortalKind.NODE_PORT:
        return f"node port {portal.port}"
    return f"{portal.kind.value} {portal.address} {portal.port}"
