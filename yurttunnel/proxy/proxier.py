"""Reconciles sockets and rules with Services and EndpointSlices while the proxy runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.metrics import Durations
from yurttunnel.ops.backoff import Backoff
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.slices import in_slices, visit
from yurttunnel.ops.timeouts import fired_within
from yurttunnel.proxy.health import SyncHealth
from yurttunnel.proxy.health_checks import HealthCheckServers
from yurttunnel.proxy.interfaces import (
    IConntrack,
    IDesiredStateSource,
    IPortClaims,
    IRules,
    PartlyApplied,
    ProxiedService,
    StaleFlows,
)
from yurttunnel.proxy.settings import SyncSettings
from yurttunnel.proxy.socket_manager import Services, SocketManager
from yurttunnel.proxy.stale_flows import Found, flows_to, stale_flows
from yurttunnel.proxy.state.virtual_services import (
    Address,
    DesiredState,
    Key,
    Portal,
    Problem,
    Protocol,
)
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interfaces import VERSIONS

CHECK_SECONDS = 5.0
"""How often to check whether another program has changed rules."""

SYNC_BURST = 2
"""The number of syncs that may follow one another at once after a quiet time, as in kube-proxy's
runner, so that a change need not wait because the periodic sync or another Service has just had
one."""

SYNC_SECONDS = 60.0
"""The timeout of a sync: more than the programs of both families together take, 20 s each."""

STOP_SECONDS = 5.0
"""How long a sync in progress may continue when the proxy stops, in seconds."""

REMOVAL_SECONDS = 20.0
"""The timeout for the removal of rules when the proxy stops, in seconds."""

MAX_REPORTED = 20
"""The maximum number of problems logged one by one after a sync; the status page has all."""

SYNC_BOUNDS = tuple(0.001 * 2**power for power in range(15))
"""The buckets of kube-proxy's histogram, in seconds (``pkg/proxy/metrics`` of Kubernetes)."""


