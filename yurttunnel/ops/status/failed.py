"""The requests that failed, on top of the status page: how many of late, and the last ones."""

from __future__ import annotations

from collections.abc import Sequence

from yurttunnel.ops.failures import Failure, Failures
from yurttunnel.ops.status import words
from yurttunnel.ops.status.markup import Column, Content, element, joined, mark, table
from yurttunnel.ops.status.sections import NO_MATCH, Moment, nothing
from yurttunnel.ops.status.sparklines import MINUTES, Scale, captioned
from yurttunnel.ops.status.throughput import INTERVAL

MOST_SHOWN = 20
"""How many are shown at once."""


def failure_content(
    failures: Failures, of_late: Sequence[float], moment: Moment, most: int = MOST_SHOWN
) -> list[Content]:
    """Make what is in the section; ``of_late`` is how many there were a second, of late."""
    every = list(failures.newest_first())
    found = [each for each in every if moment.matches(*_texts(each))]
    count = round(sum(of_late) * INTERVAL)
    heading: list[Content] = ["Requests that failed"]
    if failures.count:
        told = f"{count:,} in the last {MINUTES} minutes, {failures.count:,} since the start"
        heading += [" ", element("span", told, class_="count")]
    content: list[Content] = [element("h2", *heading)]
    if not every:
        sentence = "None: every request has been answered by its node."
        return [*content, element("p", mark("ok", sentence), class_="nothing")]
    scale = Scale(max(of_late, default=0.0), "/s")
    content.append(captioned(of_late, scale, "failed requests"))
    return [*content, failure_table(found[:most], moment) if found else nothing(NO_MATCH)]


def failure_table(failures: Sequence[Failure], moment: Moment) -> Content:
    """Make the table of ``failures``."""
    columns: list[Column[Failure]] = [
        Column("What the caller was told", _told, "name text"),
        Column("Status", lambda one: _status(one), "number", lambda one: one.status or 0),
        Column("Node", lambda one: one.node or "-"),
        Column("Asked by", lambda one: joined(one.who, element("small", one.kind)), "who"),
        Column(
            "When",
            lambda one: words.ago(words.at(one.at), moment.now),
            order=lambda one: moment.now.timestamp() - one.at,
        ),
    ]
    return table("The last requests that failed", columns, failures)


def _told(one: Failure) -> Content:
    return joined(one.text, element("small", one.request_id, class_="code"))


def _status(one: Failure) -> str:
    return "reset" if one.status is None else str(one.status)


def _texts(one: Failure) -> tuple[str, ...]:
    return one.node, one.request_id, one.text, one.who, one.kind, str(one.status or "")
