"""Where virtual services are carried: by a socket each (user mode), or by the kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from zope.interface import Interface

from yurttunnel.ops.slices import visit
from yurttunnel.proxy.balancing.picker import EndpointPicker
from yurttunnel.proxy.interfaces import (
    EndpointStats,
    IProxySocket,
    IProxySockets,
    KernelStats,
    Placed,
    SocketStats,
)
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Key,
    Portal,
    Problem,
    Protocol,
    Scope,
    VirtualService,
)
from yurttunnel.steering.interfaces import VERSIONS

AT_ONCE = 32
"""Sockets that are opened in one turn of the reactor: about 3 ms."""

COUNTED = ("total", "failed", "received", "sent")
"""What of a socket's stats only grows."""

_NOTHING = SocketStats(active=0, total=0, failed=0, received=0, sent=0)
"""Of a virtual service that has had no socket yet."""

Services = Mapping[Key, VirtualService]
Unclaimed = Mapping[tuple[Key, Portal], str]
_Number = tuple[tuple[str, str], int, Protocol, Address | None, int]


class IKernel(Interface):
    """What the kernel carries by itself."""

    def carries(service: VirtualService) -> bool:
        """Return whether the service needs no socket."""

    def problems(service: VirtualService) -> Iterable[Problem]:
        """Return what of the service is not as it asks for."""

    def endpoints(service: VirtualService) -> Sequence[EndpointStats]:
        """Return what is known of the endpoints, for the page."""

    def stats(service: VirtualService) -> KernelStats:
        """Return what it has carried for a service."""

    def totals() -> Mapping[Protocol, int]:
        """Return all attempts since the start by protocol, also of services that are gone."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A virtual service as the page shows it; ``stats`` are those of who carries it.

    Without a ``port`` that is the kernel, or nobody since it has had no endpoints yet.
    """

    service: VirtualService
    port: int | None
    endpoints: Sequence[EndpointStats]
    stats: SocketStats | KernelStats


class _Open:
    """A virtual service with its picker and its socket."""

    def __init__(
        self, service: VirtualService, picker: EndpointPicker, socket: IProxySocket
    ) -> None:
        self.service = service
        self.picker = picker
        self.socket = socket


