"""What an agent's sessions with its servers count, and how a scrape shows it.

See :mod:`yurttunnel.ops.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from yurttunnel.ops.families import CounterMetricFamily, GaugeMetricFamily, MetricFamily


@dataclass(frozen=True, slots=True)
class ServerStats:
    """How many servers there are to be, are connected, and at how many addresses.

    ``refusals`` counts attempts that a server has refused because it was connected already.
    """

    desired: int = 0
    connected: int = 0
    addresses: int = 0
    refusals: int = 0


def agent_server_families(stats: ServerStats) -> Iterator[MetricFamily]:
    """Yield the families of metrics."""
    servers = GaugeMetricFamily(
        "yurttunnel_agent_servers",
        "Different servers: wanted is how many the agent is to be connected to (all replicas, or "
        "--server-connections), connected to how many it is. Fewer for minutes: see every server "
        "on /readyz. Requests reach the node as long as one is connected.",
        labels=["state"],
    )
    servers.add_metric(["wanted"], stats.desired)
    servers.add_metric(["connected"], stats.connected)
    yield servers
    yield GaugeMetricFamily(
        "yurttunnel_agent_server_addresses",
        "Addresses at which servers can be dialed, as known now. 0: none has been found, see "
        "server addresses on /readyz.",
        stats.addresses,
    )
    yield CounterMetricFamily(
        "yurttunnel_agent_already_connected",
        "Attempts that have led to a server with which there is a session already. Some are "
        "normal where several servers are behind one address. A rate that stays high, with fewer "
        "connected than wanted, means that a load balancer does not spread connections.",
        stats.refusals,
    )
