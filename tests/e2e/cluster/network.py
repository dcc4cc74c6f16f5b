"""A network of its own for a test: addresses that look like those of a real cluster.

Kubernetes refuses loopback addresses in EndpointSlices, so a test needs others. It gets a network
namespace, in which the test's own thread and all programs that it starts live until it ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from twisted.trial.unittest import SkipTest

from tests.e2e.network.namespaces import Namespace, run


class ClusterNetwork:
    """A network namespace with the loopback interface, which has ``addresses``, and no other.

    What has been opened before stays in the namespace of before.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self._former = Namespace(current=True)
        self._own = Namespace()
        self._own.enter()
        try:
            run("ip", "link", "set", "lo", "up")
            for address in addresses:
                self.add(address)
        except BaseException:
            self.close()
            raise

    def at(self, address: str) -> AbstractContextManager[None]:
        """Do what is in a block on the machine with this address: here they are all one."""
        return nullcontext()

    def remove(self, address: str) -> None:
        """Take an address away: nobody answers there any more."""
        run("ip", "address", "del", f"{address}/32", "dev", "lo")

    def add(self, address: str) -> None:
        """Give an address back."""
        run("ip", "address", "add", f"{address}/32", "dev", "lo")

    def cut(self, address: str, port: int) -> None:
        """Reset the connections to a port, as a program does whose machine is restarted."""
        run("ss", "-K", "dst", f"{address}:{port}")

    def drop(self, address: str, port: int) -> None:
        """Lose all packets to and from a port, without a word to anybody."""
        if shutil.which("iptables") is None:
            raise SkipTest("iptables is not installed")
        self._rules("-I", address, port)

    def stop_dropping(self, address: str, port: int) -> None:
        """Lose them no longer."""
        self._rules("-D", address, port)

    def _rules(self, change: str, address: str, port: int) -> None:
        for ends in (("-d", address, "--dport", str(port)), ("-s", address, "--sport", str(port))):
            run("iptables", change, "INPUT", "-p", "tcp", *ends, "-j", "DROP")

    def close(self) -> None:
        """Go back to the namespace of before."""
        self._former.enter()
        self._own.close()
        self._former.close()
