"""Measure the service proxy against nginx, part by part. See docs/performance.md."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks import machine, parts
from benchmarks.nginx import Nginx
from benchmarks.processes import working_directory
from benchmarks.proxy.bench import Bench
from benchmarks.proxy.loads import FULL, QUICK
from benchmarks.proxy.parts import PARTS


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    chosen: argparse.Namespace = parts.parser("proxy", __doc__, PARTS).parse_args(arguments)
    return chosen


def run(chosen: argparse.Namespace) -> None:
    """Measure, print and record; raises :class:`BenchmarkFailed`."""
    nginx = Nginx()
    scale = QUICK if chosen.quick else FULL
    facts = {**machine.facts(nginx), "settings": dataclasses.asdict(scale)}
    with working_directory() as directory, ExitStack() as stack:
        bench = Bench(stack, directory, nginx, scale)
        parts.measure("proxy", PARTS, bench, chosen, facts)


if __name__ == "__main__":
    parts.run_as_command("proxy", lambda: run(parse()))
