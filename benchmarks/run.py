"""One run of one contestant: its figure and its cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Unit(Enum):
    """The unit of a figure, as it is printed."""

    RATE = "/s"
    LATENCY = "ms"
    THROUGHPUT = "MB/s"
    MEBIBYTES = "MiB"
    KIBIBYTES = "KiB"
    MEGABYTES = "MB"
    SECONDS = "s"

    def show(self, value: float) -> str:
        """Format a value with its significant digits."""
        if self is Unit.RATE:
            return f"{value:,.0f}/s"
        digits = {Unit.LATENCY: 3, Unit.SECONDS: 2, Unit.MEGABYTES: 2}.get(self, 0)
        return f"{value:,.{digits}f} {self.value}"


@dataclass(frozen=True)
class Run:
    """The result of one run.

    ``value`` is in the unit of its line. ``work`` is the number of requests or bytes in
    ``seconds``. The CPU times are in seconds: ``tested_cpu`` of each tested program, ``driver_cpu``
    of the load (clients and backend together), ``others_cpu`` of everything else on the machine.
    """

    value: float
    work: int
    seconds: float
    tested_cpu: dict[str, float]
    driver_cpu: float
    others_cpu: float

    @property
    def cost(self) -> float:
        """CPU seconds of the tested programs for one request or byte."""
        return sum(self.tested_cpu.values()) / self.work

    @property
    def driver_share(self) -> float:
        """The driver's share of the CPU time of the run, 0 to 1."""
        total = self.driver_cpu + sum(self.tested_cpu.values())
        return self.driver_cpu / total if total else 0.0

    @property
    def driver_load(self) -> float:
        """The number of processors that the load kept busy."""
        return self.driver_cpu / self.seconds

    @property
    def others_load(self) -> float:
        """The number of processors that other programs kept busy."""
        return self.others_cpu / self.seconds
