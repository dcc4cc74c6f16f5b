"""What a scrape shows of the other replicas of a server; see ``ops.metrics``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from yurttunnel.ops.families import CounterMetricFamily, GaugeMetricFamily, MetricFamily
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.codes import Code

_PREFIX = "yurttunnel_server_"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingStats:
    """Where the figures come from.

    ``known`` and ``connected`` count siblings, without this server. ``remote_nodes`` counts nodes
    that are reached by siblings only. ``outgoing`` counts what this server has asked of siblings,
    ``incoming`` what they have asked of it; ``open_outgoing`` and ``open_incoming`` are how many
    streams there are now. ``failed_attempts`` counts connections that came to nothing.
    """

    known: Callable[[], int]
    connected: Callable[[], int]
    remote_nodes: Callable[[], int]
    outgoing: TunnelCounters
    incoming: TunnelCounters
    open_outgoing: Callable[[], int]
    open_incoming: Callable[[], int]
    failed_attempts: Callable[[], int]


def sibling_families(stats: SiblingStats) -> Iterator[MetricFamily]:
    """Yield the families of metrics."""
    siblings = GaugeMetricFamily(
        f"{_PREFIX}siblings",
        "Other replicas of this server: known by the EndpointSlices of its Service, and connected "
        "now. Fewer connected than known for long: the log says why; look at what is between the "
        "servers on the agents' port.",
        labels=["state"],
    )
    siblings.add_metric(["known"], stats.known())
    siblings.add_metric(["connected"], stats.connected())
    yield siblings
    yield GaugeMetricFamily(
        f"{_PREFIX}remote_nodes",
        "Nodes that this server reaches by a sibling only. Many for long: agents do not connect "
        "to all servers; look at what they know of them (/readyz of the agent, its log).",
        stats.remote_nodes(),
    )
    streams = GaugeMetricFamily(
        f"{_PREFIX}sibling_streams",
        "Streams between this server and its siblings now: out, to nodes that a sibling has; in, "
        "to nodes that this server has. There is one more for each connected sibling either way, "
        "the list of nodes.",
        labels=["direction"],
    )
    streams.add_metric(["out"], stats.open_outgoing())
    streams.add_metric(["in"], stats.open_incoming())
    yield streams
    yield _openings(stats.outgoing.dials, stats.incoming.dials)
    transferred = CounterMetricFamily(
        f"{_PREFIX}sibling_bytes",
        "Payload of the streams between servers, out and in by the way of the bytes. Much of it "
        "beside little of other traffic: see remote_nodes.",
        labels=["direction"],
    )
    counters = stats.outgoing, stats.incoming
    transferred.add_metric(["out"], sum(each.bytes_sent for each in counters))
    transferred.add_metric(["in"], sum(each.bytes_received for each in counters))
    yield transferred
    yield CounterMetricFamily(
        f"{_PREFIX}sibling_connection_failures",
        "Attempts to connect to siblings that ended before the sibling's HELLO. Some are normal "
        "while a replica starts or stops; the log has the reason of each that is new.",
        stats.failed_attempts(),
    )


def _openings(outgoing: Counter[Code], incoming: Counter[Code]) -> MetricFamily:
    family = CounterMetricFamily(
        f"{_PREFIX}sibling_stream_openings",
        "Streams that were asked for between servers, by how the asking ended: DONE, or the code "
        "of docs/protocol.md. SESSION_LOST, now and then: a node or a sibling was lost meanwhile, "
        "and another way is tried if there is one.",
        labels=["direction", "code"],
    )
    for direction, counts in (("out", outgoing), ("in", incoming)):
        for code in sorted({Code.DONE, Code.SESSION_LOST, *counts}):
            family.add_metric([direction, code.name], counts[code])
    return family
