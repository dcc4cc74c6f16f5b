"""The rules for virtual services, in the spelling and order of ``iptables-save``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import collapse_addresses, ip_network

from yurttunnel.ops.slices import visit
from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.rules.in_cluster import InClusterServices
from yurttunnel.proxy.rules.iptables import chains
from yurttunnel.proxy.rules.source_ranges import allowed_sources
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Key,
    Network,
    NoEndpointsAction,
    Portal,
    PortalKind,
    Protocol,
    ServicePortName,
)
from yurttunnel.steering.firewall.own_chains import (
    Rules,
    address,
    comment,
    network,
    redirect_target,
)

MAX_COMMENT_CHARACTERS = 255
"""The maximum number of characters (``XT_MAX_COMMENT_LEN`` of ``linux/netfilter/xt_comment.h``,
without the terminator)."""

_INVALID_IN_COMMENT = re.compile(r"[^\w./:-]", re.ASCII)
"""Characters that Kubernetes does not allow in names, but that an object in a file may have."""

_NOT_FROM_BRIDGE = " -m physdev ! --physdev-is-in"
_TO_LOCAL = f" {chains.LOCAL}"
_TO_LINK = f" {chains.LOCAL} --limit-iface-in"

_REJECT = {
    (4, Protocol.TCP): "-j REJECT --reject-with tcp-reset",
    (6, Protocol.TCP): "-j REJECT --reject-with tcp-reset",
    (4, Protocol.UDP): "-j REJECT --reject-with icmp-port-unreachable",
    (6, Protocol.UDP): "-j REJECT --reject-with icmp6-port-unreachable",
}

_RulesByChain = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class _RuleInputs:
    """A virtual service, the one that serves packets to it from within the cluster, and the
    addresses to which packets of this machine, and incoming ones, are redirected.
    """

    proxied: ProxiedService
    in_cluster: ProxiedService
    host: Address | None
    host_for_all: Address | None


class PortalRules:
    """Makes the rules of one family. ``node_ports`` are the networks whose addresses serve node
    ports, and ``pods`` those of pods, empty if they are not known.

    ``bridges`` is whether the kernel can recognize packets from a bridge; if not, they are
    redirected like others. Rules of unchanged services are reused.
    """

    def __init__(
        self,
        version: int,
        node_ports: Iterable[Network] = (),
        pods: Iterable[Network] = (),
        bridges: bool = True,
    ) -> None:
        self._version = version
        self._pods = _of_version(version, pods)
        self.bridges = bridges
        networks = _of_version(version, node_ports)
        # iptables-save omits a match for any address.
        self._node_ports = () if _is_everything(networks) else networks
        self._made: dict[Key, tuple[_RuleInputs, _RulesByChain]] = {}

    def rules(
        self,
        proxied: Iterable[ProxiedService],
        host: Address | None,
        host_for_all: Address | None = None,
    ) -> Generator[str, None, Mapping[str, Rules]]:
        """Return the rules by table; it yields between slices of work
        (:func:`yurttunnel.ops.slices.visit`).

        Packets of this machine are redirected to ``host``; if there is none, to a loopback address.
        Others are redirected to an address of the incoming link, or to ``host_for_all``, if there
        is one, unless they are sent to an address of the link.
        """
        services: dict[str, ProxiedService] = {}
        within = InClusterServices()

        def find(each: ProxiedService) -> None:
            if each.service.key.version == self._version:
                services[_order(each.service.key)] = each
                within.add(each)

        yield from visit(proxied, find)
        former, self._made = self._made, {}
        found: dict[str, list[str]] = defaultdict(list)

        def add(place: str) -> None:
            one = services[place]
            key = one.service.key
            in_cluster = within.replacement_for(one) or one
            inputs = _RuleInputs(one, in_cluster, host, host_for_all)
            made = former.get(key)
            if made is None or made[0] != inputs:
                own = _ServiceRules(inputs, self._node_ports, self._pods, self.bridges)
                made = inputs, own.rules
            self._made[key] = made
            for chain, some in made[1].items():
                found[chain] += some

        yield from visit(sorted(services), add)
        return {
            "filter": chains.filtering({name: tuple(found[name]) for name in chains.FILTERING}),
            "nat": chains.nat({name: tuple(found[name]) for name in chains.NAT}, self._node_ports),
        }


class _ServiceRules:
    """The rules of one virtual service, by chain."""

    def __init__(
        self,
        inputs: _RuleInputs,
        node_ports: Sequence[Network],
        pods: Sequence[Network],
        bridges: bool,
    ) -> None:
        key = inputs.proxied.service.key
        self._proxied = inputs.proxied
        self._in_cluster = inputs.in_cluster
        self._host = inputs.host
        self._host_for_all = inputs.host_for_all
        self._node_ports = node_ports
        # Incoming clients that are served like this machine's own.
        self._pods = pods if inputs.in_cluster is not inputs.proxied else ()
        self._bridges = bridges
        self._key = key
        self._name = comment(_comment_of(key.name))
        self._protocol = key.protocol.value.lower()
        self.rules: dict[str, list[str]] = defaultdict(list)
        for portal in inputs.proxied.service.portals:
            self._redirect(portal)
            self._restrict(portal)
            self._reject(portal)

    def _redirect(self, portal: Portal) -> None:
        """Redirect packets for the portal to proxy ports."""
        is_node_port = portal.kind is PortalKind.NODE_PORT
        match = self._match(portal)
        port, own_port = self._proxied.proxy_port, self._in_cluster.proxy_port
        clients = [(f"-s {network(pods)} ", own_port) for pods in self._pods]
        for source, to in (*clients, ("", port)):
            if to is not None:
                chain = chains.NODEPORT_CONTAINER if is_node_port else chains.PORTALS_CONTAINER
                if portal.is_external and self._host_for_all is not None:
                    # A node may have routes that depend on the source address of a reply.
                    self.rules[chain].append(
                        f"{source}{match}{_TO_LINK} {redirect_target(None, to)}"
                    )
                self.rules[chain] += [
                    f"{source}{match}{condition} {redirect_target(self._host_for_all, to)}"
                    for condition in self._incoming_matches(portal)
                ]
                if is_node_port:
                    # The packet's destination is the proxy port by then.
                    self.rules[chains.NODEPORT_NON_LOCAL].append(
                        f"{source}{self._match_port(to)} -m state --state NEW -j ACCEPT"
                    )
        if own_port is not None:
            chain = chains.NODEPORT_HOST if is_node_port else chains.PORTALS_HOST
            self.rules[chain].append(
                f"{match}{_outgoing_match(portal)} {redirect_target(self._host, own_port)}"
            )

    def _restrict(self, portal: Portal) -> None:
        """Drop packets from outside the portal's sources, wherever they are redirected."""
        sources = allowed_sources(portal, self._host)
        if sources is None or portal.address is None or _is_everything(sources):
            return
        match = (
            f"-p {self._protocol} {self._name} -m conntrack"
            f" --ctorigdst {address(portal.address.packed)} --ctorigdstport {portal.port}"
        )
        rules = self.rules[chains.SOURCES]
        rules += [f"-s {network(source)} {match} -j RETURN" for source in sources]
        rules.append(f"{match} -j DROP")

    def _reject(self, portal: Portal) -> None:
        """Reject or drop packets that cannot be redirected, under the same conditions.

        Otherwise, addresses of portals may be those of other machines.
        """
        for proxied, chain, conditions in (
            (self._proxied, chains.REFUSED_CONTAINER, self._incoming_matches(portal)),
            (self._in_cluster, chains.REFUSED_HOST, (_outgoing_match(portal),)),
        ):
            if proxied.proxy_port is not None:
                continue
            dropped = proxied.service.no_endpoints_action is NoEndpointsAction.DROPPED
            target = "-j DROP" if dropped else _REJECT[self._key.version, self._key.protocol]
            match = self._match(portal)
            if portal.kind is PortalKind.NODE_PORT:
                self.rules[chain] += [
                    f"{to}{match} {chains.LOCAL} {target}" for to in _destinations(self._node_ports)
                ]
            else:
                self.rules[chain] += [f"{match}{condition} {target}" for condition in conditions]

    def _incoming_matches(self, portal: Portal) -> tuple[str, ...]:
        """Return the additional matches of rules for incoming packets.

        External addresses of other machines can be reached there by pods, whose packets come from a
        bridge.
        """
        if portal.kind is not PortalKind.EXTERNAL_IP:
            return ("",)
        return (_NOT_FROM_BRIDGE, _TO_LOCAL) if self._bridges else ("",)

    def _match(self, portal: Portal) -> str:
        if portal.address is None:
            return self._match_port(portal.port)
        return f"-d {network(_as_network(portal.address))} {self._match_port(portal.port)}"

    def _match_port(self, port: int) -> str:
        return f"-p {self._protocol} {self._name} -m {self._protocol} --dport {port}"


