"""The counters of the cache, and its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yurttunnel.hub.cache.writes import WriteResult
from yurttunnel.metrics import Metric, counter, gauge


@dataclass(slots=True)
class CacheStats:
    """Counts since the start; ``size``, its limit ``max_size`` and ``queued`` are in bytes."""

    size: int = 0
    max_size: int = 0
    clients: int = 0
    queued: int = 0
    written: int = 0
    unchanged: int = 0
    dropped: int = 0
    refused: int = 0
    events: int = 0
    events_lost: int = 0
    evicted: int = 0
    evicted_documents: int = 0
    damaged: int = 0
    broken: bool = False

    def count(self, done: Sequence[WriteResult]) -> None:
        """Add the results of writes."""
        for each in done:
            self.written += each.written
            self.unchanged += each.unchanged
            self.events += each.events
            self.events_lost += each.events_lost
            self.evicted += len(each.evicted)
            self.evicted_documents += each.documents


METRICS: tuple[Metric[CacheStats], ...] = (
    gauge(
        "yurthub_cache_bytes",
        "Size in bytes of the data in the cache file, without the write-ahead log, which has some"
        " MB, and up to 128 MiB while lists are read slowly.",
        lambda stats: stats.size,
    ),
    gauge(
        "yurthub_cache_clients",
        "Number of clients with cached data; --dump-cache lists them.",
        lambda stats: stats.clients,
    ),
    gauge(
        "yurthub_cache_waiting_bytes",
        "Bytes of memory waiting to be written, including lists that are being received.",
        lambda stats: stats.queued,
    ),
    counter(
        "yurthub_cache_objects",
        "Objects from lists and watches, by result. written: new, or with another"
        " resourceVersion. unchanged: already cached, so nothing was written.",
        lambda stats: (("written", stats.written), ("unchanged", stats.unchanged)),
        "result",
    ),
    counter(
        "yurthub_cache_dropped",
        "Data that was not cached because too much was waiting to be written (the disk is slow,"
        " full or broken, or a list is very large), or because the file or its disk is full."
        " changes: single objects, or complete lists that were waiting; lists: lists that were"
        " never complete. Until the next list the cache has an older state of these objects.",
        lambda stats: (("changes", stats.dropped), ("lists", stats.refused)),
        "what",
    ),
    gauge(
        "yurthub_cache_kept_events",
        "Kubernetes Events that have not been sent yet.",
        lambda stats: stats.events,
    ),
    counter(
        "yurthub_cache_lost_events",
        "Kubernetes Events that were never sent, and were evicted by newer ones.",
        lambda stats: stats.events_lost,
    ),
    counter(
        "yurthub_cache_forgotten_clients",
        "Clients whose cached data was deleted: they are no longer cached, have sent no request"
        " for 30 days, or there was no room. The log names them, and at most one guest a minute.",
        lambda stats: stats.evicted,
    ),
    counter(
        "yurthub_cache_forgotten_documents",
        "Discovery and OpenAPI responses that were evicted because there was no room: the oldest,"
        " or one that is larger than the limit for all. Without the cloud kubectl may not work.",
        lambda stats: stats.evicted_documents,
    ),
    counter(
        "yurthub_cache_damaged",
        "Damaged cache files that were moved aside; see the log, and check the disk.",
        lambda stats: stats.damaged,
    ),
    gauge(
        "yurthub_cache_broken",
        "1 while nothing can be written; /readyz has the reason. Clients are affected only once"
        " the API is unreachable.",
        lambda stats: int(stats.broken),
    ),
)
