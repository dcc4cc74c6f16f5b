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

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType

from twisted.trial.unittest import SkipTest

from tests.e2e.network.namespaces import Namespace, forward, new_namespace, run, wait_for_ipv6

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


class NodeNetwork:
    """The machines by name."""

    def __init__(self) -> None:
        for program in _NEEDED:
            if shutil.which(program) is None:
                raise SkipTest(f"{program} is not installed")
        self._former = Namespace(current=True)
        self._machines: dict[str, Namespace] = {}
        try:
            for name in ("node", *SITES):
                self._machines[name] = new_namespace()
            for site in SITES:
                self._connect(site)
            node = self._machines["node"]
            node.enter()
            forward()
            wait_for_ipv6()
            for version in (4, 6):
                router = address("outside", ROUTER, version)
                run("ip", f"-{version}", "route", "add", "default", "via", router)
        except BaseException:
            self.close()
            raise

    @property
    def machines(self) -> Mapping[str, Namespace]:
        """All machines."""
        return self._machines

    def inside(self, machine: str) -> AbstractContextManager[None]:
        """Run a block on a machine, as :meth:`Namespace.inside` does."""
        return self._machines[machine].inside()

    def run(self, machine: str, *command: str, stdin: str = "") -> str:
        """Run a program on a machine, which must succeed soon; return its output."""
        return self._machines[machine].run(*command, stdin=stdin)

    def fall_silent(self, site: str, number: int) -> None:
        """Drop all packets to the addresses with a number."""
        for version in (4, 6):
            element = f"{{ {address(site, number, version)} }}"
            self.run(site, "nft", "add", "element", "inet", "dead", f"ipv{version}", element)

    def add_unnumbered_pod(self) -> str:
        """Make a pod of the node behind a link without an address; return its name."""
        name, link, mac = "calico", "cali0", "ee:ee:ee:ee:ee:ee"
        pod = self._machines[name] = new_namespace()
        run("ip", "link", "add", link, "address", mac, "type", "veth", "peer", "name", "eth0",
            "netns", pod.path)  # fmt: skip
        run("ip", "link", "set", link, "up")
        pod.run("ip", "link", "set", "eth0", "up")
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

    def close(self) -> None:
        """Return to the original namespace; namespaces in use end with their users."""
        self._former.enter()
        for namespace in (*self._machines.values(), self._former):
            namespace.close()

    def _connect(self, site: str) -> None:
        """Connect a site to the node by a link that has the site's name at both ends."""
        node, other = self._machines["node"], self._machines[site]
        link = ("ip", "link", "add", "name", site, "type", "veth")
        node.run(*link, "peer", "name", site, "netns", other.path)
        numbers = [CLIENT, OTHER_CLIENT, *range(FIRST_POD, LAST_POD + 1)]
        if site == "outside":
            numbers.append(ROUTER)
        for machine, owned in ((node, [NODE]), (other, numbers)):
            machine.run("ip", "link", "set", site, "up")
            _give(machine, site, owned)
        with other.inside():
            wait_for_ipv6()
            for version in (4, 6):
                gateway = address(site, NODE, version)
                run("ip", f"-{version}", "route", "add", "default", "via", gateway)
        other.run("nft", "-f", "-", stdin=_DEAD)


def _give(machine: Namespace, site: str, numbers: list[int]) -> None:
    """Set the addresses of a machine; the first one is the source of its packets."""
    lines = []
    for number in numbers:
        lines.append(f"address add {address(site, number, 4)}/24 dev {site}")
        lines.append(f"address add {address(site, number, 6)}/64 dev {site} nodad")
    machine.run("ip", "-batch", "-", stdin="\n".join(lines))
