"""The seams between the rooms of the service proxy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from yurttunnel.proxy.state.virtual_services import (
    DesiredState,
    Endpoint,
    Key,
    Portal,
    Protocol,
    VirtualService,
)
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interfaces import VERSIONS, Applied


class IDesiredStateSource(Interface):
    """What Services and EndpointSlices of all sources ask for."""

    on_changed: list[Callable[[], object]] = Attribute(
        "`list`: who is told, without arguments, when :meth:`state` gives another one."
    )

    def problem() -> str | None:
        """Return, for ``/readyz``, what has not been listed yet or cannot be followed."""

    def state() -> DesiredState | None:
        """Return what is to be served; ``None`` until both kinds have been listed once."""


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """What is known of an endpoint that serves now."""

    endpoint: Endpoint
    active: int
    """Connections, and dials that are under way."""
    failures: int
    """Dials that have failed, all in all."""
    last_failure: str
    """Empty where none has failed yet."""
    ejected_until: float | None
    """Seconds of the reactor's clock; ``None`` where it is chosen like the others."""


class IEndpointPicker(Interface):
    """The endpoints of one virtual service, among which connections are spread.

    Ejected endpoints (that failed some times in a row) are chosen only where no other is left.
    """

    def pick(client: str, tried: Collection[Endpoint]) -> Endpoint | None:
        """Return an endpoint for ``client``, an address as text; none of ``tried`` where possible.

        With affinity it is the client's own, unless that was ``tried``: then the record is dropped
        and made anew. ``None`` where there are no endpoints. Counts a connection of the endpoint,
        until :meth:`failed` or :meth:`ended`.
        """

    def connected(endpoint: Endpoint) -> None:
        """Report that a connection to ``endpoint`` stands."""

    def failed(endpoint: Endpoint, why: str) -> None:
        """Report that a dial has failed, so that it may be ejected; ``why`` is for the page."""

    def ended(endpoint: Endpoint) -> None:
        """Report the end of a connection that stood, or of a dial that its client gave up."""

    def endpoints() -> Sequence[EndpointStats]:
        """Return what is known of the endpoints, for the page."""


@dataclass(frozen=True, slots=True)
class SocketStats:
    """What a proxy socket has done since it was opened."""

    active: int
    total: int
    failed: int
    """Clients that got no endpoint."""
    received: int
    """Bytes from clients."""
    sent: int
    """Bytes to clients."""


@dataclass(frozen=True, slots=True)
class KernelStats:
    """What the kernel has carried for one virtual service, as of the last reading."""

    active: int | None
    """Those to its portals; ``None`` where the kernel's table of connections has not been read."""
    total: int | None
    """Each attempt at one of its endpoints; ``None`` before there have been rules for it. Clients
    within the cluster of an external portal with a local traffic policy are led to the endpoints
    of the service's cluster IP, and count there."""


class IProxySocket(Interface):
    """The local listener of one virtual service, led to by its portals."""

    port: int = Attribute("`int`: where it listens, on the wildcard address of its family.")

    def update(service: VirtualService) -> None:
        """Take what has changed of the service: connections go on, new ones see the change.

        UDP clients of endpoints that are gone are ended at once.
        """

    def stop(drain: float | None) -> Deferred[None]:
        """Stop listening now; end what is under way after ``drain`` seconds. Fires at the end.

        With ``None`` it may go on, until this is called again with seconds.
        """

    def stats() -> SocketStats:
        """Return the counters."""


class IProxySockets(Interface):
    """Makes proxy sockets."""

    def open(service: VirtualService, picker: IEndpointPicker) -> IProxySocket:
        """Listen for ``service``, at a port of the allocator.

        Raises ``OSError`` where nothing can be listened at, or no port remains.
        """


class IClaims(Interface):
    """Ports of this machine that are portals, held by sockets so that nobody else takes them."""

    def want(portals: Mapping[Key, Sequence[Portal]]) -> Mapping[tuple[Key, Portal], str]:
        """Hold node ports, and those of external addresses that are this machine's; no others.

        Returns for each portal that cannot be held why (in use by another process or another
        service); the rules of that one are not to be made. It is tried again at each call.
        """

    def release() -> None:
        """Hold nothing any more."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A virtual service, and where it is carried.

    ``proxy_port`` is the port of its proxy socket; ``None`` where there is none, in kernel mode or
    since it has no endpoints. ``service.portals`` are those that could be claimed.
    """

    service: VirtualService
    proxy_port: int | None


class PartlyApplied(SteeringFailed):
    """The rules of some families could not be made; those of the versions in ``made`` were."""

    def __init__(self, text: str, made: Collection[int]) -> None:
        super().__init__(text)
        self.made = made


class IRules(Interface):
    """The firewall rules that lead portals to proxy sockets, or to endpoints, of one or more
    families; calls are made one after the other, and fail with
    :class:`~yurttunnel.steering.failures.SteeringFailed`.
    """

    backend = Attribute("`str`: ``iptables (nft)``, ``iptables (legacy)``, ``nftables``, ``none``.")

    async def apply(placed: Sequence[Placed]) -> Applied:
        """Make the rules those for ``placed``, in one transaction a family.

        What others have changed of our chains is put right. Nothing is run where neither
        ``placed`` nor :meth:`generation` has changed since the last call that went well, if the
        kernel counts generations. Fails with :class:`PartlyApplied` where it is known which
        families have their rules all the same.
        """

    async def remove(versions: Collection[int] = VERSIONS) -> bool:
        """Remove everything that is ours in these families, of whichever process.

        Return whether there was some.
        """

    def generation() -> int | None:
        """Return a number that is another one after each change of the kernel's rules, by anybody.

        ``None`` where the kernel does not count them (legacy tables).
        """


@dataclass(frozen=True, slots=True)
class StaleFlows:
    """Flows that the kernel must forget: to a portal, or to an endpoint that is gone.

    ``endpoint`` is ``None`` for all flows of the portal, but for those to endpoints that are
    ``kept``. ``address`` is ``None`` for a node port. Of TCP only attempts are meant that nobody
    has answered, and that are led nowhere.
    """

    protocol: Protocol
    address: str | None
    port: int
    endpoint: Endpoint | None = None
    kept: frozenset[Endpoint] = frozenset()


class IConntrack(Interface):
    """The kernel's table of connections."""

    def forget(version: int, stale: Collection[StaleFlows]) -> Deferred[int]:
        """Delete the entries; return how many there were. Fails with ``SteeringFailed``."""
