"""Objects of the API that the agent uses."""

from __future__ import annotations

from yurttunnel.cluster.services import EXTERNAL_ADDRESS, SERVICE

NAMESPACE = "kube-system"


def service(kind, annotation=None, ingress=()):
    """Return the servers' service."""
    annotations = {} if annotation is None else {EXTERNAL_ADDRESS: annotation}
    return {
        "metadata": {"name": SERVICE, "namespace": NAMESPACE, "annotations": annotations},
        "spec": {
            "type": kind,
            "ports": [
                {"name": "tcp", "port": 10262, "targetPort": 10262, "nodePort": 31008},
            ],
        },
        "status": {"loadBalancer": {"ingress": list(ingress)}},
    }


def node(internal, external=None, name="cloud-1", edge="false"):
    """Return a node."""
    addresses = [
        {"type": "Hostname", "address": name},
        {"type": "InternalIP", "address": internal},
    ]
    if external is not None:
        addresses.append({"type": "ExternalIP", "address": external})
    return {
        "metadata": {"name": name, "labels": {"openyurt.io/is-edge-worker": edge}},
        "status": {"addresses": addresses},
    }


def slice_of(*addresses, port=10262, ready=True, name="x-tunnel-server-svc-1"):
    """Return an EndpointSlice of the service."""
    conditions = {} if ready is None else {"ready": ready}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": SERVICE},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": conditions} for address in addresses],
        "ports": [{"name": "tcp", "port": port, "protocol": "TCP"}],
    }
