"""Where virtual services are carried: by a socket each (user mode), or by the kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from zope.interface import Interface, implementer

from yurttunnel.proxy.interfaces import (
    EndpointStats,
    IEndpointPicker,
    ILoadBalancer,
    IProxySocket,
    IProxySockets,
    Placed,
    SocketStats,
)
from yurttunnel.proxy.state.virtual_services import (
    Key,
    Portal,
    Problem,
    Protocol,
    VirtualService,
)

AT_ONCE = 32
"""Sockets that are opened in one turn of the reactor: about 3 ms."""

COUNTED = ("total", "failed", "received", "sent")
"""What of a socket's stats only grows."""

Services = Mapping[Key, VirtualService]
Unclaimed = Mapping[tuple[Key, Portal], str]


@dataclass(frozen=True, slots=True)
class Carried:
    """A virtual service as the page shows it; ``stats`` are ``None`` where the kernel counts."""

    service: VirtualService
    port: int | None
    endpoints: Sequence[EndpointStats]
    stats: SocketStats | None


class IPlacement(Interface):
    """Carries virtual services."""

    def update(services: Services) -> None:
        """Have new connections see what has changed, as far as that takes no rules."""

    def place(services: Services, unclaimed: Unclaimed) -> Deferred[list[Placed]]:
        """Make what is not there yet, and return what rules are to lead where.

        Portals that are ``unclaimed`` are left out.
        """

    def problems() -> Collection[Problem]:
        """Return what the last call of :meth:`place` could not do."""

    def leave(services: Services, drain: float) -> bool:
        """Stop what is not among ``services``, which no rule leads to any more.

        What is under way has ``drain`` seconds. Returns whether there was something to stop.
        """

    def stop(drain: float) -> Deferred[None]:
        """Stop everything in the same way; fires at the end of what was under way."""

    def carried() -> Iterable[Carried]:
        """Return what is carried now."""

    def totals() -> Mapping[tuple[Protocol, str], int]:
        """Return what has been counted since the start, by protocol and the name in SocketStats."""


class _Socket:
    """A virtual service with its picker and its socket."""

    def __init__(
        self, service: VirtualService, picker: IEndpointPicker, socket: IProxySocket
    ) -> None:
        self.service = service
        self.picker = picker
        self.socket = socket


