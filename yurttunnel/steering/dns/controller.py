"""The DNS controller, which publishes the address for the name of each node.

The name of a node behind the tunnel resolves to the address of the internal Service, that of any
other node to its own address. The controller maintains the records in the ConfigMap
``yurt-tunnel-nodes``, and the ports of the Service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.cluster.fields import mapping, text
from yurttunnel.cluster.nodes import NODES_SPEC
from yurttunnel.cluster.proxy_ports import ProxyPorts, proxy_ports_spec
from yurttunnel.cluster.services import INTERNAL_SERVICE, service_addresses
from yurttunnel.kube.events import EventRecorder
from yurttunnel.kube.interfaces import IInformers, IKubeClient, InformerSpec, whole
from yurttunnel.kube.reflector import described
from yurttunnel.kube.resources import CONFIG_MAPS, SERVICES, Object, Resource
from yurttunnel.ops.backoff import Backoff
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.steering.dns.records import (
    CONFIG_MAP,
    Records,
    TooManyRecords,
    limit_sentences,
    make_records,
    with_records,
)
from yurttunnel.steering.dns.service_ports import ServerPorts, service_ports, with_ports
from yurttunnel.steering.dns.writer import Writer
from yurttunnel.steering.report import DnsReport

LEASE = "tunnel-dns-controller"
"""The Lease of the one server that publishes; yurttunnel 1.2 uses the same."""

SPACING_SECONDS = 1.0
"""The minimum interval of reconciliations in seconds, so that many changes cause few writes."""

SETTLE_SECONDS = 0.1
"""How long to wait for further changes after the first: the API sends many at once."""

MAX_BACKOFF = 30.0
"""The maximum pause in seconds after repeated failures."""

MAX_REPORTED = 10
"""The maximum number of nodes without a record that are reported one by one."""

NO_SERVICE, NO_CLUSTER_IP, TOO_MANY_RECORDS = "NoService", "NoClusterIP", "TooManyRecords"
"""The reasons of events about problems that an operator must solve."""


class DnsController(Service):
    """Reconciles the ConfigMap and the ports of the Service.

    It runs on the leading server only, and can be started and stopped any number of times; other
    servers keep its caches, too. ``ports`` are those of the ConfigMap of ports, ``server`` the
    ports that they lead to. Everything is checked every ``period`` seconds in any case.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        informers: IInformers,
        events: EventRecorder,
        namespace: str,
        ports: ProxyPorts,
        server: ServerPorts,
        period: float,
    ) -> None:
        self._events = events
        self._namespace = namespace
        self._ports = ports
        self._server = server
        self._nodes = informers.informer(NODES_SPEC)
        self._service = informers.informer(_one(SERVICES, namespace, INTERNAL_SERVICE))
        self._config_map = informers.informer(_one(CONFIG_MAPS, namespace, CONFIG_MAP))
        self._watched = (self._nodes, self._service, self._config_map)
        self._caches = (*self._watched, informers.informer(proxy_ports_spec(namespace)))
        self._reconciler = Reconciler(
            clock,
            period,
            "updating the DNS records",
            self._reconcile,
            settle=SETTLE_SECONDS,
            spacing=SPACING_SECONDS,
            backoff=Backoff(SPACING_SECONDS, MAX_BACKOFF),
        )
        self._remove_handlers: list[Callable[[], object]] = []
        self._writer = Writer(clock, client, namespace)
        # Problems that an operator must solve, by the reason of the event: one at a time.
        self._problems: dict[str, str] = {}
        # Sentences about nodes without a record, which have been logged.
        self._left_out: tuple[str, ...] = ()
        self._records = 0

    def startService(self) -> None:
        super().startService()
        self._ports.on_changed.append(self._reconciler.trigger)
        self._remove_handlers = [informer.add_handler(self._changed) for informer in self._watched]
        self._remove_handlers.append(
            lambda: self._ports.on_changed.remove(self._reconciler.trigger)
        )
        self._reconciler.startService()

    def stopService(self) -> Deferred[Any]:
        """Stop; fires when no reconciliation is in progress. The published records stay."""
        super().stopService()
        remove_handlers, self._remove_handlers = self._remove_handlers, []
        for each in remove_handlers:
            each()
        self._problems.clear()
        self._writer.forget()
        self._left_out = ()
        return self._reconciler.stopService()

    def problem(self) -> str | None:
        """Return the problems with records or ports, on the leading server."""
        return "; ".join(self._all_problems()) or None

    def report(self) -> DnsReport:
        """Return the counters and the current state."""
        return DnsReport(
            leader=bool(self.running),
            records=self._records,
            writes=dict(self._writer.writes),
            last_write=self._writer.last_write,
            problem="; ".join(self._all_problems()) or None,
        )

    def _all_problems(self) -> list[str]:
        if not self.running:
            return []
        missing = [
            described(each.spec) + (f" ({each.error})" if each.error is not None else "")
            for each in self._caches
            if not each.synced
        ]
        if missing:
            return [f"the DNS records wait for the API: {', '.join(missing)}"]
        return [
            *self._problems.values(),
            *self._writer.problems.values(),
            *limit_sentences(self._left_out, MAX_REPORTED),
        ]

    def _changed(self, _old: object, _new: object) -> None:
        self._reconciler.trigger()

    async def _reconcile(self) -> bool:
        """Reconcile both objects; return whether they are as desired now."""
        for informer in self._caches:
            # With only some of the nodes, the records of the others would be removed.
            await informer.when_synced()
        service: Object | None = self._service.get(INTERNAL_SERVICE, self._namespace)
        if service is None:
            self._writer.forget()
            self._report_problem(
                _reference(SERVICES, self._namespace, INTERNAL_SERVICE, service),
                NO_SERVICE,
                f"there is no Service {self._namespace}/{INTERNAL_SERVICE}, to which the names of"
                " edge nodes resolve, so the DNS records are not changed: create it as in"
                " deploy/base/services.yaml",
            )
            return True
        records = await self._reconcile_records(service)
        ports = await self._reconcile_ports(service)
        return records and ports

    async def _reconcile_records(self, service: Object) -> bool:
        addresses = service_addresses(service).cluster_addresses
        if not addresses:
            self._report_problem(
                _reference(SERVICES, self._namespace, INTERNAL_SERVICE, service),
                NO_CLUSTER_IP,
                f"Service {self._namespace}/{INTERNAL_SERVICE} has no ClusterIP, to which the"
                " names of edge nodes resolve, so the DNS records are not changed: delete it, and"
                " create it with type ClusterIP and without clusterIP, as in"
                " deploy/base/services.yaml",
            )
            return True
        records = make_records(self._nodes.values(), addresses[0])
        self._report_left_out(records)
        self._records = records.count
        config_map: Object | None = self._config_map.get(CONFIG_MAP, self._namespace)
        try:
            new = with_records(config_map, self._namespace, records.text)
        except TooManyRecords as error:
            self._report_problem(
                _reference(CONFIG_MAPS, self._namespace, CONFIG_MAP, config_map),
                TOO_MANY_RECORDS,
                str(error),
            )
            return True
        self._problems.clear()
        return await self._writer.write(CONFIG_MAPS, CONFIG_MAP, config_map, new)

    async def _reconcile_ports(self, service: Object) -> bool:
        new = with_ports(service, service_ports(self._ports.ports, self._server))
        return await self._writer.write(SERVICES, INTERNAL_SERVICE, service, new)

    def _report_problem(self, involved: Object, reason: str, problem: str) -> None:
        """Report a problem to operators, once until it is solved."""
        is_new = reason not in self._problems
        self._problems = {reason: problem}
        if is_new:
            self._log.warn("{text}", text=problem)
            self._events.record(involved, "Warning", reason, problem)

    def _report_left_out(self, records: Records) -> None:
        reported, self._left_out = set(self._left_out), records.problems
        unreported = [each for each in records.problems if each not in reported]
        for sentence in limit_sentences(unreported, MAX_REPORTED):
            self._log.warn("{text}", text=sentence)


def _one(resource: Resource, namespace: str, name: str) -> InformerSpec[Object]:
    return InformerSpec(resource, whole, namespace=namespace, name=name)


def _reference(resource: Resource, namespace: str, name: str, obj: Object | None) -> Object:
    """Return the reference for an event to an object that may not exist."""
    metadata = {"namespace": namespace, "name": name}
    if obj is not None:
        metadata["uid"] = text(mapping(obj.get("metadata")).get("uid"))
    return resource.typed({"metadata": metadata})
