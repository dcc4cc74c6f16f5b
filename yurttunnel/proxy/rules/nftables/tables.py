"""The tables for all services: base chains with one rule for each map, however full it is.

The chains have the type nat, which only the first packet of a connection passes: packets of
established connections cost nothing here. When a packet is dropped or rejected there, no connection
is created, so the next packet passes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from yurttunnel.ops.slices import visit
from yurttunnel.proxy.host_address import HostAddress, no_address
from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.rules.in_cluster import InClusterServices
from yurttunnel.proxy.rules.nftables.parts import (
    ALLOWED,
    NOBODY,
    NODE_PORTS,
    PORTALS,
    REFUSE,
    RESTRICTED,
    Direction,
    Part,
    Parts,
)
from yurttunnel.proxy.rules.nftables.table import FAMILIES, FORMAT, Chain, Table, chain
from yurttunnel.proxy.state.virtual_services import Address, Key, Network

SERVICES = "services"
"""Maps to chains of services that the kernel carries."""

# The destination of a packet; for node ports without the address.
_PORT = "meta l4proto . th dport"
_TRANSPORT = "meta l4proto { tcp, udp }"
"""nft requires this match where ports are replaced."""

_OF_THE_LINK = "fib daddr . iif type local"

_LOOPBACK = {4: "127.0.0.0/8", 6: "::1"}
"""Addresses that cannot be the source of packets to an endpoint, so that the kernel carries nothing
that is sent to them; kube-proxy's nftables mode has no node ports there, either."""

_MAPS = {PORTALS: "inet_service", NOBODY: "verdict", SERVICES: "verdict"}


@dataclass(frozen=True, slots=True)
class Networks:
    """What is the same for all services.

    ``node_ports`` are the networks whose addresses on this machine serve node ports, all if empty;
    ``pods`` those of the cluster's pods, empty if they are not known.
    """

    node_ports: tuple[Network, ...] = ()
    pods: tuple[Network, ...] = ()


_Made = tuple[ProxiedService, ProxiedService | None, Address | None, Part]
"""The arguments of a part, and the part."""


