"""The cost of firewall rules that redirect a cluster's connections to the server.

Run it with ``python -m benchmarks.steering`` as root; everything runs in separate network
namespaces. The real manager creates the real rules, with both back ends of iptables and both values
of ``--intercept-match``, for nodes in memory: 5,000 edge nodes, as many cloud nodes, 5 ports. See
docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine, record
from benchmarks.processes import BenchmarkFailed
from benchmarks.steering_connections import Case, measure
from benchmarks.steering_manager import run_manager
from tests.e2e.network.namespaces import Namespace
from yurttunnel.steering.interception import Match

BACK_ENDS = ("nft", "legacy")
MIN_NODES, MEDIUM_NODES = 100, 1000
NODES = 5000
REPEATS, ROUNDS, CONNECTIONS = 5, 25, 300
QUICK_REPEATS, QUICK_ROUNDS = 1, 5

MAX_PROCESSES = 1
"""The processes of an unchanged sync: one that reads the rules, as all addresses are IPv4."""

_ROW = "{:<7} {:<13} {:<34} {:>9} {:>9}  {}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, the median of several runs; ``most`` and ``least`` are its required range."""

    backend: str
    match: str
    name: str
    value: float
    most: float | None = None
    least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the requirement is met."""
        return not (
            (self.most is not None and self.value > self.most)
            or (self.least is not None and self.value < self.least)
        )

    def row(self) -> str:
        """Return a row of the table."""
        demanded = ""
        if self.most is not None:
            demanded = f"<= {self.most:g}"
        elif self.least is not None:
            demanded = f">= {self.least:g}"
        verdict = "" if not demanded else "holds" if self.holds else "misses"
        value = f"{self.value:.0f}" if self.value >= 100 else f"{self.value:.3g}"
        return _ROW.format(self.backend, self.match, self.name, value, demanded, verdict).rstrip()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steering", description="Measure the rules of the firewall."
    )
    parser.add_argument("--quick", action="store_true", help="few runs, a minute in all")
    parser.add_argument(
        "--nodes",
        type=int,
        default=NODES,
        metavar="N",
        help=f"edge nodes, and as many cloud nodes, at least {MIN_NODES} [default: %(default)s]",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        default=Path("build/steering.json"),
        help="where to write the JSON [default: %(default)s]",
    )
    chosen = parser.parse_args(arguments)
    if chosen.nodes < MIN_NODES:
        parser.error(f"--nodes must be at least {MIN_NODES}")
    return chosen


def sync_figures(backend: str, match: Match, runs: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    """Yield the figures from the output of :mod:`benchmarks.steering_manager`."""

    def middle(sync: str, *names: str) -> float:
        taken = [{**run[sync], **run[sync]["cost"]} for run in runs]
        return statistics.median(sum(float(each[name]) for name in names) for each in taken)

    cpu = ("own_cpu", "child_cpu")
    for name, value, most in (
        ("first sync, s", middle("first", "seconds"), 1.0),
        ("first sync, CPU s", middle("first", *cpu), None),
        ("first sync, processes", middle("first", "processes"), None),
        ("unchanged sync, s", middle("unchanged", "seconds"), None),
        ("unchanged sync, CPU s", middle("unchanged", *cpu), 0.1),
        ("unchanged sync, processes", middle("unchanged", "processes"), MAX_PROCESSES),
        ("one node's change, s", middle("changed", "seconds"), 0.2),
        ("one node's change, CPU s", middle("changed", *cpu), None),
        ("removing everything, s", middle("removed", "seconds"), None),
    ):
        yield Figure(backend, match.value, name, value, most=most)


def connection_figures(
    backend: str, ratios: Mapping[Case, float], max_nodes: int
) -> Iterator[Figure]:
    """Yield the figures from the ratios to connections without rules."""
    for case, ratio in ratios.items():
        name = f"connections, {case.nodes} edge nodes"
        yield Figure(backend, case.match.value, name, ratio)
    growth = ratios[Case(Match.EDGE_SET, max_nodes)] / ratios[Case(Match.EDGE_SET, MIN_NODES)]
    name = f"the same, {max_nodes} : {MIN_NODES} nodes"
    yield Figure(backend, Match.EDGE_SET.value, name, growth, least=0.9)


def _syncs(backend: str, match: Match, nodes: int) -> Mapping[str, Any]:
    with closing(Namespace()) as namespace, namespace.inside():
        return run_manager(backend, match, nodes)


def stats(nodes: int, repeats: int, rounds: int) -> Iterator[Figure]:
    """Measure everything."""
    for backend in BACK_ENDS:
        for match in Match:
            runs = [_syncs(backend, match, nodes) for _ in range(repeats)]
            yield from sync_figures(backend, match, runs)
        sizes = sorted({MIN_NODES, min(MEDIUM_NODES, nodes), nodes})
        cases = [Case(match, size) for match in Match for size in sizes]
        rates = measure(backend, cases, rounds, CONNECTIONS)
        yield from connection_figures(backend, {each.case: each.ratio for each in rates}, nodes)


def run(chosen: argparse.Namespace) -> None:
    """Measure, print and record; raises :class:`BenchmarkFailed`."""
    if os.geteuid() != 0:
        raise BenchmarkFailed("only root can make network namespaces and rules: run it as root")
    repeats, rounds = (QUICK_REPEATS, QUICK_ROUNDS) if chosen.quick else (REPEATS, ROUNDS)
    settings = {"nodes": chosen.nodes, "repeats": repeats, "rounds": rounds}
    facts = machine.facts(None)
    print(_ROW.format("backend", "match", "figure", "median", "demanded", "").rstrip(), flush=True)
    measured = []
    for figure in stats(chosen.nodes, repeats, rounds):
        measured.append(asdict(figure))
        print(figure.row(), flush=True)
    document = {"format": record.FORMAT, **facts, "settings": settings, "figures": measured}
    record.write(chosen.output, document)
    print(f"\neverything is in {chosen.output}")


if __name__ == "__main__":
    try:
        run(parse())
    except BenchmarkFailed as error:
        sys.exit(f"benchmarks.steering: {error}")
