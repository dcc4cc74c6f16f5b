"""The composition of the hub's connection to the API servers."""

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
    """The API ``servers`` of a ``node``; the service runs the health checks, and closes everything.

    Requests use them in turn if it ``rotates``, else the first healthy one.
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
            reactor, self.calls, node, settings.interval, self.kubelet_lease.is_alive, identity
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
        "1 if the API server is healthy. If all are 0, the node is served from the cache; the log"
        " has the reason for each server.",
        lambda upstream: ((str(each), int(each.healthy)) for each in upstream.servers),
        "server",
    ),
    counter(
        "yurthub_lease_renewals",
        "Renewals of the node's Lease. They stop while no API server is reachable, and while the"
        " kubelet does not renew its Lease: then the node becomes NotReady in the cluster.",
        lambda upstream: upstream.node_lease.renewals,
    ),
    gauge(
        "yurthub_server_connections",
        "Connections to API servers: in use by a request, including watches and upgrades, or idle.",
        lambda upstream: _in_use_and_idle(upstream.connections.statistics),
        "state",
    ),
    counter(
        "yurthub_server_pool_events",
        "Events of the connection pool for API servers: reuse, an idle connection was used;"
        " connect, a connection was attempted, of which connect_failed have failed; refusal, the"
        " limit of connections was reached.",
        lambda upstream: upstream.connections.statistics.events(),
        "event",
    ),
)
