"""Lines and runs for the tests of the benchmarks."""

from benchmarks.lines import Contestant, Figure, RatioLine, Route, Work
from benchmarks.result import compare
from benchmarks.run import Run


def line(name="speed", *, reach=0.9, higher_is_better=True, figure=Figure.RATE):
    """Return a line on which both contestants do the same work."""
    work = Work("requests", 16, figure)
    peer = Contestant("nginx pair", Route.PAIR, work)
    ours = Contestant("yurttunnel", Route.CONNECT, work)
    return RatioLine(name, name, reach, higher_is_better, figure.unit, peer, ours)


def run(value, *, work=1000, server=0.5, agent=0.5, driver=0.2, others=0.0):
    """Return a run of one second."""
    return Run(value, work, 1.0, {"server": server, "agent": agent}, driver, others)


def result(of, ratios, **options):
    """Return the result of a line from its ratios to a peer that always reaches 100."""
    runs = [run(100 * ratio, **options) for ratio in ratios]
    return compare(of, [run(100.0) for _ in ratios], runs)


def with_third(of, ratios, others):
    """Return such a result with a third contestant's ratios."""
    peer, ours = ([run(100.0) for _ in ratios], [run(100 * ratio) for ratio in ratios])
    return compare(of, peer, ours, [run(100 * ratio) for ratio in others])