def _outgoing_match(portal: Portal) -> str:
    """Return the additional match of rules for packets of this machine."""
    return _TO_LOCAL if portal.kind is PortalKind.EXTERNAL_IP else ""


def _order(key: Key) -> str:
    """Return a text by which services are sorted, which is ten times as fast as by names."""
    name = key.name
    return "\0".join((name.namespace, name.name, name.port, key.protocol.value, key.scope.value))


def _comment_of(name: ServicePortName) -> str:
    text = _INVALID_IN_COMMENT.sub("?", str(name))
    return (
        text if len(text) <= MAX_COMMENT_CHARACTERS else f"{text[: MAX_COMMENT_CHARACTERS - 3]}..."
    )


def _destinations(node_ports: Sequence[Network]) -> Iterator[str]:
    yield from (f"-d {network(each)} " for each in node_ports)
    if not node_ports:
        yield ""


def _of_version(version: int, networks: Iterable[Network]) -> tuple[Network, ...]:
    """Return the networks of one family, without those within another."""
    fitting = [each for each in networks if each.version == version]
    return tuple(collapse_addresses(fitting))  # type: ignore[type-var]


def _is_everything(networks: Sequence[Network]) -> bool:
    return any(each.prefixlen == 0 for each in networks)


def _as_network(of: Address) -> Network:
    return ip_network(of)