class Placement:
    """Keeps a proxy socket for each virtual service that has had endpoints.

    It keeps its socket, and so its port, as long as it is there, also while it has no endpoints.
    What the ``kernel`` carries, in kernel mode, has none.
    """

    def __init__(
        self,
        clock: IReactorTime,
        sockets: Mapping[Protocol, IProxySockets],
        kernel: IKernel | None = None,
    ) -> None:
        self._clock = clock
        self._sockets = sockets
        self._kernel = kernel
        self._open: dict[Key, _Open] = {}
        self._by_kernel: dict[Key, VirtualService] = {}
        # Those that need a socket once they have endpoints.
        self._waiting: dict[Key, VirtualService] = {}
        self._failed: dict[Key, str] = {}
        # What waits for the end of what is under way, by what tells of that end.
        self._stopping: dict[Deferred[None], tuple[Key, IProxySocket]] = {}
        # Those of them whose connections may go on, since the port of their Service is still there.
        self._lasting: dict[IProxySocket, VirtualService] = {}
        # Of sockets that are closed.
        self._past: Counter[tuple[Protocol, str]] = Counter()

    def update(self, services: Services) -> None:
        """Have new connections see what has changed, as far as that takes no rules."""
        for key, each in self._open.items():
            service = services.get(key)
            if service is not None and service != each.service:
                each.service = service
                each.picker.update(service)
                each.socket.update(service)

    async def place(self, services: Services, unclaimed: Unclaimed) -> list[Placed]:
        """Open what is not open yet, and return what rules are to lead where.

        Portals that are ``unclaimed`` are left out.
        """
        self.update(services)
        self._failed.clear()
        self._by_kernel = {
            key: service
            for key, service in services.items()
            if self._kernel is not None and self._kernel.carries(service)
        }
        missing = {
            key: service
            for key, service in services.items()
            if key not in self._open and key not in self._by_kernel
        }
        self._waiting = {key: each for key, each in missing.items() if not each.endpoints}
        await self._open_all([each for each in missing.values() if each.endpoints])
        lacking = {key for key, _ in unclaimed}
        return [
            self._placed(_without(service, unclaimed) if key in lacking else service)
            for key, service in services.items()
        ]

    def problems(self) -> Iterable[Problem]:
        """Yield what the last call of :meth:`place` could not do."""
        for key, why in self._failed.items():
            text = f"its clients are refused, since the proxy cannot listen for it: {why}"
            yield Problem(str(key.name), text)
        for service in self._by_kernel.values():
            if self._kernel is not None:
                yield from self._kernel.problems(service)

    @property
    def lacks_ports(self) -> bool:
        """Whether the last call of :meth:`place` could not listen for some services."""
        return bool(self._failed)

    def leave(self, services: Services, drain: float, versions: Collection[int] = VERSIONS) -> bool:
        """Close sockets that no rule of these ``versions`` leads to any more, since these are all
        ``services``.

        What is under way has ``drain`` seconds. Connections by TCP go on as long as the port of
        their Service is there, though others serve it now: sockets of other scopes, as a traffic
        policy has changed, or of another name of the port, or the kernel. Returns whether there was
        something to close.
        """
        gone = [
            key
            for key in self._open
            if key.version in versions and (key not in services or key in self._by_kernel)
        ]
        numbers = _numbers_of_services(
            [self._open[key].service for key in gone] + list(self._lasting.values()), services
        )
        for key in gone:
            goes_on = _goes_on(self._open[key].service, services, numbers)
            self._close(key, None if goes_on else drain)
        for socket, service in list(self._lasting.items()):
            if service.key.version in versions and not _goes_on(service, services, numbers):
                del self._lasting[socket]
                _ = socket.stop(drain)
        return bool(gone)

    async def stop(self, drain: float) -> None:
        """Stop everything in the same way, and wait for the end of what was under way."""
        self.leave({}, drain)
        await gatherResults(list(self._stopping))

    def carried(self) -> Iterable[Carried]:
        """Yield what is carried now, or was when the first one was asked for, and what would be if
        it had endpoints.
        """
        for each in list(self._open.values()):
            stats = each.socket.stats()
            yield Carried(each.service, each.socket.port, each.picker.endpoints(), stats)
        for service in list(self._by_kernel.values()):
            if self._kernel is not None:
                known = self._kernel.endpoints(service)
                yield Carried(service, None, known, self._kernel.stats(service))
        for service in list(self._waiting.values()):
            yield Carried(service, None, (), _NOTHING)

    def draining(self) -> Mapping[Protocol, int]:
        """Return by protocol how many connections there are to what is carried no more."""
        found = Counter[Protocol]()
        for key, socket in self._stopping.values():
            found[key.protocol] += socket.stats().active
        return found

    def totals(self) -> Generator[str, None, Mapping[tuple[Protocol, str], int]]:
        """Return what was counted since the start, by the names of :data:`COUNTED`.

        The kernel counts connections alone. With pauses (:func:`yurttunnel.ops.slices.visit`).
        """
        totals = self._past.copy()
        # Those that drain count, too: a counter that falls would be taken for one of a new process.
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
            if number % AT_ONCE == 0:
                await deferLater(self._clock, 0)

    def _placed(self, service: VirtualService) -> Placed:
        if service.key in self._by_kernel:
            return Placed(service, None)
        opened = self._open.get(service.key)
        leads = opened is not None and service.endpoints
        # Rules that lead to a socket do not depend on endpoints, which come and go.
        bare = replace(service, endpoints=(), local=frozenset())
        return Placed(bare, opened.socket.port if opened is not None and leads else None)

    def _open_for(self, service: VirtualService) -> None:
        picker = EndpointPicker(self._clock, service)
        try:
            socket = self._sockets[service.key.protocol].open(service, picker)
        except OSError as error:
            self._failed[service.key] = error.strerror or str(error)
        else:
            self._open[service.key] = _Open(service, picker, socket)

    def _close(self, key: Key, drain: float | None) -> None:
        closed = self._open.pop(key)
        stopping = Deferred.fromCoroutine(self._closed(key, closed.socket, drain))
        if stopping.called:
            return
        self._stopping[stopping] = key, closed.socket
        if drain is None:
            self._lasting[closed.socket] = closed.service
        _ = stopping.addBoth(self._stopped, stopping, closed.socket)

    def _stopped(self, _: object, stopping: Deferred[None], socket: IProxySocket) -> None:
        del self._stopping[stopping]
        self._lasting.pop(socket, None)

    async def _closed(self, key: Key, socket: IProxySocket, drain: float | None) -> None:
        await socket.stop(drain)
        self._past.update(_counted(key.protocol, socket.stats()))


def _goes_on(service: VirtualService, services: Services, numbers: Collection[_Number]) -> bool:
    """Return whether connections may go on, as the port of their Service is there in some scope.

    It may have another name, which one gets that is no longer the only one of its Service; then its
    number is among the ``numbers`` that are there. What comes next of a client by UDP is led to who
    serves it now, and nothing is left to go on.
    """
    return service.key.protocol is Protocol.TCP and (
        any(replace(service.key, scope=scope) in services for scope in Scope)
        or any(each in numbers for each in _numbers(service))
    )


def _numbers_of_services(
    leaving: Iterable[VirtualService], services: Services
) -> Collection[_Number]:
    """Return the numbers that Services still have of which something leaves."""
    # One look for all of them: there may be thousands of Services.
    names = {_of_service(each.key) for each in leaving}
    there = (each for each in services.values() if _of_service(each.key) in names)
    return {number for each in there for number in _numbers(each)}


def _numbers(service: VirtualService) -> Iterator[_Number]:
    """Yield by what clients know a port of a Service, whatever its name is."""
    key = service.key
    for portal in service.portals:
        yield _of_service(key), key.version, key.protocol, portal.address, portal.port


def _of_service(key: Key) -> tuple[str, str]:
    return key.name.namespace, key.name.name


def _without(service: VirtualService, unclaimed: Unclaimed) -> VirtualService:
    kept = tuple(portal for portal in service.portals if (service.key, portal) not in unclaimed)
    return replace(service, portals=kept)


def _counted(protocol: Protocol, stats: SocketStats) -> dict[tuple[Protocol, str], int]:
    return {(protocol, name): getattr(stats, name) for name in COUNTED}
