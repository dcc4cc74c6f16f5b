"""Kernel mode beside no proxy: a client, a node and endpoints, each in a network namespace.

Each way has machines of its own, so that packets of the other one meet no rule of the proxy. Of two
sets of machines that are alike one may be faster for as long as it is there, by some hundredths: so
they are made anew for each turn. Both nodes have what any node has: a firewall that tracks
connections, and address translation, though none of the packets here is one that it is for.
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
from benchmarks.proxy.loads import Loads, Scale, Way
from benchmarks.proxy.proxy import CLUSTER_IP, PORT, KernelProxy
from tests.e2e.network.namespaces import Namespace
from tests.proxy.kernel.lab import Lab
from yurttunnel.proxy.kernel import sysctl

LIVING, REFUSING, SILENT = range(3)
"""The endpoints; only the first one is asked where no other is said to be."""

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
"""Which each kernel has, whatever it has for all, and any namespace may have. BBR paces packets by
the round trips of wires that have none, and one stream takes a third more time or less.
"""

_PATIENCE = 30.0


class Bench(Loads):
    """Starts everything in ``directory``; it ends with ``stack``."""

    def __init__(self, stack: ExitStack, directory: Path, scale: Scale) -> None:
        super().__init__(scale)
        if os.geteuid() != 0:
            raise BenchmarkFailed("kernel mode is measured in network namespaces: run it as root")
        self._directory = directory
        self._program = build(directory)
        # The backend with TLS, which nobody asks here, wants a certificate.
        self._identity = Authority(directory).issue("bench")
        self._proxy: KernelProxy | None = None
        self._machines = stack.enter_context(ExitStack())
        self.renew()

    def renew(self) -> None:
        """Have new machines, and new programs on them."""
        self._machines.close()
        self._endpoints: tuple[int, ...] = ()
        self._lab = lab = _lab(self._machines, 3)
        others = _lab(self._machines, 1)
        lab.endpoints[SILENT].run("nft", "-f", "-", stdin=_HOLE)
        self._addresses = [str(lab.address(number).address) for number in range(3)]
        self._load, self._behind = self._ends(lab)
        load, backend = self._ends(others)
        living = self._addresses[LIVING]
        self.direct = Way(load, backend, living, backend.plain_port, backend.echo_port)
        self._machines.callback(self._stop)

    def _ends(self, lab: Lab) -> tuple[Clients, Backend]:
        with lab.client.inside():
            clients = self._machines.enter_context(Clients(self._program))
        with lab.endpoints[LIVING].inside():
            living = self._addresses[LIVING]
            backend = Backend(self._program, self._identity, living)
            return clients, self._machines.enter_context(backend)

    @property
    def ours(self) -> Way:
        """The way by the cluster IP of a Service with one endpoint."""
        if self._endpoints != (LIVING,):
            self._start(LIVING)
        return self.current

    @property
    def current(self) -> Way:
        """The way by the cluster IP of the Service that there is."""
        assert self._proxy is not None  # one has been started
        return Way(self._load, self._behind, CLUSTER_IP, PORT, PORT, [self._proxy.pid])

    def slowest_beside_dead(self, clients: int) -> float:
        """Return after how many seconds the last of some clients was connected, two of three
        endpoints being dead, by a proxy that does not know that yet.
        """
        self._start(LIVING, REFUSING, SILENT)
        return max(self._connect(clients))

    def _start(self, *endpoints: int) -> None:
        """Have a new proxy of a Service with these endpoints; there is but one at a time."""
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
                for key, _ in waiting.select(_PATIENCE):
                    connected = key.fileobj
                    assert isinstance(connected, socket.socket)
                    waiting.unregister(connected)
                    error = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if error:
                        raise BenchmarkFailed(f"a client has failed: {os.strerror(error)}")
                    seconds.append(time.monotonic() - begun)
                if time.monotonic() - begun > _PATIENCE:
                    raise BenchmarkFailed(f"clients were not connected within {_PATIENCE:.0f} s")
        return seconds


def _lab(stack: ExitStack, endpoints: int) -> Lab:
    """Return the machines of a way, whose node is no other than any; this thread stays here."""
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
