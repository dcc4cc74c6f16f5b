"""The server's rules, in the spelling of ``iptables-save``.

Chains, comments and structure are those of yurttunnel 1.2: ``OUTPUT`` jumps to ``TUNNEL-PORT``,
which jumps to ``TUNNEL-PORT-<port>`` for each port, where the rules have the targets ``RETURN`` or
``DNAT``. Forwarded connections take the same path from ``PREROUTING`` through ``TUNNEL-PODS``. The
order of a rule's options is that of yurttunnel 1.2, which ``iptables -C`` requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network

from yurttunnel.steering.firewall.own_chains import (
    ChainOwner,
    Rules,
    address,
    comment,
    redirect_target,
)
from yurttunnel.steering.interception import Interception, Match, Target
from yurttunnel.steering.marks import MARK, MASK

OWN_CHAINS = "TUNNEL-PORT"
"""The chain for this machine's own programs, and the prefix of the chains below it."""

POD_CHAINS = "TUNNEL-PODS"
"""The same for forwarded connections."""

HOOKS: Mapping[str, str] = {OWN_CHAINS: "OUTPUT", POD_CHAINS: "PREROUTING"}
"""The kernel's own chains that jump to ours."""

MAX_RETURNS_BY_PORT = 5000
"""The maximum number of rules with which each port's chain has a ``RETURN`` for each cloud node, as
in yurttunnel 1.2.

Beyond that the addresses are listed once, in a chain ``TUNNEL-PORT-CLOUD`` before all ports. With
5,000 cloud nodes and 5 ports, on nft, an unchanged sync then takes 45 ms of CPU time, instead of
300 ms with a rule for each node and port; one more node takes 110 ms, instead of 600 ms.
"""

_HOOK_COMMENTS = {
    OWN_CHAINS: "yurttunnel server port",
    POD_CHAINS: "yurttunnel server port for pods",
}

_LOOPBACK = {4: ip_network("127.0.0.0/8"), 6: ip_network("::1/128")}


TUNNEL = ChainOwner(
    names=tuple(HOOKS),
    tables=("nat",),
    install_advice="use --enable-iptables=false",
    unreadable_advice="use --enable-iptables=false and DNS, or move that program",
    permission_advice="the server needs the capability NET_ADMIN (deploy/overlays/iptables)",
)
"""The server's chains, and those of yurttunnel 1.2."""


def port_of(chain: str) -> int | None:
    """Return the port of one of our chains."""
    number = chain.rpartition("-")[2]
    return int(number) if TUNNEL.owns(chain) and number.isdecimal() and number.isascii() else None


def rules_of(desired: Interception, set_name: str | None) -> Rules:
    """Return the rules for what is ``desired``; ``set_name`` is required for ``Match.EDGE_SET``."""
    if desired.is_empty:
        return Rules()
    chains: dict[str, tuple[str, ...]] = {}
    jumps: dict[str, tuple[str, ...]] = {}
    for first, ports in ((OWN_CHAINS, desired.ports), (POD_CHAINS, desired.pod_ports)):
        if ports:
            jumps[HOOKS[first]] = (f"-p tcp {comment(_HOOK_COMMENTS[first])} -j {first}",)
            chains |= _chains(first, ports, desired, set_name)
    return Rules(chains, jumps)


def _chains(
    first: str, ports: Mapping[int, Target], desired: Interception, set_name: str | None
) -> dict[str, tuple[str, ...]]:
    """Return the chain that the hook jumps to, and those below it."""
    returns: tuple[str, ...] = ()
    set_match = ""
    if desired.match is Match.CLOUD_RETURN:
        returns = _direct(desired)
    elif set_name is None:
        raise ValueError("a set of addresses is needed for edge-set")
    else:
        set_match = f" -m set --match-set {set_name} dst"
    begin = (_OWN_CONNECTIONS, _OWN_ADDRESSES) if first == OWN_CHAINS else (_OWN_ADDRESSES,)
    to_ports = tuple(
        f"{_to_port(port)} {comment(f'jump to port {port}')} -j {first}-{port}"
        for port in sorted(ports)
    )
    by_port = len(returns) * len(ports) <= MAX_RETURNS_BY_PORT
    chains: dict[str, tuple[str, ...]] = {}
    if by_port:
        chains[first] = begin + to_ports
    else:
        # A chain that is entered by goto, not jump, returns to the hook, without the ports' chains.
        cloud = f"{first}-CLOUD"
        to_cloud = (
            f"{_to_port(port)} {comment(f'cloud nodes before port {port}')} -g {cloud}"
            for port in sorted(ports)
        )
        chains[first] = (*begin, *to_cloud)
        chains[cloud] = (*(_return(each, "") for each in returns), *to_ports)
    for port, target in sorted(ports.items()):
        port_match = f" -m tcp --dport {port}"
        before = (_return(each, port_match) for each in returns if by_port)
        redirect = (
            f"-p tcp {_DNAT}{port_match}{set_match} {redirect_target(target.address, target.port)}"
        )
        chains[f"{first}-{port}"] = (*before, redirect)
    return chains


def _direct(desired: Interception) -> tuple[str, ...]:
    """Return the destinations that are not redirected, loopback first.

    Loopback is an address of this machine, and has returned before; yurttunnel 1.2 has it here.
    """
    loopback = _LOOPBACK[desired.version]
    whole = f"/{loopback.max_prefixlen}"
    cloud = sorted(each.packed for each in desired.cloud)
    return (str(loopback), *(address(each) + whole for each in cloud))


def _return(destination: str, port_match: str) -> str:
    return f"-d {destination} -p tcp {_RETURN}{port_match} -j RETURN"


def _to_port(port: int) -> str:
    return f"-p tcp -m tcp --dport {port}"


_OWN_CONNECTIONS = (
    f"-m mark --mark {MARK:#x}/{MASK:#x}"
    f" {comment('connections of the tunnel server itself')} -j RETURN"
)

# Whatever nodes report them as theirs, these addresses are on this machine, not behind the tunnel
# (a Docker bridge has the same address on every machine). So a second interface, or an agent beside
# the server, stays reachable.
_OWN_ADDRESSES = (
    f"-m addrtype --dst-type LOCAL {comment('addresses of this machine itself')} -j RETURN"
)

_RETURN = comment("return request to access node directly")

_DNAT = comment("dnat to tunnel for access node")
