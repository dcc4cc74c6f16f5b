"""One family of addresses: its set, its rules and its flows are made those that are wanted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime

from yurttunnel.steering.desired_state import SteeringSettings, left_out
from yurttunnel.steering.failures import SetsRefused, SteeringFailed
from yurttunnel.steering.interception import SET_NAMES, Address, Interception, Match, Target
from yurttunnel.steering.interfaces import (
    Flow,
    IAddressSets,
    IFirewall,
    IFlows,
)
from yurttunnel.steering.record import Record
from yurttunnel.steering.report import FamilyReport

MOST_FORMER = 16384
"""Addresses of nodes to which flows are looked for once the kernel tells of them again."""


class Family:
    """Keeps what ``firewall`` has, and the set that its rules refer to, as it is wanted.

    ``sets`` is ``None`` where the kernel has no sets; then ``match`` is not ``EDGE_SET``. A
    ``match`` that ``settings`` leave open is given up for ``CLOUD_RETURN`` if the firewall has no
    rules with sets, and for nothing else: that intercepts far more.
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
        self._record = Record(clock, self._version)
        self._set_name = SET_NAMES[self._version]
        self._may_fall_back = settings.match is None and match is Match.EDGE_SET
        self._in_force: Interception | None = None
        # Whether a change has begun whose end was not seen: it may have been made all the same.
        self._unsure = False
        # A former process may have left anything: a set, and flows that were led by its rules.
        self._set_may_exist = True
        self._flows_due = True
        self._former_ports: frozenset[int] = frozenset()
        self._former_nodes: frozenset[Address] = frozenset()
        # What was in force when flows were judged last.
        self._judged: Interception | None = None

    @property
    def problem(self) -> str | None:
        """Why the rules may not be as wanted; ``None`` when they are."""
        return self._record.problem or self._record.without_sets

    @property
    def changes(self) -> int:
        """How often rules or set had to be changed."""
        return self._record.changes

    def generation(self) -> int | None:
        """Return the number of the rules' state, as :class:`IFirewall` says."""
        found: int | None = self._firewall.generation()
        return found

    @property
    def has_rules(self) -> bool:
        """Whether there are rules that were made here."""
        return self._in_force is not None and not self._in_force.is_nothing

    async def sync(self, desired: Interception, look: bool) -> bool:
        """Make set and rules those that are wanted, then cut flows that go elsewhere.

        Rules that need not become others are read if ``look`` says so, since that may take long.
        Says whether the rules are now as wanted; what fails is told in the log.
        """
        self._record.began()
        try:
            await self._make(replace(desired, match=self._match), look)
            await self._cut_flows()
            await self._remove_unused_set()
        except CancelledError:
            raise
        except Exception as error:
            # A defect here must not hold up the other family any more than a refusal does.
            self._record.failed(error)
            return False
        self._record.succeeded(left_out(self._settings, desired))
        return True

    async def remove(self) -> None:
        """Remove rules and set, and leave flows alone; raises :class:`SteeringFailed`."""
        await self._firewall.remove()
        self._in_force = None
        self._unsure = False
        self._flows_due = True
        if self._sets is not None:
            await self._sets.remove(self._set_name)

    def report(self) -> FamilyReport:
        """Return what is in force, and what has happened."""
        return self._record.report(self._firewall.backend, self._match, self._in_force)

    async def _make(self, desired: Interception, look: bool) -> None:
        """Make set and rules; without a set, if that is open and there are no rules with sets."""
        try:
            differed = await self._make_by_match(desired, look)
        except SetsRefused as error:
            if not self._may_fall_back:
                raise
            desired = replace(desired, match=Match.CLOUD_RETURN)
            differed = await self._make_by_match(desired, look)
            self._match = desired.match
            self._record.fell_back(error)
        if not desired.is_nothing:
            self._may_fall_back = False
        self._record.made(self._in_force, desired, differed)
        self._in_force = desired

    async def _make_by_match(self, desired: Interception, look: bool) -> list[str]:
        """Make the set, then the rules; return what was not as wanted."""
        former = None if self._unsure else self._in_force
        if desired.is_nothing and former is not None and former.is_nothing:
            # It was seen that there is nothing, and nobody else makes rules of ours.
            return []
        self._unsure = True
        differed: list[str] = []
        set_name = None
        if self._sets is not None and _uses_set(desired):
            set_name = self._set_name
            self._set_may_exist = True
            if await self._sets.put(set_name, self._version, desired.edge):
                differed.append(f"the set {set_name} had other addresses")
        if look or _rules(desired) != _rules(former):
            applied = await self._firewall.apply(desired, set_name)
            differed += applied.differences
            self._former_ports |= applied.former_ports
        self._unsure = False
        # What was begun before may have been made then, and nothing differs any more.
        if differed or former is None:
            self._flows_due = True
        return differed

    async def _cut_flows(self) -> None:
        """Cut the flows that go elsewhere than the rules say; without that the rules do as well."""
        desired = self._in_force
        if not self._flows_due or desired is None:
            return
        ports = self._former_ports.union(_ports(desired), _ports(self._judged))
        nodes = self._former_nodes.union(_nodes(desired), _nodes(self._judged))
        listeners = self._settings.listeners.get(self._version)
        is_wrong = wrong_flows(
            desired,
            frozenset() if listeners is None else listeners.targets(),
            nodes,
        )
        try:
            cut = await self._flows.cut(self._version, ports, is_wrong) if ports else 0
        except SteeringFailed as error:
            self._record.flows_not_judged(error)
            self._former_ports = ports
            if len(nodes) <= MOST_FORMER:
                self._former_nodes = nodes
            return
        self._record.flows_judged(cut)
        self._flows_due = False
        self._former_ports = frozenset()
        self._former_nodes = frozenset()
        self._judged = desired

    async def _remove_unused_set(self) -> None:
        """Remove the set when no rule refers to it any more."""
        used = self._in_force is not None and _uses_set(self._in_force)
        if self._sets is not None and self._set_may_exist and not used:
            await self._sets.remove(self._set_name)
            self._set_may_exist = False


def _uses_set(interception: Interception) -> bool:
    return interception.match is Match.EDGE_SET and not interception.is_nothing


def _rules(interception: Interception | None) -> tuple[bool, Interception | None]:
    """Return what rules depend on: which addresses are in the set makes no difference to them."""
    if interception is None or not _uses_set(interception):
        return False, interception
    return True, replace(interception, edge=frozenset(), cloud=frozenset())


def _ports(interception: Interception | None) -> frozenset[int]:
    if interception is None or interception.is_nothing:
        return frozenset()
    return frozenset(interception.all_ports())


def _nodes(interception: Interception | None) -> frozenset[Address]:
    return frozenset() if interception is None else interception.edge | interception.cloud


def wrong_flows(
    desired: Interception, listeners: Collection[Target], node_addresses: Collection[Address]
) -> Callable[[Flow], bool]:
    """Return a function that says whether a flow has to be cut; it may be called in any thread.

    A flow that should be intercepted must be answered by the listener that its port leads to, and
    one that should not by none of ``listeners``: addresses of this machine itself are never led.
    The latter goes for ``node_addresses`` alone,
    those that nodes have or had: kube-proxy leads the address of the Service
    ``x-tunnel-server-internal-svc`` to the same listeners, and rightly so.

    The server's own connections, which the rules let pass, cannot be told from others here. When
    one of them is forgotten, it goes on with its next packet as it was.
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
    """Return whether the flow has been led to ``target``, which may be on whatever own address."""
    if flow.answers == Target(flow.destination, flow.port):
        return False
    return flow.answers.port == target.port and target.address in (None, flow.answers.address)