class Proxier(Service):
    """Runs one sync at a time: at the start, at changes, and each period.

    It does nothing before ``source`` has a state. Changes of endpoints are passed to ``manager``
    at once, even during a sync. A service that cannot be served is reported as a problem, and the
    others are served. Rules stay at the end, unless the settings say to remove them.
    ``addresses()`` returns the addresses of this machine.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        settings: SyncSettings,
        source: IDesiredStateSource,
        manager: SocketManager,
        claims: IPortClaims,
        rules: IRules,
        conntrack: IConntrack,
        checks: HealthCheckServers,
        health: SyncHealth,
        addresses: Callable[[], frozenset[Address]] = frozenset,
    ) -> None:
        self._clock = clock
        self.settings = settings
        self._source = source
        self._manager = manager
        self._claims = claims
        self._rules = rules
        self._conntrack = conntrack
        self._checks = checks
        self._health = health
        self._addresses = addresses
        self._limited = RateLimitedLog(clock, self._log)
        # What the rules have been created for.
        self._proxied: dict[Key, ProxiedService] = {}
        # The addresses of this machine when that began, and all to which rules may redirect by now.
        self._current_addresses: frozenset[Address] = frozenset()
        self._redirect_addresses: frozenset[Address] = frozenset()
        self._stale: dict[tuple[int, Protocol], set[StaleFlows]] = {}
        self._generation: int | None = None
        self._rules_problem: str | None = "no rules have been created yet"
        self._flows_problem: str | None = None
        self.problems: tuple[Problem, ...] = ()
        """What is not served as it should be, as of the last sync."""
        self.own_problems = 0
        """The number of problems that are this node's, and not the objects'."""
        self.syncs = {"ok": 0, "repaired": 0, "failed": 0}
        """The number of syncs by result."""
        self.durations = Durations(SYNC_BOUNDS)
        """The durations of the successful syncs."""
        self.last_took: float | None = None
        """The duration of the last successful sync; ``None`` before the first."""
        self.deleted_entries = 0
        """The number of UDP flows, TCP attempts and reset connections whose conntrack entries were
        deleted."""
        self._reconciler = Reconciler(
            clock,
            settings.period,
            "syncing Services",
            self._sync,
            spacing=settings.min_period,
            burst=SYNC_BURST,
            backoff=Backoff(),
            deadline=SYNC_SECONDS,
            finish=STOP_SECONDS,
        )
        self._rule_checks = Reconciler(
            clock, CHECK_SECONDS, "checking the firewall rules", self._check_rules
        )

    def startService(self) -> None:
        """Start; the first sync runs as soon as the desired state is known."""
        super().startService()
        self._health.is_draining = False
        self._source.on_changed.append(self._changed)
        if self._source.state() is not None:
            self._changed()
        self._rule_checks.startService()

    def stopService(self) -> Deferred[None]:
        """Wait for a sync in progress, remove rules if the settings say so, and drain."""
        super().stopService()
        self._health.is_draining = True
        self._source.on_changed.remove(self._changed)
        _ = self._rule_checks.stopService()
        return Deferred.fromCoroutine(self._shut_down())

    def problem(self) -> str | None:
        """Return, for ``/readyz``, why clients of Services may not reach their endpoints."""
        if self._health.is_draining:
            return "draining: the proxy is about to stop"
        if self._source.state() is None:
            return self._source.problem() or "Services have not been listed yet"
        return self._rules_problem

    def warning(self) -> str | None:
        """Return what else is not as it should be, and what to check."""
        found = [self._source.problem(), self._flows_problem]
        if self.problems:
            first = self.problems[0]
            more = f", and {len(self.problems) - 1} more" if len(self.problems) > 1 else ""
            found.append(f"{first.what}: {first.text}{more}")
        return "; ".join(filter(None, found)) or None

    def node_changed(self) -> None:
        """Request a sync: ports are claimed at own addresses, and rules redirect to one."""
        if self._reconciler.running:
            self._reconciler.trigger()

    def _changed(self) -> None:
        state = self._source.state()
        if state is None:
            return
        self._health.queued(state.triggered)
        self._manager.update(state.services)
        # Not before there is a state: a sync without one would delay the next.
        if self._reconciler.running:
            self._reconciler.trigger()
        else:
            self._reconciler.startService()

    async def _check_rules(self) -> None:
        generation = self._rules.generation()
        if generation != self._generation and self._reconciler.running:
            self._generation = generation
            self._reconciler.trigger()

    async def _sync(self) -> bool:
        """Run a sync; return whether it succeeded."""
        self._health.begun()
        begun = self._clock.seconds()
        try:
            result = await self._apply()
        except SteeringFailed as error:
            self._failed(str(error))
            self._limited.warn(
                "Rules of Services cannot be updated, and stay as they are: {error}; retrying",
                error=error,
            )
        except CancelledError:
            self._failed("the rules could not be created in time")
        except Exception as error:
            # Whatever the error is, everything stays as it was, and the sync is retried.
            self._failed(f"internal error: {error!r}")
            self._log.failure("Defect: a sync of Services failed; retrying")
        else:
            self._rules_problem = None
            self.syncs[result] += 1
            self.last_took = self._clock.seconds() - begun
            self.durations.observe(self.last_took)
            self._health.synced()
            return True
        return False

    def _failed(self, why: str) -> None:
        self._rules_problem = why
        self.syncs["failed"] += 1

    async def _apply(self) -> str:
        """Run a sync; return ``repaired`` if others had changed rules, else ``ok``."""
        state = self._source.state() or DesiredState()
        services = state.services
        unclaimed = await in_slices(self._clock, self._claims.claim(services))
        proxied = await self._manager.open_sockets(services, unclaimed)
        await self._checks.update(state.health_checks)
        self._record_problems(
            state.problems,
            [
                *(_unclaimed(key, portal, why) for (key, portal), why in unclaimed.items()),
                *self._manager.problems(),
                *self._checks.problems(),
            ],
        )
        # The state may have changed while sockets were opened.
        self._manager.update((self._source.state() or state).services)
        now: dict[Key, ProxiedService] = {}
        await in_slices(
            self._clock, visit(proxied, lambda each: now.__setitem__(each.service.key, each))
        )
        # The addresses may change while rules are created, and these rules do not redirect to the
        # new ones.
        self._current_addresses = self._addresses()
        self._redirect_addresses |= self._current_addresses
        try:
            applied = await self._rules.apply(proxied)
        except PartlyApplied as error:
            await self._close_replaced(services, self._proxied_in(now, error.made), error.made)
            raise
        self._generation = self._rules.generation()
        for difference in applied.differences:
            self._log.debug("Rules had been changed: {difference}", difference=difference)
        repaired = bool(applied.differences) and now == self._proxied
        await self._close_replaced(services, now)
        return "repaired" if repaired else "ok"

    def _proxied_in(
        self, now: dict[Key, ProxiedService], made: Collection[int]
    ) -> dict[Key, ProxiedService]:
        """Return what there are rules for once those of some families have been ``made``."""
        former = {key: each for key, each in self._proxied.items() if key.version not in made}
        return former | {key: each for key, each in now.items() if key.version in made}

    async def _close_replaced(
        self,
        services: Services,
        proxied: dict[Key, ProxiedService],
        versions: Collection[int] = VERSIONS,
    ) -> None:
        """End what the rules of these ``versions`` no longer redirect to."""
        await self._delete_stale_entries(proxied, versions)
        closed = await self._manager.close_unused(services, self.settings.drain, versions)
        if closed and self._manager.lacks_ports:
            # A closed socket may have released the port that another service needs.
            self._reconciler.trigger()

    def _record_problems(self, of_objects: Sequence[Problem], own: Sequence[Problem]) -> None:
        """Record the problems, and log new ones of this node; the source logs those of objects."""
        former = frozenset(self.problems)
        self.problems = tuple(dict.fromkeys([*of_objects, *own]))
        self.own_problems = len(self.problems) - len(frozenset(of_objects))
        new = [each for each in dict.fromkeys(own) if each not in former]
        for each in new[:MAX_REPORTED]:
            self._log.warn("{what}: {text}", what=each.what, text=each.text)
        if len(new) > MAX_REPORTED:
            self._log.warn(
                "{more} more problems of Services: the status page has all of them",
                more=len(new) - MAX_REPORTED,
            )

    async def _delete_stale_entries(
        self, proxied: dict[Key, ProxiedService], versions: Collection[int]
    ) -> None:
        """Delete the conntrack entries of flows that previous rules led elsewhere, or nowhere."""
        lost = {
            each
            for each in self._redirect_addresses - self._current_addresses
            if each.version in versions
        }
        found = await in_slices(self._clock, flows_to(lost, self._proxied))
        found += await in_slices(self._clock, stale_flows(self._proxied, proxied))
        await in_slices(self._clock, visit(found, self._add_stale))
        self._proxied, self._redirect_addresses = proxied, self._redirect_addresses - lost
        self._flows_problem = None
        for (version, protocol), stale in list(self._stale.items()):
            try:
                self.deleted_entries += await self._conntrack.delete_entries(version, stale)
            except SteeringFailed as error:
                self._log_deletion_failure(protocol, error)
                if protocol is Protocol.UDP:
                    continue
                # TCP attempts end within two minutes in any case.
            del self._stale[version, protocol]

    def _add_stale(self, found: Found) -> None:
        version, flows = found
        self._stale.setdefault((version, flows.protocol), set()).add(flows)

    def _log_deletion_failure(self, protocol: Protocol, error: SteeringFailed) -> None:
        if protocol is Protocol.TCP:
            self._limited.warn(
                "TCP clients that connected before their Service had rules keep failing: {error}",
                error=error,
            )
            return
        self._flows_problem = f"UDP clients may be sent to removed endpoints: {error}"
        self._limited.warn(
            "UDP clients may be sent to removed endpoints: {error}; retrying", error=error
        )

    async def _shut_down(self) -> None:
        await self._reconciler.stopService()
        if self.settings.removes_rules:
            await self._remove_rules()
        await self._checks.stop()
        self._claims.release()
        await self._manager.stop(self.settings.drain)

    async def _remove_rules(self) -> None:
        removing = Deferred.fromCoroutine(self._try_remove_rules())
        if not await fired_within(self._clock, REMOVAL_SECONDS, removing):
            removing.cancel()
            self._log.error(
                "Rules of Services are left behind, since removing them took more than {seconds} s;"
                " run yurttunnel proxy --cleanup",
                seconds=REMOVAL_SECONDS,
            )

    async def _try_remove_rules(self) -> None:
        try:
            await self._rules.remove()
        except SteeringFailed as error:
            self._log.error(
                "Rules of Services may be left behind: {error}; run yurttunnel proxy --cleanup",
                error=error,
            )
        except CancelledError:
            # The timeout; the caller logs it.
            return


def _unclaimed(key: Key, portal: Portal, why: str) -> Problem:
    """Return the problem of a portal that belongs to another process or service."""
    return Problem(str(key.name), f"its {portal} is not served here: {why}")
