"""The environment of the benchmark: the load, nginx, and the service proxy."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.load import Backend, Clients, build
from benchmarks.nginx import Nginx
from benchmarks.processes import BenchmarkFailed, resident
from benchmarks.proxy.dials import dial_all
from benchmarks.proxy.loads import MEBIBYTE, Loads, Route, Scale
from benchmarks.proxy.peer import Peer
from benchmarks.proxy.proxy import ServiceProxy
from tests.black_hole import BlackHole

LOOPBACK, WORKING, REFUSING, SILENT = (f"127.0.0.{number}" for number in range(1, 5))
"""The address of a proxy for this machine only, and its endpoints."""


class Bench(Loads):
    """Starts everything in ``directory``; it ends with ``stack``."""

    def __init__(self, stack: ExitStack, directory: Path, nginx: Nginx, scale: Scale) -> None:
        super().__init__(scale)
        address = _own_address()
        self._directory = directory
        program = build(directory)
        # The TLS backend, which is not used here, needs a certificate.
        identity = Authority(directory).issue("bench")
        load = stack.enter_context(Clients(program))
        backend = stack.enter_context(Backend(program, identity, address))
        self._working = stack.enter_context(Backend(program, identity, WORKING))
        behind = address, backend.plain_port, backend.echo_port
        peer = Peer(stack, directory, nginx, *behind)
        self.proxy = stack.enter_context(
            ServiceProxy(directory, [address], backend.plain_port, backend.echo_port)
        )
        self.direct = Route(load, backend, *behind)
        self.nginx = Route(load, backend, address, peer.port, peer.port, peer.pids)
        port = self.proxy.port
        self.ours = Route(load, backend, address, port, port, [self.proxy.pid])

    def resident(self) -> float:
        """Return the resident memory of the proxy in MiB."""
        return resident(self.proxy.pid) / MEBIBYTE

    def with_dead_endpoints(self, clients: int, at_once: int) -> tuple[list[float], list[float]]:
        """Return the seconds that clients wait for a response with two of three endpoints dead:
        first ``at_once`` clients at a time with a new proxy, then one after the other.
        """
        port = self._working.plain_port
        endpoints = (WORKING, REFUSING, SILENT)
        with (
            closing(BlackHole(SILENT, port)),
            ServiceProxy(
                self._directory, endpoints, port, self._working.echo_port, LOOPBACK
            ) as proxy,
        ):
            where = LOOPBACK, proxy.port
            return dial_all(where, clients, at_once), dial_all(where, clients, 1)


def _own_address() -> str:
    """Return an address of this machine that is not loopback, as endpoints must not be."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # This sends nothing; the address is reserved for documentation (RFC 5737).
            probe.connect(("203.0.113.1", 9))
        except OSError as error:
            raise BenchmarkFailed(
                f"this machine has no address but those of loopback ({error.strerror}): give it one"
                " and a default route"
            ) from None
        address: str = probe.getsockname()[0]
        return address
