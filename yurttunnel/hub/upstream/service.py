"""The hub's way to the API servers, put together."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, maybeDeferred

from yurttunnel.http.pool import PoolStatistics
from yurttunnel.hub.interfaces import IIdentity
from yurttunnel.hub.settings import HealthSettings
from yurttunnel.hub.upstream.calls import ApiCalls
from yurttunnel.hub.upstream.connections import Connections
from yurttunnel.hub.upstream.health import Health
from yurttunnel.hub.upstream.kubelet_lease import KubeletLease
from yurttunnel.hub.upstream.node_lease import NodeLease
from yurttunnel.hub.upstream.servers import Balancer, Server
from yurttunnel.metrics import Metric, counter, gauge
from yurttunnel.tunnel.reactor import IReactor


class Upstream(MultiService):
    """The ``servers`` of a hub's ``node``; as a service it checks them, and closes all in the end.

    They take turns if it ``rotates``, else the first one that is healthy is asked.
    """

    def __init__(
        self,
        reactor: IReactor,
        node: str,
        servers: Sequence[Server],
        rotates: bool,
        settings: HealthSettings,
        identity: IIdentity,
    ) -> None:
        super().__init__()
        self.servers = servers
        self.connections = Connections(reactor, identity)
        self.balancer = Balancer(servers, rotates)
        self.calls = ApiCalls(self.connections, self.balancer)
        self.kubelet_lease = KubeletLease(reactor, node, settings.kubelet_grace)
        self.node_lease = NodeLease(
            reactor,
            self.calls,
            node,
            settings.interval,
            self.kubelet_lease.lives,
            identity,
        )
        self.health = Health(
            reactor, servers, self.node_lease.check, self.connections.close_server, settings
        )
        self.health.setServiceParent(self)

    def stopService(self) -> Deferred[None]:
        """Stop the checks, then close all connections."""
        stopped: Deferred[None] = maybeDeferred(super().stopService)
        return stopped.addCallback(lambda _: self.connections.close())


def _in_use_and_idle(pool: PoolStatistics) -> tuple[tuple[str, int], ...]:
    return ("in_use", pool.in_use), ("idle", pool.idle)


METRICS: tuple[Metric[Upstream], ...] = (
    gauge(
        "node_yurthub_server_healthy_status",
        "Whether an API server is healthy: 1 if it is. With 0 for all of them the node lives on"
        " what is kept; the log says what is wrong with each.",
        lambda upstream: ((str(each), int(each.healthy)) for each in upstream.servers),
        "server",
    ),
    counter(
        "yurthub_lease_renewals",
        "How often the Lease of the node was renewed. It does not go up while there is no cloud,"
        " and while kubelet does not ask for its Lease: then the cloud sees the node as NotReady.",
        lambda upstream: upstream.node_lease.renewals,
    ),
    gauge(
        "yurthub_server_connections",
        "Connections to API servers now: in use by a request, watches and upgrades included, or"
        " idle until the next one.",
        lambda upstream: _in_use_and_idle(upstream.connections.statistics),
        "state",
    ),
    counter(
        "yurthub_server_pool_events",
        "What requests for connections to API servers have led to: reuse, a connection that was"
        " there was used again; connect, one was made or tried, which failed as often as"
        " connect_failed says; refusal, the connections were at their bounds.",
        lambda upstream: upstream.connections.statistics.events(),
        "event",
    ),
)
