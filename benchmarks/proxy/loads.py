"""The loads of the benchmark, and their scale."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.load import Backend, Clients

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Scale:
    """The amount of work.

    Requests, connections and datagrams are measured for ``seconds``, after ``warm_up``; downloads
    and uploads transfer ``mebibytes`` in total. Everything is repeated at most ``repeats`` times.
    """

    seconds: float
    warm_up: float
    mebibytes: int
    repeats: int


FULL = Scale(seconds=1.0, warm_up=0.2, mebibytes=1024, repeats=15)
QUICK = Scale(seconds=0.5, warm_up=0.2, mebibytes=512, repeats=3)


@dataclass(frozen=True)
class Route:
    """The address by which clients reach the backend, and the processes on that route."""

    clients: Clients
    backend: Backend
    address: str
    port: int
    echo_port: int
    pids: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Rate:
    """The result of many small operations: the rate per second, and the median in seconds."""

    rate: float
    p50: float


class Loads:
    """Runs loads; ``others_load`` is the maximum number of processors used by other programs."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.others_load = 0.0

    def many(self, route: Route, work: str, clients: int) -> Rate:
        """Run clients that repeat a small operation: connections, requests or datagrams."""
        result = self._run(route, work, clients=clients, ended=True)
        return Rate(result["operations"] / result["seconds"], result["p50"])

    def bulk(self, route: Route, work: str, streams: int) -> float:
        """Download or upload in concurrent streams; return their total bytes per second."""
        size = self.scale.mebibytes * MEBIBYTE // streams
        result = self._run(route, work, clients=streams, bytes=size)
        return float(result["bytes"] / result["seconds"])

    def _run(self, route: Route, work: str, **command: Any) -> dict[str, Any]:
        port = route.echo_port if work == "datagrams" else route.port
        where = f"{route.address}:{port}"
        result = route.clients.run(
            {
                "work": work,
                "way": {"kind": "tcp", "address": where, "host": where},
                "seconds": self.scale.seconds,
                "warm_up": self.scale.warm_up,
                "tested": route.pids,
                **command,
            },
            route.backend,
        )
        measured = result["driver_cpu"] + sum(result["tested_cpu"].values())
        others = (result["machine_cpu"] - measured) / result["seconds"]
        self.others_load = max(self.others_load, others)
        return result
