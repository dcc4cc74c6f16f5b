"""A separate network for a test, with addresses like those of a real cluster.

Kubernetes rejects loopback addresses in EndpointSlices, so tests need others. A test and all
programs that it starts run in a network namespace until the test ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from tests.e2e.network.namespaces import Machines, run, wait_for_ipv6


class ClusterNetwork(Machines):
    """One machine, ``here``, whose loopback interface has ``addresses``.

    Sockets that are open already stay in their namespace.
    """

    def __init__(self, addresses: Iterable[str] = ()) -> None:
        self._addresses = addresses
        super().__init__()

    def build(self) -> None:
        """Create and enter the machine."""
        self.here = self.add_machine("here")
        self.here.enter()
        lines = (f"address add {address} dev lo" for address in self._addresses)
        run("ip", "-batch", "-", stdin="\n".join(lines))
        wait_for_ipv6()

    def at(self, address: str) -> AbstractContextManager[None]:
        """Run a block on the machine with this address, which is always the only one."""
        return nullcontext()

    def remove(self, address: str) -> None:
        """Remove an address."""
        run("ip", "address", "del", address, "dev", "lo")

    def add(self, address: str) -> None:
        """Add an address, which is usable at once."""
        run("ip", "address", "add", address, "dev", "lo")
        if ":" in address:
            wait_for_ipv6()

    def cut(self, address: str, port: int) -> None:
        """Reset the connections to a port, as a restarted machine does."""
        run("ss", "-K", "dst", f"{address}:{port}")

    def drop(self, address: str, port: int) -> None:
        """Drop all packets to and from a port."""
        self._rules("-I", address, port)

    def stop_dropping(self, address: str, port: int) -> None:
        """Stop dropping packets."""
        self._rules("-D", address, port)

    def _rules(self, change: str, address: str, port: int) -> None:
        for ends in (("-d", address, "--dport", str(port)), ("-s", address, "--sport", str(port))):
            run("iptables", change, "INPUT", "-p", "tcp", *ends, "-j", "DROP")
