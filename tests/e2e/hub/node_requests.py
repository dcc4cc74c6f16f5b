"""The requests of a node's programs at startup, as client-go's reflectors send them.

Reflectors list at version 0, for which the watch cache of kube-apiserver returns everything
regardless of ``limit``, and continue with a watch from the version of the list.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from tests.e2e.hub.clients import JSON, PROTOBUF_FIRST
from tests.e2e.hub.cloud import NODE, Cloud

REFLECTOR = "limit=500&resourceVersion=0"

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"
NODE_PATH = f"/api/v1/nodes/{NODE}"

ALL_PODS = "/api/v1/pods"
NODE_PODS = f"{ALL_PODS}?fieldSelector=spec.nodeName%3D{NODE}"
"""The pods that a kubelet lists."""

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"

# The selector of kube-proxy (cmd/kube-proxy/app/server.go).
_NO_PROXY = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"
_PROXIED = f"labelSelector={quote(_NO_PROXY, safe='')}"


class Program(NamedTuple):
    """A program of the node: its name, the types that it accepts, and its requests at startup."""

    component: str
    accept: str
    lists: tuple[str, ...]
    """The lists that it watches afterwards."""

    others: tuple[str, ...] = ()
    """The objects that it reads once."""


def _named(collection: str, name: str) -> str:
    """Return the list of one object, as the kubelet watches each ConfigMap and Secret."""
    return f"{collection}?fieldSelector=metadata.name%3D{name}&{REFLECTOR}"


KUBELET = Program(
    "kubelet",
    PROTOBUF_FIRST,
    (
        f"/api/v1/nodes?fieldSelector=metadata.name%3D{NODE}&{REFLECTOR}",
        f"{NODE_PODS}&{REFLECTOR}",
        f"{SERVICES}?{REFLECTOR}",
        _named(CONFIG_MAPS, "settings"),
        _named(SECRETS, "password"),
        f"/apis/storage.k8s.io/v1/csidrivers?{REFLECTOR}",
        f"/apis/node.k8s.io/v1/runtimeclasses?{REFLECTOR}",
    ),
    (NODE_PATH, f"{NODE_PATH}?resourceVersion=0", f"/apis/storage.k8s.io/v1/csinodes/{NODE}"),
)

KUBE_PROXY = Program(
    "kube-proxy",
    PROTOBUF_FIRST,
    (
        f"{SERVICES}?{_PROXIED}&{REFLECTOR}",
        f"{SLICES}?{_PROXIED}&{REFLECTOR}",
        f"/api/v1/nodes?fieldSelector=metadata.name%3D{NODE}&{REFLECTOR}",
    ),
    (NODE_PATH,),
)

COREDNS = Program(
    "coredns",
    JSON,
    (f"{SERVICES}?{REFLECTOR}", f"{SLICES}?{REFLECTOR}", f"/api/v1/namespaces?{REFLECTOR}"),
    ("/version", "/api", "/apis", "/apis/discovery.k8s.io/v1"),
)

FLANNEL = Program("flanneld", JSON, (f"/api/v1/nodes?{REFLECTOR}",))

PROGRAMS = (KUBELET, KUBE_PROXY, COREDNS, FLANNEL)


def create_objects(cloud: Cloud) -> None:
    """Create the objects in the cloud that a node's programs request."""
    cloud.add("configmaps", "settings", "default", data={"color": "red"})
    cloud.add("secrets", "password", "default", data={"password": "c2VjcmV0"}, type="Opaque")
    cloud.using("web", config_maps=["settings"], secrets=["password"])
    cloud.add_pod("logs", namespace="kube-system")
    cloud.add_pod("elsewhere", node="edge-2")
    cloud.add("nodes", "edge-2")
    cloud.add("csidrivers", "disk.example", spec={"attachRequired": False})
    cloud.add("csinodes", NODE, spec={"drivers": []})
    cloud.add("runtimeclasses", "sandboxed", handler="runsc")
    ports = [{"port": 80, "protocol": "TCP"}]
    cloud.add("services", "web", "default", spec={"clusterIP": "10.96.0.10", "ports": ports})
    headless = {"service.kubernetes.io/headless": ""}
    spec = {"clusterIP": "None", "ports": ports}
    cloud.add("services", "peers", "default", labels=headless, spec=spec)
    endpoints = [{"addresses": ["10.244.0.7"], "conditions": {"ready": True}}]
    cloud.add("endpointslices", "web-1", "default", addressType="IPv4", endpoints=endpoints)
