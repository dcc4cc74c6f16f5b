"""Kernel mode compared with no proxy: a client, a node and endpoints, each in a network namespace.

Each contestant has its own namespaces, so that packets without a proxy pass none of its rules. One
of two equal sets of namespaces may be faster by a few percent for its whole lifetime, so both are
created anew for each round. Both nodes have what any node has: a firewall with connection tracking,
and address translation, although it applies to none of the packets here.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.load import Backend, Clients, build
from benchmarks.processes import BenchmarkFailed
from benchmarks.proxy.loads import Loads, Route, Scale
from benchmarks.proxy.proxy import CLUSTER_IP, PORT, KernelProxy
from tests.e2e.network.namespaces import Namespace
from tests.proxy.kernel.lab import Lab
from yurttunnel.proxy.kernel import sysctl

WORKING, REFUSING, SILENT = range(3)
"""The endpoints; only the first one is used, unless stated otherwise."""

_HOLE = """
table ip hole {
    chain input {
        type filter hook input priority 0;
        meta l4proto tcp drop
    }
}
"""

_ANY_NODE = """
table ip any-node {
    chain forward {
        type filter hook forward priority 0;
        ct state established,related accept
    }
    chain postrouting {
        type nat hook postrouting priority 100;
        ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade
    }
}
"""

_CONGESTION = "ipv4/tcp_congestion_control"
_RENO = "reno"
"""A congestion control that each kernel provides, regardless of its default, and any namespace may
use. BBR would pace packets by round trips that virtual links do not have, and the time of one
stream would vary by a third.
"""

_TIMEOUT = 30.0


class Bench(Loads):
    """Starts everything in ``directory``; it ends with ``stack``."""

    def __init__(self, stack: ExitStack, directory: Path, scale: Scale) -> None:
        super().__init__(scale)
        if os.geteuid() != 0:
            raise BenchmarkFailed("kernel mode is measured in network namespaces: run it as root")
        self._directory = directory
        self._program = build(directory)
        # The TLS backend, which is not used here, needs a certificate.
        self._identity = Authority(directory).issue("bench")
        self._proxy: KernelProxy | None = None
        self._machines = stack.enter_context(ExitStack())
        self.renew()

    def renew(self) -> None:
        """Replace the namespaces and the programs in them."""
        self._machines.close()
        self._endpoints: tuple[int, ...] = ()
        self._lab = lab = _lab(self._machines, 3)
        others = _lab(self._machines, 1)
        lab.endpoints[SILENT].run("nft", "-f", "-", stdin=_HOLE)
        self._addresses = [str(lab.address(number).address) for number in range(3)]
        self._load, self._behind = self._ends(lab)
        load, backend = self._ends(others)
        working = self._addresses[WORKING]
        self.direct = Route(load, backend, working, backend.plain_port, backend.echo_port)
        self._machines.callback(self._stop)

    def _ends(self, lab: Lab) -> tuple[Clients, Backend]:
        with lab.client.inside():
            clients = self._machines.enter_context(Clients(self._program))
        with lab.endpoints[WORKING].inside():
            working = self._addresses[WORKING]
            backend = Backend(self._program, self._identity, working)
            return clients, self._machines.enter_context(backend)

    @property
    def ours(self) -> Route:
        """The route through the cluster IP of a Service with one endpoint."""
        if self._endpoints != (WORKING,):
            self._start(WORKING)
        return self.current

    @property
    def current(self) -> Route:
        """The route through the cluster IP of the current Service."""
        assert self._proxy is not None  # one has been started
        return Route(self._load, self._behind, CLUSTER_IP, PORT, PORT, [self._proxy.pid])

    def slowest_with_dead_endpoints(self, clients: int) -> float:
        """Return the seconds until the last of ``clients`` is connected by a new proxy while two of
        three endpoints are dead.
        """
        self._start(WORKING, REFUSING, SILENT)
        return max(self._connect(clients))

    def _start(self, *endpoints: int) -> None:
        """Start a new proxy of a Service with these endpoints, and stop the previous one."""
        self._stop()
        addresses = [self._addresses[each] for each in endpoints]
        with self._lab.node.inside():
            self._proxy = KernelProxy(
                self._directory, addresses, self._behind.plain_port, self._behind.echo_port
            )
            self._proxy.wait_until_ready()
        self._endpoints = endpoints

    def _stop(self) -> None:
        if self._proxy is not None:
            self._proxy.stop()
            self._proxy = None

    def _connect(self, clients: int) -> list[float]:
        begun = time.monotonic()
        seconds: list[float] = []
        with ExitStack() as stack, selectors.DefaultSelector() as waiting:
            with self._lab.client.inside():
                for _ in range(clients):
                    client = stack.enter_context(socket.socket())
                    client.setblocking(False)
                    client.connect_ex((CLUSTER_IP, PORT))
                    waiting.register(client, selectors.EVENT_WRITE)
            while waiting.get_map():
                for key, _ in waiting.select(_TIMEOUT):
                    connected = key.fileobj
                    assert isinstance(connected, socket.socket)
                    waiting.unregister(connected)
                    error = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if error:
                        raise BenchmarkFailed(f"a client has failed: {os.strerror(error)}")
                    seconds.append(time.monotonic() - begun)
                if time.monotonic() - begun > _TIMEOUT:
                    raise BenchmarkFailed(f"clients were not connected within {_TIMEOUT:.0f} s")
        return seconds


def _lab(stack: ExitStack, endpoints: int) -> Lab:
    """Return the namespaces of a contestant, with an ordinary node; do not move this thread."""
    here = Namespace(current=True)
    lab = Lab(endpoints)
    stack.callback(lab.close)
    here.enter()
    here.close()
    lab.node.run("nft", "-f", "-", stdin=_ANY_NODE)
    for machine in (lab.client, *lab.endpoints):
        with machine.inside():
            (sysctl.ROOT / _CONGESTION).write_text(_RENO)
    return lab
