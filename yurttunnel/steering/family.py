"""One address family: reconciles its set, its rules and its flows with the desired state."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime

from yurttunnel.steering.desired_state import SteeringSettings, not_intercepted
from yurttunnel.steering.failures import SetsRefused, SteeringFailed
from yurttunnel.steering.interception import SET_NAMES, Address, Interception, Match, Target
from yurttunnel.steering.interfaces import Flow, IAddressSets, IFirewall, IFlows
from yurttunnel.steering.record import SyncRecord
from yurttunnel.steering.report import FamilyReport

MAX_FORMER_NODES = 16384
"""The maximum number of addresses of former nodes that are kept for later, while the conntrack
table cannot be read."""


class Family:
    """Reconciles the rules of ``firewall`` and the set that they refer to with the desired state.

    ``sets`` is ``None`` if the kernel has no sets; then ``match`` is not ``EDGE_SET``. If
    ``settings`` do not specify ``match``, it falls back to ``CLOUD_RETURN`` when the firewall does
    not support rules with sets, and for no other reason, because that intercepts far more.
    """

    def __init__(
        self,
        clock: IReactorTime,
        settings: SteeringSettings,
        firewall: IFirewall,
        sets: IAddressSets | None,
        flows: IFlows,
        match: Match,
    ) -> None:
        self._settings = settings
        self._firewall = firewall
        self._sets = sets
        self._flows = flows
        self._match = match
        self._version: int = firewall.version
        self._record = SyncRecord(clock, self._version)
        self._set_name = SET_NAMES[self._version]
        self._may_fall_back = settings.match is None and match is Match.EDGE_SET
        self._in_force: Interception | None = None
        # Whether a change has started whose result is not known: it may have been applied.
        self._state_unknown = False
        # A previous process may have left a set, and flows that its rules redirected.
        self._set_may_exist = True
        self._flows_due = True
        self._former_ports: frozenset[int] = frozenset()
        self._former_nodes: frozenset[Address] = frozenset()
        # What was in force when flows were last checked.
        self._checked: Interception | None = None

    @property
    def problem(self) -> str | None:
        """Why the rules may not be as desired; ``None`` if they are."""
        return self._record.problem or self._record.without_sets

    @property
    def changes(self) -> int:
        """How often rules or set had to be changed."""
        return self._record.changes

    def generation(self) -> int | None:
        """Return the generation of the rules; see :class:`IFirewall`."""
        found: int | None = self._firewall.generation()
        return found

    @property
    def has_rules(self) -> bool:
        """Whether there are rules that this object has created."""
        return self._in_force is not None and not self._in_force.is_empty

    async def sync(self, desired: Interception, read_rules: bool) -> bool:
        """Update set and rules to the desired state, then cut flows that no longer match it.

        If ``read_rules`` is false, unchanged rules are not read, because that may take long. Return
        whether the rules are now as desired; errors are logged.
        """
        self._record.started()
        try:
            await self._apply(replace(desired, match=self._match), read_rules)
            await self._cut_flows()
            await self._remove_unused_set()
        except CancelledError:
            raise
        except Exception as error:
            # A defect here must not block the other family any more than an error does.
            self._record.failed(error)
            return False
        self._record.succeeded(not_intercepted(self._settings, desired))
        return True

    async def remove(self) -> None:
        """Remove rules and set, without cutting flows; raises :class:`SteeringFailed`."""
        await self._firewall.remove()
        self._in_force = None
        self._state_unknown = False
        self._flows_due = True
        if self._sets is not None:
            await self._sets.remove(self._set_name)

    def report(self) -> FamilyReport:
        """Return what is in force, and what has happened."""
        return self._record.report(self._firewall.backend, self._match, self._in_force)

    async def _apply(self, desired: Interception, read_rules: bool) -> None:
        """Update set and rules; fall back to rules without a set if that is allowed and needed."""
        try:
            differed = await self._apply_with_match(desired, read_rules)
        except SetsRefused as error:
            if not self._may_fall_back:
                raise
            desired = replace(desired, match=Match.CLOUD_RETURN)
            differed = await self._apply_with_match(desired, read_rules)
            self._match = desired.match
            self._record.fell_back(error)
        if not desired.is_empty:
            self._may_fall_back = False
        self._record.applied(self._in_force, desired, differed)
        self._in_force = desired

    async def _apply_with_match(self, desired: Interception, read_rules: bool) -> list[str]:
        """Update the set, then the rules; return what differed."""
        former = None if self._state_unknown else self._in_force
        if desired.is_empty and former is not None and former.is_empty:
            # It is known that there are no rules, and no other program creates ours.
            return []
        self._state_unknown = True
        differed: list[str] = []
        set_name = None
        if self._sets is not None and _uses_set(desired):
            set_name = self._set_name
            self._set_may_exist = True
            if await self._sets.put(set_name, self._version, desired.edge):
                differed.append(f"the set {set_name} had different addresses")
        if read_rules or _rules(desired) != _rules(former):
            applied = await self._firewall.apply(desired, set_name)
            differed += applied.differences
            self._former_ports |= applied.former_ports
        self._state_unknown = False
        # A change that was started before may have been applied, so that nothing differs any more.
        if differed or former is None:
            self._flows_due = True
        return differed

    async def _cut_flows(self) -> None:
        """Cut the flows that contradict the rules; on errors the rules stay valid."""
        desired = self._in_force
        if not self._flows_due or desired is None:
            return
        ports = self._former_ports.union(_ports(desired), _ports(self._checked))
        nodes = self._former_nodes.union(_nodes(desired), _nodes(self._checked))
        listeners = self._settings.listeners.get(self._version)
        is_wrong = wrong_flows(
            desired, frozenset() if listeners is None else listeners.targets(), nodes
        )
        try:
            cut = await self._flows.cut(self._version, ports, is_wrong) if ports else 0
        except SteeringFailed as error:
            self._record.flow_check_failed(error)
            self._former_ports = ports
            if len(nodes) <= MAX_FORMER_NODES:
                self._former_nodes = nodes
            return
        self._record.flows_checked(cut)
        self._flows_due = False
        self._former_ports = frozenset()
        self._former_nodes = frozenset()
        self._checked = desired

    async def _remove_unused_set(self) -> None:
        """Remove the set when no rule refers to it any more."""
        used = self._in_force is not None and _uses_set(self._in_force)
        if self._sets is not None and self._set_may_exist and not used:
            await self._sets.remove(self._set_name)
            self._set_may_exist = False


def _uses_set(interception: Interception) -> bool:
    return interception.match is Match.EDGE_SET and not interception.is_empty


def _rules(interception: Interception | None) -> tuple[bool, Interception | None]:
    """Return what the rules depend on, which does not include the addresses in the set."""
    if interception is None or not _uses_set(interception):
        return False, interception
    return True, replace(interception, edge=frozenset(), cloud=frozenset())


def _ports(interception: Interception | None) -> frozenset[int]:
    if interception is None or interception.is_empty:
        return frozenset()
    return frozenset(interception.all_ports())


def _nodes(interception: Interception | None) -> frozenset[Address]:
    return frozenset() if interception is None else interception.edge | interception.cloud


def wrong_flows(
    desired: Interception, listeners: Collection[Target], node_addresses: Collection[Address]
) -> Callable[[Flow], bool]:
    """Return a function that tells whether a flow has to be cut; it may be called in any thread.

    A flow that should be intercepted must be answered by the listener of its port, and one that
    should not, by none of ``listeners``: addresses of this machine itself are never redirected. The
    second condition applies to ``node_addresses`` only, those that nodes have or had: kube-proxy
    redirects the address of the Service ``x-tunnel-server-internal-svc`` to the same listeners, and
    this is correct.

    The server's own connections, which the rules do not redirect, cannot be recognized here. When
    the entry of one is deleted, the connection continues unchanged with its next packet.
    """

    def is_wrong(flow: Flow) -> bool:
        target = (desired.ports if flow.local else desired.pod_ports).get(flow.port)
        if target is not None and not flow.to_self and desired.intercepts(flow.destination):
            return not _is_answered_by(flow, target)
        return flow.destination in node_addresses and any(
            _is_answered_by(flow, listener) for listener in listeners
        )

    return is_wrong


def _is_answered_by(flow: Flow, target: Target) -> bool:
    """Return whether the flow has been redirected to ``target``, at any own address of it."""
    if flow.responder == Target(flow.destination, flow.port):
        return False
    return flow.responder.port == target.port and target.address in (None, flow.responder.address)
