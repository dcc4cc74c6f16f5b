"""Measure the hub against nginx, part by part. See docs/performance.md."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import machine, record
from benchmarks.hub.bench import Bench, Scale
from benchmarks.hub.figures import Figure, heading
from benchmarks.hub.parts import PARTS
from benchmarks.nginx import Nginx
from benchmarks.processes import BenchmarkFailed, working_directory
from benchmarks.result import OTHERS_LOAD

FULL = Scale(
    seconds=5.0, warm_up=1.0, pods=5000, watches=300, rate=300.0, repeats=7, starts=5, outages=3
)
QUICK = Scale(
    seconds=1.0, warm_up=0.3, pods=5000, watches=300, rate=300.0, repeats=3, starts=2, outages=1
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hub", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="short and few runs, two minutes in all")
    add(
        "--only",
        action="append",
        choices=tuple(PARTS),
        help="measure this part only; repeatable; one of %(choices)s",
    )
    add(
        "--output",
        type=Path,
        metavar="FILE",
        default=Path("build/hub.json"),
        help="where to write the JSON [default: %(default)s]",
    )
    return parser.parse_args(arguments)


def run(chosen: argparse.Namespace) -> None:
    """Measure, print and record; raises :class:`BenchmarkFailed`."""
    nginx = Nginx()
    facts = machine.facts(nginx)
    scale = QUICK if chosen.quick else FULL
    print(heading(), flush=True)
    measured: list[Figure] = []
    with working_directory() as directory, ExitStack() as stack:
        bench = Bench(stack, directory, nginx, scale)
        try:
            for name, part in PARTS.items():
                if chosen.only and name not in chosen.only:
                    continue
                for figure in part(bench):
                    measured.append(figure)
                    print(figure.row(), flush=True)
        finally:
            # What there is of a run of many minutes is kept when a part fails.
            if measured:
                figures = [figure.record() for figure in measured]
                document = {"format": record.FORMAT, **facts, "settings": dataclasses.asdict(scale)}
                record.write(chosen.output, {**document, "figures": figures})
    if bench.others_load > OTHERS_LOAD:
        print(
            f"\nother programs kept up to {bench.others_load:.1f} processors busy:"
            " run again on an idle machine"
        )
    print(f"\neverything is in {chosen.output}")


def main() -> None:
    """Run as a command."""
    # As Ctrl-C does: everything that was started is ended first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        run(parse())
    except BenchmarkFailed as error:
        sys.exit(f"benchmarks.hub: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