@implementer(IPlacement)
class SocketPlacement:
    """User mode: a proxy socket for each virtual service that has had endpoints.

    It keeps its socket, and so its port, as long as it is there, also while it has no endpoints.
    """

    def __init__(
        self, clock: IReactorTime, balancer: ILoadBalancer, sockets: IProxySockets
    ) -> None:
        self._clock = clock
        self._balancer = balancer
        self._sockets = sockets
        self._open: dict[Key, _Socket] = {}
        self._failed: dict[Key, str] = {}
        self._stopping: set[Deferred[None]] = set()
        # Of sockets that are closed.
        self._past: Counter[tuple[Protocol, str]] = Counter()

    def update(self, services: Services) -> None:
        """See :class:`IPlacement`."""
        for key, each in self._open.items():
            service = services.get(key)
            if service is not None and service != each.service:
                each.service = service
                self._balancer.update(service)
                each.socket.update(service)

    def place(self, services: Services, unclaimed: Unclaimed) -> Deferred[list[Placed]]:
        """See :class:`IPlacement`."""
        return Deferred.fromCoroutine(self._place(services, unclaimed))

    def problems(self) -> Collection[Problem]:
        """See :class:`IPlacement`."""
        return [
            Problem(
                str(key.name),
                f"its clients are refused, since the proxy cannot listen for it: {why}",
            )
            for key, why in self._failed.items()
        ]

    def leave(self, services: Services, drain: float) -> bool:
        """See :class:`IPlacement`."""
        gone = [key for key in self._open if key not in services]
        for key in gone:
            self._close(key, drain)
        return bool(gone)

    async def _stop(self, drain: float) -> None:
        self.leave({}, drain)
        await gatherResults(list(self._stopping))

    def stop(self, drain: float) -> Deferred[None]:
        """See :class:`IPlacement`."""
        return Deferred.fromCoroutine(self._stop(drain))

    def carried(self) -> Iterable[Carried]:
        """See :class:`IPlacement`."""
        for each in self._open.values():
            yield Carried(
                each.service, each.socket.port, each.picker.endpoints(), each.socket.stats()
            )

    def totals(self) -> Mapping[tuple[Protocol, str], int]:
        """See :class:`IPlacement`."""
        totals = self._past.copy()
        for key, each in self._open.items():
            totals.update(_counted(key.protocol, each.socket.stats()))
        return totals

    async def _place(self, services: Services, unclaimed: Unclaimed) -> list[Placed]:
        self.update(services)
        self._failed.clear()
        missing = [
            service
            for key, service in services.items()
            if service.endpoints and key not in self._open
        ]
        for number, service in enumerate(missing, 1):
            self._open_for(service)
            if number % AT_ONCE == 0:
                await deferLater(self._clock, 0)
        return [
            Placed(_bare(service), self._port(service)) for service in claimed(services, unclaimed)
        ]

    def _port(self, service: VirtualService) -> int | None:
        opened = self._open.get(service.key)
        return opened.socket.port if opened is not None and service.endpoints else None

    def _open_for(self, service: VirtualService) -> None:
        picker = self._balancer.update(service)
        try:
            socket = self._sockets.open(service, picker)
        except OSError as error:
            self._balancer.remove(service.key)
            self._failed[service.key] = error.strerror or str(error)
        else:
            self._open[service.key] = _Socket(service, picker, socket)

    def _close(self, key: Key, drain: float) -> None:
        closed = self._open.pop(key)
        self._balancer.remove(key)
        stopping = Deferred.fromCoroutine(self._closed(key, closed.socket, drain))
        if not stopping.called:
            self._stopping.add(stopping)
            _ = stopping.addBoth(lambda _: self._stopping.discard(stopping))

    async def _closed(self, key: Key, socket: IProxySocket, drain: float) -> None:
        await socket.stop(drain)
        self._past.update(_counted(key.protocol, socket.stats()))


@implementer(IPlacement)
class KernelPlacement:
    """Kernel mode: rules lead to endpoints, and nothing else carries."""

    def __init__(self) -> None:
        self._services: Services = {}

    def update(self, services: Services) -> None:
        """See :class:`IPlacement`; all takes rules."""

    def place(self, services: Services, unclaimed: Unclaimed) -> Deferred[list[Placed]]:
        """See :class:`IPlacement`."""
        self._services = services
        return succeed([Placed(service, None) for service in claimed(services, unclaimed)])

    def problems(self) -> Collection[Problem]:
        """See :class:`IPlacement`."""
        return ()

    def leave(self, services: Services, drain: float) -> bool:
        """See :class:`IPlacement`; connections end by themselves."""
        return False

    def stop(self, drain: float) -> Deferred[None]:
        """See :class:`IPlacement`."""
        return succeed(None)

    def carried(self) -> Iterable[Carried]:
        """See :class:`IPlacement`."""
        for service in self._services.values():
            yield Carried(service, None, (), None)

    def totals(self) -> Mapping[tuple[Protocol, str], int]:
        """See :class:`IPlacement`."""
        return {}


def claimed(services: Services, unclaimed: Unclaimed) -> list[VirtualService]:
    """Return the services without the portals that are ``unclaimed``."""
    lacking = {key for key, _ in unclaimed}
    return [
        _without(service, unclaimed) if key in lacking else service
        for key, service in services.items()
    ]


def _without(service: VirtualService, unclaimed: Unclaimed) -> VirtualService:
    kept = tuple(portal for portal in service.portals if (service.key, portal) not in unclaimed)
    return replace(service, portals=kept)


def _bare(service: VirtualService) -> VirtualService:
    """Return what rules depend on that lead to a socket: not on endpoints, which come and go."""
    return replace(service, endpoints=(), local=frozenset())


def _counted(protocol: Protocol, stats: SocketStats) -> dict[tuple[Protocol, str], int]:
    return {(protocol, name): getattr(stats, name) for name in COUNTED}
