"""The parts list of an agent in a cluster."""

from __future__ import annotations

from twisted.application.service import IService

from yurttunnel.agent.address_file import AddressFile
from yurttunnel.agent.cluster_trust import ClusterAgentTrust, certified_identifiers
from yurttunnel.agent.discovery import DiscoveredAddresses
from yurttunnel.agent.process import PREFIX, AgentProcess
from yurttunnel.agent.server_addresses import FixedAddresses
from yurttunnel.agent.settings import ClusterSettings, Settings
from yurttunnel.cluster.services import server_name
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.loading import load_configuration
from yurttunnel.ops.configuration.reloading import ConfigurationReloader
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.services import CloseOnStop
from yurttunnel.ops.systemd import NotifyingService
from yurttunnel.pki.metrics import cluster_trust_metrics
from yurttunnel.tunnel.reactor import IReactor

IDENTIFIERS_INTERVAL = 10.0
"""Seconds between two checks whether the servers know the identifiers in the certificate."""

EXPECTED_SERVERS = 2
"""The number of servers to assume at first; the first one that responds sends the number."""


def build(
    reactor: IReactor,
    settings: Settings,
    mode: ClusterSettings,
    following: ConfigurationReloader[Settings] | None = None,
) -> IService:
    """Compose the agent.

    Raises ``BadKubeConfiguration``, ``BadBundle``, ``StateError`` and ``BadIdentity``. An
    unreachable API is not an error: the agent waits for it, or works without.
    """
    configuration = load_configuration(mode.kube_config, mode.apiserver_addr)
    client = KubeClient(reactor, configuration)
    informers = Informers(reactor, client)
    trust = ClusterAgentTrust(
        reactor,
        client,
        mode.cert_dir,
        configuration.authorities,
        settings.node_name,
        settings.identifiers,
    )
    discovered = DiscoveredAddresses(informers, mode.namespace, AddressFile(mode.cert_dir))
    process = AgentProcess(
        reactor,
        settings,
        trust,
        FixedAddresses(settings.servers) if settings.servers else discovered,
        lambda: certified_identifiers(settings.identifiers, trust.current_identifiers()),
        # Whatever addresses the API returns, every replica has a certificate for this name.
        server_name=None if settings.servers else server_name(mode.namespace),
        expected=EXPECTED_SERVERS,
        following=following,
    )
    process.metrics.add(cluster_trust_metrics(PREFIX), trust.stats)
    if not settings.servers:
        process.readiness.add("server addresses", discovered.problem, required=False)
        process.readiness.add("Kubernetes API", informers.problem, required=False)
    identifiers = Reconciler(
        reactor,
        IDENTIFIERS_INTERVAL,
        "telling servers of the identifiers",
        process.agent.update_identifiers,
    )
    # The port comes first: if it is in use, nothing else has started. It is closed last.
    return NotifyingService(
        reactor,
        process.readiness,
        process.meta,
        CloseOnStop(client.close),
        informers,
        trust,
        None if settings.servers else discovered,
        process.agent,
        identifiers,
        process.meta.admin_socket(mode.cert_dir, settings.node_name),
    )
