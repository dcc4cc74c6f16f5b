"""Failed requests at the top of the status page: their recent rate, and the last ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from yurttunnel.ops.failures import Failure, Failures
from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.markup import Column, Content, element, joined, mark, table
from yurttunnel.ops.status.sections import NO_MATCH, PageContext, nothing
from yurttunnel.ops.status.sparklines import MINUTES, Scale, captioned
from yurttunnel.ops.status.throughput import INTERVAL

_AGO = re.compile(r"\d+ s ago")
"""Matches the duration in the message that callers get for a lost node."""

MAX_SHOWN = 20
"""The maximum number of rows shown at once."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one cause: the ``last``, their number, and the time of the first (epoch, s)."""

    last: Failure
    count: int
    since: float


def failure_content(
    failures: Failures, recent_rates: Sequence[float], context: PageContext
) -> list[Content]:
    """Return the contents of the section; ``recent_rates`` has the recent rates, per second."""
    every = list(failures.newest_first())
    found = [each for each in every if context.matches(*_texts(each))]
    count = round(sum(recent_rates) * INTERVAL)
    heading: list[Content] = ["Failed requests"]
    if failures.count:
        counts = f"{count:,} in the last {MINUTES} minutes, {failures.count:,} since the start"
        heading += [" ", element("span", counts, class_="count")]
    content: list[Content] = [element("h2", *heading)]
    if not every:
        sentence = "None: every request has been answered by its node."
        return [*content, element("p", mark("ok", sentence), class_="nothing")]
    scale = Scale(max(recent_rates, default=0.0), "/s")
    content.append(captioned(recent_rates, scale, "failed requests"))
    return [*content, failure_table(found, context) if found else nothing(NO_MATCH)]


def failure_table(failures: Iterable[Failure], context: PageContext) -> Content:
    """Return the table of ``failures``, newest first; those of one cause share a row."""
    columns: list[Column[FailureGroup]] = [
        Column("Message to the caller", lambda one: _message(one.last), "name text"),
        Column("Status", lambda one: _status(one.last), "number", lambda one: one.last.status or 0),
        Column("Node", lambda one: one.last.node or "-", "who"),
        Column("Caller", lambda one: joined(one.last.who, element("small", one.last.kind)), "who"),
        Column("Times", lambda one: f"{one.count:,}", "number", lambda one: one.count),
        Column(
            "Last",
            lambda one: _when(one, context),
            order=lambda one: context.now.timestamp() - one.last.at,
        ),
    ]
    return table("The last requests that failed", columns, group_by_cause(failures)[:MAX_SHOWN])


def group_by_cause(failures: Iterable[Failure]) -> list[FailureGroup]:
    """Group failures that differ only in request and time, newest first.

    Otherwise a caller that requests a missing target each second would displace all others.
    """
    causes: dict[object, list[Failure]] = {}
    for each in failures:
        cause = (each.kind, each.who, each.node, each.status, _AGO.sub("", each.text))
        causes.setdefault(cause, []).append(each)
    return [FailureGroup(each[0], len(each), each[-1].at) for each in causes.values()]


def _when(one: FailureGroup, context: PageContext) -> Content:
    last = formatting.ago(formatting.at(one.last.at), context.now)
    if one.count == 1:
        return last
    lasted = formatting.duration(context.now.timestamp() - one.since)
    return joined(
        last, element("small", formatting.moment(formatting.at(one.since), f"first {lasted} ago"))
    )


def _message(one: Failure) -> Content:
    return joined(one.text, element("small", one.request_id, class_="code"))


def _status(one: Failure) -> str:
    return "reset" if one.status is None else str(one.status)


def _texts(one: Failure) -> tuple[str, ...]:
    return one.node, one.request_id, one.text, one.who, one.kind, str(one.status or "")
