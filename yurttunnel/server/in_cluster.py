"""The parts list of a server in a cluster, which defines its trust, its nodes and its siblings.

It starts in two phases. The approver, and what waits for certificates, starts at once, since the
first server approves its own certificates; what needs them starts once they are issued.
"""

from __future__ import annotations

import socket
import uuid
from functools import partial

from twisted.application.service import IService

from yurttunnel.cluster.nodes import METRICS as NODE_METRICS
from yurttunnel.cluster.nodes import NODES_SPEC, Node, Nodes
from yurttunnel.cluster.pods import Pods
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import ClusterAddresses, server_name
from yurttunnel.cluster.serving_names import ServingNames
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.events import EventRecorder
from yurttunnel.kube.informer import Informers, once_synced
from yurttunnel.kube.lease import LeaderElection
from yurttunnel.kube.loading import load_configuration
from yurttunnel.ops.configuration.reloading import ConfigurationReloader
from yurttunnel.ops.deferred_start import DeferredStart
from yurttunnel.ops.services import CloseOnStop, StoppedInReverse
from yurttunnel.ops.systemd import NotifyingService
from yurttunnel.ops.timeouts import all_fired_within
from yurttunnel.pki.identity import NodeIdentity
from yurttunnel.pki.metrics import cluster_trust_metrics
from yurttunnel.server.admin import server_socket
from yurttunnel.server.agents import AgentListener
from yurttunnel.server.approver import METRICS as APPROVAL_METRICS
from yurttunnel.server.approver import ApprovalCounters, Approver
from yurttunnel.server.cluster_trust import ClusterServerTrust
from yurttunnel.server.expected_nodes import ClusterNodes
from yurttunnel.server.frontends.kubelet.authorization import Authorization
from yurttunnel.server.frontends.kubelet.callers import CertificateUsers
from yurttunnel.server.frontends.kubelet.connections import ConnectionTargets
from yurttunnel.server.frontends.kubelet.delegated_callers import ClusterState, DelegatedCallers
from yurttunnel.server.frontends.kubelet.host_names import HostNames
from yurttunnel.server.frontends.kubelet.localhost_ports import LocalhostPorts
from yurttunnel.server.frontends.kubelet.middleware import (
    ClusterInformers,
    IMiddleware,
    find_middlewares,
)
from yurttunnel.server.frontends.kubelet.resolution import Resolution
from yurttunnel.server.frontends.kubelet.reviews import METRICS as REVIEW_METRICS
from yurttunnel.server.frontends.kubelet.reviews import AuthorizationCounters, Reviews
from yurttunnel.server.join_command import label_node_section
from yurttunnel.server.listeners import agent_listener, server_service
from yurttunnel.server.options import ClusterSettings, Settings
from yurttunnel.server.process import PREFIX, ServerProcess
from yurttunnel.server.siblings.replicas import replica_slices
from yurttunnel.server.siblings.service import METRICS as SIBLING_METRICS
from yurttunnel.server.siblings.service import Siblings
from yurttunnel.server.steering import ClusterSteering
from yurttunnel.server.trust import TrustSettings
from yurttunnel.tunnel.reactor import IReactor

COMPONENT = "yurttunnel-server"

REPLICAS_TIMEOUT = 2.0
"""Seconds to wait for the list of replicas; without the API the server starts without it."""

CACHES_TIMEOUT = 30.0
"""Seconds after the start for which the server is not ready until its caches have synced."""

APPROVER_LEASE = "yurt-tunnel-approver"
"""The lease of the one server that approves."""


