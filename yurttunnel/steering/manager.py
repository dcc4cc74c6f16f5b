"""Reconciles the firewall rules with nodes and ports while the server runs."""

from __future__ import annotations

import enum
from collections.abc import Callable

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from yurttunnel.cluster.nodes import Node, Nodes
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.ops.backoff import Backoff
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.reconciler import Phase, Reconciler
from yurttunnel.ops.timeouts import fired_within
from yurttunnel.steering.desired_state import SteeringSettings, desired
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.families import Families
from yurttunnel.steering.interception import Interception, Match
from yurttunnel.steering.interfaces import Firewalls, IAddressSets, IFlows
from yurttunnel.steering.report import RulesReport

CHECK_SECONDS = 0.5
"""The interval of checks for conditions without notifications: whether all nodes are known,
listeners accept, and other programs have changed rules."""

LISTENERS_TIMEOUT = 10.0
"""Seconds until the rules are removed when their listeners do not accept.

A server that was killed and is restarted accepts sooner, so that existing rules lead to it again.
"""

SETTLE_SECONDS = 0.05
"""How long to wait for further changes after the first."""

SYNC_BURST = 10
"""The number of syncs that may follow one another at once after a quiet time."""

SYNC_SPACING = 1.0
"""The average interval of syncs in seconds: syncs take processor time from other programs of this
machine, and kubelets may change their nodes at any rate."""

SYNC_SECONDS = 180.0
"""The timeout of a sync: twice what its programs may take, 20 s each."""

FINISH_SECONDS = 5.0
"""How long a sync in progress may continue when the server stops, in seconds."""

REMOVAL_TIMEOUT = 20.0
"""The timeout for the removal of rules when the server stops, in seconds."""

REMOVAL_PAUSE = 0.5
"""Seconds between two attempts at the removal."""


class State(enum.Enum):
    """The state of the manager."""

    STOPPED = "stopped"
    WAITING = "waiting"
    """Nodes are not all known, or the listeners do not accept: no rules are created."""
    STEERING = "steering"
    """The last sync succeeded."""
    FAILING = "failing"
    """The last sync failed; it is retried after a pause."""
    STOPPING = "stopping"


