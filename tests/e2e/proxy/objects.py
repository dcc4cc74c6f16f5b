"""Services and EndpointSlices as in a cluster, written into the API of a test.

They bypass the API's validation, so that a test can use objects that an API would reject.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.apiserver.kinds import look_up
from tests.e2e.hub.cloud import KINDS, NODE, Cloud
from tests.e2e.proxy.network import address
from yurtlab.api.store import Object

NAMESPACE = "default"
BOTH = (4, 6)
TARGET_PORT = 8080
"""The default port of endpoints."""


@dataclass(frozen=True, slots=True)
class Pod:
    """An endpoint; ``number`` is that of its addresses, ``local`` whether it is on the node."""

    number: int
    local: bool = False
    ready: bool = True
    serving: bool | None = None
    terminating: bool = False
    zone: str = ""
    for_zones: tuple[str, ...] = ()
    for_nodes: tuple[str, ...] = ()
    at: str = ""
    """Another address, instead of its own."""

    @property
    def site(self) -> str:
        """The machine that it is on."""
        return "pods" if self.local else "outside"

    def address(self, version: int) -> str:
        """Return its address of a family."""
        return self.at or address(self.site, self.number, version)

    def but(self, **changes: Any) -> Pod:
        """Return the same pod in another state."""
        return replace(self, **changes)

    def endpoint(self, version: int) -> Object:
        """Return its entry in an EndpointSlice."""
        serving = self.ready if self.serving is None else self.serving
        conditions = {"ready": self.ready, "serving": serving, "terminating": self.terminating}
        found: Object = {
            "addresses": [self.address(version)],
            "conditions": conditions,
            "nodeName": NODE if self.local else "elsewhere",
        }
        if self.zone:
            found["zone"] = self.zone
        hints = {"forZones": self.for_zones, "forNodes": self.for_nodes}
        if any(hints.values()):
            found["hints"] = {
                kind: [{"name": name} for name in names] for kind, names in hints.items() if names
            }
        return found


def port(number: int = 80, protocol: str = "TCP", name: str = "", node: int | None = None, **more):
    """Make a port of a Service."""
    made: Object = {"port": number, "protocol": protocol, "targetPort": TARGET_PORT, **more}
    if name:
        made["name"] = name
    if node is not None:
        made["nodePort"] = node
    return made


def cluster_ip(number: int, version: int) -> str:
    """Return the cluster IP of a Service with a number."""
    return f"10.96.{number // 250}.{number % 250 + 1}" if version == 4 else f"fd96::{number + 1:x}"


class Objects:
    """The content of a test's API; Services get cluster IPs in the order of their numbers."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._numbers: dict[str, int] = {}
        self._ports: dict[str, list[Object]] = {}

    def address(self, name: str, version: int) -> str:
        """Return the cluster IP of a Service."""
        return cluster_ip(self._numbers[name], version)

    def service(
        self,
        name: str,
        *ports: Object,
        versions: Sequence[int] = BOTH,
        annotations: dict[str, str] | None = None,
        status: Object | None = None,
        **spec: Any,
    ) -> None:
        """Create or replace a Service; without ``ports`` it has TCP port 80."""
        number = self._numbers.setdefault(name, len(self._numbers))
        self._ports[name] = list(ports) or [port()]
        addresses = [cluster_ip(number, version) for version in versions]
        complete = {
            "type": "ClusterIP",
            "clusterIP": addresses[0],
            "clusterIPs": addresses,
            "ipFamilies": [f"IPv{version}" for version in versions],
            "ports": self._ports[name],
            **spec,
        }
        content: Object = {"spec": complete, "status": status or {"loadBalancer": {}}}
        metadata: Object = {"name": name}
        if annotations is not None:
            metadata["annotations"] = annotations
        self._put("services", name, {"metadata": metadata, **content})
        if status is not None:
            self._cloud.store.update_status(KINDS["services"], NAMESPACE, name, status)

    def endpoints(
        self,
        name: str,
        *pods: Pod,
        target: int = TARGET_PORT,
        versions: Sequence[int] = BOTH,
        part: str = "a",
    ) -> None:
        """Write the EndpointSlices of a Service: one for each family and ``part``."""
        ports = [
            {"name": each.get("name", ""), "port": target, "protocol": each["protocol"]}
            for each in self._ports[name]
        ]
        for version in versions:
            self._put(
                "endpointslices",
                f"{name}-{part}-{version}",
                {
                    "metadata": {
                        "name": f"{name}-{part}-{version}",
                        "labels": {"kubernetes.io/service-name": name},
                    },
                    "addressType": f"IPv{version}",
                    "ports": ports,
                    "endpoints": [pod.endpoint(version) for pod in pods],
                },
            )

    def remove_endpoints(self, name: str, part: str = "a", versions: Sequence[int] = BOTH) -> None:
        """Delete EndpointSlices of a Service."""
        for version in versions:
            self._cloud.remove("endpointslices", f"{name}-{part}-{version}", NAMESPACE)

    def remove(self, name: str) -> None:
        """Delete a Service only."""
        self._cloud.remove("services", name, NAMESPACE)

    def _put(self, plural: str, name: str, body: Object) -> None:
        store, kind = self._cloud.store, KINDS[plural]
        if look_up(store, kind, NAMESPACE, name):
            store.replace(kind, NAMESPACE, name, body)
        else:
            store.create(kind, NAMESPACE, body)
