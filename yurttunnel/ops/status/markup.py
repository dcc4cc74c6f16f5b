"""HTML that is safe by construction: text is escaped unless it is :class:`Markup` already."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

Row = TypeVar("Row")

_VOID = frozenset({"input", "link", "meta"})


class Markup(str):
    """A piece of HTML, as opposed to text."""

    __slots__ = ()


Content: TypeAlias = "str | Iterable[Content]"
"""The content of an element: text, :class:`Markup`, or several of them."""


def safe(content: Content) -> str:
    """Convert ``content`` to HTML."""
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return html.escape(content)
    return "".join([safe(each) for each in content])


def pieces(content: Content) -> Iterator[str]:
    """Convert ``content`` to HTML, in pieces if it has several."""
    if isinstance(content, str):
        yield safe(content)
    else:
        for each in content:
            yield from pieces(each)


def joined(*contents: Content) -> Markup:
    """Concatenate contents."""
    return Markup("".join([safe(each) for each in contents]))


def element(name: str, /, *contents: Content, **attributes: str | bool) -> Markup:
    """Return the element ``name``.

    A trailing underscore in an attribute's name is dropped, others become hyphens (``class_``,
    ``data_label``). An attribute that is ``False`` or empty is omitted; for ``True`` only its name
    is written.
    """
    opening = name
    for key, value in attributes.items():
        if value:
            opening += " " + key.rstrip("_").replace("_", "-")
            if value is not True:
                opening += f'="{html.escape(value)}"'
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{joined(*contents)}</{name}>")


def mark(kind: str, text: Content) -> Markup:
    """Return a highlighted word: ``kind`` is ``ok``, ``warn`` or ``bad``; each has its sign."""
    return element("span", text, class_=f"mark {kind}")


class Column(NamedTuple, Generic[Row]):
    """A column of a table: its heading, the function for the contents of a cell, and its class.

    ``order`` returns the sort key, for columns that are not sorted by their text.
    """

    name: str
    cell: Callable[[Row], Content]
    css: str = ""
    order: Callable[[Row], float] | None = None


def table(caption: str, columns: Sequence[Column[Row]], rows: Iterable[Row]) -> Iterator[Markup]:
    """Yield a table, row by row; the first column names the rows, and ``caption`` is for screen
    readers.

    Each cell has its column's name as ``data-label``: on narrow screens a row is shown as a card,
    far from the head of the table.
    """
    head = [element("th", each.name, scope="col", class_=each.css) for each in columns]
    yield Markup("<table>")
    yield element("caption", caption)
    yield element("thead", element("tr", head))
    yield Markup("<tbody>")
    for row in rows:
        yield _row(columns, row)
    yield Markup("</tbody></table>")


def _row(columns: Sequence[Column[Row]], row: Row) -> Markup:
    name, *others = columns
    return element(
        "tr",
        element("th", name.cell(row), scope="row", class_=name.css),
        [
            element(
                "td",
                column.cell(row),
                class_=column.css,
                data_label=column.name,
                data_order="" if column.order is None else f"{column.order(row):g}",
            )
            for column in others
        ],
    )


def pairs(caption: str, rows: Iterable[tuple[str, Content]]) -> Markup:
    """Return a table of names and values."""
    return element(
        "table",
        element("caption", caption),
        element(
            "tbody",
            [
                element("tr", element("th", name, scope="row"), element("td", value))
                for name, value in rows
            ],
        ),
        class_="pairs",
    )
