"""A machine in a network namespace, and networks behind it, with real packets."""

from __future__ import annotations

import socket
from contextlib import contextmanager

from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.network.namespaces import wait_for_ipv6


class Networks:
    """Part of a test case of one address family, which has ``version``."""

    def enter(self):
        """Enter the machine's namespace until the test ends."""
        self.network = ClusterNetwork()
        self.addCleanup(self.network.close)
        self.network.here.forward()

    def add(self, addresses):
        """Add addresses to the current machine."""
        for address in addresses:
            self.network.add(address)

    @contextmanager
    def neighbour(self, name, here, there):
        """Enter a separate network for a while, with a default route to this machine."""
        other = self.network.add_machine(name)
        self.network.here.link(name, other, "eth0")
        self.network.here.set_up(name, here)
        other.set_up("eth0", there, gateways=(here,))
        wait_for_ipv6()
        with other.inside():
            wait_for_ipv6()
            yield

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
