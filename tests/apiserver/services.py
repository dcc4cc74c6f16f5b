"""Services: allocation of addresses and ports, and validation.

The rules are those of Kubernetes (pkg/registry/core/service/storage/alloc.go,
pkg/apis/core/v1/defaults.go and pkg/apis/core/validation), for clusters with IPv4 alone.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, ip_address

from yurtlab.api import names
from yurtlab.api.access import User
from yurtlab.api.errors import (
    Cause,
    duplicate_value,
    invalid_value,
    not_supported,
    required,
)
from yurtlab.api.resources import SERVICES
from yurtlab.api.store import Object, Store
from yurtlab.api.strategy import WITH_NODE_PORTS, ServiceStrategy, set_service_defaults

ADDRESSES = IPv4Network("10.96.0.0/12")
"""The range of cluster IPs, as set by kubeadm."""

NODE_PORTS = range(30000, 32768)
"""``--service-node-port-range`` of kube-apiserver."""

HEADLESS = "None"
_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PROTOCOLS = ("SCTP", "TCP", "UDP")


class AllocatingStrategy(ServiceStrategy):
    """The strategy of Services; ``store`` has those with allocated addresses and ports."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Fill in defaults, and allocate addresses and ports that are not requested."""
        spec = body.setdefault("spec", {})
        body["status"] = {"loadBalancer": {}}
        self._complete(spec)

    def validate(self, body: Object) -> list[Cause]:
        """Return the errors in a new Service."""
        causes = super().validate(body) + _validate(body["spec"])
        return causes or self._validate_wishes(body, {})

    def prepare_for_update(self, body: Object, current: Object) -> None:
        """Keep allocated values, fill in defaults, and allocate newly needed values."""
        spec, before = body.setdefault("spec", {}), current["spec"]
        _keep_given(spec, before)
        self._complete(spec)

    def validate_update(self, body: Object, current: Object) -> list[Cause]:
        """Return the errors in a change; an address is immutable."""
        causes = super().validate_update(body, current) + _validate(body["spec"])
        ours, theirs = current["spec"].get("clusterIP"), body["spec"].get("clusterIP")
        kinds = {current["spec"].get("type"), body["spec"].get("type")}
        if ours and theirs != ours and "ExternalName" not in kinds:
            text = "may not change once set"
            causes.append(invalid_value("spec.clusterIPs[0]", [theirs], text))
        return causes or self._validate_wishes(body, current["spec"])

    def _complete(self, spec: Object) -> None:
        set_service_defaults(spec)
        if spec["type"] == "ExternalName":
            return
        if not spec.get("clusterIP"):
            given = spec.get("clusterIPs") or [self._free_address()]
            spec["clusterIP"] = given[0]
        spec["clusterIPs"] = [spec["clusterIP"]]
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        if spec["type"] in WITH_NODE_PORTS and spec.get("allocateLoadBalancerNodePorts", True):
            self._give_node_ports(spec)

    def _give_node_ports(self, spec: Object) -> None:
        taken = set(self._node_ports()) | {
            port.get("nodePort", 0) for port in spec.get("ports", ())
        }
        free = [port for port in NODE_PORTS if port not in taken]
        for port in spec.get("ports", ()):
            if not port.get("nodePort") and free:
                port["nodePort"] = free.pop(random.randrange(len(free)))

    def _validate_wishes(self, body: Object, before: Object) -> list[Cause]:
        """Reject addresses and ports of other Services."""
        spec, causes = body["spec"], []
        address = spec.get("clusterIP")
        if address not in (None, HEADLESS, before.get("clusterIP")):
            problem = None
            if ip_address(address) not in ADDRESSES:
                problem = "the provided IP is not in the valid range. The range of valid IPs is "
                problem += str(ADDRESSES)
            elif address in self._addresses():
                problem = f"failed to allocate IP {address}: provided IP is already allocated"
            if problem:
                causes.append(invalid_value("spec.clusterIPs", [address], problem))
        had = {port.get("nodePort") for port in before.get("ports", ())}
        taken = set(self._node_ports()) - had
        for index, port in enumerate(spec.get("ports", ())):
            number, field = port.get("nodePort"), f"spec.ports[{index}].nodePort"
            if not number or number in had:
                continue
            if number not in NODE_PORTS:
                text = (
                    "provided port is not in the valid range. The range of valid ports is"
                    f" {NODE_PORTS.start}-{NODE_PORTS.stop - 1}"
                )
                causes.append(invalid_value(field, number, text))
            elif number in taken:
                causes.append(invalid_value(field, number, "provided port is already allocated"))
        return causes

    def _free_address(self) -> str:
        taken = set(self._addresses())
        # The first one is always that of the API.
        first, last = int(ADDRESSES[2]), int(ADDRESSES[-2])
        while True:
            address = str(IPv4Address(random.randint(first, last)))
            if address not in taken:
                return address

    def _addresses(self) -> Iterator[str]:
        for service in self._store.view(SERVICES):
            yield service["spec"].get("clusterIP", "")

    def _node_ports(self) -> Iterator[int]:
        for service in self._store.view(SERVICES):
            for port in service["spec"].get("ports", ()):
                yield port.get("nodePort", 0)


