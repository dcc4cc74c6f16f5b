"""The result of one line: all its runs, and the figures derived from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.lines import Line
from benchmarks.run import Run
from benchmarks.summary import Summary, summarize

DRIVER_SHARE = 0.5
"""The load's share of the CPU time above which a run measures the load rather than the tunnel."""

IDLE_LOAD = 0.5
"""A load that uses less than this much of one processor waits for what it measures, whatever its
share is: if a link is the bottleneck, all programs are idle."""

OTHERS_LOAD = 0.15
"""The number of processors that other programs may keep busy during a run; more is noise."""


class Verdict(Enum):
    """Whether a line meets its requirement."""

    HOLDS = "holds"
    MISSES = "misses"
    NOT_TRUSTED = "not trusted"
    """The load was the bottleneck, or nearly: the figures say little about the tunnel."""


@dataclass(frozen=True)
class Result:
    """All runs of a line, and the judged values.

    On a line with a ratio, ``ours[i]`` ran right after ``peer[i]``, and the ratio of each pair is
    judged: a machine that slows down during the runs hardly affects it. On other lines there are
    no runs, and the figures themselves are judged.
    """

    line: Line
    judged: list[float]
    peer: list[Run]
    ours: list[Run]
    other: Sequence[Run] = ()

    @property
    def summary(self) -> Summary:
        """The median and the spread of the judged values."""
        return summarize(self.judged)

    @property
    def other_ratio(self) -> float | None:
        """The median of the ratios of the third contestant, if there is one."""
        if not self.other:
            return None
        pairs = zip(self.other, self.peer, strict=True)
        return summarize([other.value / peer.value for other, peer in pairs]).median

    @property
    def driver_share(self) -> float:
        """The load's share of the CPU time, 0 to 1; the larger one of both contestants.

        A contestant that is only a link is left out, because then the link is the bottleneck.
        """
        shares = [summarize([run.driver_share for run in runs]).median for runs in self._tested]
        return max(shares, default=0.0)

    @property
    def _tested(self) -> list[list[Run]]:
        contestants = (self.peer, self.ours)
        return [runs for runs in contestants if any(run.tested_cpu for run in runs)]

    @property
    def others_load(self) -> float:
        """The maximum number of processors that other programs kept busy during a run."""
        every = (*self.peer, *self.ours, *self.other)
        return max((run.others_load for run in every), default=0.0)

    @property
    def verdict(self) -> Verdict:
        """Whether the median meets the requirement."""
        if self._is_limited_by_load:
            return Verdict.NOT_TRUSTED
        return Verdict.HOLDS if self.line.holds(self.summary.median) else Verdict.MISSES

    @property
    def _is_limited_by_load(self) -> bool:
        return any(
            summarize([run.driver_share for run in runs]).median > DRIVER_SHARE
            and summarize([run.driver_load for run in runs]).median > IDLE_LOAD
            for runs in self._tested
        )


def compare(line: Line, peer: list[Run], ours: list[Run], other: Sequence[Run] = ()) -> Result:
    """Return the result of a line with two contestants, or three."""
    pairs = zip(ours, peer, strict=True)
    return Result(line, [one.value / two.value for one, two in pairs], peer, ours, other)
