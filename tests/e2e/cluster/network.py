"""A network of its own for a test: addresses that look like those of a real cluster.

Kubernetes refuses loopback addresses in EndpointSlices, so a test needs others. It gets a network
namespace, in which the test's own thread and all programs that it starts live until it ends.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable

from twisted.trial.unittest import SkipTest

CLONE_NEWNET = 0x40000000
"""Of sched.h; ``os.setns`` is there from Python 3.12 on only."""

_libc = ctypes.CDLL(None, use_errno=True)


class OwnNetwork:
    """A network namespace with the loopback interface, which has ``addresses``, and no other.

    What has been opened before stays in the namespace of before.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        if os.geteuid() != 0:
            raise SkipTest("only root can make a network namespace")
        self._former = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _check(_libc.unshare(CLONE_NEWNET))
        try:
            _run("ip", "link", "set", "lo", "up")
            for address in addresses:
                _run("ip", "address", "add", f"{address}/32", "dev", "lo")
        except BaseException:
            self.close()
            raise

    def remove(self, address: str) -> None:
        """Take an address away: nobody answers there any more."""
        _run("ip", "address", "del", f"{address}/32", "dev", "lo")

    def add(self, address: str) -> None:
        """Give an address back."""
        _run("ip", "address", "add", f"{address}/32", "dev", "lo")

    def cut(self, address: str, port: int) -> None:
        """Reset the connections to a port, as a program does whose machine is restarted."""
        _run("ss", "-K", "dst", f"{address}:{port}")

    def drop(self, address: str, port: int) -> None:
        """Lose all packets to and from a port, without a word to anybody."""
        if shutil.which("iptables") is None:
            raise SkipTest("iptables is not installed")
        self._rules("-I", address, port)

    def pass_again(self, address: str, port: int) -> None:
        """Lose them no longer."""
        self._rules("-D", address, port)

    def _rules(self, change: str, address: str, port: int) -> None:
        for ends in (("-d", address, "--dport", str(port)), ("-s", address, "--sport", str(port))):
            _run("iptables", change, "INPUT", "-p", "tcp", *ends, "-j", "DROP")

    def close(self) -> None:
        """Go back to the namespace of before."""
        _check(_libc.setns(self._former, CLONE_NEWNET))
        os.close(self._former)


def free_port(address: str) -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