def _keep_given(spec: Object, before: Object) -> None:
    """Keep addresses and node ports that an update omits (patchAllocatedValues)."""
    kind = spec.get("type", "ClusterIP")
    if kind != "ExternalName" and before.get("type") != "ExternalName":
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if key in before and not spec.get(key):
                spec[key] = copy.deepcopy(before[key])
    if kind in WITH_NODE_PORTS:
        given = {_port_key(port): port.get("nodePort") for port in before.get("ports", ())}
        wished = {port.get("nodePort") for port in spec.get("ports", ())}
        for port in spec.get("ports", ()):
            number = given.get(_port_key(port))
            if not port.get("nodePort") and number and number not in wished:
                port["nodePort"] = number


def _port_key(port: Object) -> tuple[str, int]:
    return port.get("protocol", "TCP"), port.get("port", 0)


def _validate(spec: Object) -> list[Cause]:
    causes: list[Cause] = []
    kind, ports = spec["type"], spec.get("ports", [])
    if kind not in _TYPES:
        causes.append(not_supported("spec.type", kind, _TYPES))
    if kind == "ExternalName":
        if not spec.get("externalName"):
            causes.append(required("spec.externalName"))
    elif not ports and spec.get("clusterIP") != HEADLESS:
        causes.append(required("spec.ports"))
    address = spec.get("clusterIP")
    if address not in (None, "", HEADLESS):
        try:
            ip_address(address)
        except ValueError:
            text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            causes.append(invalid_value("spec.clusterIPs[0]", address, text))
    if kind in WITH_NODE_PORTS and address == HEADLESS:
        text = f"may not be set to 'None' for {kind} services"
        causes.append(invalid_value("spec.clusterIPs[0]", HEADLESS, text))
    seen: set[str] = set()
    for index, port in enumerate(ports):
        causes += _validate_port(port, f"spec.ports[{index}]", len(ports) > 1, seen)
    return causes


def _validate_port(port: Object, path: str, named: bool, seen: set[str]) -> list[Cause]:
    causes: list[Cause] = []
    name, number = port.get("name", ""), port.get("port", 0)
    if name:
        problems = names.dns_label(name)
        causes += [invalid_value(f"{path}.name", name, problem) for problem in problems]
        if name in seen:
            causes.append(duplicate_value(f"{path}.name", name))
        seen.add(name)
    elif named:
        causes.append(required(f"{path}.name"))
    text = "must be between 1 and 65535, inclusive"
    if not 1 <= number <= 65535:
        causes.append(invalid_value(f"{path}.port", number, text))
    if port["protocol"] not in _PROTOCOLS:
        causes.append(not_supported(f"{path}.protocol", port["protocol"], _PROTOCOLS))
    target = port["targetPort"]
    if isinstance(target, int) and not 1 <= target <= 65535:
        causes.append(invalid_value(f"{path}.targetPort", target, text))
    return causes
