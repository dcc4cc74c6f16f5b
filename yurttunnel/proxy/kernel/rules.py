"""The rules of kernel mode, which are updated at once when an endpoint is ejected or returns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from itertools import islice

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from yurttunnel.http.deadlines import Deadlines
from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.slices import in_slices, visit
from yurttunnel.proxy.interfaces import IRules, ProxiedService
from yurttunnel.proxy.kernel.connections import MAX_PORTALS
from yurttunnel.proxy.kernel.ejections import Ejections
from yurttunnel.proxy.kernel.marks import RETRIED
from yurttunnel.proxy.kernel.parts import is_in_kernel
from yurttunnel.proxy.kernel.targets import Target
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.proxy.rules.nftables.tables import Tables
from yurttunnel.proxy.state.virtual_services import Endpoint, Key, Portal, Protocol, ServicePortName
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interfaces import VERSIONS, Applied

RETRY_SECONDS = 1.0
"""Seconds until a failed update of the rules is retried."""

ANSWER_SECONDS = 0.5
"""Seconds within which a removed endpoint answers the attempts that it has received. A client
without an answer retransmits its first packet after 1 s (RFC 6298)."""

MAX_FORMER = 4096
"""The maximum number of removed endpoints whose former portals are kept."""

DeleteEntries = Callable[[Collection[Target], int], Deferred[int]]
"""Deletes conntrack entries with a mark that endpoints have not answered."""


@implementer(IRules)
class KernelRules:
    """Applies the tables that ``tables`` makes by ``nftables``, without ejected endpoints."""

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        nftables: Nftables,
        tables: Tables,
        ejections: Ejections,
        delete_entries: DeleteEntries,
    ) -> None:
        self._clock = clock
        self._nftables = nftables
        self._tables = tables
        self._ejections = ejections
        self._delete_entries = delete_entries
        self._limited = RateLimitedLog(clock, self._log)
        # The portals of endpoints that have been removed from a service, the oldest first.
        self._former_portals = BoundedDict[Target, Collection[Portal]](MAX_FORMER)
        self._lock = DeferredLock()
        self._proxied: Sequence[ProxiedService] | None = None
        # The services by endpoint, and by name; computed when they are first needed.
        self._services: dict[Target, list[ProxiedService]] | None = None
        self._named: dict[ServicePortName, list[ProxiedService]] = {}
        self._is_due = False
        self._changed: set[Target] = set()
        self._updating: Deferred[None] | None = None
        self._scheduled: IDelayedCall | None = None
        self._answering = Deadlines(clock, ANSWER_SECONDS, self._answers_ended)
        ejections.on_changed.append(self._target_changed)
        ejections.on_ejected.append(self._reconsider_siblings)

    @property
    def backend(self) -> str:
        """The name for pages and logs."""
        return self._nftables.backend

    async def apply(self, proxied: Sequence[ProxiedService]) -> Applied:
        former = {each.service.key: each for each in self._proxied or ()}
        self._set_services(proxied)
        self._ejections.retain(lambda target: self.siblings(target) is not None)
        await in_slices(self._clock, self._compare(former, proxied))
        return await self._lock.run(self._nftables.apply, proxied)

    async def remove(self, versions: Collection[int] = VERSIONS) -> bool:
        """See :class:`IRules`; ejections have no effect from now on."""
        self._set_services(None)
        return await self._lock.run(self._nftables.remove, versions)

    def generation(self) -> int | None:
        return self._nftables.generation()

    def siblings(self, target: Target) -> Collection[Endpoint] | None:
        """Return the other endpoints of an endpoint's services.

        Return ``None`` if it belongs to none, or there are no others: then it must not be ejected.
        """
        found = {
            each for proxied in self._services_of(target) for each in proxied.service.endpoints
        } - {target.endpoint}
        return found or None

    def portals(self, target: Target) -> Collection[Portal]:
        """Return the portals by which clients may have been sent to an endpoint.

        Clients on this machine also use the portals of another virtual service of the same name,
        and conntrack entries still lead to an endpoint that has been removed from its services.
        """
        family = target.protocol, target.endpoint.address.version
        found: dict[Portal, None] = {}
        for name in {proxied.service.key.name for proxied in self._services_of(target)}:
            for proxied in self._named[name]:
                key = proxied.service.key
                if (key.protocol, key.version) == family:
                    found.update(dict.fromkeys(proxied.service.portals))
        return found | dict.fromkeys(self._former_portals.get(target, ()))

    def reapply(self) -> None:
        """Update the rules for the services that were placed last, because something else has
        changed.

        Further changes in this reactor turn are part of the same transaction: endpoints that are
        found dead together must be removed together, before a client of one of them retries, or it
        would be sent to another of them.
        """
        self._is_due = True
        if self._updating is None and self._scheduled is None:
            self._scheduled = self._clock.callLater(0, self._start_update)

    async def end_ejections(self) -> None:
        """Change the rules to those of a machine where no process ejects endpoints."""
        self._is_due = False
        self._answering.stop()
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        self._tables.invalidate([proxied.service.key for proxied in self._proxied or ()])
        await self._apply_again()

    def _compare(
        self, former: Mapping[Key, ProxiedService], proxied: Sequence[ProxiedService]
    ) -> Generator[str, None, None]:
        """React to endpoints that have been added or removed."""

        def removed(found: tuple[Target, Collection[Portal]]) -> None:
            target, portals = found
            self._remember_portals(target, portals)
            if target not in self._answering:
                self._answering.add(target)

        def placed(each: ProxiedService) -> None:
            before = former.get(each.service.key)
            if is_in_kernel(each) and before != each:
                self._reconsider(each)
                self._redirect_to_new_ones(each, before)

        now = {each.service.key: each for each in proxied}
        yield from visit(_removed(former, now), removed)
        yield from visit(proxied, placed)

    def _set_services(self, proxied: Sequence[ProxiedService] | None) -> None:
        self._proxied = proxied
        self._services = None

    def _services_of(self, target: Target) -> Sequence[ProxiedService]:
        """Return the services that the kernel sends to an endpoint."""
        if self._services is None:
            services, named = defaultdict(list), defaultdict(list)
            for proxied in self._proxied or ():
                named[proxied.service.key.name].append(proxied)
                if is_in_kernel(proxied):
                    for endpoint in proxied.service.endpoints:
                        services[Target(proxied.service.key.protocol, endpoint)].append(proxied)
            self._services, self._named = services, named
        return self._services.get(target, ())

    def _remember_portals(self, target: Target, portals: Collection[Portal]) -> None:
        """Keep the portals of a service from which an endpoint is removed."""
        known = dict.fromkeys(self._former_portals.get(target, ()))
        # The latest ones only: no more are searched.
        latest = islice(dict.fromkeys(portals) | known, MAX_PORTALS)
        self._former_portals[target] = tuple(latest)

    def _reconsider_siblings(self, target: Target) -> None:
        for proxied in self._services_of(target):
            self._reconsider(proxied, target)

    def _reconsider(self, proxied: ProxiedService, found_dead: Target | None = None) -> None:
        """Probe the endpoints of a service if all of them are ejected."""
        protocol = proxied.service.key.protocol
        targets = [Target(protocol, each) for each in proxied.service.endpoints]
        others = [each for each in targets if each != found_dead]
        if all(self._ejections.is_ejected(*each) for each in others):
            self._ejections.reconsider(others)

    def _redirect_to_new_ones(self, proxied: ProxiedService, before: ProxiedService | None) -> None:
        """When endpoints are added, send clients of ejected ones to them."""
        service = proxied.service
        protocol = service.key.protocol
        if any(self._ejections.is_ejected(protocol, each) for each in service.endpoints):
            known = () if before is None else before.service.endpoints
            for each in set(service.endpoints).difference(known):
                self._target_changed(Target(protocol, each))

    def _answers_ended(self, target: Target) -> None:
        """Delete entries of attempts that would be sent there as long as clients retry."""
        if not self._services_of(target):
            self._target_changed(target)

    def _target_changed(self, target: Target) -> None:
        self._changed.add(target)
        self.reapply()

    def _start_update(self) -> None:
        self._scheduled = None
        self._updating = Deferred.fromCoroutine(self._update())
        _ = self._updating.addErrback(
            lambda failure: self._log.failure("Ejections have no effect", failure)
        ).addBoth(self._end)

    def _end(self, _: object) -> None:
        self._updating = None

    async def _update(self) -> None:
        while self._is_due:
            self._is_due = False
            changed, self._changed = self._changed, set()
            for target in changed:
                self._tables.invalidate(
                    [proxied.service.key for proxied in self._services_of(target)]
                )
            try:
                await self._apply_again()
                # Not earlier: else an attempt might be sent there again.
                ejected = [each for each in changed if self._ejections.is_ejected(*each)]
                if ejected:
                    await self._delete_entries(ejected, RETRIED)
                ejected_siblings = self._ejected_siblings(changed)
                if ejected_siblings:
                    # While none was left, clients were sent to all of them, and not all have a
                    # mark.
                    await self._delete_entries(ejected_siblings, 0)
                gone = [each for each in changed if not self._services_of(each)]
                if gone:
                    # The only endpoint of a Service has no mark, because there was no other.
                    await self._delete_entries(gone, 0)
            except SteeringFailed as error:
                self._limited.warn(
                    "Endpoints that do not respond are still used: {error}; retrying", error=error
                )
                self._is_due = True
                # Attempts at removed endpoints end within two minutes in any case.
                self._changed |= {each for each in changed if self._services_of(each)}
                self._scheduled = self._clock.callLater(RETRY_SECONDS, self._start_update)
                return

    def _ejected_siblings(self, changed: Collection[Target]) -> Collection[Target]:
        """Return the ejected endpoints of services in which one of these targets is not ejected."""
        services = {
            proxied.service.key: proxied.service
            for each in changed
            if not self._ejections.is_ejected(*each)
            for proxied in self._services_of(each)
        }
        targets = {
            Target(key.protocol, endpoint)
            for key, service in services.items()
            for endpoint in service.endpoints
        }
        return [each for each in targets if self._ejections.is_ejected(*each)]

    async def _apply_again(self) -> None:
        async with self._lock:
            if self._proxied is not None:
                await self._nftables.apply(self._proxied)


def _removed(
    former: Mapping[Key, ProxiedService], proxied: Mapping[Key, ProxiedService]
) -> Iterator[tuple[Target, Collection[Portal]]]:
    """Yield the TCP endpoints to which the kernel no longer sends a service, and its portals."""
    for key, before in former.items():
        after = proxied.get(key)
        if key.protocol is not Protocol.TCP or after == before or not is_in_kernel(before):
            continue
        left = after.service.endpoints if after is not None and is_in_kernel(after) else ()
        for endpoint in set(before.service.endpoints).difference(left):
            yield Target(key.protocol, endpoint), before.service.portals
