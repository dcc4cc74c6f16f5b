"""The parts list of what redirects the cluster's callers to this server, each behind its flag."""

from __future__ import annotations

from collections.abc import Callable

from twisted.application.service import IService
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.kube.events import EventRecorder
from yurttunnel.kube.interfaces import IInformers, IKubeClient
from yurttunnel.kube.lease import LeaderElection
from yurttunnel.ops.services import StoppedInReverse
from yurttunnel.server.frontends.passthrough.listener import PassthroughFactory
from yurttunnel.server.frontends.passthrough.nodes import PassthroughNodes
from yurttunnel.server.options import ClusterSettings, Settings
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.redirect_targets import redirect_ports, redirect_targets
from yurttunnel.steering.desired_state import SteeringSettings
from yurttunnel.steering.dns.controller import LEASE, DnsController
from yurttunnel.steering.dns.service_ports import ServerPorts
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interfaces import Firewalls
from yurttunnel.steering.report import (
    DNS_METRICS,
    PASSTHROUGH_METRICS,
    RULES_METRICS,
    DnsReport,
    PassthroughReport,
    RulesReport,
    SteeringReport,
)
from yurttunnel.tunnel.reactor import IReactor

_log = Logger()


class ClusterSteering:
    """Creates the parts; those that are not enabled are ``None``."""

    def __init__(
        self,
        reactor: IReactor,
        settings: Settings,
        cluster: ClusterSettings,
        process: ServerProcess,
        nodes: Nodes,
        ports: ProxyPorts,
        services: ClusterAddresses,
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._cluster = cluster
        self._flags = cluster.steering
        self._process = process
        self._nodes = nodes
        self._ports = ports
        self._services = services
        self._rules: Callable[[], RulesReport] | None = None
        self._dns: Callable[[], DnsReport] | None = None
        self.passthrough = self._make_passthrough()
        """--passthrough-port with its factory."""
        flags = self._flags
        if flags.iptables or flags.dns or self.passthrough is not None:
            process.steering = self._report
            process.metrics.add(RULES_METRICS, self._rules_report)
            process.metrics.add(DNS_METRICS, self._dns_report)
            process.metrics.add(PASSTHROUGH_METRICS, self._passthrough_report)

    def dns_election(
        self, client: IKubeClient, informers: IInformers, events: EventRecorder, instance: str
    ) -> LeaderElection | None:
        """Return the election of the one server that maintains the nodes' DNS records."""
        if not self._flags.dns:
            return None
        settings, flags, namespace = self._settings, self._flags, self._cluster.namespace
        server = ServerPorts(
            settings.secure_port,
            settings.insecure_port,
            flags.passthrough_port,
            flags.passthrough_ports,
        )
        controller = DnsController(
            self._reactor,
            client,
            informers,
            events,
            namespace,
            self._ports,
            server,
            flags.dns_period,
        )
        election = LeaderElection(self._reactor, client, namespace, LEASE, instance, controller)
        self._dns = controller.report
        readiness = self._process.readiness
        readiness.add("DNS election", election.problem, required=False)
        readiness.add("DNS records", controller.problem, required=False)
        return election

    def tracking(self) -> IService | None:
        """Return the service that keeps connections redirected after their rules are gone."""
        if not self._flags.iptables:
            return None
        from yurttunnel.steering.netlink.connection_tracking import ConnectionTracking
        from yurttunnel.steering.netlink.worker import KernelWorker

        worker = KernelWorker(self._reactor)
        ports = redirect_ports(self._settings, self._flags)
        tracking = ConnectionTracking(worker.run, "--enable-iptables", lambda: ports)
        return StoppedInReverse(worker, tracking)

    def rules(self, not_accepting: Callable[[], str | None]) -> IService | None:
        """Return the service that maintains the firewall rules while the listeners accept."""
        if not self._flags.iptables:
            return None
        # Imported late, because these modules take time and memory.
        from yurttunnel.ops.programs import Programs, child_cpu_seconds
        from yurttunnel.steering.firewall.tunnel import find_firewalls, remove_leftovers_elsewhere
        from yurttunnel.steering.manager import SteeringManager
        from yurttunnel.steering.netlink.address_sets import AddressSets
        from yurttunnel.steering.netlink.flows import Flows
        from yurttunnel.steering.netlink.worker import KernelWorker

        programs = Programs(self._reactor)
        # The firewall backend that has our rules, by IP version.
        used: dict[int, str] = {}

        async def find() -> Firewalls:
            firewalls = await find_firewalls(programs, keep=used)
            new = firewalls.found.keys() - used.keys()
            used.update({version: firewalls.found[version].backend for version in new})
            try:
                for sentence in await remove_leftovers_elsewhere(
                    programs, firewalls, versions=sorted(new)
                ):
                    _log.info("--enable-iptables: {sentence}", sentence=sentence)
            except SteeringFailed as error:
                _log.warn("--enable-iptables: {error}", error=str(error))
            return firewalls

        flags = self._flags
        worker = KernelWorker(self._reactor)
        manager = SteeringManager(
            self._reactor,
            SteeringSettings(
                listeners=redirect_targets(self._settings, flags),
                match=flags.match,
                pods=flags.pods,
                passthrough_ports=flags.passthrough_ports,
                period=flags.iptables_period,
            ),
            self._nodes,
            self._ports,
            self._services,
            lambda: Deferred.fromCoroutine(find()),
            AddressSets(worker.run, self._reactor),
            Flows(worker.run),
            child_cpu_seconds,
            not_accepting,
        )
        self._rules = manager.report
        self._process.readiness.add("steering", manager.problem, required=False)
        return StoppedInReverse(worker, manager)

    def _make_passthrough(self) -> tuple[int, PassthroughFactory] | None:
        port, registry = self._flags.passthrough_port, self._process.registry
        if port is None:
            return None
        nodes = PassthroughNodes(registry, self._nodes, self._services, self._flags.iptables)
        return port, PassthroughFactory(
            self._reactor, registry, nodes, self._flags.passthrough_ports
        )

    def _report(self) -> SteeringReport:
        return SteeringReport(
            rules=self._rules_report(),
            dns=self._dns_report(),
            passthrough=self._passthrough_report(),
        )

    def _rules_report(self) -> RulesReport | None:
        return None if self._rules is None else self._rules()

    def _dns_report(self) -> DnsReport | None:
        return None if self._dns is None else self._dns()

    def _passthrough_report(self) -> PassthroughReport | None:
        if self.passthrough is None:
            return None
        port, factory = self.passthrough
        stats = factory.stats
        return PassthroughReport(
            port=port,
            ports=tuple(sorted(self._flags.passthrough_ports)),
            connections=stats.passed,
            refused={reason.value: count for reason, count in stats.refused.items()},
        )
