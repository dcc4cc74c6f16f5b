"""A cloud, and a site behind NAT whose machines it cannot reach.

::

    cloud   cloud-2   other                edge-1   edge-2
      |        |        |                    |        |
    --+--------+--------+-- lan --- nat --- site -----+--
         10.77.0.0/24                 192.168.50.0/24
         fd77::/64                    fd50::/64

``cloud`` is where the test itself lives. ``nat`` replaces the source of what leaves the site, and
refuses every connection into it, in both families. The way to the site leads there from all
machines of the cloud, as it leads to the Internet where addresses are real.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType

from twisted.trial.unittest import SkipTest

from tests.e2e.network.namespaces import Namespace, forward, new_namespace, wait_for_ipv6

LAN = {
    "cloud": tuple(
        f"{net}{host}" for host in (1, 21, 22, 23, 41) for net in ("10.77.0.", "fd77::")
    ),
    "cloud-2": ("10.77.0.51", "fd77::51"),
    "other": ("10.77.0.61", "fd77::61"),
    "nat": ("10.77.0.254", "fd77::254"),
}
SITE = {
    "nat": ("192.168.50.254", "fd50::254"),
    "edge-1": ("192.168.50.31", "fd50::31"),
    "edge-2": ("192.168.50.32", "fd50::32"),
}
_PREFIXES = {4: 24, 6: 64}
_NEEDED = ("ip", "iptables", "ip6tables")


class Sites:
    """The machines and their network; ``addresses`` has what is whose."""

    addresses: Mapping[str, Sequence[str]] = MappingProxyType(
        {**SITE, **LAN, "nat": (*LAN["nat"], *SITE["nat"])}
    )

    def __init__(self) -> None:
        for program in _NEEDED:
            if shutil.which(program) is None:
                raise SkipTest(f"{program} is not installed")
        self._former = Namespace(current=True)
        self._machines: dict[str, Namespace] = {}
        self._switches: list[Namespace] = []
        try:
            for name in self.addresses:
                self._machines[name] = new_namespace()
            self._connect("lan", LAN)
            self._connect("site", SITE)
            self._separate()
            self._machines["cloud"].enter()
        except BaseException:
            self.close()
            raise

    def inside(self, machine: str) -> AbstractContextManager[None]:
        """Live on a machine for the time of a block, as :meth:`Namespace.inside` says."""
        return self._machines[machine].inside()

    def at(self, address: str) -> AbstractContextManager[None]:
        """Live on the machine with this address for the time of a block.

        An address that is nobody's, as one of loopback, is that of where one is.
        """
        return self.inside(self.machine_of(address))

    def machine_of(self, address: str) -> str:
        """Name the machine with this address; ``cloud`` when it is nobody's in particular."""
        owners = (name for name, addresses in self.addresses.items() if address in addresses)
        return next(owners, "cloud")

    def run(self, machine: str, *command: str, stdin: str = "") -> str:
        """Run a program on a machine, which must succeed soon; what it prints."""
        return self._machines[machine].run(*command, stdin=stdin)

    def forward(self, machine: str) -> None:
        """Have a machine pass on what is for others."""
        with self.inside(machine):
            forward()

    def add_nat_machine(self, machine: str, router: str, *ports: int) -> str:
        """Put a new machine behind a router of the cloud, which translates addresses.

        Others reach it by these TCP ports of the router alone. It has 192.168.1.2, and no
        address of IPv6; returned is the router's, by which the others know it.
        """
        sheltered, gateway = new_namespace(), self._machines[router]
        self._machines[machine] = sheltered
        outside = LAN[router][0]
        gateway.run(
            *("ip", "link", "add", "name", machine, "type", "veth"),
            *("peer", "name", "lan", "netns", sheltered.path),
        )
        for end, name, address in ((gateway, machine, 1), (sheltered, "lan", 2)):
            end.run("ip", "address", "add", f"192.168.1.{address}/24", "dev", name)
            end.run("ip", "link", "set", name, "up")
        sheltered.run("ip", "route", "add", "default", "via", "192.168.1.1")
        self.forward(router)
        nat = ("iptables", "-t", "nat", "-A")
        gateway.run(*nat, "POSTROUTING", "-o", "lan", "-j", "MASQUERADE")
        for port in ports:
            gateway.run(
                *(*nat, "PREROUTING", "-i", "lan", "-d", outside, "-p", "tcp"),
                *("--dport", str(port), "-j", "DNAT", "--to-destination", "192.168.1.2"),
            )
        gateway.run(
            *("iptables", "-A", "FORWARD", "-i", "lan", "-o", machine),
            *("-m", "conntrack", "!", "--ctstate", "ESTABLISHED,DNAT", "-j", "REJECT"),
        )
        return outside

    def close(self) -> None:
        """Go back to the namespace of before; what is still used ends with its users."""
        self._former.enter()
        for namespace in (*self._machines.values(), *self._switches, self._former):
            namespace.close()

    def _connect(self, segment: str, machines: Mapping[str, Sequence[str]]) -> None:
        """Join machines by a switch; the interface of each is called as the segment."""
        switch = new_namespace()
        self._switches.append(switch)
        with switch.inside():
            # What a switch passes on is no concern of the machines' firewalls.
            for family in ("iptables", "ip6tables"):
                setting = Path(f"/proc/sys/net/bridge/bridge-nf-call-{family}")
                if setting.exists():
                    setting.write_text("0")
        switch.run("ip", "link", "add", "name", "switch", "type", "bridge")
        switch.run("ip", "link", "set", "switch", "up")
        for number, (name, addresses) in enumerate(machines.items()):
            machine = self._machines[name]
            switch.run(
                *("ip", "link", "add", "name", f"port{number}", "type", "veth"),
                *("peer", "name", segment, "netns", machine.path),
            )
            switch.run("ip", "link", "set", f"port{number}", "master", "switch", "up")
            machine.run("ip", "link", "set", segment, "up")
            for address in addresses:
                prefix = _PREFIXES[ip_address(address).version]
                nodad = () if prefix == _PREFIXES[4] else ("nodad",)
                machine.run("ip", "address", "add", f"{address}/{prefix}", "dev", segment, *nodad)
            if name != "nat":
                for gateway in machines["nat"]:
                    family = "-6" if ":" in gateway else "-4"
                    machine.run("ip", family, "route", "add", "default", "via", gateway)
        for name in machines:
            with self.inside(name):
                wait_for_ipv6()

    def _separate(self) -> None:
        """Have the gateway translate what leaves the site, and let nothing else in."""
        gateway = self._machines["nat"]
        self.forward("nat")
        for program in ("iptables", "ip6tables"):
            gateway.run(
                *(program, "-t", "nat", "-A", "POSTROUTING", "-o", "lan", "-j", "MASQUERADE")
            )
            gateway.run(
                *(program, "-A", "FORWARD", "-i", "lan", "-o", "site"),
                *("-m", "conntrack", "--ctstate", "NEW", "-j", "REJECT"),
            )
