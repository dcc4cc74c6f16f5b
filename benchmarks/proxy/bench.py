"""Everything that is needed, side by side: load, nginx, and the service proxy."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.certificates import Authority
from benchmarks.load import Driver, build
from benchmarks.nginx import Nginx
from benchmarks.processes import BenchmarkFailed, resident
from benchmarks.proxy.peer import Peer
from benchmarks.proxy.proxy import ServiceProxy

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Scale:
    """How much is done.

    Requests, connections and datagrams count for ``seconds``, after ``warm_up``; downloads and
    uploads carry ``mebibytes`` in all. Everything is repeated ``repeats`` times.
    """

    seconds: float
    warm_up: float
    mebibytes: int
    repeats: int


@dataclass(frozen=True)
class Way:
    """How the load gets to its backend: the ports to speak to, and the processes that it passes."""

    port: int
    echo_port: int
    pids: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Rate:
    """What came of many small operations: how many a second, and their middle in seconds."""

    rate: float
    p50: float


class Bench:
    """Starts everything in ``directory``; it ends with ``stack``."""

    def __init__(self, stack: ExitStack, directory: Path, nginx: Nginx, scale: Scale) -> None:
        self.scale = scale
        self.others_load = 0.0
        self._address = _own_address()
        # The backend with TLS, which nobody asks here, wants a certificate.
        identity = Authority(directory).issue("bench")
        self._driver = driver = stack.enter_context(
            Driver(build(directory), identity, address=self._address)
        )
        behind = self._address, driver.plain_port, driver.echo_port
        peer = Peer(stack, directory, nginx, *behind)
        self.proxy = stack.enter_context(ServiceProxy(directory, *behind))
        self.direct = Way(driver.plain_port, driver.echo_port)
        self.nginx = Way(peer.port, peer.port, peer.pids)
        self.ours = Way(self.proxy.port, self.proxy.port, [self.proxy.pid])

    def many(self, way: Way, work: str, clients: int) -> Rate:
        """Have clients do small work again and again: connections, requests or datagrams."""
        result = self._ask(way, work, clients=clients, ended=True)
        return Rate(result["operations"] / result["seconds"], result["p50"])

    def bulk(self, way: Way, work: str, streams: int) -> float:
        """Download or upload by streams at once; return the bytes a second of all of them."""
        size = self.scale.mebibytes * MEBIBYTE // streams
        result = self._ask(way, work, clients=streams, bytes=size)
        return float(result["bytes"] / result["seconds"])

    def resident(self) -> float:
        """Return the resident memory of the proxy in MiB."""
        return resident(self.proxy.pid) / MEBIBYTE

    def _ask(self, way: Way, work: str, **command: Any) -> dict[str, Any]:
        port = way.echo_port if work == "datagrams" else way.port
        where = f"{self._address}:{port}"
        result = self._driver.ask(
            {
                "work": work,
                "way": {"kind": "tcp", "address": where, "host": where},
                "seconds": self.scale.seconds,
                "warm_up": self.scale.warm_up,
                "tested": way.pids,
                **command,
            }
        )
        known = result["driver_cpu"] + sum(result["tested_cpu"].values())
        others = (result["machine_cpu"] - known) / result["seconds"]
        self.others_load = max(self.others_load, others)
        return result


def _own_address() -> str:
    """Return an address of this machine that is not loopback, as endpoints must not be."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # This sends nothing; the address is one that nobody has (RFC 5737).
            probe.connect(("203.0.113.1", 9))
        except OSError as error:
            raise BenchmarkFailed(
                f"this machine has no address but those of loopback ({error.strerror}): give it one"
                " and a default route"
            ) from None
        address: str = probe.getsockname()[0]
        return address
