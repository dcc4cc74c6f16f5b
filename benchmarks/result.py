"""What came of one line: all its runs, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.lines import Line
from benchmarks.run import Run
from benchmarks.summary import Summary, summarize

DRIVER_SHARE = 0.5
"""The share of the CPU time beyond which a run shows the load's speed more than the tunnel's."""

IDLE_LOAD = 0.5
"""A load that keeps less of one processor busy than this waits for what it measures, whatever its
share is: a link that limits leaves all programs idle."""

OTHERS_LOAD = 0.15
"""How many processors other programs may keep busy beside a run, before it is noise."""


class Verdict(Enum):
    """Whether a line is as it should be."""

    HOLDS = "holds"
    MISSES = "misses"
    NOT_TRUSTED = "not trusted"
    """The load was the limit, or nearly: the figures say little about the tunnel."""


@dataclass(frozen=True)
class Result:
    """All runs of a line, and the figures that are judged.

    On a line with a ratio, ``ours[i]`` came right after ``peer[i]``, and the ratio of each two is
    judged: a machine that grows slower in the course of the runs changes it little. On a line
    without one there are no runs, and the figures themselves are judged.
    """

    line: Line
    judged: list[float]
    peer: list[Run]
    ours: list[Run]
    other: Sequence[Run] = ()

    @property
    def summary(self) -> Summary:
        """The middle and the spread of what is judged."""
        return summarize(self.judged)

    @property
    def other_ratio(self) -> float | None:
        """The middle of the ratios of the third contestant, where there is one."""
        if not self.other:
            return None
        pairs = zip(self.other, self.peer, strict=True)
        return summarize([other.value / peer.value for other, peer in pairs]).median

    @property
    def driver_share(self) -> float:
        """How much of the CPU time the load took, 0 to 1, with the contestant where it was more.

        Where nothing but a link is between the load's two ends, it is the link that limits.
        """
        shares = [summarize([run.driver_share for run in runs]).median for runs in self._tested]
        return max(shares, default=0.0)

    @property
    def _tested(self) -> list[list[Run]]:
        contestants = (self.peer, self.ours)
        return [runs for runs in contestants if any(run.tested_cpu for run in runs)]

    @property
    def others_load(self) -> float:
        """How many processors other programs kept busy, in the run where it was most."""
        every = (*self.peer, *self.ours, *self.other)
        return max((run.others_load for run in every), default=0.0)

    @property
    def verdict(self) -> Verdict:
        """Whether the median is as it should be."""
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
    """Make the result of a line with two contestants, or three."""
    pairs = zip(ours, peer, strict=True)
    return Result(line, [one.value / two.value for one, two in pairs], peer, ours, other)
