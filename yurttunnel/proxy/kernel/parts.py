"""What each virtual service has in the table, in kernel mode: chains that choose an endpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from yurttunnel.proxy.interfaces import Placed
from yurttunnel.proxy.kernel.affinity import (
    ClientsSets,
    EndpointNumbers,
    clients_set,
    is_known,
    remember,
)
from yurttunnel.proxy.kernel.marks import MASQUERADED, RETRIED, set_mark
from yurttunnel.proxy.rules.nftables.parts import Led, Part, elements, socket_of
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
"""A set of endpoints that may be on this node, each twice: what such a one sends to itself must
come back through this machine, else it would answer itself directly."""

_BETWEEN = "drop"
"""Behind the choice of an endpoint. A packet goes by the rules that there are when it comes, but
maps are looked up as they are at that moment: amid a change it may find nothing in one that has
just gone. If it passed, the kernel would lead its connection nowhere from then on; dropped it is
sent again."""

_PROTOCOLS = {each.value.lower(): each for each in Protocol}

_MOST_NAMED = 80
"""Characters of a Service's name in that of its chains, which may have 127."""

Judges = Callable[[Protocol, Endpoint], bool]
"""Returns whether something is so of an endpoint."""


@dataclass(frozen=True, slots=True)
class Masquerade:
    """Whose addresses are replaced, beside those that have to be.

    ``everyone`` means all clients of cluster IPs; ``pods`` are the networks of pods, of which no
    client of a cluster IP is replaced: those from elsewhere are. There are none where it is not
    known.
    """

    everyone: bool = False
    pods: tuple[Network, ...] = ()


def carries(service: VirtualService) -> bool:
    """Return whether the kernel can carry a service, which then takes no proxy socket.

    It cannot tell endpoints of clients by the PROXY protocol.
    """
    return not service.proxy_protocol


class KernelParts:
    """Makes the parts: see :data:`yurttunnel.proxy.rules.nftables.parts.Parts`."""

    def __init__(self, masquerade: Masquerade, is_ejected: Judges, is_in_doubt: Judges) -> None:
        self._masquerade = masquerade
        self._is_ejected = is_ejected
        self._is_in_doubt = is_in_doubt
        self._numbers = EndpointNumbers()
        self._clients = ClientsSets()

    def __call__(self, placed: Placed, internal: Placed | None, host: Address | None) -> Part:
        """Return the part of a service that the kernel carries, or that has a proxy socket."""
        service = placed.service
        found = elements(
            placed, internal, host, lambda served, portal: self._lead(placed, served, portal)
        )
        chains: dict[str, Chain] = {}
        # It has counted what there was also where it has no endpoints now.
        maps = {counter_name(service.key): "counter"} if carries(service) else {}
        own = dict(found)
        if is_carried(placed):
            self._add_choice(service, chains, maps)
            own |= {(HAIRPIN, f"{end.address} . {end.address}"): "" for end in service.local}
            if any(portal.is_external for portal in service.portals) and not service.keeps_source:
                chains[_name("ext", service.key)] = chain(
                    set_mark(MASQUERADED), f"goto {_name('svc', service.key)}"
                )
            if self._masquerades_within(service):
                chains[_name("int", service.key)] = chain(
                    self._masquerading(service.key.version), f"goto {_name('svc', service.key)}"
                )
        if internal is not None and is_carried(internal):
            # A program's own packets may have a source that no endpoint's answers find back to.
            chains[_name("own", service.key)] = chain(
                f"fib saddr type local {set_mark(MASQUERADED)}",
                f"goto {_name('svc', internal.service.key)}",
            )
        return Part(chains, maps, own)

    def _lead(self, placed: Placed, served: Placed, portal: Portal) -> Led:
        if not is_carried(served):
            return socket_of(served)
        service = served.service
        if served is not placed:
            return _to("own", placed.service.key)
        if portal.kind is PortalKind.CLUSTER_IP:
            return _to("int" if self._masquerades_within(service) else "svc", service.key)
        return _to("svc" if service.keeps_source else "ext", service.key)

    def _masquerades_within(self, service: VirtualService) -> bool:
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
        """Add the chain that chooses an endpoint, and with affinity those of each endpoint."""
        chosen, is_retried = self._chosen(service)
        mark = f"{set_mark(RETRIED)} " if is_retried else ""
        protocol = service.key.protocol.value.lower()
        name = _name("svc", service.key)
        count = f"counter name {counter_name(service.key)}"
        if service.affinity is None:
            to = _numbered([_at(each, " . ") for each in chosen])
            choice = f"dnat to numgen random mod {len(chosen)} map {to}"
            # One rule: with a second one a thousand services would take a tenth of a second more.
            chains[name] = chain(f"{count} {mark}meta l4proto {protocol} {choice}", _BETWEEN)
            return
        version = service.key.version
        # A longer time is that of the rules alone, and the set stays with its clients.
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
        chains[name] = chain(count, *known, choice, _BETWEEN)

    def _chosen(self, service: VirtualService) -> tuple[tuple[Endpoint, ...], bool]:
        """Return the endpoints for new connections, and whether another may be tried after them.

        Where all are ejected, all of them are used, and clients get what those answer; not before
        it is known that none has come back.
        """
        protocol = service.key.protocol
        alive = tuple(each for each in service.endpoints if not self._is_ejected(protocol, each))
        if alive:
            return alive, len(service.endpoints) > 1
        in_doubt = any(self._is_in_doubt(protocol, each) for each in service.endpoints)
        return service.endpoints, in_doubt


def counter_name(key: Key) -> str:
    """Return the name of the counter of the connections to a service."""
    return _name(key.protocol.value.lower(), key)


def counted_protocol(counter: str) -> Protocol | None:
    """Return the protocol of a counter's connections; ``None`` for one of another name."""
    return _PROTOCOLS.get(counter.partition("-")[0])


def is_carried(placed: Placed) -> bool:
    """Return whether it is the kernel that carries a service."""
    return bool(placed.service.endpoints) and placed.proxy_port is None


def _to(kind: str, key: Key) -> Led:
    return Led(SERVICES, f"goto {_name(kind, key)}")


def _name(kind: str, key: Key, more: object = "") -> str:
    """Return the name of a chain, a set or a counter; a digest tells apart what does not fit."""
    identity = f"{key.name} {key.version} {key.protocol.value} {key.scope.value} {more}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return f"{kind}-{digest}-{str(key.name).replace(':', '/')[:_MOST_NAMED]}"


def _at(endpoint: Endpoint, separator: str) -> str:
    address = str(endpoint.address)
    if separator == ":" and endpoint.address.version == 6:
        address = f"[{address}]"
    return f"{address}{separator}{endpoint.port}"


def _numbered(values: list[str]) -> str:
    return "{ " + ", ".join(f"{number} : {value}" for number, value in enumerate(values)) + " }"
