"""Where virtual services are carried: each by a socket (user mode), or by the kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface

from yurttunnel.ops.slices import gather, in_slices, visit
from yurttunnel.proxy.balancing.picker import EndpointPicker
from yurttunnel.proxy.interfaces import (
    EndpointStats,
    IProxySocket,
    IProxySockets,
    KernelStats,
    ProxiedService,
    SocketStats,
)
from yurttunnel.proxy.state.virtual_services import (
    Key,
    Portal,
    Problem,
    Protocol,
    Scope,
    VirtualService,
)
from yurttunnel.steering.interfaces import VERSIONS

MAX_OPENED_AT_ONCE = 32
"""The number of sockets that are opened in one reactor turn, which takes about 3 ms."""

COUNTERS = ("total", "failed", "received", "sent")
"""The fields of a socket's stats that only increase."""

_NO_STATS = SocketStats(active=0, total=0, failed=0, received=0, sent=0)
"""For a virtual service that has had no socket yet."""

Services = Mapping[Key, VirtualService]
Unclaimed = Mapping[tuple[Key, Portal], str]
_Number = tuple[str, str, int, Protocol, int]


class IKernelMode(Interface):
    """The virtual services that the kernel carries."""

    def supports(service: VirtualService) -> bool:
        """Return whether the service needs no socket."""

    def problems(service: VirtualService) -> Iterable[Problem]:
        """Return the features of the service that are not provided as requested."""

    def endpoints(service: VirtualService) -> Sequence[EndpointStats]:
        """Return the state of the endpoints, for the status page."""

    def stats(service: VirtualService) -> KernelStats:
        """Return what the kernel has carried for a service."""

    def totals() -> Mapping[Protocol, int]:
        """Return the number of attempts since the start by protocol, including removed services."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A virtual service as the status page shows it, with the ``stats`` of its socket or of the
    kernel.

    If ``port`` is ``None``, the kernel carries it, or it has had no endpoints yet.
    """

    service: VirtualService
    port: int | None
    endpoints: Sequence[EndpointStats]
    stats: SocketStats | KernelStats


class _OpenSocket:
    """A virtual service with its picker and its socket."""

    def __init__(
        self, service: VirtualService, picker: EndpointPicker, socket: IProxySocket
    ) -> None:
        self.service = service
        self.picker = picker
        self.socket = socket


