"""The environment of the benchmark: the API, nginx, the load, and hubs on demand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.certificates import Authority
from benchmarks.hub.api import NAME, Api
from benchmarks.hub.hub import KUBELET, NODE_PATH, Hub
from benchmarks.hub.identity import prepare
from benchmarks.hub.objects import MARK, NODE
from benchmarks.hub.peer import Proxy
from benchmarks.load import Clients, build
from benchmarks.nginx import Nginx
from benchmarks.processes import BenchmarkFailed

PODS_PATH = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}&resourceVersion=0"

_WATCH_PATH = (
    "/api/v1/namespaces/bench/configmaps"
    "?fieldSelector=metadata.name%3Dsettings-{}&resourceVersion=1000&watch=true"
)

ACCEPT = {
    "json": "application/json",
    "protobuf": "application/vnd.kubernetes.protobuf,application/json",
}
"""The values of ``Accept`` by the name of the media type."""

_POD_BYTES = 8192
"""An upper bound for the size of a pod."""

_ENOUGH = 0.9
"""The fraction of the events that has to arrive; some fall outside the measured time."""


@dataclass(frozen=True)
class Scale:
    """The amount of work.

    Requests and watches are measured for ``seconds``, after ``warm_up``. Starts are repeated
    ``starts`` times, outages ``outages`` times, everything else ``repeats`` times.
    """

    seconds: float
    warm_up: float
    pods: int
    watches: int
    rate: float
    repeats: int
    starts: int
    outages: int


@dataclass(frozen=True)
class Route:
    """The route of the load to the API, and the processes on it."""

    description: dict[str, str]
    pids: Sequence[int]


@dataclass(frozen=True)
class Requests:
    """The result of small requests, with CPU seconds per request of proxy, API and load."""

    rate: float
    p50: float
    proxy: float
    api: float
    load: float


@dataclass(frozen=True)
class Listing:
    """The result of a list: the seconds to its first and last byte, and its size in bytes."""

    first: float
    seconds: float
    size: int


@dataclass(frozen=True)
class Events:
    """The result of watches: delays in seconds, and CPU seconds of the proxy per event."""

    p50: float
    p99: float
    proxy: float


class Bench:
    """Starts everything except the hubs in ``directory``; it ends with ``stack``."""

    def __init__(self, stack: ExitStack, directory: Path, nginx: Nginx, scale: Scale) -> None:
        self.scale = scale
        self.others_load = 0.0
        self._directory = directory
        self._numbers = itertools.count()
        objects = directory / "objects"
        objects.mkdir()
        self._authority = Authority(directory)
        program = build(directory)
        self.api = stack.enter_context(Api(program, objects, self._authority, scale.pods))
        own = self._authority.issue(NODE)
        self._clients = stack.enter_context(Clients(program))
        proxy = Proxy(
            stack, directory, nginx, self._authority, own, (NAME, self.api.port)
        )  # fmt: skip
        self.direct = Route(
            {
                "kind": "https",
                "address": f"127.0.0.1:{self.api.port}",
                "host": f"{NAME}:{self.api.port}",
                "authority": str(self._authority.certificate),
                "certificate": str(own.certificate),
                "key": str(own.key),
            },
            (),
        )
        self.nginx = Route(_plain(proxy.port), proxy.pids)
        self.nginx_watches = Route(_plain(proxy.watch_port), proxy.pids)
        self.api.calibrate(self.requests(self.direct, 1).api)

    @contextmanager
    def hub(self, directory: Path | None = None, *, online: bool = True) -> Iterator[Hub]:
        """Run a hub, by default one with only its identity; wait until it is online."""
        if directory is None:
            directory = self.prepared()
        with Hub(directory, self.api.port) as hub:
            if online:
                hub.wait_until(hub.is_online, "it was online", interval=0.05)
            yield hub

    def prepared(self) -> Path:
        """Create a directory for a hub, with its identity."""
        directory = self._directory / f"hub-{next(self._numbers)}"
        directory.mkdir()
        prepare(directory, self._authority)
        return directory

    def requests(self, route: Route, clients: int) -> Requests:
        """Run clients that GET the node repeatedly."""
        result = self._run(
            route, work="requests", clients=clients, path=NODE_PATH, answer=self.api.node
        )
        count = result["operations"]
        return Requests(
            rate=count / result["seconds"],
            p50=result["p50"],
            proxy=self._cpu(result, route) / count,
            api=float(result["tested_cpu"][str(self.api.pid)]) / count,
            load=result["driver_cpu"] / count,
        )

    def list(self, route: Route, media: str) -> Listing:
        """List all pods."""
        result = self._run(
            route,
            work="list",
            path=PODS_PATH,
            fields=(f"Accept: {ACCEPT[media]}",),
            bytes=self.scale.pods * _POD_BYTES,
            item=MARK,
        )
        if result["operations"] != self.scale.pods:
            raise BenchmarkFailed(
                f"a list as {media} has {result['operations']} pods instead of {self.scale.pods}"
            )
        return Listing(result["first"], result["seconds"], result["bytes"])

    def watch(self, route: Route) -> Events:
        """Run watches, and send events to them."""
        scale = self.scale
        self.api.set(rate=scale.rate)
        result = self._run(route, work="watch", clients=scale.watches, path=_WATCH_PATH)
        self.api.no_watches()
        self.api.set(rate=0.0)
        count = result["operations"]
        if count < _ENOUGH * scale.rate * scale.seconds:
            raise BenchmarkFailed(
                f"{count} events arrived in {scale.seconds:g} s, with {scale.rate:g}/s sent"
            )
        return Events(result["p50"], result["p99"], self._cpu(result, route) / count)

    def _run(self, route: Route, fields: Sequence[str] = (), **command: Any) -> dict[str, Any]:
        result = self._clients.ask(
            {
                "way": route.description,
                "fields": [f"User-Agent: {KUBELET}", *fields],
                "seconds": self.scale.seconds,
                "warm_up": self.scale.warm_up,
                "tested": [self.api.pid, *route.pids],
                **command,
            }
        )
        measured = result["driver_cpu"] + sum(result["tested_cpu"].values())
        others = (result["machine_cpu"] - measured) / result["seconds"]
        self.others_load = max(self.others_load, others)
        return result

    @staticmethod
    def _cpu(result: dict[str, Any], route: Route) -> float:
        # The keys of a JSON object are strings.
        return sum(float(result["tested_cpu"][str(pid)]) for pid in route.pids)


def through(hub: Hub) -> Route:
    """Return the route through a hub."""
    return Route(_plain(hub.port), hub.pids())


def _plain(port: int) -> dict[str, str]:
    return {"kind": "tcp", "address": f"127.0.0.1:{port}", "host": f"127.0.0.1:{port}"}
