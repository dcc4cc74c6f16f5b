"""The table of the process's certificates on the status page, and their remaining validity."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from yurttunnel.ops.status import formatting
from yurttunnel.ops.status.markup import Column, Content, Markup, joined, mark, table

SOON = 3 * formatting.DAY
"""The remaining validity, in seconds, below which a certificate should have been renewed: renewal
happens when a third of the lifetime is left, by default ten days."""


def certificate_table(
    certificates: Mapping[str, datetime.datetime], now: datetime.datetime
) -> Content:
    """Return the table of the process's own certificates, the first to expire at the top."""
    columns: list[Column[tuple[str, datetime.datetime]]] = [
        Column("Certificate", lambda one: one[0], "name"),
        Column(
            "Good for",
            lambda one: certificate_left(one[1], now),
            order=lambda one: one[1].timestamp(),
        ),
        Column("Until", lambda one: formatting.moment(one[1], f"{one[1]:%-d %B %Y, %H:%M} UTC")),
    ]
    ordered = sorted(certificates.items(), key=lambda item: item[1])
    return table("Certificates of this process", columns, ordered)


def certificate_left(not_after: datetime.datetime, now: datetime.datetime) -> Markup:
    """Return the remaining validity of a certificate."""
    left = (not_after - now).total_seconds()
    if left <= 0:
        text = mark("bad", f"ended {formatting.duration(-left)} ago")
    elif left < SOON:
        text = mark("warn", f"{formatting.duration(left)} left")
    else:
        text = joined(formatting.counted(int(left // formatting.DAY), "day"), " left")
    return formatting.moment(not_after, text)
