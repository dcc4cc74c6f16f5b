"""Measure the service proxy in kernel mode against no proxy. See docs/performance.md."""

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
"""Many short rounds: both contestants are nearly equal, and fluctuations of the machine between two
adjacent runs are larger than their difference. With quartiles a tenth apart, as measured, the
median of this many rounds is accurate to a hundredth. Bulk transfers have fewer rounds."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
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
