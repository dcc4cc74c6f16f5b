"""What other rooms put on the status page: a section for each of their features."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from yurttunnel.ops.status.markup import Content, Markup, element, mark, pieces

Row = TypeVar("Row")

NO_MATCH = "Nothing matches the filter."

LONGEST_FILTER = 200
"""Characters of ``?q=`` that count."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When the page is made, and what is looked for on it, in lower case; nothing for all."""

    now: datetime.datetime
    desired: str = ""

    def matches(self, *texts: str) -> bool:
        """Return whether one of ``texts`` has what is looked for."""
        return not self.desired or any(self.desired in text.casefold() for text in texts)


@dataclass(frozen=True, slots=True)
class Section:
    """A section with the id ``name``, behind one of the page's own.

    ``tile`` is a name and a number for the overview, ``tile_kind`` whether that is as it should
    be: ``ok``, ``warn`` or ``bad``, and nothing where it is neither.
    """

    name: str
    content: Content
    after: Literal["readiness", "sessions", "streams", "certificates", "events"]
    tile: tuple[str, str] | None = None
    tile_kind: str = ""


MadeSection = Section | None | Generator[str, None, Section | None]
MakeSection = Callable[[Moment], MadeSection]
"""Makes a section anew for each page; ``None`` leaves it out. One that looks at much is a
generator, which yields pauses (:func:`yurttunnel.ops.slices.gather`)."""


def live(name: str, *contents: Content) -> Iterator[str]:
    """Make a section that the script keeps up to date, piece by piece."""
    yield f'<section id="{name}" data-live>'
    yield from pieces(contents)
    yield "</section>"


def listing(
    heading: str,
    rows: Sequence[Row],
    total: int,
    order: str,
    table: Callable[[Sequence[Row]], Content],
    nobody: Content,
) -> list[Content]:
    """Make what is in a section of ``rows``, of which there are ``total`` in their ``order``."""
    title: list[Content] = [heading]
    if total:
        count = f"{total:,}" if len(rows) == total else f"{len(rows):,} of {total:,}, {order}"
        title += [" ", element("span", count, class_="count")]
    return [element("h2", *title), table(rows) if rows else nothing(nobody)]


def nothing(sentence: Content) -> Markup:
    """Make what stands where there are no rows."""
    return element("p", sentence, class_="nothing")


def tile(name: str, value: str, more: Content = "", kind: str = "") -> Markup:
    """Make a tile of the overview: ``value``, marked as ``kind`` where it is of one."""
    extra = element("dd", more, class_="more") if more else ""
    shown = mark(kind, value) if kind else value
    return element("div", element("dt", name), element("dd", shown), extra)
