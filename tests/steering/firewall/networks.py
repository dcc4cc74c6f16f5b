"""A machine in a network namespace, and networks behind it, with real packets."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.network.namespaces import Namespace, wait_for_ipv6
from tests.steering.firewall.machines import execute

BITS = {4: 32, 6: 128}


def set_up_links():
    """Forward packets here, and use addresses at once, including those of the links themselves."""
    for setting, value in (
        ("ipv4/ip_forward", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv6/conf/default/accept_dad", "0"),
    ):
        Path("/proc/sys/net", setting).write_text(value)


class Networks:
    """Part of a test case of one address family, which has ``version``."""

    def enter(self):
        """Enter the machine's namespace until the test ends."""
        network = ClusterNetwork([])
        self.addCleanup(network.close)
        set_up_links()

    def add(self, addresses):
        """Add addresses here."""
        for address in addresses:
            execute(f"ip address add {address}/{BITS[self.version]} dev lo")

    @contextmanager
    def neighbour(self, name, here, there):
        """Enter a separate network for a while, with a default route to this machine."""
        machine, other = Namespace(current=True), Namespace()
        self.addCleanup(machine.close)
        self.addCleanup(other.close)
        bits = 24 if self.version == 4 else 64
        with other.inside():
            set_up_links()
            execute(f"ip link add eth0 type veth peer name {name} netns {machine.path}")
            execute(f"ip address add {there}/{bits} dev eth0")
            execute("ip link set eth0 up")
            execute(f"ip -{self.version} route add default via {here}")
            yield
        execute(f"ip address add {here}/{bits} dev {name}")
        execute(f"ip link set {name} up")
        wait_for_ipv6()
        with other.inside():
            wait_for_ipv6()

    def socket(self, kind=socket.SOCK_STREAM):
        """Make a socket here."""
        made = socket.socket(self.family, kind)
        self.addCleanup(made.close)
        made.settimeout(20)
        return made

    def listen(self, port):
        """Listen on all addresses."""
        listener = self.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen()
        return listener

    @property
    def family(self):
        """The family of sockets."""
        return socket.AF_INET if self.version == 4 else socket.AF_INET6
