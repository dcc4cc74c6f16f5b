"""The composition of the service proxy from its parts."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace
from functools import partial

from twisted.application.service import IService

from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration, without_credentials
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.loading import load_configuration
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.configuration.reloading import ConfigurationReloader
from yurttunnel.ops.deferred_start import DeferredStart
from yurttunnel.ops.http_site import LimitedSite
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.ops.meta import JsonPage, MetaPort
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.services import CloseOnStop, PortService, StoppedInReverse
from yurttunnel.ops.slices import gather
from yurttunnel.ops.status.view import StatusSources
from yurttunnel.ops.systemd import NotifyingService
from yurttunnel.ops.threads import JobThread
from yurttunnel.pki.directory import LockedDirectory
from yurttunnel.proxy import flag_table
from yurttunnel.proxy.data_path import DataPath, select_data_path
from yurttunnel.proxy.health import METRICS as HEALTH_METRICS
from yurttunnel.proxy.health import HealthPages, SyncHealth
from yurttunnel.proxy.health_checks import HealthCheckServers, listening_hosts
from yurttunnel.proxy.metrics import METRICS, PREFIX, TABLE_METRICS, ProxyStats, connection_table
from yurttunnel.proxy.node import ThisNode
from yurttunnel.proxy.page import problems_section, services_page, services_section, syncs_section
from yurttunnel.proxy.proxier import Proxier
from yurttunnel.proxy.settings import Settings, SourceSettings
from yurttunnel.proxy.socket_manager import ServiceStatus, SocketManager
from yurttunnel.proxy.sources.sources import Sources
from yurttunnel.proxy.state.virtual_services import Problem
from yurttunnel.steering.netlink.address_events import AddressEvents
from yurttunnel.steering.netlink.worker import KernelWorker
from yurttunnel.tunnel.reactor import IReactor

PROGRAM = "yurtproxy"

LIVE_FLAGS = (flag_table.DRAIN_TIMEOUT, flag_table.UDP_TIMEOUT, flag_table.UDP_FIRST_TIMEOUT)
"""The flags that can change while the proxy runs."""

STARTING = "the proxy is checking which modes and firewall back ends this machine supports"


class ProxyProcess:
    """Makes the parts; those that serve are made once it is known what this machine supports."""

    def __init__(
        self,
        reactor: IReactor,
        settings: Settings,
        following: ConfigurationReloader[Settings] | None,
    ) -> None:
        """Make the initial parts; raises ``BadKubeConfiguration`` and ``StateError``."""
        self._held = None if settings.state_dir is None else LockedDirectory(settings.state_dir)
        self._reactor = reactor
        self._settings = settings
        self._sync = settings.sync
        self._worker = KernelWorker(reactor)
        self._client: KubeClient | None = None
        self._informers: Informers | None = None
        if settings.sources.api:
            self._client = KubeClient(reactor, _configuration(settings.sources), program=PROGRAM)
            self._informers = Informers(reactor, self._client)
        self._node = ThisNode(
            reactor,
            self._worker.run,
            settings.node_name,
            settings.sync.period,
            self._informers,
            settings.node_port_networks,
            settings.is_local_only,
        )
        self._sources = Sources(
            reactor,
            JobThread(reactor, "manifests"),
            self._node,
            self._informers,
            settings.sources.file,
        )
        self._health = SyncHealth(reactor, settings.sync.period, lambda: self._node.facts.eligible)
        self._health_pages = HealthPages(self._health)
        self._data_path: DataPath | None = None
        self._manager: SocketManager | None = None
        self._proxier: Proxier | None = None
        self._serving = DeferredStart(reactor, PROGRAM, STARTING, self._select, self._serving_parts)
        self._readiness = Readiness()
        self._readiness.add("rules", self._serving.problem)
        self._readiness.add("services", self._warning, required=False)
        self._readiness.add("retry", partial(self._warning_of, "retry"), required=False)
        self._readiness.add("forwarding", partial(self._warning_of, "forwarding"), required=False)
        self._readiness.add("kube-proxy", partial(self._warning_of, "kube-proxy"), required=False)
        self._following = following
        if following is not None:
            following.follow(LIVE_FLAGS, self._use, self._readiness)

    def _use(self, settings: Settings) -> None:
        """Apply the settings that can change with the file."""
        self._sync = replace(self._sync, drain=settings.sync.drain)
        self._settings = replace(self._settings, udp=settings.udp)
        if self._proxier is not None:
            self._proxier.settings = self._sync
        self._apply_udp_timeouts()

    def _apply_udp_timeouts(self) -> None:
        """Apply the current timeouts of UDP clients."""
        if self._data_path is not None:
            self._data_path.udp.set_timeouts(self._settings.udp.first, self._settings.udp.idle)

    def service(self) -> IService:
        """Return all parts as one service."""
        # The ports come first: if one is in use, nothing else has been started. The last part is
        # stopped first.
        meta, admin = self._meta_parts()
        return NotifyingService(
            self._reactor,
            self._readiness,
            meta,
            self._following,
            self._health_port(),
            None if self._client is None else CloseOnStop(self._client.close),
            self._worker,
            self._informers,
            AddressEvents(self._reactor, self._node.refresh),
            self._node,
            self._sources,
            self._serving,
            self._held,
            admin,
        )

    async def _select(self) -> None:
        self._data_path = await select_data_path(
            self._reactor, self._settings, self._worker.run, self._node, self._sources
        )
        # They may have changed in the meantime.
        self._apply_udp_timeouts()

    def _serving_parts(self) -> IService:
        """Make the parts that serve, with what was found."""
        data_path = self._data_path
        assert data_path is not None  # it was found before this is called
        manager = SocketManager(self._reactor, data_path.sockets, data_path.kernel)
        proxier = Proxier(
            self._reactor,
            self._sync,
            self._sources,
            manager,
            data_path.claims,
            data_path.rules,
            data_path.conntrack,
            HealthCheckServers(
                self._reactor,
                lambda: listening_hosts(self._node.facts),
                lambda: self._health.is_alive,
            ),
            self._health,
            lambda: self._node.facts.addresses,
        )
        self._manager, self._proxier = manager, proxier
        self._serving.not_accepting = proxier.problem
        self._node.on_changed.append(proxier.node_changed)
        return StoppedInReverse(*data_path.services, proxier)

    def _warning(self) -> str | None:
        return self._sources.problem() if self._proxier is None else self._proxier.warning()

    def _warning_of(self, check: str) -> str | None:
        """Return the problem of a check that the data path may have."""
        warnings = {} if self._data_path is None else self._data_path.warnings
        return warnings[check]() if check in warnings else None

    def _mode(self) -> dict[str, str] | None:
        data_path = self._data_path
        if data_path is None:
            return None
        return {"mode": data_path.mode.value, "backend": data_path.rules.backend}

    def _service_statuses(self) -> Iterable[ServiceStatus]:
        return () if self._manager is None else self._manager.statuses()

    def _problems(self) -> tuple[Problem, ...]:
        return () if self._proxier is None else self._proxier.problems

    def _stats(self) -> Generator[str, None, ProxyStats] | None:
        if self._proxier is None or self._manager is None:
            return None
        return self._read(self._proxier, self._manager)

    def _read(self, proxier: Proxier, manager: SocketManager) -> Generator[str, None, ProxyStats]:
        statuses = yield from gather(manager.statuses())
        totals = yield from manager.totals()
        return ProxyStats(proxier, self._health, statuses, totals, manager.draining())

    def _meta_parts(self) -> tuple[IService, IService | None]:
        reactor = self._reactor
        metrics = MetricRegistry()
        metrics.add(METRICS, self._stats)
        metrics.add(HEALTH_METRICS, lambda: self._health_pages)
        metrics.add(TABLE_METRICS, connection_table)
        mode = JsonPage(
            "mode", "Mode and firewall back end of the proxy, as JSON", self._mode, STARTING
        )
        meta = MetaPort(
            reactor,
            ("--metrics-bind-address", *self._settings.pages.metrics),
            StatusSources(
                program=PROGRAM,
                readiness=self._readiness,
                certificates=None,
                sections=(
                    problems_section(self._problems),
                    services_section(reactor, self._service_statuses),
                    syncs_section(self._health, lambda: self._proxier),
                ),
            ),
            metrics,
            PREFIX,
            features=[services_page(reactor, self._service_statuses), mode],
        )
        directory = self._settings.state_dir
        if directory is None:
            return meta, None
        return meta, meta.admin_socket(directory, self._settings.node_name)

    def _health_port(self) -> IService | None:
        where = self._settings.pages.health
        if where is None:
            return None
        site = LimitedSite(self._health_pages.pages, self._reactor)
        listen = partial(listen_tcp, self._reactor, "--healthz-bind-address", *where, site)
        return PortService(listen, site.close)


def build(
    reactor: IReactor, settings: Settings, following: ConfigurationReloader[Settings] | None = None
) -> IService:
    """Compose the proxy; raises ``BadKubeConfiguration`` and ``StateError``.

    ``following`` follows the settings file, if there is one.

    Nothing here waits for the API, which may be a hub that has not started yet.
    """
    return ProxyProcess(reactor, settings, following).service()


def _configuration(sources: SourceSettings) -> KubeConfiguration:
    master = sources.master
    if sources.kube_config is None and master is not None and master.startswith("http:"):
        return without_credentials(master)
    return load_configuration(sources.kube_config, master, flag="--kubeconfig")
