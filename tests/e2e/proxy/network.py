"""A node, the pods on it, and a network outside.

::

    clients -- 10.70.1.0/24, fd70:1::/64 --+
                                           +-- node -- 10.70.2.0/24, fd70:2::/64 -- outside
    pods ----- 10.70.3.0/24, fd70:3::/64 --+

The test itself and the programs of the node run on ``node``. ``clients`` are pods of the node that
are only clients, ``pods`` those that serve. ``outside`` has clients and endpoints elsewhere, and
the router of the node's default route. The node is the default route of all others, so that packets
to Services reach it. A client uses no Service with an endpoint on its own machine, unless the node
replaces the client's address, because a machine drops incoming packets from its own addresses.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from tests.e2e.network.namespaces import Machines, Namespace, run, wait_for_ipv6
from tests.e2e.support import which

SITES = MappingProxyType({"clients": 1, "outside": 2, "pods": 3})
"""The machines other than the node, and the numbers of their networks."""

NODE, CLIENT, OTHER_CLIENT, ROUTER = 1, 2, 3, 254
FIRST_POD, LAST_POD = 11, 16

_NEEDED = (
    "conntrack",
    "ip",
    "nft",
    "iptables-nft",
    "iptables-legacy",
    "ip6tables-nft",
    "ip6tables-legacy",
)

_DEAD = """
table inet dead {
    set ipv4 { type ipv4_addr; }
    set ipv6 { type ipv6_addr; }
    chain input {
        type filter hook input priority 0;
        ip daddr @ipv4 drop
        ip6 daddr @ipv6 drop
    }
}
"""


def address(site: str, number: int, version: int) -> str:
    """Return the address with a number in the network of a site; the node has `NODE` in each."""
    if version == 4:
        return f"10.70.{SITES[site]}.{number}"
    return f"fd70:{SITES[site]}::{number:x}"


def version_of(text: str) -> int:
    """Return the version of IP of an address."""
    return 6 if ":" in text else 4


class NodeNetwork(Machines):
    """The node, and the sites around it."""

    def build(self) -> None:
        """Create all machines, and enter the node."""
        for program in _NEEDED:
            which(program)
        node = self.add_machine("node")
        for site in SITES:
            self._connect(node, site)
        node.enter()
        node.forward()
        wait_for_ipv6()
        for version in (4, 6):
            run("ip", "route", "add", "default", "via", address("outside", ROUTER, version))

    def drop_packets(self, site: str, number: int) -> None:
        """Drop all packets to the addresses with a number."""
        for version in (4, 6):
            element = f"{{ {address(site, number, version)} }}"
            self.run(site, "nft", "add", "element", "inet", "dead", f"ipv{version}", element)

    def add_unnumbered_pod(self) -> str:
        """Make a pod of the node behind a link without an address; return its name."""
        name, link, mac = "calico", "cali0", "ee:ee:ee:ee:ee:ee"
        pod = self.add_machine(name)
        self.machines["node"].link(link, pod, "eth0")
        run("ip", "link", "set", link, "address", mac)
        for version, own, gateway in ((4, "10.9.0.5", "169.254.1.1"), (6, "fd09::5", "fe80::1")):
            family = f"-{version}"
            pod.run("ip", family, "address", "add", own, "dev", "eth0")
            pod.run("ip", "neighbor", "add", gateway, "lladdr", mac, "dev", "eth0")
            pod.run(
                "ip", family, "route", "add", "default", "via", gateway, "dev", "eth0", "onlink"
            )
            run("ip", family, "route", "add", own, "dev", link)
        with pod.inside():
            wait_for_ipv6()
        Path(f"/proc/sys/net/ipv4/conf/{link}/proxy_arp").write_text("1")
        return name

    def _connect(self, node: Namespace, site: str) -> None:
        """Connect a site to the node by a link that has the site's name at both ends."""
        other = self.add_machine(site)
        node.link(site, other, site)
        node.set_up(site, *_addresses(site, NODE))
        numbers = [CLIENT, OTHER_CLIENT, *range(FIRST_POD, LAST_POD + 1)]
        if site == "outside":
            numbers.append(ROUTER)
        other.set_up(site, *_addresses(site, *numbers), gateways=_addresses(site, NODE))
        with other.inside():
            wait_for_ipv6()
        other.run("nft", "-f", "-", stdin=_DEAD)


def _addresses(site: str, *numbers: int) -> tuple[str, ...]:
    """Return the addresses with these numbers, of both families."""
    return tuple(address(site, number, version) for number in numbers for version in (4, 6))
