"""What is counted of answers without the cloud, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from yurttunnel.metrics import Metric, counter, gauge


class OfflineStats(NamedTuple):
    """All of it, since the process started.

    ``answers`` are by verb and status; a client that leaves before has status "none".
    """

    answers: Mapping[tuple[str, str], int]
    parked_watches: int
    events_kept: int
    events_sent: int
    events_dropped: int


METRICS: tuple[Metric[OfflineStats], ...] = (
    counter(
        "yurthub_offline_answers",
        "Requests that were served while the API was unreachable, by verb and status. 404 and 503"
        " for get, list and watch: needed data is not cached.",
        lambda stats: sorted(stats.answers.items()),
        "verb",
        "status",
    ),
    gauge(
        "yurthub_offline_watches",
        "Watches that are open while the API is unreachable.",
        lambda stats: stats.parked_watches,
    ),
    counter(
        "yurthub_offline_events_kept",
        "Events that were stored to be sent when the API is reachable again.",
        lambda stats: stats.events_kept,
    ),
    counter(
        "yurthub_offline_events_sent",
        "Stored Events that the API has accepted.",
        lambda stats: stats.events_sent,
    ),
    counter(
        "yurthub_offline_events_dropped",
        "Stored Events that the API has rejected, and that are lost.",
        lambda stats: stats.events_dropped,
    ),
)