class Tables:
    """Makes the tables of some families; parts of unchanged services are reused.

    ``common`` returns the part for all services that depends on the mode, for a version of IP.
    ``host_for_all`` returns the address to which incoming packets are also redirected, if they may
    come from links without an address (:mod:`yurttunnel.proxy.unnumbered_links`).
    """

    def __init__(
        self,
        versions: Collection[int],
        parts: Parts,
        host_address: HostAddress,
        networks: Networks,
        common: Callable[[int], Part] = lambda _: Part(),
        host_for_all: HostAddress = no_address,
    ) -> None:
        self._versions = versions
        self._parts = parts
        self._host_address = host_address
        self._networks = networks
        self._common = common
        self._host_for_all = host_for_all
        # The parts of the current call, and those of the last one.
        self._made: dict[Key, _Made] = {}
        self._former: dict[Key, _Made] = {}

    def __call__(self, proxied: Sequence[ProxiedService]) -> Generator[str, None, list[Table]]:
        """Return the tables for these services; if two have the same portal, the first gets it.

        Families other than those of this object are left out. It yields between slices of work
        (:func:`yurttunnel.ops.slices.visit`).
        """
        within = InClusterServices()
        yield from visit(proxied, within.add)
        self._former, self._made = self._made, {}
        hosts = {version: self._host_address(version) for version in self._versions}
        tables = {version: self._base(version, host) for version, host in hosts.items()}

        def add(each: ProxiedService) -> None:
            key = each.service.key
            internal = within.replacement_for(each)
            host = hosts.get(key.version)
            made = self._former.get(key)
            if made is None or made[:3] != (each, internal, host):
                made = (each, internal, host, self._parts(each, internal, host))
            self._made[key] = made
            table = tables.get(key.version)
            if table is not None:
                _add(table, made[3])

        yield from visit(proxied, add)
        return [
            Table(version, part.chains, part.maps, part.elements)
            for version, part in tables.items()
        ]

    def invalidate(self, keys: Iterable[Key]) -> None:
        """Make new parts for these services at the next call, and in one that has not yet come to
        them.
        """
        for key in keys:
            self._made.pop(key, None)
            self._former.pop(key, None)

    def _base(self, version: int, host: Address | None) -> Part:
        more = self._common(version)
        chains = {FORMAT: Chain(), REFUSE: _refuse(), **more.chains}
        hooks = (
            (Direction.INCOMING, "prerouting", _incoming_redirects(self._host_for_all(version))),
            (Direction.LOCAL, "output", (_redirect_statement(host),)),
        )
        for direction, hook, redirects in hooks:
            node_ports = f"{hook}-node-ports"
            chains[f"nat-{hook}"] = chain(
                *self._to_portals(version, direction, redirects),
                f"{self._local(version)} goto {node_ports}",
                hook=f"type nat hook {hook} priority -100;",
            )
            chains[node_ports] = chain(*self._to_node_ports(version, direction, redirects))
        return Part(chains, {**_maps(version), **more.maps}, dict(more.elements))

    def _to_portals(
        self, version: int, direction: Direction, redirects: Sequence[str]
    ) -> Iterator[str]:
        """Yield the rules for portals with an address; the most frequent destinations come first.

        They precede node ports, which any address of the machine has: if a load balancer's address
        is one of them, a service may have the same port there.
        """
        family = FAMILIES[version]
        portal = f"{family} daddr . {_PORT}"
        yield f"{portal} @{RESTRICTED} {portal} . {family} saddr != @{ALLOWED} drop"
        for by, clients in self._directions(version, direction):
            yield f"{clients}{portal} vmap @{by.value}-{SERVICES}"
            yield from (f"{clients}{to}:{portal} map @{by.value}-{PORTALS}" for to in redirects)
            yield f"{clients}{portal} vmap @{by.value}-{NOBODY}"

    def _to_node_ports(
        self, version: int, direction: Direction, redirects: Sequence[str]
    ) -> Iterator[str]:
        """Yield the rules for packets to this machine, in the same order."""
        others = f"{FAMILIES[version]} daddr != {_LOOPBACK[version]}"
        for by, clients in self._directions(version, direction):
            yield f"{clients}{others} {_PORT} vmap @{by.value}-{SERVICES}{NODE_PORTS}"
            node_ports = f"@{by.value}-{PORTALS}{NODE_PORTS}"
            yield from (f"{clients}{to}:{_PORT} map {node_ports}" for to in redirects)
            yield f"{clients}{_PORT} vmap @{by.value}-{NOBODY}{NODE_PORTS}"

    def _directions(self, version: int, direction: Direction) -> Iterator[tuple[Direction, str]]:
        """Yield the maps for packets at one hook, each with the match for its clients."""
        pods = [str(each) for each in self._networks.pods if each.version == version]
        if direction is Direction.LOCAL or not pods:
            yield direction, ""
            return
        source = f"{FAMILIES[version]} saddr"
        yield Direction.LOCAL, f"{source} {{ {', '.join(pods)} }} "
        yield Direction.INCOMING, f"{source} != {{ {', '.join(pods)} }} "

    def _local(self, version: int) -> str:
        networks = [str(each) for each in self._networks.node_ports if each.version == version]
        if not networks:
            return "fib daddr type local"
        return f"fib daddr type local {FAMILIES[version]} daddr {{ {', '.join(networks)} }}"


def _add(table: Part, part: Part) -> None:
    """Add a service's part; existing elements stay."""
    assert isinstance(table.chains, dict) and isinstance(table.maps, dict)
    assert isinstance(table.elements, dict)
    table.chains.update(part.chains)
    table.maps.update(part.maps)
    for place, data in part.elements.items():
        table.elements.setdefault(place, data)


def _redirect_statement(host: Address | None) -> str:
    """Return the statement that redirects to a proxy port, to be followed by a colon; ``host`` is
    the address of this machine, ``None`` for that of the incoming link.

    A redirect of a program's own packet would lead to the loopback address while its source stays
    the same, so that replies would be lost.
    """
    if host is None:
        return f"{_TRANSPORT} redirect to "
    return f"{_TRANSPORT} dnat to " + (f"[{host}]" if host.version == 6 else str(host))


def _incoming_redirects(host: Address | None) -> Sequence[str]:
    """Return the statements for incoming packets; the first one that matches is used.

    Clients of an address of the link are redirected to an address of the link all the same, because
    a node may have routes that depend on the source address of a reply.
    """
    own = _redirect_statement(None)
    return (own,) if host is None else (f"{_OF_THE_LINK} {own}", _redirect_statement(host))


def _refuse() -> Chain:
    return chain("meta l4proto tcp reject with tcp reset", "reject")


def _maps(version: int) -> dict[str, str]:
    address = "ipv4_addr" if version == 4 else "ipv6_addr"
    port = "inet_proto . inet_service"
    maps = {
        RESTRICTED: f"set {{ type {address} . {port}; }}",
        ALLOWED: f"set {{ type {address} . {port} . {address}; flags interval; }}",
    }
    for direction in Direction:
        for name, data in _MAPS.items():
            maps[f"{direction.value}-{name}"] = f"map {{ type {address} . {port} : {data}; }}"
            maps[f"{direction.value}-{name}{NODE_PORTS}"] = f"map {{ type {port} : {data}; }}"
    return maps