class SocketManager:
    """Maintains a proxy socket for each virtual service that has had endpoints.

    A service keeps its socket, and so its port, as long as it exists, even while it has no
    endpoints. In kernel mode, services that the ``kernel`` carries have none.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        sockets: Mapping[Protocol, IProxySockets],
        kernel: IKernelMode | None = None,
    ) -> None:
        self._clock = clock
        self._sockets = sockets
        self._kernel = kernel
        self._open: dict[Key, _OpenSocket] = {}
        self._in_kernel: dict[Key, VirtualService] = {}
        # Services that need a socket once they have endpoints.
        self._without_endpoints: dict[Key, VirtualService] = {}
        self._failed: dict[Key, str] = {}
        # The last result for each service, which is reused while it is equal: it is compared often.
        self._proxied: dict[Key, ProxiedService] = {}
        # The latest services, which some sockets and pickers may not know yet.
        self._services: Services = {}
        self._updating: Deferred[None] | None = None
        # Sockets that drain, by the Deferred that fires at the end.
        self._stopping: dict[Deferred[None], tuple[Key, IProxySocket]] = {}
        # Draining sockets whose connections may continue, because the port of their Service still
        # exists.
        self._continuing: dict[IProxySocket, VirtualService] = {}
        # The counters of closed sockets.
        self._closed_counters: Counter[tuple[Protocol, str]] = Counter()

    def update(self, services: Services) -> None:
        """Apply changes to new connections, as far as that requires no rules; very many changes in
        several reactor turns.
        """
        self._services = services
        if self._updating is None:
            updating = self._updating = Deferred.fromCoroutine(
                in_slices(self._clock, self._updates())
            )
            _ = updating.addErrback(self._update_failed).addBoth(self._updated)

    async def open_sockets(self, services: Services, unclaimed: Unclaimed) -> list[ProxiedService]:
        """Open the missing sockets, and return what the rules should redirect where.

        Portals in ``unclaimed`` are omitted.
        """
        self.update(services)
        if self._updating is not None:
            await in_slices(self._clock, self._updates())
        self._failed.clear()
        in_kernel: dict[Key, VirtualService] = {}
        without_endpoints: dict[Key, VirtualService] = {}
        missing: list[VirtualService] = []

        def sort(service: VirtualService) -> None:
            if self._kernel is not None and self._kernel.supports(service):
                in_kernel[service.key] = service
            elif service.key in self._open:
                return
            elif service.endpoints:
                missing.append(service)
            else:
                without_endpoints[service.key] = service

        await in_slices(self._clock, visit(services.values(), sort))
        self._in_kernel, self._without_endpoints = in_kernel, without_endpoints
        await self._open_all(missing)
        return await in_slices(self._clock, self._all_proxied(services, unclaimed))

    def problems(self) -> Iterable[Problem]:
        """Yield what the last call of :meth:`open_sockets` could not do."""
        for key, why in self._failed.items():
            text = f"its clients are refused, since the proxy cannot listen for it: {why}"
            yield Problem(str(key.name), text)
        for service in self._in_kernel.values():
            if self._kernel is not None:
                yield from self._kernel.problems(service)

    @property
    def lacks_ports(self) -> bool:
        """Whether the last call of :meth:`open_sockets` could not listen for some services."""
        return bool(self._failed)

    async def close_unused(
        self, services: Services, drain: float, versions: Collection[int] = VERSIONS
    ) -> bool:
        """Close sockets to which no rule of these ``versions`` leads any more; ``services`` are all
        current services.

        Remaining connections have ``drain`` seconds. TCP connections continue as long as the port
        of their Service exists, even if it is now served by other sockets (of other scopes, after a
        change of a traffic policy, or under another port name) or by the kernel. Return whether
        there was anything to close.
        """
        gone = await in_slices(
            self._clock,
            gather(
                list(self._open),
                lambda key: (
                    key.version in versions and (key not in services or key in self._in_kernel)
                ),
            ),
        )
        # One pass for all of them: there may be thousands of Services.
        leave = gone or self._continuing
        numbers = {_number(each) for each in services.values()} if leave else set()

        def close(key: Key) -> None:
            may_continue = _may_continue(self._open[key].service, services, numbers)
            self._close(key, None if may_continue else drain)

        await in_slices(self._clock, visit(gone, close))
        for socket, service in list(self._continuing.items()):
            if service.key.version in versions and not _may_continue(service, services, numbers):
                del self._continuing[socket]
                _ = socket.stop(drain)
        return bool(gone)

    async def stop(self, drain: float) -> None:
        """Stop everything in the same way, and wait until the remaining connections have ended."""
        if self._updating is not None:
            self._updating.cancel()
        await self.close_unused({}, drain)
        await gatherResults(list(self._stopping))

    def statuses(self) -> Iterable[ServiceStatus]:
        """Yield what is carried now, or was at the first item, and what had no endpoints yet."""
        for each in list(self._open.values()):
            stats = each.socket.stats()
            yield ServiceStatus(each.service, each.socket.port, each.picker.endpoints(), stats)
        for service in list(self._in_kernel.values()):
            if self._kernel is not None:
                known = self._kernel.endpoints(service)
                yield ServiceStatus(service, None, known, self._kernel.stats(service))
        for service in list(self._without_endpoints.values()):
            yield ServiceStatus(service, None, (), _NO_STATS)

    def draining(self) -> Mapping[Protocol, int]:
        """Return the number of connections by protocol whose service is no longer carried."""
        found = Counter[Protocol]()
        for key, socket in self._stopping.values():
            found[key.protocol] += socket.stats().active
        return found

    def totals(self) -> Generator[str, None, Mapping[tuple[Protocol, str], int]]:
        """Return the counters since the start, by the names in :data:`COUNTERS`.

        The kernel counts connections only. Yields between slices of work
        (:func:`yurttunnel.ops.slices.visit`).
        """
        totals = self._closed_counters.copy()
        # Include draining sockets: a counter that decreases would be interpreted as a restart.
        sockets = [(key, each.socket) for key, each in self._open.items()]
        sockets += self._stopping.values()
        if self._kernel is not None:
            for protocol, count in self._kernel.totals().items():
                totals[protocol, "total"] += count
        counts = (_counted(key.protocol, socket.stats()) for key, socket in sockets)
        yield from visit(counts, totals.update)
        return totals

    async def _open_all(self, missing: Collection[VirtualService]) -> None:
        for number, service in enumerate(missing, 1):
            self._open_for(service)
            if number % MAX_OPENED_AT_ONCE == 0:
                await deferLater(self._clock, 0)

    def _updates(self) -> Generator[str, None, None]:
        """Update all sockets to the latest services, which may change meanwhile."""
        services: Services | None = None
        while services is not self._services:
            services = self._services
            yield from visit(list(self._open), self._update_one)

    def _update_one(self, key: Key) -> None:
        opened, service = self._open.get(key), self._services.get(key)
        if opened is None or service is None or service is opened.service:
            return
        if service != opened.service:
            opened.picker.update(service)
            opened.socket.update(service)
        opened.service = service

    def _update_failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure("Defect: changes of Services could not be applied", failure)

    def _updated(self, _: object) -> None:
        self._updating = None

    def _all_proxied(
        self, services: Services, unclaimed: Unclaimed
    ) -> Generator[str, None, list[ProxiedService]]:
        affected = {key for key, _ in unclaimed}
        former, self._proxied = self._proxied, {}

        def add(service: VirtualService) -> None:
            key = service.key
            proxied = self._proxied_to(_without(service, unclaimed) if key in affected else service)
            known = former.get(key)
            self._proxied[key] = known if known is not None and known == proxied else proxied

        yield from visit(services.values(), add)
        return list(self._proxied.values())

    def _proxied_to(self, service: VirtualService) -> ProxiedService:
        if service.key in self._in_kernel:
            return ProxiedService(service, None)
        opened = self._open.get(service.key)
        is_served = opened is not None and service.endpoints
        # Rules that redirect to a socket do not depend on endpoints, which change often.
        bare = replace(service, endpoints=(), local=frozenset())
        return ProxiedService(
            bare, opened.socket.port if opened is not None and is_served else None
        )

    def _open_for(self, service: VirtualService) -> None:
        picker = EndpointPicker(self._clock, service)
        try:
            socket = self._sockets[service.key.protocol].open(service, picker)
        except OSError as error:
            self._failed[service.key] = error.strerror or str(error)
        else:
            self._open[service.key] = _OpenSocket(service, picker, socket)

    def _close(self, key: Key, drain: float | None) -> None:
        closed = self._open.pop(key)
        stopping = Deferred.fromCoroutine(self._closed(key, closed.socket, drain))
        if stopping.called:
            return
        self._stopping[stopping] = key, closed.socket
        if drain is None:
            self._continuing[closed.socket] = closed.service
        _ = stopping.addBoth(self._stopped, stopping, closed.socket)

    def _stopped(self, _: object, stopping: Deferred[None], socket: IProxySocket) -> None:
        del self._stopping[stopping]
        self._continuing.pop(socket, None)

    async def _closed(self, key: Key, socket: IProxySocket, drain: float | None) -> None:
        await socket.stop(drain)
        self._closed_counters.update(_counted(key.protocol, socket.stats()))


def _may_continue(
    service: VirtualService, services: Services, numbers: Collection[_Number]
) -> bool:
    """Return whether connections may continue, because the port of their Service exists in some
    scope.

    The port may have another name, because a port that is no longer the only one of its Service
    must have one; then its number is in ``numbers``. Further datagrams of a UDP client are
    redirected to the current socket, so nothing continues.
    """
    return service.key.protocol is Protocol.TCP and (
        any(replace(service.key, scope=scope) in services for scope in Scope)
        or _number(service) in numbers
    )


def _number(service: VirtualService) -> _Number:
    """Return what identifies a port of a Service, independent of its name and of portals."""
    key = service.key
    return key.name.namespace, key.name.name, key.version, key.protocol, service.port


def _without(service: VirtualService, unclaimed: Unclaimed) -> VirtualService:
    kept = tuple(portal for portal in service.portals if (service.key, portal) not in unclaimed)
    return replace(service, portals=kept)


def _counted(protocol: Protocol, stats: SocketStats) -> dict[tuple[Protocol, str], int]:
    return {(protocol, name): getattr(stats, name) for name in COUNTERS}
