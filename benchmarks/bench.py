"""The environment of a run: the load, the pair of nginx proxies, the tunnel and the long link."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.certificates import Authority
from benchmarks.konnectivity import Konnectivity, konnectivity_programs
from benchmarks.lines import Contestant, Figure, Route
from benchmarks.load import Backend, Clients, build
from benchmarks.nginx import Nginx, Pair
from benchmarks.run import Run
from benchmarks.tunnel import Agent, Server, Settings

NEAR, FAR = "edge-1", "edge-2"
"""The node beside the server, and the one behind the long link."""

DELAY = 0.030
"""The delay of the long link in each direction, in seconds."""

RATE = 125_000_000
"""The rate of the long link in each direction, in bytes a second: 1 Gbit/s."""


@dataclass(frozen=True)
class Scale:
    """The size of a run: ``seconds`` of requests, or ``megabytes`` (10^6 bytes) of all streams."""

    seconds: float
    warm_up: float
    megabytes: int


class Bench:
    """Starts everything in ``directory``; it ends with ``stack``.

    Konnectivity takes part if its programs are installed.
    """

    def __init__(
        self, stack: ExitStack, directory: Path, nginx: Nginx, settings: Settings, scale: Scale
    ) -> None:
        self._scale = scale
        kubelets = directory / "kubelets"
        pair = directory / "pair"
        tunnel = directory / "tunnel"
        for each in (kubelets, pair, tunnel):
            each.mkdir()
        authority = Authority(kubelets)
        program = build(directory)
        self._clients = stack.enter_context(Clients(program))
        self._backend = stack.enter_context(Backend(program, authority.issue(NEAR)))
        plain = self._backend.plain_port
        self._pair = Pair(stack, pair, nginx, plain)
        self._server = Server(tunnel, settings, authority.certificate)
        stack.enter_context(self._server)
        agent_port = self._server.agent_port
        near = stack.enter_context(Agent(tunnel, settings, NEAR, self._server, agent_port))
        far = stack.enter_context(
            Agent(tunnel, settings, FAR, self._server, self._link(agent_port))
        )
        self._long_port = self._link(plain)
        server = [self._server.pid]
        self._tested: dict[Route, dict[str, list[int]]] = {
            Route.PAIR: {name: [pid] for name, pid in self._pair.pids.items()},
            Route.CONNECT: {"server": server, "agent": [near.pid]},
            Route.INTERCEPTION: {"server": server, "agent": [near.pid]},
            Route.LONG_TCP: {},
            Route.LONG_CONNECT: {"server": server, "agent": [far.pid]},
        }

        self._konnectivity: Konnectivity | None = None
        programs = konnectivity_programs()
        if programs is not None:
            there = directory / "konnectivity"
            there.mkdir()
            self._konnectivity = Konnectivity(stack, there, programs)
            self._tested[Route.KONNECTIVITY] = {
                name: [pid] for name, pid in self._konnectivity.pids.items()
            }

    def has(self, contestant: Contestant) -> bool:
        """Return whether a contestant can run here."""
        return contestant.route in self._tested

    def _link(self, port: int) -> int:
        """Start a long link to a port; return the port of its near end."""
        answer = self._clients.ask(
            {"work": "link", "target": f"127.0.0.1:{port}", "delay": DELAY, "rate": RATE}
        )
        return int(answer["port"])

    def _route(self, route: Route) -> dict[str, str]:
        """Describe a route in the format of the driver."""
        plain = self._backend.plain_port
        match route:
            case Route.PAIR:
                return {"kind": "tcp", "address": f"127.0.0.1:{self._pair.port}", "host": "x"}
            case Route.LONG_TCP:
                return {"kind": "tcp", "address": f"127.0.0.1:{self._long_port}", "host": "x"}
            case Route.CONNECT | Route.LONG_CONNECT:
                node = NEAR if route is Route.CONNECT else FAR
                return {
                    "kind": "connect",
                    "address": str(self._server.socket),
                    "host": f"{node}:{plain}",
                }
            case Route.KONNECTIVITY:
                assert self._konnectivity is not None  # or it is no contestant
                address = str(self._konnectivity.socket)
                return {"kind": "connect", "address": address, "host": f"127.0.0.1:{plain}"}
            case Route.INTERCEPTION:
                state = self._server.state
                return {
                    "kind": "https",
                    "address": f"127.0.0.1:{self._server.secure_port}",
                    "host": f"{NEAR}:{self._backend.secure_port}",
                    "authority": str(state / "ca.crt"),
                    "certificate": str(state / "client.crt"),
                    "key": str(state / "client.key"),
                }

    def run(self, contestant: Contestant) -> Run:
        """Run the work of one contestant once; raises ``BenchmarkFailed``."""
        work, tested = contestant.work, self._tested[contestant.route]
        scale = self._scale
        result = self._clients.run(
            {
                "work": work.kind,
                "way": self._route(contestant.route),
                "clients": work.clients,
                "stalled": work.stalled,
                "seconds": scale.seconds,
                "warm_up": scale.warm_up,
                "bytes": scale.megabytes * 1_000_000 // work.clients,
                "tested": [pid for pids in tested.values() for pid in pids],
            },
            self._backend,
        )
        # The keys of a JSON object are strings.
        cpu = {
            name: sum(float(result["tested_cpu"][str(pid)]) for pid in pids)
            for name, pids in tested.items()
        }
        driver = float(result["driver_cpu"])
        return Run(
            value=_value(work.figure, result),
            work=result["bytes"] or result["operations"],
            seconds=result["seconds"],
            tested_cpu=cpu,
            driver_cpu=driver,
            # Counted in hundredths of a second and at other moments, so it could be negative.
            others_cpu=max(0.0, result["machine_cpu"] - driver - sum(cpu.values())),
        )


def _value(figure: Figure, result: dict[str, Any]) -> float:
    match figure:
        case Figure.RATE:
            return float(result["operations"] / result["seconds"])
        case Figure.THROUGHPUT:
            return float(result["bytes"] / result["seconds"] / 1e6)
        case Figure.P50:
            return float(result["p50"] * 1000)
        case Figure.P99:
            return float(result["p99"] * 1000)
