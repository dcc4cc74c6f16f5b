"""Small charts of the last minutes, which share a scale where they are to be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from yurttunnel.ops.status import words
from yurttunnel.ops.status.markup import Markup, element
from yurttunnel.ops.status.throughput import INTERVAL, KEPT

HEIGHT = 24
"""Units of the drawing, as high as one pixel where it is shown smallest."""

_WRITERS: Mapping[str, Callable[[float], str]] = {
    "B/s": words.rate,
    "/s": words.each_second,
    "s": words.round_trip,
}

MINUTES = round(INTERVAL * KEPT / 60)
"""How long what a chart shows is."""


@dataclass(frozen=True, slots=True)
class Scale:
    """From nothing to ``most``, in ``unit``: ``B/s``, ``/s`` or ``s``."""

    most: float
    unit: str

    def write(self, value: float) -> str:
        """Return a value as people write it."""
        return _WRITERS[self.unit](value)

    def __str__(self) -> str:
        """Return what the height of a chart stands for."""
        return f"0 to {self.write(self.most)}" if self.most else "nothing"


def sparkline(values: Sequence[float], scale: Scale, what: str = "") -> Markup:
    """Draw ``values`` as bars, the newest at the right, with an axis at nothing and at the most.

    Fewer values than places leave the left empty, so that the same place is the same time in each.
    ``what`` begins the sentence for those who hear it.
    """
    path, right, down = "", KEPT - len(values) + 0.5, HEIGHT
    for value in values:
        if value > 0:
            # Something is not nothing, however little it is; and a page is made in slices: what
            # has come meanwhile may be more than the scale has as the most.
            height = max(1, round(HEIGHT * value / scale.most)) if value < scale.most else HEIGHT
            # Relative moves: half of the size of the page is such paths.
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
        viewBox=f"0 0 {KEPT} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
        data_most=f"{scale.most:.6g}",
        data_unit=scale.unit,
    )


def captioned(values: Sequence[float], scale: Scale, what: str) -> Markup:
    """Draw ``values`` with what the height and the width of the chart stand for below."""
    caption = element("small", f"{scale}, last {MINUTES} minutes")
    return element("div", sparkline(values, scale, what), caption, class_="wide")
