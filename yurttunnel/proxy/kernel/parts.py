"""The parts of the table in kernel mode: chains that select an endpoint for each virtual service,
and what all services share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.kernel.affinity import (
    ClientsSets,
    EndpointNumbers,
    clients_set,
    is_known,
    remember,
)
from yurttunnel.proxy.kernel.detection_rules import DETECTION_RULES, PRIORITY, detection_chains
from yurttunnel.proxy.kernel.marks import MASQUERADED, RETRIED, has_mark, set_mark
from yurttunnel.proxy.rules.nftables.parts import Part, PortalTarget, elements, socket_target
from yurttunnel.proxy.rules.nftables.table import FAMILIES, Chain, chain
from yurttunnel.proxy.rules.nftables.tables import SERVICES
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Endpoint,
    Key,
    Network,
    Portal,
    PortalKind,
    Protocol,
    VirtualService,
)

HAIRPIN = "hairpin"
"""A set of endpoints that may be on this node, each twice. Packets that one sends to itself must
return through this machine, else it would reply to itself directly."""

_NO_MATCH = "drop"
"""The last rule after the selection of an endpoint. A packet is processed by the rules at its
arrival, but maps are looked up in their current state: during a change a lookup may find nothing in
a map that has just been deleted. If the packet passed, its connection would be sent nowhere from
then on; when it is dropped, the client sends it again."""

_PROTOCOLS = {each.value.lower(): each for each in Protocol}

_MAX_NAME_CHARACTERS = 80
"""The maximum length of a Service's name in those of chains, which may have 127 characters."""

EndpointPredicate = Callable[[Protocol, Endpoint], bool]
"""Returns a boolean property of an endpoint."""


@dataclass(frozen=True, slots=True)
class Masquerade:
    """Whose addresses are replaced, in addition to those that must be.

    ``everyone`` means all clients of cluster IPs. If ``pods`` has the networks of pods, the
    addresses of all other clients of cluster IPs are replaced. It is empty if they are not known.
    """

    everyone: bool = False
    pods: tuple[Network, ...] = ()


def kernel_supports(service: VirtualService) -> bool:
    """Return whether the kernel can carry a service, which then needs no proxy socket.

    The kernel cannot use the PROXY protocol.
    """
    return not service.proxy_protocol


class KernelParts:
    """Makes the parts: see :data:`yurttunnel.proxy.rules.nftables.parts.Parts`."""

    def __init__(
        self, masquerade: Masquerade, is_ejected: EndpointPredicate, is_in_doubt: EndpointPredicate
    ) -> None:
        self._masquerade = masquerade
        self._is_ejected = is_ejected
        self._is_in_doubt = is_in_doubt
        self._numbers = EndpointNumbers()
        self._clients = ClientsSets()

    def __call__(
        self, proxied: ProxiedService, internal: ProxiedService | None, host: Address | None
    ) -> Part:
        """Return the part of a service that the kernel carries, or that has a proxy socket."""
        service = proxied.service
        found = elements(
            proxied,
            internal,
            host,
            lambda served, portal: self._select_target(proxied, served, portal),
        )
        chains: dict[str, Chain] = {}
        # The counter stays while the service has no endpoints.
        maps = {counter_name(service.key): "counter"} if kernel_supports(service) else {}
        own = dict(found)
        if is_in_kernel(proxied):
            self._add_choice(service, chains, maps)
            own |= {(HAIRPIN, f"{end.address} . {end.address}"): "" for end in service.local}
            if any(portal.is_external for portal in service.portals) and not service.keeps_source:
                chains[_name("ext", service.key)] = chain(
                    set_mark(MASQUERADED), f"goto {_name('svc', service.key)}"
                )
            if self._masquerades_cluster_ips(service):
                chains[_name("int", service.key)] = chain(
                    self._masquerading(service.key.version), f"goto {_name('svc', service.key)}"
                )
        if internal is not None and is_in_kernel(internal):
            # The packets of a local program may have a source to which no endpoint can reply.
            chains[_name("own", service.key)] = chain(
                f"fib saddr type local {set_mark(MASQUERADED)}",
                f"goto {_name('svc', internal.service.key)}",
            )
        return Part(chains, maps, own)

    def _select_target(
        self, proxied: ProxiedService, served: ProxiedService, portal: Portal
    ) -> PortalTarget:
        if not is_in_kernel(served):
            return socket_target(served)
        service = served.service
        if served is not proxied:
            return _to("own", proxied.service.key)
        if portal.kind is PortalKind.CLUSTER_IP:
            return _to("int" if self._masquerades_cluster_ips(service) else "svc", service.key)
        return _to("svc" if service.keeps_source else "ext", service.key)

    def _masquerades_cluster_ips(self, service: VirtualService) -> bool:
        return self._masquerade.everyone or bool(self._pods(service.key.version))

    def _masquerading(self, version: int) -> str:
        if self._masquerade.everyone:
            return set_mark(MASQUERADED)
        pods = ", ".join(self._pods(version))
        return f"{FAMILIES[version]} saddr != {{ {pods} }} {set_mark(MASQUERADED)}"

    def _pods(self, version: int) -> list[str]:
        return [str(each) for each in self._masquerade.pods if each.version == version]

    def _add_choice(
        self, service: VirtualService, chains: dict[str, Chain], maps: dict[str, str]
    ) -> None:
        """Add the chain that selects an endpoint, and with affinity a chain for each endpoint."""
        chosen, is_retried = self._active_endpoints(service)
        mark = f"{set_mark(RETRIED)} " if is_retried else ""
        protocol = service.key.protocol.value.lower()
        name = _name("svc", service.key)
        count = f"counter name {counter_name(service.key)}"
        if service.affinity is None:
            to = _numbered([_at(each, " . ") for each in chosen])
            choice = f"dnat to numgen random mod {len(chosen)} map {to}"
            # One rule only: a second one would take a tenth of a second more for a thousand
            # services.
            chains[name] = chain(f"{count} {mark}meta l4proto {protocol} {choice}", _NO_MATCH)
            return
        version = service.key.version
        # A longer timeout changes only the rules: the set stays, with its clients.
        clients = _name("clients", service.key, self._clients.of(service.key, service.affinity))
        maps[clients] = clients_set(version)
        verdicts, known = [], []
        for each, number in self._numbers.of(service.key, chosen).items():
            one = _name("ep", service.key, each)
            chains[one] = chain(
                remember(version, number, clients, service.affinity),
                f"{mark}meta l4proto {protocol} dnat to {_at(each, ':')}",
            )
            known.append(f"{is_known(version, number, clients)} goto {one}")
            verdicts.append(f"goto {one}")
        choice = f"numgen random mod {len(chosen)} vmap {_numbered(verdicts)}"
        chains[name] = chain(count, *known, choice, _NO_MATCH)

    def _active_endpoints(self, service: VirtualService) -> tuple[tuple[Endpoint, ...], bool]:
        """Return the endpoints for new connections, and whether a retry at another is possible.

        If all are ejected, all of them are used. As soon as it is known that none is back, clients
        get their refusals.
        """
        protocol = service.key.protocol
        alive = tuple(each for each in service.endpoints if not self._is_ejected(protocol, each))
        if alive:
            return alive, len(service.endpoints) > 1
        in_doubt = any(self._is_in_doubt(protocol, each) for each in service.endpoints)
        return service.endpoints, in_doubt