class SteeringManager(Service):
    """Updates the rules at the start, every period, and at once when nodes or ports change.

    ``firewalls`` detects those of the machine; if it fails with :class:`SteeringFailed`, it is
    called again later. ``cpu_seconds`` returns the processor time in seconds that programs have
    used so far. ``not_accepting`` returns why the listeners do not accept connections, ``None`` if
    they do. There is one sync at a time. Stopping removes rules and sets; flows continue.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        settings: SteeringSettings,
        nodes: Nodes,
        ports: ProxyPorts,
        services: ClusterAddresses,
        firewalls: Callable[[], Deferred[Firewalls]],
        sets: IAddressSets,
        flows: IFlows,
        cpu_seconds: Callable[[], float],
        not_accepting: Callable[[], str | None],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._nodes = nodes
        self._ports = ports
        self._services = services
        self._families = Families(clock, settings, firewalls, sets, flows, cpu_seconds)
        self._not_accepting = not_accepting
        self._limited = RateLimitedLog(clock, self._log)
        self._state = State.STOPPED
        # The desired state, until nodes, ports or Services change.
        self._desired: dict[int, Interception] | None = None
        self._failure: str | None = None
        self._closed_since: float | None = None
        # A previous process may have left some.
        self._rules_may_exist = True
        self._reconciler = Reconciler(
            clock,
            settings.period,
            "maintaining the firewall rules",
            self._sync,
            settle=SETTLE_SECONDS,
            spacing=SYNC_SPACING,
            burst=SYNC_BURST,
            backoff=Backoff(),
            deadline=SYNC_SECONDS,
            finish=FINISH_SECONDS,
        )
        self._checker = Reconciler(clock, CHECK_SECONDS, "checking the firewall rules", self._check)
        self._remove_node_handler: Callable[[], None] | None = None

    def startService(self) -> None:
        """Start; the first sync runs as soon as what it needs is known."""
        super().startService()
        self._state = State.WAITING
        self._desired = None
        self._remove_node_handler = self._nodes.add_handler(self._node_changed)
        self._ports.on_changed.append(self._changed)
        self._services.on_changed.append(self._changed)
        self._reconciler.startService()
        self._checker.startService()

    def stopService(self) -> Deferred[None]:
        """Wait for a sync in progress, then remove rules and sets."""
        super().stopService()
        self._state = State.STOPPING
        _ = self._checker.stopService()
        if self._remove_node_handler is not None:
            self._remove_node_handler()
            self._ports.on_changed.remove(self._changed)
            self._services.on_changed.remove(self._changed)
        return Deferred.fromCoroutine(self._shut_down())

    def problem(self) -> str | None:
        """Return, for ``/readyz``, why connections may not be redirected to this server."""
        if self._state in (State.STOPPED, State.STOPPING):
            return f"the firewall rules are no longer maintained: {self._state.value}"
        if self._state is State.WAITING:
            why = self._waiting_reason() or "they are about to be created"
            return f"the firewall rules are not maintained at the moment: {why}"
        return "; ".join(filter(None, (self._failure, self._families.problem()))) or None

    def report(self) -> RulesReport:
        """Return what is intercepted, and the current problems."""
        return RulesReport(
            state=self._state.value, problem=self.problem(), families=self._families.report()
        )

    async def _check(self) -> None:
        """Check conditions that have no notifications."""
        if self._not_accepting() is None:
            self._closed_since = None
        elif self._closed_since is None:
            self._closed_since = self._clock.seconds()
        if self._reconciler.phase is Phase.IDLE and self._is_due():
            self._reconciler.trigger(settle=0.0)

    def _is_due(self) -> bool:
        """Return whether there is something to do before the period is over."""
        if self._state is State.WAITING and self._waiting_reason() is None:
            return True
        changed = self._state is State.STEERING and self._families.may_have_changed()
        return changed or self._must_remove()

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if _rule_inputs(old) != _rule_inputs(new):
            self._changed()

    def _changed(self) -> None:
        self._desired = None
        self._reconciler.trigger()

    async def _sync(self) -> bool:
        """Run a sync if possible; return whether it succeeded."""
        try:
            state = await self._apply()
            self._failure = None
        except SteeringFailed as error:
            state = State.FAILING
            self._failure = str(error)
            self._limited.warn("{error}; retrying", error=error)
        except CancelledError:
            # The sync, or waiting for it at the stop, has timed out.
            state = State.FAILING
            self._failure = "the firewall rules could not be updated in time"
        except Exception as error:
            # Whatever the error is, the rules are checked again later.
            state = State.FAILING
            self._failure = f"internal error: {error!r}"
            self._log.failure("Defect: the rules cannot be updated; retrying")
        if self.running:
            self._state = state
        return state is not State.FAILING

    async def _apply(self) -> State:
        if self._must_remove():
            why = self._not_accepting()
            if failed := await self._families.remove():
                raise SteeringFailed("; ".join(failed))
            self._rules_may_exist = False
            self._log.warn("No firewall rules redirect to this server for now: {why}", why=why)
            return State.WAITING
        if self._waiting_reason() is not None:
            return State.WAITING
        self._rules_may_exist = True
        all_well = await self._families.sync(self._desired_state())
        return State.STEERING if all_well else State.FAILING

    def _waiting_reason(self) -> str | None:
        """Return what rules need that is not known yet."""
        if not self._nodes.synced:
            return "the nodes have not been received from the API yet"
        if not self._ports.synced:
            return "the configured ports have not been received from the API yet"
        if not self._services.synced:
            return "the addresses of the server's Services have not been received from the API yet"
        return self._not_accepting()

    def _must_remove(self) -> bool:
        """Return whether there are rules whose listeners have not accepted for too long."""
        closed = self._closed_since
        return (
            self._rules_may_exist
            and closed is not None
            and self._clock.seconds() - closed >= LISTENERS_TIMEOUT
        )

    def _desired_state(self) -> dict[int, Interception]:
        if self._desired is None:
            self._desired = desired(
                self._settings,
                self._settings.match or Match.EDGE_SET,
                self._nodes.all(),
                self._ports.ports,
                self._services.addresses,
            )
        return self._desired

    async def _shut_down(self) -> None:
        await self._reconciler.stopService()
        removing = Deferred.fromCoroutine(self._remove())
        if not await fired_within(self._clock, REMOVAL_TIMEOUT, removing):
            removing.cancel()
            self._log.error(
                "Firewall rules are left behind, since removing them took more than {seconds} s;"
                " run yurttunnel server --cleanup-iptables",
                seconds=REMOVAL_TIMEOUT,
            )
        self._state = State.STOPPED

    async def _remove(self) -> None:
        last = self._clock.seconds() + REMOVAL_TIMEOUT - 2 * REMOVAL_PAUSE
        try:
            failed = await self._families.remove()
            while failed and self._families.has_rules and self._clock.seconds() < last:
                # Usually another program held the lock, and releases it.
                await deferLater(self._clock, REMOVAL_PAUSE)
                failed = await self._families.remove()
        except CancelledError:
            # The timeout; the caller logs it.
            return
        except Exception as error:
            # Whatever the error is, the process ends, and must log it.
            self._log.failure("Defect: the firewall rules cannot be removed")
            failed = [f"internal error: {error!r}"]
        for why in failed:
            self._log.error(
                "Firewall rules may be left behind: {why}; run yurttunnel server"
                " --cleanup-iptables",
                why=why,
            )
        self._log.info("The firewall rules are no longer maintained")


def _rule_inputs(node: Node | None) -> tuple[bool, tuple[tuple[str, str], ...]] | None:
    """Return what the rules depend on of a node."""
    return None if node is None else (node.edge, node.addresses)
