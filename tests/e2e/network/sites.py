"""A cloud, and a site behind NAT whose machines it cannot reach.

::

    cloud   cloud-2   other                edge-1   edge-2
      |        |        |                    |        |
    --+--------+--------+-- lan --- nat --- site -----+--
         10.77.0.0/24                 192.168.50.0/24
         fd77::/64                    fd50::/64

The test itself runs on ``cloud``. ``nat`` replaces the source of packets that leave the site, and
rejects all connections to it, in both families. It is the default route of all machines, so that
the site's addresses lead there as public addresses lead to the Internet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType

from tests.e2e.network.namespaces import Machines, wait_for_ipv6

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


class Sites(Machines):
    """The machines and their network."""

    addresses: Mapping[str, Sequence[str]] = MappingProxyType(
        {**SITE, **LAN, "nat": (*LAN["nat"], *SITE["nat"])}
    )
    """The addresses of each machine."""

    def build(self) -> None:
        """Create the machines and both networks, and enter the cloud."""
        for name in self.addresses:
            self.add_machine(name)
        self._connect("lan", LAN)
        self._connect("site", SITE)
        self._separate()
        self.machines["cloud"].enter()

    def at(self, address: str) -> AbstractContextManager[None]:
        """Run a block on the machine with this address, or in the cloud if no machine has it, as
        with an address of loopback.
        """
        owners = (name for name, addresses in self.addresses.items() if address in addresses)
        return self.inside(next(owners, "cloud"))

    def add_nat_machine(self, machine: str, router: str, *ports: int) -> str:
        """Add a machine behind a router of the cloud, which translates addresses.

        Others reach it only by these TCP ports of the router, whose address is returned. It has the
        address 192.168.1.2, and no IPv6.
        """
        gateway, sheltered = self.machines[router], self.add_machine(machine)
        outside = LAN[router][0]
        gateway.link(machine, sheltered, "lan")
        gateway.set_up(machine, "192.168.1.1")
        sheltered.set_up("lan", "192.168.1.2", gateways=("192.168.1.1",))
        gateway.forward()
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

    def _connect(self, segment: str, machines: Mapping[str, Sequence[str]]) -> None:
        """Connect machines by a switch; the interface of each has the segment's name."""
        switch = self.add_machine(f"{segment} switch")
        switch.add_switch()
        with switch.inside():
            # The machines' firewalls do not apply to bridged packets.
            for family in ("iptables", "ip6tables"):
                setting = Path(f"/proc/sys/net/bridge/bridge-nf-call-{family}")
                if setting.exists():
                    setting.write_text("0")
        for number, (name, addresses) in enumerate(machines.items()):
            machine = self.machines[name]
            switch.plug(f"port{number}", machine, segment)
            gateways = () if name == "nat" else machines["nat"]
            machine.set_up(segment, *addresses, gateways=gateways)
        for name in machines:
            with self.inside(name):
                wait_for_ipv6()

    def _separate(self) -> None:
        """Translate the addresses of packets that leave the site, and reject connections to it."""
        gateway = self.machines["nat"]
        gateway.forward()
        for program in ("iptables", "ip6tables"):
            gateway.run(
                *(program, "-t", "nat", "-A", "POSTROUTING", "-o", "lan", "-j", "MASQUERADE")
            )
            gateway.run(
                *(program, "-A", "FORWARD", "-i", "lan", "-o", "site"),
                *("-m", "conntrack", "--ctstate", "NEW", "-j", "REJECT"),
            )
