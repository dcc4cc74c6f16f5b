"""Parsing EndpointSlices; invalid parts are reported and skipped."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from sys import intern
from typing import Any

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.kube.durations import seconds_of
from yurttunnel.kube.interfaces import InformerSpec
from yurttunnel.kube.resources import ENDPOINT_SLICES, Object
from yurttunnel.proxy.state.parsing import (
    LABEL_SELECTOR,
    Problems,
    Unusable,
    is_ours,
    labels_of,
    port_number,
    quoted,
    unicast_address,
)
from yurttunnel.proxy.state.virtual_services import Address, Problem, Protocol

SERVICE_NAME = "kubernetes.io/service-name"
"""The label with the name of the Service."""

TRIGGERED = "endpoints.kubernetes.io/last-change-trigger-time"
"""The annotation with the time of the change of a pod or a Service that caused the last change of
the slice (``EndpointsLastChangeTriggerTime`` of k8s.io/api core/v1)."""

_VERSIONS = {"IPv4": 4, "IPv6": 6}


class Condition(enum.Enum):
    """Whether an endpoint should be used, in the order of preference."""

    READY = "ready"
    DRAINING = "serving, terminating"
    """It is terminating, but still serves; used if no endpoint is ready (KEP-1669)."""
    NOT_READY = "not ready"

    def is_better_than(self, other: Condition) -> bool:
        """Return whether this condition is preferred to ``other``."""
        order = tuple(Condition)
        return order.index(self) < order.index(other)


@dataclass(frozen=True, slots=True)
class SliceEndpoint:
    """An address with the attributes that policies use.

    ``for_zones`` and ``for_nodes`` are its hints: where it should be used (KEP-2433, KEP-3015).
    """

    address: Address
    condition: Condition = Condition.READY
    node: str = ""
    zone: str = ""
    for_zones: frozenset[str] = frozenset()
    for_nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SlicePort:
    """The port on which the endpoints of a slice serve the Service's port of that name."""

    name: str
    protocol: Protocol
    port: int


@dataclass(frozen=True, slots=True)
class EndpointSlice:
    """What is kept of an EndpointSlice; ``version`` is that of IP, ``service`` is in its namespace.

    ``triggered`` is the time of the event that caused its last change, in seconds since 1970, if it
    is known; a slice that differs only in this is not a new one.
    """

    namespace: str
    name: str
    service: str
    version: int
    ports: tuple[SlicePort, ...] = ()
    endpoints: tuple[SliceEndpoint, ...] = ()
    problems: tuple[Problem, ...] = ()
    triggered: float | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def endpoint_slice_from(obj: Object) -> EndpointSlice | None:
    """Extract what is needed from an ``EndpointSlice`` (k8s.io/api discovery/v1 types.go).

    Return ``None`` if it has no Service, a headless one, or one that another proxy serves.
    """
    service = text(labels_of(obj).get(SERVICE_NAME))
    if not service or not is_ours(obj):
        return None
    metadata = mapping(obj.get("metadata"))
    namespace, name = text(metadata.get("namespace")), text(metadata.get("name"))
    problems = Problems(f"endpointslice {namespace}/{name}")
    version = _VERSIONS.get(text(obj.get("addressType")), 0)
    if not version:
        problems.add(
            f"its addressType {quoted(obj.get('addressType'))} is not supported, IPv4 and IPv6 are"
        )
    return EndpointSlice(
        namespace=intern(namespace),
        name=name,
        service=intern(service),
        version=version,
        ports=tuple(_ports(obj, problems)) if version else (),
        endpoints=tuple(_endpoints(obj, version, problems)) if version else (),
        problems=problems.all(),
        triggered=seconds_of(mapping(metadata.get("annotations")).get(TRIGGERED)),
    )


ENDPOINT_SLICES_SPEC: InformerSpec[EndpointSlice | None] = InformerSpec(
    ENDPOINT_SLICES, endpoint_slice_from, label_selector=LABEL_SELECTOR
)


def _ports(obj: Object, problems: Problems) -> Iterator[SlicePort]:
    for each in objects(obj.get("ports")):
        name, given = text(each.get("name")), each.get("protocol") or "TCP"
        try:
            protocol = Protocol(given)
            yield SlicePort(intern(name), protocol, port_number(each.get("port")))
        except Unusable as error:
            problems.add(f"port {quoted(name)} {error}: no endpoint serves it")
        except ValueError:
            # The port of the Service, which has the same protocol, is reported as a problem.
            continue


def _endpoints(obj: Object, version: int, problems: Problems) -> Iterator[SliceEndpoint]:
    for each in objects(obj.get("endpoints")):
        addresses = each.get("addresses")
        # Further addresses have no meaning (discovery/v1: "no defined semantics").
        first = addresses[0] if isinstance(addresses, list) and addresses else None
        try:
            # A hub returns its own address as the endpoint of default/kubernetes, which is
            # link-local.
            address = unicast_address(first, allow_local=True)
            if address.version != version:
                raise Unusable(f"{address} does not match the addressType IPv{version}")
        except Unusable as error:
            problems.add(f"the endpoint {error}: it is not used")
            continue
        hints = mapping(each.get("hints"))
        yield SliceEndpoint(
            address=address,
            condition=_condition(mapping(each.get("conditions"))),
            node=intern(text(each.get("nodeName"))),
            zone=intern(text(each.get("zone"))),
            for_zones=_names(hints.get("forZones")),
            for_nodes=_names(hints.get("forNodes")),
        )


def _condition(conditions: Mapping[str, Any]) -> Condition:
    """Read the conditions; missing ones have the defaults of the API."""
    if conditions.get("ready") is not False:
        return Condition.READY
    # Without ``serving``, an endpoint serves only if it is ready.
    draining = conditions.get("serving") is True and conditions.get("terminating") is True
    return Condition.DRAINING if draining else Condition.NOT_READY


def _names(hints: object) -> frozenset[str]:
    names = tuple(text(each.get("name")) for each in objects(hints))
    return _shared(names) if names else frozenset()


@lru_cache(maxsize=1024)
def _shared(names: tuple[str, ...]) -> frozenset[str]:
    """Return one set for all endpoints with the same hints."""
    return frozenset(names)
