"""Parsing Services; invalid parts are reported, and the rest is served.

======================================  ======================  ===============================
annotation                              value                   effect on the TCP ports
======================================  ======================  ===============================
``yurttunnel.io/proxy-protocol``        ``v1`` or ``v2``        connections to endpoints start
                                                                with the PROXY protocol, which
                                                                sends the client's address
``yurttunnel.io/load-balancing``        ``round-robin`` or      a client gets the next endpoint,
                                        ``least-connections``   or the one with the fewest
                                                                connections
======================================  ======================  ===============================
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, TypeVar

from yurttunnel.cluster.fields import mapping, objects, text, texts
from yurttunnel.kube.interfaces import InformerSpec
from yurttunnel.kube.resources import SERVICES, Object
from yurttunnel.proxy.state.parsing import (
    LABEL_SELECTOR,
    Problems,
    Unusable,
    is_name,
    is_ours,
    port_number,
    quoted,
    unicast_address,
)
from yurttunnel.proxy.state.service_ports import ServicePort, service_ports
from yurttunnel.proxy.state.virtual_services import Address, Network, Problem

PROXY_PROTOCOL = "yurttunnel.io/proxy-protocol"
LOAD_BALANCING = "yurttunnel.io/load-balancing"

SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges"
"""The annotation with the same effect as ``spec.loadBalancerSourceRanges`` (Kubernetes 1.2)."""

DEFAULT_AFFINITY_SECONDS = 10800
"""``DefaultClientIPServiceAffinitySeconds`` of k8s.io/api core/v1."""

MAX_AFFINITY_SECONDS = 86400
"""``MaxClientIPServiceAffinitySeconds`` of the same file."""

_VERSIONS = {"v1": 1, "v2": 2}
_BALANCING = {"round-robin": False, "least-connections": True}

_Choice = TypeVar("_Choice")


class Distribution(enum.Enum):
    """``trafficDistribution`` (KEP-4444, KEP-3015): which endpoints are preferred."""

    ANY = ""
    SAME_ZONE = "PreferSameZone"
    SAME_NODE = "PreferSameNode"


_DISTRIBUTIONS = {each.value: each for each in Distribution} | {
    "PreferClose": Distribution.SAME_ZONE
}


@dataclass(frozen=True, slots=True)
class Service:
    """What is kept of a Service that has cluster IPs.

    ``created`` is the time in the API's format, which can be sorted. ``sources`` are the only
    networks that may use load-balancer IPs, ``None`` means all. ``affinity`` is in seconds.
    ``health_check_node_port`` is 0 if there is none.
    """

    namespace: str
    name: str
    created: str = ""
    cluster_ips: tuple[Address, ...] = ()
    external_ips: tuple[Address, ...] = ()
    load_balancer_ips: tuple[Address, ...] = ()
    sources: tuple[Network, ...] | None = None
    ports: tuple[ServicePort, ...] = ()
    affinity: float | None = None
    internal_local: bool = False
    external_local: bool = False
    health_check_node_port: int = 0
    distribution: Distribution = Distribution.ANY
    publish_not_ready: bool = False
    proxy_protocol: int = 0
    least_connections: bool = False
    problems: tuple[Problem, ...] = ()

    def __str__(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def service_from(service: Object) -> Service | None:
    """Extract what is needed from a ``Service`` (k8s.io/api core/v1 types.go).

    Return ``None`` if another proxy serves it, if it has no cluster IP (headless), and for an
    ``ExternalName``.
    """
    metadata, spec = mapping(service.get("metadata")), mapping(service.get("spec"))
    given = dict.fromkeys((*texts(spec.get("clusterIPs")), text(spec.get("clusterIP"))))
    given.pop("", None)
    skipped = not given or "None" in given or spec.get("type") == "ExternalName"
    if skipped or not is_ours(service):
        return None
    namespace, name = text(metadata.get("namespace")), text(metadata.get("name"))
    annotations = mapping(metadata.get("annotations"))
    if not (is_name(namespace) and is_name(name)):
        # A file may contain it. It would make the rules of all Services invalid.
        problem = Problem(
            quoted(ascii(f"{namespace}/{name}")),
            "it is not served, because its name or namespace is not valid in Kubernetes",
        )
        return Service(namespace, name, problems=(problem,))
    problems = Problems(f"{namespace}/{name}")
    cluster_ips = tuple(_addresses("cluster IP", given, problems))
    versions = {each.version for each in cluster_ips}
    balancer = mapping(mapping(service.get("status")).get("loadBalancer"))
    externals = dict.fromkeys(texts(spec.get("externalIPs")))
    external_local = spec.get("externalTrafficPolicy") == "Local"
    return Service(
        namespace=namespace,
        name=name,
        created=text(metadata.get("creationTimestamp")),
        cluster_ips=cluster_ips,
        external_ips=tuple(_addresses("external IP", externals, problems, versions)),
        load_balancer_ips=tuple(
            _addresses("load-balancer IP", _ingress(balancer), problems, versions)
        ),
        sources=_sources(spec, annotations, problems),
        ports=tuple(service_ports(f"{namespace}/{name}", spec, problems)),
        affinity=_affinity(spec, problems),
        internal_local=spec.get("internalTrafficPolicy") == "Local",
        external_local=external_local,
        health_check_node_port=_health_check_node_port(spec, external_local, problems),
        distribution=_choice(
            "trafficDistribution", spec.get("trafficDistribution"), _DISTRIBUTIONS, problems
        )
        or Distribution.ANY,
        publish_not_ready=spec.get("publishNotReadyAddresses") is True,
        proxy_protocol=_choice(PROXY_PROTOCOL, annotations.get(PROXY_PROTOCOL), _VERSIONS, problems)
        or 0,
        least_connections=_choice(
            LOAD_BALANCING, annotations.get(LOAD_BALANCING), _BALANCING, problems
        )
        or False,
        problems=problems.all(),
    )


SERVICES_SPEC: InformerSpec[Service | None] = InformerSpec(
    SERVICES, service_from, label_selector=LABEL_SELECTOR
)


def _addresses(
    what: str, given: Iterable[str], problems: Problems, versions: Collection[int] = (4, 6)
) -> Iterator[Address]:
    """Yield the addresses of these versions of IP, each once."""
    found = set()
    for each in given:
        try:
            address = unicast_address(each)
            if address.version not in versions:
                raise Unusable(
                    f"{address} is of an IP version for which the Service has no cluster IP"
                )
        except Unusable as error:
            problems.add(f"the {what} {error}: it is not served")
            continue
        if address not in found:
            found.add(address)
            yield address


def _ingress(balancer: Mapping[str, Any]) -> Iterator[str]:
    """Yield a load balancer's IPs that are the destination of packets that arrive at a node.

    With ``ipMode: Proxy`` they are not (KEP-1860), and host names are skipped.
    """
    for entry in objects(balancer.get("ingress")):
        if text(entry.get("ip")) and entry.get("ipMode") != "Proxy":
            yield text(entry.get("ip"))


def _sources(
    spec: Mapping[str, Any], annotations: Mapping[str, Any], problems: Problems
) -> tuple[Network, ...] | None:
    """Return the networks; empty, which allows no client, if none of the given ones is valid."""
    given = list(texts(spec.get("loadBalancerSourceRanges")))
    given = given or text(annotations.get(SOURCE_RANGES)).split(",")
    given = [stripped for each in given if (stripped := each.strip())]
    if not given:
        return None
    found: dict[Network, None] = {}
    for each in given:
        try:
            # ip_network also accepts a single address, a mask and a zone id; with the last one nft
            # would reject the rules of all Services.
            if not each.rpartition("/")[2].isdecimal() or "/" not in each or "%" in each:
                raise ValueError
            found[ip_network(each, strict=False)] = None
        except ValueError:
            problems.add(
                f"the source range {quoted(each)} is not a network such as 10.0.0.0/8: no client"
                f" in it may use the load-balancer IPs"
            )
    return tuple(found)


def _affinity(spec: Mapping[str, Any], problems: Problems) -> float | None:
    if spec.get("sessionAffinity") != "ClientIP":
        return None
    client_ip = mapping(mapping(spec.get("sessionAffinityConfig")).get("clientIP"))
    seconds = client_ip.get("timeoutSeconds")
    if seconds is None:
        return float(DEFAULT_AFFINITY_SECONDS)
    if isinstance(seconds, int) and 1 <= seconds <= MAX_AFFINITY_SECONDS:
        return float(seconds)
    problems.add(
        f"timeoutSeconds {quoted(seconds)} is not from 1 to {MAX_AFFINITY_SECONDS}: it is"
        f" {DEFAULT_AFFINITY_SECONDS}"
    )
    return float(DEFAULT_AFFINITY_SECONDS)


def _health_check_node_port(
    spec: Mapping[str, Any], external_local: bool, problems: Problems
) -> int:
    given = spec.get("healthCheckNodePort") or 0
    if not (given and external_local and spec.get("type") == "LoadBalancer"):
        return 0
    try:
        return port_number(given)
    except Unusable as error:
        problems.add(f"healthCheckNodePort {error}: it is not served")
        return 0


def _choice(
    what: str, given: object, choices: Mapping[str, _Choice], problems: Problems
) -> _Choice | None:
    """Return the value for a word, ``None`` if there is no word or it is invalid."""
    word = text(given)
    if given is None or word in choices:
        return choices.get(word)
    wanted = " or ".join(each for each in choices if each)
    problems.add(f"{what} {quoted(given)} is not valid, use {wanted}: it is ignored")
    return None
