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
        "Requests that were answered without the cloud, by verb and status. 404 and 503 to get,"
        " list and watch: something was not kept that is needed now.",
        lambda stats: sorted(stats.answers.items()),
        "verb",
        "status",
    ),
    gauge(
        "yurthub_offline_watches",
        "Watches that wait for the cloud.",
        lambda stats: stats.parked_watches,
    ),
    counter(
        "yurthub_offline_events_kept",
        "Events that were kept to be sent when the cloud is back.",
        lambda stats: stats.events_kept,
    ),
    counter(
        "yurthub_offline_events_sent",
        "Kept events that the Kubernetes API has taken.",
        lambda stats: stats.events_sent,
    ),
    counter(
        "yurthub_offline_events_dropped",
        "Kept events that the Kubernetes API refused, and that are lost.",
        lambda stats: stats.events_dropped,
    ),
)
