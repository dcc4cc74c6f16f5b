"""The cost of many agents for the server: memory, CPU time, and a restart with all connected.

Run it with ``python -m benchmarks.scale``. The agents are real ones in a shared process, see
:mod:`benchmarks.crowd`; the server and the load are those of the other benchmarks. See
docs/performance.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import machine, record, scale_parts
from benchmarks.processes import BenchmarkFailed, working_directory
from benchmarks.scale_parts import Figure, Work
from benchmarks.tunnel import Settings

STEPS, QUICK_STEPS = (1, 100, 1000, 2000, 5000), (1, 500)
RESTARTS, QUICK_RESTARTS = (2000, 5000), (500,)
REQUESTS, QUICK_REQUESTS = (1, 100, 1000), (1, 500)
WORK, QUICK_WORK = Work(seconds=4.0, warm_up=1.0), Work(seconds=1.0, warm_up=0.5)

MIN_AGENTS = 2
"""The minimum number of agents: one is compared with all."""

_ROW = "{:<52} {:>6} {:>12} {:<12} {:>9}  {}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description="Measure what many agents cost the server."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="500 agents and short runs, two minutes in all")
    add(
        "--only",
        action="append",
        choices=tuple(PARTS),
        help="measure this part only; repeatable; one of %(choices)s",
    )
    add(
        "--agents",
        type=int,
        metavar="N",
        help="the most agents of each part [default: "
        f"{STEPS[-1]}, {REQUESTS[-1]} for requests, with --quick {QUICK_STEPS[-1]}]",
    )
    add(
        "--transport",
        choices=("direct", "twisted"),
        default="direct",
        help="the --transport of server and agents [default: %(default)s]",
    )
    add(
        "--output",
        type=Path,
        metavar="FILE",
        default=Path("build/scale.json"),
        help="where to write the JSON [default: %(default)s]",
    )
    chosen = parser.parse_args(arguments)
    if chosen.agents is not None and chosen.agents < MIN_AGENTS:
        parser.error(f"--agents must be at least {MIN_AGENTS}")
    return chosen


def up_to(counts: Sequence[int], most: int | None) -> tuple[int, ...]:
    """Return the ``counts`` below ``most``, and ``most`` itself."""
    if most is None:
        return tuple(counts)
    return (*(count for count in counts if count < most), most)


def growth(chosen: argparse.Namespace, settings: Settings) -> Iterator[Figure]:
    """Measure the part ``growth``."""
    steps = up_to(QUICK_STEPS if chosen.quick else STEPS, chosen.agents)
    with working_directory() as directory:
        yield from scale_parts.growth(directory, settings, steps)


def restarts(chosen: argparse.Namespace, settings: Settings) -> Iterator[Figure]:
    """Measure the part ``restarts``."""
    counts = QUICK_RESTARTS if chosen.quick else RESTARTS
    for count in counts if chosen.agents is None else (chosen.agents,):
        with working_directory() as directory:
            yield from scale_parts.restarts(directory, settings, count)


def requests(chosen: argparse.Namespace, settings: Settings) -> Iterator[Figure]:
    """Measure the part ``requests``."""
    counts = up_to(QUICK_REQUESTS if chosen.quick else REQUESTS, chosen.agents)
    work = QUICK_WORK if chosen.quick else WORK
    with working_directory() as directory:
        yield from scale_parts.requests(directory, settings, counts, work)


PARTS: dict[str, Callable[[argparse.Namespace, Settings], Iterator[Figure]]] = {
    "growth": growth,
    "restarts": restarts,
    "requests": requests,
}


def row(figure: Figure) -> str:
    """Return a row of the table."""
    value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3g}"
    demanded = "" if figure.most is None else f"<= {figure.most:g}"
    return _ROW.format(
        figure.name, figure.agents, value, figure.unit, demanded, figure.verdict
    ).rstrip()


def run(chosen: argparse.Namespace) -> None:
    """Measure, print and record; raises :class:`BenchmarkFailed`."""
    settings = Settings(transport=chosen.transport)
    facts = machine.facts(None)
    print(_ROW.format("figure", "agents", "value", "", "demanded", "").rstrip(), flush=True)
    measured: list[Figure] = []
    try:
        for name, part in PARTS.items():
            if chosen.only and name not in chosen.only:
                continue
            for figure in part(chosen, settings):
                measured.append(figure)
                print(row(figure), flush=True)
    finally:
        # A run takes many minutes, so the figures so far are written if a part fails.
        if measured:
            used = {"quick": chosen.quick, "agents": chosen.agents, **asdict(settings)}
            stats = [{**asdict(each), "verdict": each.verdict} for each in measured]
            document = {"format": record.FORMAT, **facts, "settings": used, "figures": stats}
            record.write(chosen.output, document)
    print(f"\neverything is in {chosen.output}")


def main() -> None:
    """Run as a command."""
    # Like Ctrl-C, SIGTERM first stops everything that was started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        run(parse())
    except BenchmarkFailed as error:
        sys.exit(f"benchmarks.scale: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
