"""Measure the hub against nginx, part by part. See docs/performance.md."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks import machine, parts
from benchmarks.hub.bench import Bench, Scale
from benchmarks.hub.parts import PARTS
from benchmarks.nginx import Nginx
from benchmarks.processes import working_directory

FULL = Scale(
    seconds=5.0, warm_up=1.0, pods=5000, watches=300, rate=300.0, repeats=7, starts=5, outages=3
)
QUICK = Scale(
    seconds=1.0, warm_up=0.3, pods=5000, watches=300, rate=300.0, repeats=3, starts=2, outages=1
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    chosen: argparse.Namespace = parts.parser("hub", __doc__, PARTS).parse_args(arguments)
    return chosen


def run(chosen: argparse.Namespace) -> None:
    """Measure, print and record; raises :class:`BenchmarkFailed`."""
    nginx = Nginx()
    scale = QUICK if chosen.quick else FULL
    facts = {**machine.facts(nginx), "settings": dataclasses.asdict(scale)}
    with working_directory() as directory, ExitStack() as stack:
        bench = Bench(stack, directory, nginx, scale)
        parts.measure("hub", PARTS, bench, chosen, facts)


if __name__ == "__main__":
    parts.run_as_command("hub", lambda: run(parse()))
