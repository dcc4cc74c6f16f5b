"""The interfaces between the packages of the service proxy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
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
    """The desired state according to the Services and EndpointSlices of all sources."""

    on_changed: list[Callable[[], object]] = Attribute(
        "`list`: who is told, without arguments, when :meth:`state` gives another one."
    )

    def problem() -> str | None:
        """Return, for ``/readyz``, what has not been listed yet or cannot be watched."""

    def state() -> DesiredState | None:
        """Return what to serve; ``None`` until both kinds have been listed once."""


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """The state of an endpoint in use."""

    endpoint: Endpoint
    active: int
    """The number of connections, including dials in progress."""
    failures: int
    """The total number of failed dials."""
    last_failure: str
    """Empty if no dial has failed."""
    ejected_until: float | None
    """Seconds of the reactor's clock; ``None`` if the endpoint is not ejected."""


class IEndpointPicker(Interface):
    """Selects among the endpoints of one virtual service.

    An endpoint is ejected after several consecutive failures; ejected ones are selected only if
    there are no others.
    """

    def pick(client: str, tried: Collection[Endpoint]) -> Endpoint | None:
        """Return an endpoint for ``client``, an address as text; none of ``tried`` if possible.

        With affinity, return the client's previous endpoint, unless it is in ``tried``: then its
        record is replaced. Return ``None`` if there are no endpoints. The connection counts as one
        of the endpoint until :meth:`failed` or :meth:`ended` is called.
        """

    def connected(endpoint: Endpoint) -> None:
        """Report that a connection to ``endpoint`` is established."""

    def failed(endpoint: Endpoint, why: str) -> None:
        """Report a failed dial, which may eject the endpoint; ``why`` is for the status page."""

    def ended(endpoint: Endpoint) -> None:
        """Report the end of an established connection, or of a dial that its client cancelled."""

    def endpoints() -> Sequence[EndpointStats]:
        """Return the state of the endpoints, for the status page."""


@dataclass(frozen=True, slots=True)
class SocketStats:
    """The counters of a proxy socket since it was opened."""

    active: int
    total: int
    failed: int
    """Clients that no endpoint has served."""
    received: int
    """Bytes from clients."""
    sent: int
    """Bytes to clients."""


@dataclass(frozen=True, slots=True)
class KernelStats:
    """What the kernel has carried for one virtual service, as of the last reading."""

    active: int | None
    """Connections to its portals; ``None`` if the conntrack table has not been read."""
    total: int | None
    """The attempts to connect to its endpoints; ``None`` before it has had rules. Clients within
    the cluster that use an external portal with a local traffic policy are sent to the endpoints of
    the service's cluster IP, and are counted there."""


class IProxySocket(Interface):
    """The listening socket of one virtual service, to which its portals are redirected."""

    port: int = Attribute("`int`: where it listens, on the wildcard address of its family.")

    def update(service: VirtualService) -> None:
        """Apply a change of the service to new connections; established ones continue.

        UDP clients of removed endpoints are ended at once.
        """

    def stop(drain: float | None) -> Deferred[None]:
        """Stop listening now, and end the remaining connections after ``drain`` seconds; fires at
        the end.

        With ``None`` they may continue, until this is called again with a number of seconds.
        """

    def stats() -> SocketStats:
        """Return the counters."""


class IProxySockets(Interface):
    """Opens proxy sockets."""

    def open(service: VirtualService, picker: IEndpointPicker) -> IProxySocket:
        """Listen for ``service`` on a port of the allocator.

        Raises ``OSError`` if listening fails, or if no port is left.
        """


class IPortClaims(Interface):
    """Claims ports of this machine that are portals, so that no other program uses them."""

    def claim(
        services: Mapping[Key, VirtualService],
    ) -> Generator[str, None, Mapping[tuple[Key, Portal], str]]:
        """Claim the node ports, and the ports of external addresses that belong to this machine; no
        others.

        Return the reason for each portal that cannot be claimed (in use by another process or
        another service); no rules may be created for it. Each call tries again. It yields between
        slices of work (:func:`yurttunnel.ops.slices.visit`).
        """

    def release() -> None:
        """Release all ports."""


@dataclass(frozen=True, slots=True)
class ProxiedService:
    """A virtual service, and where it is carried.

    ``proxy_port`` is the port of its proxy socket; ``None`` if it has no socket, in kernel mode or
    because it has no endpoints. ``service.portals`` are those that could be claimed.
    """

    service: VirtualService
    proxy_port: int | None


class PartlyApplied(SteeringFailed):
    """The rules of some families could not be created; those of the versions in ``made`` were."""

    def __init__(self, text: str, made: Collection[int]) -> None:
        super().__init__(text)
        self.made = made


class IRules(Interface):
    """The firewall rules of one or more IP families that redirect portals to proxy sockets or
    endpoints. Calls are made one after the other, and fail with
    :class:`~yurttunnel.steering.failures.SteeringFailed`.
    """

    backend = Attribute("`str`: ``iptables (nft)``, ``iptables (legacy)``, ``nftables``, ``none``.")

    async def apply(proxied: Sequence[ProxiedService]) -> Applied:
        """Change the rules to those for ``proxied``, in one transaction for each family.

        Changes that others have made to our chains are repaired. If the kernel counts generations,
        nothing is run when neither ``proxied`` nor :meth:`generation` has changed since the last
        successful call. Fails with :class:`PartlyApplied` if some families are known to have their
        rules anyway.
        """

    async def remove(versions: Collection[int] = VERSIONS) -> bool:
        """Remove everything of ours in these families, including what other processes left.

        Return whether there was anything.
        """

    def generation() -> int | None:
        """Return a number that changes with each change of the kernel's rules, by any program.

        Return ``None`` if the kernel does not count them (legacy tables).
        """


@dataclass(frozen=True, slots=True)
class StaleFlows:
    """Flows whose conntrack entries must be deleted: to a portal, or to a removed endpoint.

    If ``endpoint`` is ``None``, these are all flows of the portal, except for those to the
    endpoints in ``excluded``. ``address`` is ``None`` for a node port. For TCP, these are only
    unanswered attempts that were not translated, and connections that were translated and reset.
    """

    protocol: Protocol
    address: str | None
    port: int
    endpoint: Endpoint | None = None
    excluded: frozenset[Endpoint] = frozenset()


class IConntrack(Interface):
    """The kernel's conntrack table."""

    def delete_entries(version: int, stale: Collection[StaleFlows]) -> Deferred[int]:
        """Delete the entries of the flows; return how many there were. Fails with
        ``SteeringFailed``.
        """
