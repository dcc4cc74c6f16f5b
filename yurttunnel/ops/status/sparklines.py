"""Small charts of the last minutes, which share a scale if they are to be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.markup import Markup, element
from yurttunnel.ops.status.throughput import INTERVAL, MAX_KEPT

HEIGHT = 24
"""The size of the drawing in units; a unit is one pixel high at the smallest size shown."""

_WRITERS: Mapping[str, Callable[[float], str]] = {
    "B/s": formatting.rate,
    "/s": formatting.per_second,
    "s": formatting.round_trip,
}

MINUTES = round(INTERVAL * MAX_KEPT / 60)
"""The time span of a chart, in minutes."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale from zero to ``most``, in ``unit``: ``B/s``, ``/s`` or ``s``."""

    most: float
    unit: str

    def write(self, value: float) -> str:
        """Format a value for people."""
        return _WRITERS[self.unit](value)

    def __str__(self) -> str:
        """Return a description of what the height of a chart stands for."""
        return f"0 to {self.write(self.most)}" if self.most else "nothing"


def sparkline(values: Sequence[float], scale: Scale, what: str = "") -> Markup:
    """Draw ``values`` as bars, the newest at the right, with lines at zero and at the maximum.

    If there are fewer values than places, the left stays empty, so that all charts have the same
    time axis. ``what`` begins the description for screen readers.
    """
    path, right, down = "", MAX_KEPT - len(values) + 0.5, HEIGHT
    for value in values:
        if value > 0:
            # A small value must differ from zero. As a page is made in slices, later values may
            # exceed the maximum of the scale.
            height = max(1, round(HEIGHT * value / scale.most)) if value < scale.most else HEIGHT
            # Relative moves: half of the page's size is such paths.
            path += f"m{right:g} {down}v-{height}"
            right, down = 0.0, height
        right += 1
    highest, newest = max(values, default=0.0), values[-1] if values else 0.0
    label = (
        f"{what}{' ' if what else ''}now {scale.write(newest)}, at most {scale.write(highest)}"
        f" in {MINUTES} minutes"
    )
    return element(
        "svg",
        element("path", d=path) if path else "",
        class_="spark",
        viewBox=f"0 0 {MAX_KEPT} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
        data_most=f"{scale.most:.6g}",
        data_unit=scale.unit,
    )


def captioned(values: Sequence[float], scale: Scale, what: str) -> Markup:
    """Draw ``values``, with a caption of what the height and the width stand for."""
    caption = element("small", f"{scale}, last {MINUTES} minutes")
    return element("div", sparkline(values, scale, what), caption, class_="wide")
