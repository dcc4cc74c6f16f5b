"""A node, the pods on it, and everything that is not on it.

::

    clients -- 10.70.1.0/24, fd70:1::/64 --+
                                           +-- node -- 10.70.2.0/24, fd70:2::/64 -- outside
    pods ----- 10.70.3.0/24, fd70:3::/64 --+

``node`` is where the test itself lives, and the programs of the node with it. ``clients`` are those
pods of the node that only ask, ``pods`` those that serve. ``outside`` are clients and endpoints
elsewhere, and the router that the node's default route leads to. All send to the node whatever is
not theirs, so that addresses of Services get there. Nobody asks a Service whose endpoint is on the
same of these machines, unless the node replaces the client's address: what comes back with one of
its own addresses a machine drops.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType

from twisted.trial.unittest import SkipTest

from tests.e2e.network.namespaces import Namespace, forward, new_machine, run, wait_for_ipv6

SITES = MappingProxyType({"clients": 1, "outside": 2, "pods": 3})
"""Where others are than the node, and the number of their network."""

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
    """The machines, by name."""

    def __init__(self) -> None:
        for program in _NEEDED:
            if shutil.which(program) is None:
                raise SkipTest(f"{program} is not installed")
        self._former = Namespace(current=True)
        self._machines: dict[str, Namespace] = {}
        try:
            for name in ("node", *SITES):
                self._machines[name] = new_machine()
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
        """All of them."""
        return self._machines

    def inside(self, machine: str) -> AbstractContextManager[None]:
        """Live on a machine for the time of a block, as :meth:`Namespace.inside` says."""
        return self._machines[machine].inside()

    def run(self, machine: str, *command: str, stdin: str = "") -> str:
        """Run a program on a machine, which must succeed soon; what it prints."""
        return self._machines[machine].run(*command, stdin=stdin)

    def fall_silent(self, site: str, number: int) -> None:
        """Lose everything for the addresses with a number, without a word to anybody."""
        for version in (4, 6):
            element = f"{{ {address(site, number, version)} }}"
            self.run(site, "nft", "add", "element", "inet", "dead", f"ipv{version}", element)

    def add_unnumbered_pod(self) -> str:
        """Make a pod of the node behind a link that has no address; its name."""
        name, link, mac = "calico", "cali0", "ee:ee:ee:ee:ee:ee"
        pod = self._machines[name] = new_machine()
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
        """Go back to the namespace of before; what is still used ends with its users."""
        self._former.enter()
        for namespace in (*self._machines.values(), self._former):
            namespace.close()

    def _connect(self, site: str) -> None:
        """Join a site to the node by a wire, which is called as the site at both ends."""
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
    """Set the addresses of a machine; the first of them is the one that it speaks from."""
    lines = []
    for number in numbers:
        lines.append(f"address add {address(site, number, 4)}/24 dev {site}")
        lines.append(f"address add {address(site, number, 6)}/64 dev {site} nodad")
    machine.run("ip", "-batch", "-", stdin="\n".join(lines))
