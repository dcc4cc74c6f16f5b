"""What the cache counts, and its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yurttunnel.hub.cache.writes import Done
from yurttunnel.metrics import Metric, counter, gauge


@dataclass(slots=True)
class CacheStats:
    """All of it, since the process started; ``size``, its bound ``most``, ``waiting``: bytes."""

    size: int = 0
    most: int = 0
    clients: int = 0
    waiting: int = 0
    written: int = 0
    unchanged: int = 0
    dropped: int = 0
    refused: int = 0
    events: int = 0
    events_lost: int = 0
    forgotten: int = 0
    forgotten_documents: int = 0
    damaged: int = 0
    broken: bool = False

    def count(self, done: Sequence[Done]) -> None:
        """Count what has come of writes."""
        for each in done:
            self.written += each.written
            self.unchanged += each.unchanged
            self.events += each.events
            self.events_lost += each.events_lost
            self.forgotten += len(each.forgotten)
            self.forgotten_documents += each.documents


METRICS: tuple[Metric[CacheStats], ...] = (
    gauge(
        "yurthub_cache_bytes",
        "Bytes in use in the file of the cache, without its log: some MB, and up to 128 MiB while"
        " lists are read slowly.",
        lambda stats: stats.size,
    ),
    gauge(
        "yurthub_cache_clients",
        "Clients of which something is kept; --dump-cache shows them.",
        lambda stats: stats.clients,
    ),
    gauge(
        "yurthub_cache_waiting_bytes",
        "Bytes of memory that wait to be written, with the lists that are on their way.",
        lambda stats: stats.waiting,
    ),
    counter(
        "yurthub_cache_objects",
        "Objects that lists and watches have shown to the cache. written: it was new, or in "
        "another version. unchanged: it was there, and nothing was written.",
        lambda stats: (("written", stats.written), ("unchanged", stats.unchanged)),
        "result",
    ),
    counter(
        "yurthub_cache_dropped",
        "What was not kept because too much waited: the disk is slow, full or broken, or a list is "
        "very large; or since the file, or its disk, has no room for it. "
        "changes: of single objects, or whole lists that waited; lists: that were never complete. "
        "Of what it was about, the cache has an older state until it is listed again.",
        lambda stats: (("changes", stats.dropped), ("lists", stats.refused)),
        "what",
    ),
    gauge(
        "yurthub_cache_kept_events",
        "Kubernetes Events that could not be sent yet.",
        lambda stats: stats.events,
    ),
    counter(
        "yurthub_cache_lost_events",
        "Kubernetes Events that were not sent, and that newer ones have taken the place of.",
        lambda stats: stats.events_lost,
    ),
    counter(
        "yurthub_cache_forgotten_clients",
        "Clients of which nothing is there any more: they are kept no longer, have not asked for "
        "30 days, or there was no room; the log names them, and one guest a minute.",
        lambda stats: stats.forgotten,
    ),
    counter(
        "yurthub_cache_forgotten_documents",
        "Answers of discovery and OpenAPI that are not kept any longer, since there was no room: "
        "the oldest, or one that is larger than all may be. Without the cloud kubectl may find "
        "nothing.",
        lambda stats: stats.forgotten_documents,
    ),
    counter(
        "yurthub_cache_damaged",
        "Files of the cache that were damaged, and moved aside; see the log, and the disk.",
        lambda stats: stats.damaged,
    ),
    gauge(
        "yurthub_cache_broken",
        "1 while nothing can be written; /readyz has the sentence. Clients notice nothing of it "
        "before the cloud cannot be reached.",
        lambda stats: int(stats.broken),
    ),
)
