"""Measure the service proxy in kernel mode beside no proxy. See docs/performance.md."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks import machine, parts
from benchmarks.processes import working_directory
from benchmarks.proxy.kernel.bench import Bench
from benchmarks.proxy.kernel.parts import PARTS
from benchmarks.proxy.loads import QUICK, Scale

NAME = "proxy.kernel"

FULL = Scale(seconds=0.4, warm_up=0.1, mebibytes=1024, repeats=121)
"""Many short turns: both ways are nearly alike, and what the machine's pace does to one of two
neighbors is more than that. Where the quartiles of turns are a tenth apart, as they are, the median
of so many is right to a hundredth. What has no seconds has fewer turns."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    chosen: argparse.Namespace = parts.parser(NAME, __doc__, PARTS).parse_args(arguments)
    return chosen


def run(chosen: argparse.Namespace) -> None:
    """Measure, print and record; raises :class:`BenchmarkFailed`."""
    scale = QUICK if chosen.quick else FULL
    facts = {**machine.facts(None), "settings": dataclasses.asdict(scale)}
    with working_directory() as directory, ExitStack() as stack:
        bench = Bench(stack, directory, scale)
        parts.measure(NAME, PARTS, bench, chosen, facts, "no proxy")


if __name__ == "__main__":
    parts.run_as_command(NAME, lambda: run(parse()))
