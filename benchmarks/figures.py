"""The required and the measured figures of a program that is compared with nginx."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.run import Unit
from benchmarks.summary import Summary, summarize

_ROW = "{:<44} {:>12} {:>12} {:>11} {:>24}  {:<8} {}"


@dataclass(frozen=True)
class Demand:
    """The requirement for one figure: ``reach`` is its maximum or minimum, if there is one.

    With ``ratio`` the figure is the ratio to nginx.
    """

    title: str
    unit: Unit
    reach: float | None = None
    ratio: bool = False
    higher_is_better: bool = False


@dataclass
class Figure:
    """All values of one figure: ours, and that of nginx measured before each, if any."""

    demand: Demand
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    @property
    def judged(self) -> list[float]:
        """The values that the requirement applies to."""
        if not self.demand.ratio:
            return self.ours
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def summary(self) -> Summary:
        """The median and the spread of the judged values."""
        return summarize(self.judged)

    @property
    def verdict(self) -> str:
        """Whether the requirement is met; empty if there is none."""
        demand = self.demand
        if demand.reach is None:
            return ""
        median = self.summary.median
        good = median >= demand.reach if demand.higher_is_better else median <= demand.reach
        return "holds" if good else "misses"

    def row(self) -> str:
        """Return a row of the table."""
        demand, summary = self.demand, self.summary
        show = "{:.2f}".format if demand.ratio else demand.unit.show
        reach = ""
        if demand.reach is not None:
            reach = f"{'>=' if demand.higher_is_better else '<='} {demand.reach:g}"
        return _ROW.format(
            demand.title,
            demand.unit.show(summarize(self.peer).median) if self.peer else "",
            demand.unit.show(summarize(self.ours).median),
            show(summary.median),
            f"{show(summary.low)} .. {show(summary.high)}",
            reach,
            self.verdict,
        ).rstrip()

    def record(self) -> dict[str, Any]:
        """Return the figure as a dictionary for :mod:`json`."""
        summary, demand = self.summary, self.demand
        return {
            "title": demand.title,
            "unit": demand.unit.value,
            "ratio": demand.ratio,
            "reach": demand.reach,
            "higher_is_better": demand.higher_is_better,
            "median": summary.median,
            "low_quartile": summary.low,
            "high_quartile": summary.high,
            "verdict": self.verdict,
            "ours": self.ours,
            "peer": self.peer,
        }


def heading(name: str, peer: str = "nginx") -> str:
    """Return the heading of the table that compares ``name`` with ``peer``."""
    return _ROW.format("figure", peer, name, "judged", "quartiles", "reach", "").rstrip()
