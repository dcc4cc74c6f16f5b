"""The replicas of the server, discovered from the endpoints of its Service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from twisted.logger import Logger

from yurttunnel.cluster.fields import mapping, objects, text, texts
from yurttunnel.cluster.services import PORT_NAME, slices_spec
from yurttunnel.http.authority import parse_address
from yurttunnel.kube.interfaces import InformerSpec
from yurttunnel.kube.resources import Object

log = Logger()

Address = tuple[str, int]
"""An IP address and a port."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a replica.

    ``replica`` is the same for all addresses of a replica: the name of its pod, or the address if
    the slice has no pod.
    """

    replica: str
    address: Address


def replica_slices(namespace: str) -> InformerSpec[tuple[Endpoint, ...]]:
    """Return the informer's specification: the EndpointSlices of the server's Service."""
    return slices_spec(namespace, endpoints_in)


def endpoints_in(slice_: Object) -> tuple[Endpoint, ...]:
    """Return the serving endpoints of an EndpointSlice (``discovery.k8s.io/v1``).

    A terminating endpoint may still serve; one without the condition counts as serving (KEP-1672).
    Malformed parts are logged and ignored.
    """
    name = text(mapping(slice_.get("metadata")).get("name"))
    ports = [
        port.get("port")
        for port in objects(slice_.get("ports"))
        if port.get("name") == PORT_NAME and port.get("protocol", "TCP") == "TCP"
    ]
    if not ports:
        return ()
    port = ports[0]
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        log.warn(
            "EndpointSlice {name}: its port {port_name} is {port!r}; the entry is ignored",
            name=name,
            port_name=PORT_NAME,
            port=port,
        )
        return ()
    found: list[Endpoint] = []
    for endpoint in objects(slice_.get("endpoints")):
        if mapping(endpoint.get("conditions")).get("serving") is not False:
            found += _addresses(name, endpoint, port)
    return tuple(found)


def _addresses(name: str, endpoint: Mapping[str, Any], port: int) -> Iterable[Endpoint]:
    target = mapping(endpoint.get("targetRef"))
    pod = text(target.get("name")) if target.get("kind") == "Pod" else ""
    for given in texts(endpoint.get("addresses")):
        address = parse_address(given)
        if address is None:
            log.warn(
                "EndpointSlice {name}: {address!r} is not an IP address; the entry is ignored",
                name=name,
                address=given,
            )
            continue
        yield Endpoint(pod or str(address), (str(address), port))


def by_replica(slices: Iterable[Iterable[Endpoint]]) -> dict[str, tuple[Address, ...]]:
    """Collect the addresses of each replica; IPv4 and IPv6 addresses are in different slices."""
    found: dict[str, set[Address]] = {}
    for endpoints in slices:
        for endpoint in endpoints:
            found.setdefault(endpoint.replica, set()).add(endpoint.address)
    return {replica: tuple(sorted(addresses)) for replica, addresses in sorted(found.items())}
