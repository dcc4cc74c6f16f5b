"""The sections that other packages add to the status page, one for each feature."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

from yurttunnel.ops.status.markup import Content, Markup, element, mark, pieces

Row = TypeVar("Row")

NO_MATCH = "Nothing matches the filter."

MAX_FILTER = 200
"""The maximum length of ``?q=`` in characters; the rest is ignored."""


class PageContext(NamedTuple):
    """The time of the page, and its filter in lower case; an empty filter matches everything."""

    now: datetime.datetime
    filter_text: str = ""

    def matches(self, *texts: str) -> bool:
        """Return whether one of ``texts`` contains the filter."""
        return not self.filter_text or any(self.filter_text in text.casefold() for text in texts)


class Section(NamedTuple):
    """A section with the ID ``name``, which follows one of the page's own.

    ``tile`` is a name and a number for the overview; ``tile_kind`` rates it as ``ok``, ``warn`` or
    ``bad``, or is empty.
    """

    name: str
    content: Content
    after: Literal["readiness", "sessions", "streams", "certificates", "events"]
    tile: tuple[str, str] | None = None
    tile_kind: str = ""


MadeSection = Section | None | Generator[str, None, Section | None]
MakeSection = Callable[[PageContext], MadeSection]
"""Makes a section for each page; ``None`` omits it. One that processes much data is a generator,
which yields pauses (:func:`yurttunnel.ops.slices.gather`)."""


def live(name: str, *contents: Content) -> Iterator[str]:
    """Yield a section that the script keeps up to date, in pieces."""
    yield f'<section id="{name}" data-live>'
    yield from pieces(contents)
    yield "</section>"


def listing(
    heading: str,
    rows: Sequence[Row],
    total: int,
    order: str,
    table: Callable[[Sequence[Row]], Content],
    empty_text: Content,
) -> list[Content]:
    """Return the contents of a section with ``rows``, out of ``total`` in their ``order``."""
    title: list[Content] = [heading]
    if total:
        count = f"{total:,}" if len(rows) == total else f"{len(rows):,} of {total:,}, {order}"
        title += [" ", element("span", count, class_="count")]
    return [element("h2", *title), table(rows) if rows else nothing(empty_text)]


def nothing(sentence: Content) -> Markup:
    """Return the placeholder for a table without rows."""
    return element("p", sentence, class_="nothing")


def tile(name: str, value: str, more: Content = "", kind: str = "") -> Markup:
    """Return a tile of the overview with ``value``, highlighted as ``kind`` unless it is empty."""
    extra = element("dd", more, class_="more") if more else ""
    shown = mark(kind, value) if kind else value
    return element("div", element("dt", name), element("dd", shown), extra)
