"""The printed report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.baseline import Change
from benchmarks.lines import Figure, Line, RatioLine
from benchmarks.result import DRIVER_SHARE, OTHERS_LOAD, Result, Verdict
from benchmarks.run import Run
from benchmarks.summary import summarize

_ROW = "{:<16} {:>14} {:>14} {:>9} {:>22}  {:<7} {:<11} {}"
_COST_ROW = "{:<16} {:>17} {:>17} {:>10} {:>7} {:>7} {:>9} {:>9} {:>17}"


def heading() -> str:
    """Return the heading of the table of figures."""
    return _ROW.format(
        "line", "peer", "ours", "judged", "quartiles", "reach", "", "Konnectivity"
    ).rstrip()


def row(result: Result) -> str:
    """Return one row of the table of figures: medians, the ratio, and its spread."""
    line, judged = result.line, result.summary
    if isinstance(line, RatioLine):
        peer, ours = (
            line.unit.show(summarize([run.value for run in runs]).median)
            for runs in (result.peer, result.ours)
        )
        middle, low, high = (f"{value:.2f}" for value in (judged.median, judged.low, judged.high))
    else:
        peer, ours = "", line.unit.show(judged.median)
        middle, low, high = (
            line.unit.show(value) for value in (judged.median, judged.low, judged.high)
        )
    other = result.other_ratio
    return _ROW.format(
        line.name,
        peer,
        ours,
        middle,
        f"{low} .. {high}",
        _reach(line),
        result.verdict.value,
        "" if other is None else f"{other:.2f}",
    ).rstrip()


def _reach(line: Line) -> str:
    return f"{'>=' if line.higher_is_better else '<='} {line.reach:g}"


def costs(results: Sequence[Result]) -> Iterator[str]:
    """Yield the table of the CPU time of the tested programs per request or GB, and of the load."""
    shown = [result for result in results if isinstance(result.line, RatioLine)]
    if not shown:
        return
    yield _COST_ROW.format(
        "CPU time", "peer, both", "ours, both", "reach", "server", "agent", "load/peer",
        "load/ours", "Konnectivity",
    ).rstrip()  # fmt: skip
    for result in shown:
        line = result.line
        assert isinstance(line, RatioLine)
        server, agent = (_part(result.ours, name) for name in ("server", "agent"))
        yield _COST_ROW.format(
            line.name,
            _cost(line.peer.work.figure, result.peer),
            _cost(line.ours.work.figure, result.ours),
            _reach_cost(line),
            server,
            agent,
            *(
                f"{summarize([run.driver_share for run in runs]).median:.0%}"
                for runs in (result.peer, result.ours)
            ),
            _cost(line.ours.work.figure, result.other) if result.other else "",
        ).rstrip()


def _cost(figure: Figure, runs: Sequence[Run]) -> str:
    if not any(run.tested_cpu for run in runs):
        return "-"
    return _shown_cost(figure, summarize([run.cost for run in runs]).median)


def _reach_cost(line: RatioLine) -> str:
    if line.reach_cost is None:
        return ""
    return f"<= {_shown_cost(line.ours.work.figure, line.reach_cost).split()[0]}"


def _shown_cost(figure: Figure, cost: float) -> str:
    if figure is Figure.THROUGHPUT:
        return f"{cost * 1e9:.2f} s/GB"
    return f"{cost * 1e6:.0f} us/request"


def _part(runs: Sequence[Run], name: str) -> str:
    """Return the CPU utilization of one of our programs."""
    return f"{summarize([run.tested_cpu[name] / run.seconds for run in runs]).median:.0%}"


def doubts(results: Sequence[Result]) -> Iterator[str]:
    """Yield warnings about figures that are not reliable."""
    for result in results:
        if result.verdict is Verdict.NOT_TRUSTED:
            yield (
                f"{result.line.name}: not trusted, the load took {result.driver_share:.0%} of the "
                f"CPU time (at most {DRIVER_SHARE:.0%})"
            )
    noisy = [result for result in results if result.others_load > OTHERS_LOAD]
    if noisy:
        most = max(result.others_load for result in noisy)
        yield (
            f"other programs kept up to {most:.1f} processors busy during "
            f"{', '.join(result.line.name for result in noisy)}: run again on an idle machine"
        )


def comparison(changes: Sequence[Change]) -> Iterator[str]:
    """Yield the comparison with an earlier run, line by line."""
    for change in changes:
        word = f"lost {change.loss:.0%} beyond the spread" if change.is_loss else "kept"
        yield f"{change.name:<16} {change.before.median:>9.3f} {change.now.median:>9.3f}  {word}"
