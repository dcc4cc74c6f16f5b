"""The certificates of the process on the status page, and for how long a certificate is good."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from yurttunnel.ops.status import words
from yurttunnel.ops.status.markup import Column, Content, Markup, joined, mark, table

SOON = 3 * words.DAY
"""A certificate that ends within so many seconds should have been renewed: it is renewed when a
third of its life is left, which is ten days where nothing else is said."""


def certificate_table(
    certificates: Mapping[str, datetime.datetime], now: datetime.datetime
) -> Content:
    """Make the table of the process's own certificates, the one that ends first at the top."""
    columns: list[Column[tuple[str, datetime.datetime]]] = [
        Column("Certificate", lambda one: one[0], "name"),
        Column(
            "Good for",
            lambda one: certificate_left(one[1], now),
            order=lambda one: one[1].timestamp(),
        ),
        Column("Until", lambda one: words.moment(one[1], f"{one[1]:%-d %B %Y, %H:%M} UTC")),
    ]
    ordered = sorted(certificates.items(), key=lambda item: item[1])
    return table("Certificates of this process", columns, ordered)


def certificate_left(not_after: datetime.datetime, now: datetime.datetime) -> Markup:
    """Return for how long a certificate is still good."""
    left = (not_after - now).total_seconds()
    if left <= 0:
        text = mark("bad", f"ended {words.duration(-left)} ago")
    elif left < SOON:
        text = mark("warn", f"{words.duration(left)} left")
    else:
        text = joined(words.counted(int(left // words.DAY), "day"), " left")
    return words.moment(not_after, text)
