"""The lines of the table: one :class:`RatioLine` or :class:`IdleLine` for each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from benchmarks.run import Unit


class Route(Enum):
    """The route from the load to its backend."""

    PAIR = "pair"
    """TCP to the first nginx, TLS to the second, TCP to the backend."""
    KONNECTIVITY = "konnectivity"
    """HTTP CONNECT on the Unix socket of Konnectivity's server, through its agent."""
    CONNECT = "connect"
    """HTTP CONNECT on the server's Unix socket, through the agent."""
    INTERCEPTION = "interception"
    """HTTPS to the server's --secure-port, which speaks TLS with the backend through the agent."""
    LONG_TCP = "long-tcp"
    """Plain TCP on the long link."""
    LONG_CONNECT = "long-connect"
    """Like CONNECT, through an agent that is connected to the server over the long link."""


class Figure(Enum):
    """The figure of a run that is compared."""

    RATE = "operations a second"
    P50 = "the median of their times"
    P99 = "the 99th percentile of their times"
    THROUGHPUT = "bytes a second"

    @property
    def unit(self) -> Unit:
        """The unit of the figure."""
        units = {Figure.RATE: Unit.RATE, Figure.THROUGHPUT: Unit.THROUGHPUT}
        return units.get(self, Unit.LATENCY)


@dataclass(frozen=True)
class Work:
    """The work of the load.

    ``kind`` is a command of the driver: ``requests`` (each client requests two bytes repeatedly on
    one connection), ``connections`` (connect, send one request, close), ``download`` and ``upload``
    (each client transfers one body). ``stalled`` is the number of additional clients that have
    requested a GiB and do not read it.
    """

    kind: str
    clients: int
    figure: Figure
    stalled: int = 0


@dataclass(frozen=True)
class Contestant:
    """A contestant: a name, a route and the work."""

    name: str
    route: Route
    work: Work


@dataclass(frozen=True)
class Line:
    """One line of the table; ``reach`` is its minimum or maximum."""

    name: str
    title: str
    reach: float
    higher_is_better: bool
    unit: Unit

    def holds(self, value: float) -> bool:
        """Return whether a value meets the requirement."""
        return value >= self.reach if self.higher_is_better else value <= self.reach


@dataclass(frozen=True)
class RatioLine(Line):
    """A line whose ``reach`` is the ratio of the figure of ``ours`` to that of ``peer``.

    ``other`` runs in the same rounds if it is available; there is no requirement for it.
    ``reach_cost`` is the maximum of CPU seconds of both our programs for a request or byte.
    """

    peer: Contestant
    ours: Contestant
    other: Contestant | None = None
    reach_cost: float | None = None


@dataclass(frozen=True)
class IdleLine(Line):
    """A line whose ``reach`` is in its unit; ``idle.measure`` returns its value by this name."""


PEER, OURS, OTHER = "nginx pair", "yurttunnel", "Konnectivity"

_CONNECTIONS = Work("connections", 16, Figure.RATE)
_OTHERS = Work("requests", 4, Figure.P99)


def _through_all(name: str, title: str, reach: float, work: Work, reach_cost: float) -> RatioLine:
    """Return a line with the same work for all contestants."""
    return RatioLine(
        name, title, reach, work.figure is not Figure.P50, work.figure.unit,
        Contestant(PEER, Route.PAIR, work), Contestant(OURS, Route.CONNECT, work),
        Contestant(OTHER, Route.KONNECTIVITY, work), reach_cost,
    )  # fmt: skip


def _bulk(kind: str, clients: int) -> RatioLine:
    streams = "1 stream" if clients == 1 else f"{clients} streams"
    work = Work(kind, clients, Figure.THROUGHPUT)
    return _through_all(f"{kind}-{clients}", f"{kind}, {streams}", 0.90, work, 2.3e-9)


def _long(kind: str) -> RatioLine:
    work = Work(kind, 1, Figure.THROUGHPUT)
    return RatioLine(
        f"long-{kind}", f"{kind}, 1 stream, round trip 60 ms", 0.9, True, Unit.THROUGHPUT,
        Contestant("plain TCP", Route.LONG_TCP, work), Contestant(OURS, Route.LONG_CONNECT, work),
    )  # fmt: skip


LINES: tuple[Line, ...] = (
    _through_all(
        "requests-16", "small GETs, 16 clients", 0.90, Work("requests", 16, Figure.RATE), 42e-6
    ),
    _through_all(
        "latency-1", "small GETs, 1 client, p50", 1.4, Work("requests", 1, Figure.P50), 170e-6
    ),
    _through_all("connections-16", "new connections, 16 clients", 2.7, _CONNECTIONS, 450e-6),
    _bulk("download", 1),
    _bulk("download", 8),
    _bulk("upload", 1),
    _bulk("upload", 8),
    RatioLine(
        "intercepted-16", "intercepted HTTPS GETs, 16 clients, to new connections",
        4.0, True, Unit.RATE,
        Contestant(PEER, Route.PAIR, _CONNECTIONS),
        Contestant(OURS, Route.INTERCEPTION, Work("requests", 16, Figure.RATE)),
    ),
    RatioLine(
        "stalled-4", "p99 of 4 clients beside 4 stalled readers", 1.10, False, Unit.LATENCY,
        Contestant("undisturbed", Route.CONNECT, _OTHERS),
        Contestant("4 stalled", Route.CONNECT, Work("requests", 4, Figure.P99, stalled=4)),
    ),
    _long("download"),
    _long("upload"),
    IdleLine("memory", "resident, server + agent, idle", 90, False, Unit.MEBIBYTES),
    IdleLine("memory-agent", "resident at the server, each further idle agent", 100, False,
             Unit.KIBIBYTES),
    IdleLine("start-server", "start of the server until it is ready", 1, False, Unit.SECONDS),
    IdleLine("start-agent", "start of the agent until it is ready", 1, False, Unit.SECONDS),
)  # fmt: skip
"""The lines in the order in which they are measured and printed."""
