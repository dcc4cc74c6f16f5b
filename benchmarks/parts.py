"""A benchmark in parts, each with several figures, that compares a program with nginx."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks import record
from benchmarks.figures import Figure, heading
from benchmarks.processes import BenchmarkFailed
from benchmarks.result import OTHERS_LOAD


class Bench(Protocol):
    """The environment of the benchmark."""

    others_load: float
    """The maximum number of processors that other programs kept busy during a run."""


AnyBench = TypeVar("AnyBench", bound=Bench)

Parts = Mapping[str, Callable[[AnyBench], Iterator[Figure]]]
"""Parts by their names on the command line, in the order in which they are measured."""


def parser(module: str, description: str | None, parts: Mapping[str, Any]) -> Any:
    """Return the command line parser of ``benchmarks.MODULE``."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=description)
    made.add_argument("--quick", action="store_true", help="short and few runs")
    made.add_argument(
        "--only",
        action="append",
        choices=tuple(parts),
        help="measure this part only; repeatable; one of %(choices)s",
    )
    made.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        default=Path(f"build/{module}.json"),
        help="where to write the JSON [default: %(default)s]",
    )
    return made


def measure(
    name: str,
    parts: Parts[AnyBench],
    bench: AnyBench,
    chosen: argparse.Namespace,
    facts: Mapping[str, Any],
    peer: str = "nginx",
) -> None:
    """Measure the chosen parts of ``name`` and ``peer``; print the figures, and write them with
    ``facts``.
    """
    print(heading(name, peer), flush=True)
    measured: list[Figure] = []
    try:
        for title, part in parts.items():
            if chosen.only and title not in chosen.only:
                continue
            for figure in part(bench):
                measured.append(figure)
                print(figure.row(), flush=True)
    finally:
        # A run takes many minutes, so the figures so far are written if a part fails.
        if measured:
            figures = [figure.record() for figure in measured]
            record.write(chosen.output, {"format": record.FORMAT, **facts, "figures": figures})
    if bench.others_load > OTHERS_LOAD:
        print(
            f"\nother programs kept up to {bench.others_load:.1f} processors busy:"
            " run again on an idle machine"
        )
    print(f"\neverything is in {chosen.output}")


def run_as_command(module: str, run: Callable[[], None]) -> None:
    """Run ``benchmarks.MODULE``, and stop everything that it has started."""
    # Like Ctrl-C, SIGTERM first stops everything that was started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        run()
    except BenchmarkFailed as error:
        sys.exit(f"benchmarks.{module}: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
