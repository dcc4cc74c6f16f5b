"""The chains of the service proxy, and the jumps to them.

The chains in the table ``nat``, and ``KUBE-NODEPORT-NON-LOCAL``, are those of kube-proxy's
userspace mode (Kubernetes 1.1 to 1.25), so that its leftovers are taken over. That mode had no
chains that reject clients. CONTAINER chains are for incoming packets, from pods and elsewhere, and
HOST chains for those of this machine's own programs.
"""

from __future__ import annotations

from collections.abc import Sequence

from yurttunnel.proxy.state.virtual_services import Network
from yurttunnel.steering.firewall.own_chains import ChainOwner, Rules, comment, network

PORTALS_CONTAINER = "KUBE-PORTALS-CONTAINER"
PORTALS_HOST = "KUBE-PORTALS-HOST"
NODEPORT_CONTAINER = "KUBE-NODEPORT-CONTAINER"
NODEPORT_HOST = "KUBE-NODEPORT-HOST"

NODEPORT_NON_LOCAL = "KUBE-NODEPORT-NON-LOCAL"
"""Accepts packets to node ports that are redirected to a proxy port, whatever the policy is."""

SOURCES = "YURTPROXY-SOURCES"
"""Drops packets to a load balancer's address from outside its source ranges."""

REFUSED_CONTAINER = "YURTPROXY-REFUSED-CONTAINER"
REFUSED_HOST = "YURTPROXY-REFUSED-HOST"
"""Reject or drop packets to portals without endpoints. Such packets are not redirected, and still
have the portal as their destination."""

NAT = (PORTALS_CONTAINER, PORTALS_HOST, NODEPORT_CONTAINER, NODEPORT_HOST)
FILTERING = (SOURCES, REFUSED_CONTAINER, REFUSED_HOST, NODEPORT_NON_LOCAL)
"""All chains, by table."""

PROXY = ChainOwner(
    names=(*NAT, *FILTERING),
    # The restrictions come before the redirection.
    tables=("filter", "nat"),
    install_advice="use --proxy-backend nftables",
    unreadable_advice="use --proxy-backend nftables, or move that program",
    permission_advice="yurtproxy needs the capability NET_ADMIN, as root in the host's network",
)

LOCAL = "-m addrtype --dst-type LOCAL"

_NEW = "-m conntrack --ctstate NEW"

_PORTALS = comment("handle ClusterIPs; NOTE: this must be before the NodePort rules")
_NODE_PORTS = comment("handle service NodePorts; NOTE: this must be the last rule in the chain")


def nat(chains: dict[str, tuple[str, ...]], node_ports: Sequence[Network]) -> Rules:
    """Return the rules of the table ``nat``, with the jumps to its chains.

    Load balancers' addresses may be those of this machine: a node port with the same number must
    not take precedence. Node ports are served at the addresses in ``node_ports``; if it is empty,
    at all.
    """
    return Rules(
        chains,
        jumps={
            "PREROUTING": (f"{_PORTALS} -j {PORTALS_CONTAINER}",),
            "OUTPUT": (f"{_PORTALS} -j {PORTALS_HOST}",),
        },
        last_jumps={
            "PREROUTING": _to_node_ports(NODEPORT_CONTAINER, node_ports),
            "OUTPUT": _to_node_ports(NODEPORT_HOST, node_ports),
        },
    )


def filtering(chains: dict[str, tuple[str, ...]]) -> Rules:
    """Return the rules of the table ``filter``, with the jumps to its chains."""
    sources = f"{_NEW} {comment('source ranges of load balancers')} -j {SOURCES}"
    refused = f"{_NEW} {comment('Services that nobody serves')} -j"
    arriving = (sources, f"{refused} {REFUSED_CONTAINER}")
    flow = comment("Ensure that non-local NodePort traffic can flow")
    return Rules(
        chains,
        jumps={
            "INPUT": (*arriving, f"{flow} -j {NODEPORT_NON_LOCAL}"),
            "FORWARD": arriving,
            "OUTPUT": (sources, f"{refused} {REFUSED_HOST}"),
        },
    )


def local_destinations(node_ports: Sequence[Network]) -> list[str]:
    """Return the matches, of which a packet to a node port must meet one."""
    return [f"-d {network(each)} {LOCAL}" for each in node_ports] or [LOCAL]


def _to_node_ports(chain: str, node_ports: Sequence[Network]) -> tuple[str, ...]:
    return tuple(f"{each} {_NODE_PORTS} -j {chain}" for each in local_destinations(node_ports))
