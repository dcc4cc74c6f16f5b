"""Measure the tunnel against a pair of nginx proxies, line by line. See docs/performance.md."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import baseline, idle, machine, record, report
from benchmarks.bench import Bench, Scale
from benchmarks.lines import LINES, IdleLine, RatioLine
from benchmarks.nginx import Nginx
from benchmarks.processes import BenchmarkFailed, working_directory
from benchmarks.result import Result, compare
from benchmarks.summary import Summary
from benchmarks.tunnel import Settings

FULL = Scale(seconds=5.0, warm_up=1.0, megabytes=1000)
QUICK = Scale(seconds=1.0, warm_up=0.3, megabytes=200)
FULL_REPEATS, QUICK_REPEATS = 7, 3

LOST, FAILED = 1, 2
"""Exit statuses: a line is worse than in the baseline; a measurement failed."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    names = [line.name for line in LINES]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="Exit status 1: a line lost more than 10 % beyond the spread against --baseline.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="short and few runs, two minutes in all")
    add(
        "--only",
        action="append",
        choices=names,
        metavar="LINE",
        help=f"measure this line only; repeatable; one of {', '.join(names)}",
    )
    add("--baseline", type=Path, metavar="FILE", help="compare with the JSON of an earlier run")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        default=Path("build/benchmark.json"),
        help="where to write the JSON [default: %(default)s]",
    )
    add(
        "--repeats",
        type=int,
        metavar="N",
        help="how often each contestant runs "
        f"[default: {FULL_REPEATS}, with --quick {QUICK_REPEATS}]",
    )
    add(
        "--seconds",
        type=float,
        metavar="S",
        help="how long a run of requests takes "
        f"[default: {FULL.seconds:g}, with --quick {QUICK.seconds:g}]",
    )
    add(
        "--megabytes",
        type=int,
        metavar="M",
        help="what a run of bulk carries, all its streams "
        f"together [default: {FULL.megabytes}, with --quick {QUICK.megabytes}]",
    )
    add(
        "--transport",
        choices=("direct", "twisted"),
        default="direct",
        help="the --transport of server and agent [default: %(default)s]",
    )
    add(
        "--reactor",
        default="epoll",
        help="Twisted's reactor, or uvloop for asyncio's on that loop, if it is installed "
        "[default: %(default)s]",
    )
    chosen = parser.parse_args(arguments)
    for name in ("repeats", "seconds", "megabytes"):
        value = getattr(chosen, name)
        if value is not None and value <= 0:
            parser.error(f"--{name} must be more than 0")
    return chosen


def scale_of(chosen: argparse.Namespace) -> Scale:
    """Return the scale of the runs."""
    scale = QUICK if chosen.quick else FULL
    given = {name: getattr(chosen, name) for name in ("seconds", "megabytes")}
    return dataclasses.replace(scale, **{name: it for name, it in given.items() if it is not None})


def measure_ratios(
    nginx: Nginx, settings: Settings, scale: Scale, lines: Sequence[RatioLine], repeats: int
) -> Iterator[Result]:
    """Start everything, and run the contestants of each line alternately."""
    with working_directory() as directory, ExitStack() as stack:
        bench = Bench(stack, directory, nginx, settings, scale)
        for line in lines:
            peer, ours, other = [], [], []
            for _ in range(repeats):
                peer.append(bench.run(line.peer))
                ours.append(bench.run(line.ours))
                if line.other is not None and bench.has(line.other):
                    other.append(bench.run(line.other))
            yield compare(line, peer, ours, other)


def measure_idle(settings: Settings, lines: Sequence[IdleLine], repeats: int) -> Iterator[Result]:
    """Start the tunnel ``repeats`` times, and measure it while it is idle."""
    stats = []
    for _ in range(repeats):
        with working_directory() as directory:
            stats.append(idle.measure(directory, settings))
    for line in lines:
        yield Result(line, [each[line.name] for each in stats], [], [])


def run(chosen: argparse.Namespace) -> int:
    """Measure, print and record; return the exit status. Raises :class:`BenchmarkFailed`."""
    earlier = {} if chosen.baseline is None else baseline.read_baseline(chosen.baseline)
    lines = [line for line in LINES if not chosen.only or line.name in chosen.only]
    ratios = [line for line in lines if isinstance(line, RatioLine)]
    idles = [line for line in lines if isinstance(line, IdleLine)]
    nginx = Nginx() if ratios else None
    facts = machine.facts(nginx)
    settings = Settings(chosen.reactor, chosen.transport)
    scale = scale_of(chosen)
    repeats = chosen.repeats or (QUICK_REPEATS if chosen.quick else FULL_REPEATS)
    used = {"repeats": repeats, **dataclasses.asdict(scale), **dataclasses.asdict(settings)}
    print(report.heading(), flush=True)
    results: list[Result] = []
    try:
        for measured in (
            measure_ratios(nginx, settings, scale, ratios, repeats) if nginx else (),
            measure_idle(settings, idles, repeats) if idles else (),
        ):
            for result in measured:
                results.append(result)
                print(report.row(result), flush=True)
    finally:
        # A run takes a quarter of an hour, so the results so far are written if a line fails.
        if results:
            record.write(chosen.output, record.document(results, facts, used))
    print()
    for text in (*report.costs(results), *report.doubts(results)):
        print(text)
    print(f"\neverything is in {chosen.output}")
    return compare_with_baseline(chosen.baseline, earlier, results) if chosen.baseline else 0


def compare_with_baseline(
    path: Path, earlier: Mapping[str, Summary], results: Sequence[Result]
) -> int:
    """Print the comparison with an earlier run; return the exit status."""
    found = baseline.changes(earlier, results)
    print(f"\nagainst {path}:")
    for text in report.comparison(found):
        print(text)
    return LOST if any(change.is_loss for change in found) else 0


def main() -> None:
    """Run as a command."""
    # Like Ctrl-C, SIGTERM first stops everything that was started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        sys.exit(run(parse()))
    except BenchmarkFailed as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