class ClusterServer:
    """Creates the parts; those of the second phase once the certificates are there."""

    def __init__(
        self,
        reactor: IReactor,
        settings: Settings,
        cluster: ClusterSettings,
        following: ConfigurationReloader[Settings] | None = None,
    ) -> None:
        """Create the parts of the first phase.

        Raises ``BadKubeConfiguration``, ``StateError``, ``BadBundle`` and ``BadMiddleware``. An
        unreachable API is not an error.
        """
        self._reactor = reactor
        self._settings = settings
        self._cluster = cluster
        self._namespace = cluster.namespace
        self._created = reactor.seconds()
        instance = f"{socket.gethostname()}_{uuid.uuid4()}"
        configuration = load_configuration(cluster.kube_config)
        self._client = KubeClient(reactor, configuration)
        self._informers = Informers(reactor, self._client)
        self._events = EventRecorder(reactor, self._client, COMPONENT, instance)
        self._names = self._serving_names()
        self._nodes = Nodes(self._informers, self._names.own_names)
        self._trust = ClusterServerTrust(
            reactor,
            self._client,
            cluster.cert_dir,
            configuration.authorities,
            self._names,
            TrustSettings(
                callers=cluster.allowed_callers,
                client_ca=cluster.client_ca,
                kubelet_verify=settings.kubelet_verify,
                kubelet_ca=settings.kubelet_ca,
            ),
            cluster.accept_common_certificates,
        )
        self._process = ServerProcess(
            reactor, settings, self._trust.certificates, ClusterNodes(self._nodes), following
        )
        self._process.registry.belongs_to_other_node = self._nodes.belongs_to_other_node
        self._process.add_node_section = label_node_section()
        self._election = self._make_approver(instance)
        self._reviews = self._make_reviews()
        self._ports = ProxyPorts(
            self._informers,
            self._namespace,
            settings.insecure_port,
            lambda config, text: self._events.record(config, "Warning", "BadProxyPorts", text),
        )
        self._services = ClusterAddresses(self._informers, self._namespace)
        self._steering = ClusterSteering(
            reactor, settings, cluster, self._process, self._nodes, self._ports, self._services
        )
        self._dns = self._steering.dns_election(
            self._client, self._informers, self._events, instance
        )
        self.middlewares = self._make_middlewares()
        """The middlewares for requests to kubelets, in order."""
        self._replicas = self._informers.informer(replica_slices(self._namespace))
        self._tunnel = DeferredStart(
            reactor,
            COMPONENT,
            "not listening yet: the certificates are missing",
            self._ready,
            self._second_phase,
        )

    def service(self) -> IService:
        """Return all parts together, in order of start; they stop in reverse order."""
        process = self._process
        readiness = process.readiness
        readiness.add("listeners", self._tunnel.problem)
        readiness.add("certificates", self._trust.problem)
        readiness.add("caches", self._unsynced_caches)
        # What is in use stays in use, so these are reported without affecting readiness.
        readiness.add("certificate renewal", self._trust.warning, required=False)
        readiness.add("Kubernetes API", self._informers.problem, required=False)
        readiness.add("approver", self._election.problem, required=False)
        readiness.add("reviews", self._reviews.problem, required=False)
        process.metrics.add(cluster_trust_metrics(PREFIX), self._trust.stats)
        process.metrics.add(NODE_METRICS, lambda: self._nodes)
        return NotifyingService(
            self._reactor,
            readiness,
            process.meta,
            CloseOnStop(self._client.close),
            self._informers,
            self._events,
            self._trust,
            self._election,
            self._dns,
            self._reviews,
            # Redirected connections stay redirected until the last stream has ended.
            self._steering.tracking(),
            self._tunnel,
            # Callers are redirected here only while everything listens. It starts before that, too:
            # a server that was killed may have left rules.
            self._steering.rules(self._tunnel.problem),
            server_socket(self._cluster.cert_dir, process, {}),
        )

    def _unsynced_caches(self) -> str | None:
        """Return which caches have not synced, for a while after the start.

        If the API is away for longer than that, callers are better served by the agents' addresses
        and names than not at all.
        """
        if self._reactor.seconds() > self._created + CACHES_TIMEOUT:
            return None
        return self._informers.incomplete()

    def _is_deleted(self, identity: NodeIdentity) -> bool:
        """Return whether a node was deleted from the cluster, as far as is known."""
        return self._nodes.synced and self._nodes.get(identity.node) is None

    def _serving_names(self) -> ServingNames:
        settings = self._settings
        return ServingNames(
            self._informers,
            self._namespace,
            settings.certificate_addresses,
            settings.certificate_names,
            self._cluster.cluster_domain,
        )

    def _make_approver(self, instance: str) -> LeaderElection:
        counters = ApprovalCounters()
        approver = Approver(
            self._reactor, self._client, self._informers, self._events, self._namespace, counters
        )
        self._process.readiness.add("approval", approver.problem, required=False)
        self._process.metrics.add(APPROVAL_METRICS, lambda: counters)
        return LeaderElection(
            self._reactor, self._client, self._namespace, APPROVER_LEASE, instance, approver
        )

    def _make_reviews(self) -> Reviews:
        self._authorization = AuthorizationCounters()
        self._process.metrics.add(REVIEW_METRICS, lambda: self._authorization)
        return Reviews(self._reactor, self._client, self._authorization)

    def _make_middlewares(self) -> list[IMiddleware]:
        """Return the middlewares in order: authorization follows the choice of the destination."""
        registry, nodes, pods = self._process.registry, self._nodes, Pods(self._informers)
        users = CertificateUsers(self._cluster.allowed_callers)
        flags = self._cluster.steering
        cluster = ClusterState(
            nodes,
            pods,
            self._services,
            self._ports,
            flags.iptables,
            flags.dns,
            flags.refuse_unnamed_upgrades,
        )
        return [
            DelegatedCallers(self._reactor, registry, cluster, users, ConnectionTargets()),
            Resolution(registry, nodes, pods),
            LocalhostPorts(registry, nodes, self._ports),
            HostNames(registry, lambda host: {node.name for node in nodes.find(host)}),
            Authorization(self._reactor, self._reviews, users, registry, self._authorization),
            *find_middlewares(
                self._reactor,
                self._settings.middlewares,
                cluster=ClusterInformers(self._informers, self._namespace),
            ),
        ]

    async def _ready(self) -> None:
        await self._trust.ready()
        # The first message to agents contains the number of servers.
        await all_fired_within(self._reactor, REPLICAS_TIMEOUT, [self._replicas.when_synced()])

    def _second_phase(self) -> IService:
        """Create the parts that need certificates."""
        trust, process = self._trust, self._process
        agents = agent_listener(process, trust, self._is_deleted, {}, lambda: siblings.replicas())
        siblings = Siblings(
            self._reactor,
            process.context,
            process.registry,
            agents,
            trust.siblings.creator(server_name(self._namespace)),
            self._replicas,
        )
        server = server_service(
            self._reactor,
            self._settings,
            process,
            trust,
            agents,
            self.middlewares,
            [siblings],
            self._steering.passthrough,
        )
        nodes = self._informers.informer(NODES_SPEC)
        nodes.add_handler(partial(_revoke_deleted, agents))
        # Nodes that were deleted before the start cause no event; they are absent from the list.
        once_synced(nodes, agents.revoke_all)
        process.readiness.add("kubelet trust", trust.kubelet_problem, required=False)
        process.readiness.add("siblings", siblings.problem, required=False)
        process.metrics.add(SIBLING_METRICS, siblings.stats)
        self._tunnel.not_accepting = server.not_accepting
        return StoppedInReverse(siblings, server)


def _revoke_deleted(agents: AgentListener, old: Node | None, new: Node | None) -> None:
    """Close the session of a node that was deleted from the cluster."""
    if old is not None and new is None:
        agents.revoke(old.name)
