"""A small chart in a line of text, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence

from yurttunnel.ops.status.markup import Markup, element

_HEIGHT = 24


def sparkline(values: Sequence[float], places: int, label: str) -> Markup:
    """Draw ``values`` as bars, the newest at the right of ``places``; ``label`` says what it is.

    The scale begins at nothing and ends at the greatest value. Fewer values than places leave the
    left empty, so that the same place is the same time in every row.
    """
    highest = max(values, default=0.0)
    path, right, down = "", places - len(values) + 0.5, _HEIGHT
    for value in values:
        if value > 0:
            # Something is not nothing, however little it is.
            height = max(1, round(_HEIGHT * value / highest))
            # Relative moves: half of the size of the page is such paths.
            path += f"m{right:g} {down}v-{height}"
            right, down = 0.0, height
        right += 1
    return element(
        "svg",
        element("path", d=path) if path else "",
        class_="spark",
        viewBox=f"0 0 {places} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
