"""The composition of the hub from its parts."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from twisted.application.service import IService
from twisted.internet.defer import Deferred

from yurttunnel.cluster.services import ServiceAddresses, service_addresses
from yurttunnel.http.authority import Address, join_authority
from yurttunnel.hub import flag_table
from yurttunnel.hub.cache.metrics import METRICS as CACHE_METRICS
from yurttunnel.hub.cache.store import Cache
from yurttunnel.hub.configuration import HubConfiguration
from yurttunnel.hub.filters.chain import METRICS as FILTER_METRICS
from yurttunnel.hub.filters.chain import Filters, chosen_makers, installed_makers
from yurttunnel.hub.filters.interfaces import FilterSite
from yurttunnel.hub.filters.pools import Pools
from yurttunnel.hub.filters.redirect import Reach
from yurttunnel.hub.filters.watches import TrackedWatches
from yurttunnel.hub.forwarding.cached_watches import CachedWatches
from yurttunnel.hub.forwarding.forwarding import Forwarder
from yurttunnel.hub.forwarding.responses import METRICS as RESPONSE_METRICS
from yurttunnel.hub.forwarding.responses import ResponseHandler
from yurttunnel.hub.forwarding.token_reviews import TokenReviews
from yurttunnel.hub.handler import Hub, ListenerHandler
from yurttunnel.hub.identity.identity import PKI_DIRECTORY, HubIdentity
from yurttunnel.hub.limits import METRICS as LIMIT_METRICS
from yurttunnel.hub.limits import Limits
from yurttunnel.hub.listeners import HubListeners
from yurttunnel.hub.meta import hub_pages
from yurttunnel.hub.offline.placeholder import PlaceholderTokens, kept_secret
from yurttunnel.hub.offline.service import METRICS as OFFLINE_METRICS
from yurttunnel.hub.offline.service import Offline, OfflineSettings
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.callers import PAGES
from yurttunnel.hub.settings import LoadBalancing, Settings
from yurttunnel.hub.status import hub_sections
from yurttunnel.hub.upstream.health import Health
from yurttunnel.hub.upstream.servers import servers_at
from yurttunnel.hub.upstream.service import METRICS as UPSTREAM_METRICS
from yurttunnel.hub.upstream.service import Upstream
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import without_credentials
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.interfaces import InformerSpec
from yurttunnel.kube.resources import PODS, SERVICES, Object
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.clocks import time_of_day
from yurttunnel.ops.configuration.reloading import ConfigurationReloader
from yurttunnel.ops.meta import MetaPort
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.services import CloseOnStop
from yurttunnel.ops.status.view import StatusSources
from yurttunnel.ops.systemd import NotifyingService
from yurttunnel.ops.threads import JobThread
from yurttunnel.pki.desired_template import TemplateUnknown
from yurttunnel.pki.directory import LockedDirectory, StateDirectory, StateError
from yurttunnel.pki.metrics import cluster_trust_metrics
from yurttunnel.tunnel.reactor import IReactor

DATABASE = "yurthub.sqlite"
"""The file name in ``--disk-cache-path``."""

PREFIX = "yurthub_"
"""The prefix of metrics that upstream does not have."""


LIVE_FLAGS = (
    flag_table.MAX_REQUESTS,
    flag_table.MAX_WATCHES,
    flag_table.MIN_REQUEST_TIMEOUT,
    flag_table.CACHE_MAX_BYTES,
)
"""The flags that can change while the hub runs."""

API_SERVICE = InformerSpec(SERVICES, service_addresses, namespace="default", name="kubernetes")
"""The Service whose address pods use for the API, and so for the hub."""


def build(
    reactor: IReactor, settings: Settings, following: ConfigurationReloader[Settings] | None = None
) -> IService:
    """Compose the hub; raise ``StateError`` or ``BadFilter``.

    ``following`` follows the configuration file, if there is one. Nothing here waits for the cloud:
    the files of an earlier run suffice to serve requests.
    """
    listeners = settings.listeners
    readiness = Readiness()
    # The hub sends its own API requests through its own port, as a client of its own.
    url = f"http://{join_authority(listeners.proxy_host, listeners.proxy_port)}"
    own = KubeClient(reactor, without_credentials(url), program="yurthub")
    for_pages = KubeClient(reactor, without_credentials(url), program=PAGES)
    informers = Informers(reactor, own, lambda: not upstream.health.online)
    identity = HubIdentity(
        reactor,
        settings.node_name,
        settings.servers,
        settings.root_dir,
        settings.bootstrap,
        partial(_serving_addresses, settings, informers),
    )
    lock = _lock_directory(settings.root_dir / PKI_DIRECTORY)
    makers = chosen_makers(installed_makers(), settings.disabled_filters)
    configuration = HubConfiguration(
        informers, settings.namespace, [maker.name for maker in makers]
    )
    policy = Policy(configuration, lambda caches: cache.evict(caches))
    cache = Cache(
        reactor,
        settings.cache_dir / DATABASE,
        partial(JobThread, reactor),
        max_bytes=settings.cache_bytes,
        is_guest=policy.is_guest,
    )
    pools = Pools(informers, settings.node_name, settings.node_pool, settings.pool_topology)
    reach = Reach(identity.serving is not None)
    site = FilterSite(
        settings.node_name,
        "" if listeners.interface is None else str(listeners.interface.address),
        listeners.secure_port,
        reach,
        pools,
        informers,
    )
    filtered_watches = TrackedWatches(reactor)
    filters = Filters(makers, site, configuration, filtered_watches)

    upstream = Upstream(
        reactor,
        settings.node_name,
        servers_at(settings.servers),
        settings.load_balancing is LoadBalancing.ROUND_ROBIN,
        settings.health,
        identity,
    )
    health = upstream.health
    offline = Offline(
        reactor,
        cache,
        policy,
        filters,
        health,
        upstream.calls.send_event,
        OfflineSettings(
            settings.node_name,
            settings.min_watch_seconds,
            _placeholders(reactor, settings) if settings.token_placeholders else None,
        ),
    )
    responses = ResponseHandler(reactor, cache, policy)
    cached_watches = TrackedWatches(reactor)
    tokens = TokenReviews(reactor, cache, upstream.calls.user_of)
    forwarder = Forwarder(
        reactor,
        upstream.connections,
        upstream.balancer,
        health,
        responses,
        CachedWatches(policy, configuration, cached_watches, cache, tokens.has_owner),
        tokens,
        offline,
    )
    limits = Limits(reactor, settings.max_requests, settings.max_watches)
    hub = Hub(reactor, health, forwarder, offline, filters, upstream.kubelet_lease, limits)

    kernel = interface = None
    if listeners.interface is not None:
        # Imported here, because it takes time and memory, and only the interface needs it.
        from yurttunnel.hub.network.interface import NodeInterface
        from yurttunnel.steering.netlink.worker import KernelWorker

        kernel = KernelWorker(reactor)
        interface = NodeInterface(reactor, listeners.interface, kernel.run)
        readiness.add("interface for pods", interface.problem, required=False)
    ports = HubListeners(
        reactor,
        listeners,
        ListenerHandler(hub, True),
        ListenerHandler(hub, False),
        identity,
        interface,
        reach.update,
    )
    readiness.add("certificate", identity.problem)
    readiness.add("certificate renewal", identity.warning, required=False)
    readiness.add("certificate for pods", identity.serving_problem, required=False)
    readiness.add("listeners for pods", ports.problem, required=False)
    readiness.add("cache", cache.problem, required=False)
    readiness.add("cloud", partial(_cloud_problem, health), required=False)

    metrics = MetricRegistry()
    metrics.add(UPSTREAM_METRICS, lambda: upstream)
    metrics.add(LIMIT_METRICS, lambda: limits)
    metrics.add(RESPONSE_METRICS, lambda: responses)
    metrics.add(CACHE_METRICS, lambda: cache.stats)
    metrics.add(OFFLINE_METRICS, lambda: offline)
    metrics.add(FILTER_METRICS, lambda: filters)
    metrics.add(cluster_trust_metrics(PREFIX), identity.stats)

    def pods() -> Deferred[Object]:
        return for_pages.list(PODS, field_selector=f"spec.nodeName={settings.node_name}")

    meta = MetaPort(
        reactor,
        ("--serve-port", listeners.meta_host, listeners.meta_port),
        StatusSources(
            program="yurthub",
            readiness=readiness,
            certificates=identity.certificates,
            sections=hub_sections(health, limits, lambda: cache.stats, offline),
        ),
        metrics,
        PREFIX,
        further=partial(hub_pages, identity.set_token, pods),
    )
    admin = meta.admin_socket(settings.root_dir, settings.node_name)
    if following is not None:

        def use(now: Settings) -> None:
            limits.set_limits(now.max_requests, now.max_watches)
            offline.watches.min_seconds = now.min_watch_seconds
            cache.set_limit(now.cache_bytes)

        following.follow(LIVE_FLAGS, use, readiness)
    # The ports are opened first, so nothing has started if one is in use. Services stop in reverse.
    return NotifyingService(
        reactor,
        readiness,
        meta,
        following,
        CloseOnStop(hub.close),
        CloseOnStop(forwarder.close),
        CloseOnStop(responses.close),
        cache,
        ports,
        kernel,
        interface,
        identity,
        upstream,
        filtered_watches,
        cached_watches,
        offline,
        # Responses get time to end before the services that produce them stop.
        CloseOnStop(partial(ports.drain, hub.end_watches)),
        CloseOnStop(own.close),
        CloseOnStop(for_pages.close),
        informers,
        lock,
        admin,
        # Without a certificate the hub serves from the cache, and approval may take long.
        serves_unready=True,
    )


def _lock_directory(path: Path) -> LockedDirectory | None:
    """Lock the directory against other hubs; a directory that is not writable is not locked."""
    try:
        return LockedDirectory(path)
    except StateError as error:
        if isinstance(error.__cause__, OSError):
            return None
        raise


def _cloud_problem(health: Health) -> str | None:
    """Return why requests are served from the cache."""
    if health.online:
        return None
    problems = [
        f"{each.server}: {each.problem or 'not checked yet'}" for each in health.servers.values()
    ]
    return f"no API server can be reached: {'; '.join(problems)}"


def _serving_addresses(settings: Settings, informers: Informers) -> Collection[Address]:
    """Return the addresses at which pods on this node connect to the API."""
    service = informers.informer(API_SERVICE)
    if not service.synced:
        raise TemplateUnknown("the addresses of the Service kubernetes are not known yet")
    found: ServiceAddresses | None = service.get("kubernetes", "default")
    listeners = settings.listeners
    addresses = {ip_address(listeners.proxy_host)}
    if listeners.interface is not None:
        addresses.add(listeners.interface.address)
    return addresses if found is None else {*addresses, *found.cluster_addresses}


def _placeholders(reactor: IReactor, settings: Settings) -> PlaceholderTokens:
    """Return the issuer of placeholder tokens."""
    secret = kept_secret(StateDirectory(settings.root_dir / PKI_DIRECTORY))
    return PlaceholderTokens(secret, partial(time_of_day, reactor))