def counter_name(key: Key) -> str:
    """Return the name of the counter of a service's connections."""
    return _name(key.protocol.value.lower(), key)


def counted_protocol(counter: str) -> Protocol | None:
    """Return the protocol of a counter's connections; ``None`` for any other name."""
    return _PROTOCOLS.get(counter.partition("-")[0])


def is_in_kernel(proxied: ProxiedService) -> bool:
    """Return whether the kernel carries a service."""
    return bool(proxied.service.endpoints) and proxied.proxy_port is None


def _to(kind: str, key: Key) -> PortalTarget:
    return PortalTarget(SERVICES, f"goto {_name(kind, key)}")


def _name(kind: str, key: Key, more: object = "") -> str:
    """Return the name of a chain, a set or a counter; the digest makes it unique."""
    identity = f"{key.name} {key.version} {key.protocol.value} {key.scope.value} {more}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return f"{kind}-{digest}-{str(key.name).replace(':', '/')[:_MAX_NAME_CHARACTERS]}"


def _at(endpoint: Endpoint, separator: str) -> str:
    address = str(endpoint.address)
    if separator == ":" and endpoint.address.version == 6:
        address = f"[{address}]"
    return f"{address}{separator}{endpoint.port}"


def _numbered(values: list[str]) -> str:
    return "{ " + ", ".join(f"{number} : {value}" for number, value in enumerate(values)) + " }"


def common(
    version: int,
    *,
    detects: bool = True,
    all_are_supervised: bool = False,
    drops_invalid: bool = True,
) -> Part:
    """Return the part that all services share.

    It has masquerading, logging of packets if ``detects``, and dropping of invalid packets. For
    ``all_are_supervised`` see :mod:`yurttunnel.proxy.kernel.detection_rules`. Out-of-window packets
    are ``invalid``, unless conntrack is liberal, and are not translated back: a client that gets
    one sees the endpoint's address, and resets the connection. With ``drops_invalid`` they are not
    forwarded, as with kube-proxy (issue 74839 of Kubernetes), but for TCP only.
    """
    family = FAMILIES[version]
    address = "ipv4_addr" if version == 4 else "ipv6_addr"
    chains: dict[str, Chain] = {
        "nat-postrouting": chain(
            f"{has_mark(MASQUERADED)} masquerade fully-random",
            f"ct status dnat {family} saddr . {family} daddr @{HAIRPIN} masquerade fully-random",
            hook="type nat hook postrouting priority 100;",
        )
    }
    forward = list(DETECTION_RULES) if detects else []
    if drops_invalid:
        forward.append("meta l4proto tcp ct state invalid drop")
    if forward:
        chains["filter-forward"] = chain(
            *forward, hook=f"type filter hook forward priority {PRIORITY};"
        )
    maps = {HAIRPIN: f"set {{ type {address} . {address}; }}"}
    if not detects:
        return Part(chains, maps)
    detection = detection_chains(version, all_are_supervised)
    return Part({**chains, **detection.chains}, {**maps, **detection.maps})
