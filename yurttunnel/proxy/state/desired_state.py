"""The desired state of all Services; if two have the same portal, only one gets it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from yurttunnel.proxy.state.endpoint_slices import EndpointSlice
from yurttunnel.proxy.state.service_state import (
    Claim,
    Loop,
    LoopInputs,
    NodeContext,
    ServiceState,
    service_state,
)
from yurttunnel.proxy.state.services import Service
from yurttunnel.proxy.state.virtual_services import (
    Address,
    DesiredState,
    Endpoint,
    HealthCheckNodePort,
    Key,
    NodeFacts,
    Portal,
    Problem,
    Protocol,
    VirtualService,
    has_node_ports,
)

_Name = tuple[str, str]
"""The namespace and name of a Service."""

_Inputs = tuple[Service, tuple[EndpointSlice, ...], NodeContext, frozenset[Loop]]
"""The inputs of a Service's state."""

_NO_LOOP_INPUTS = LoopInputs()
"""For a Service without ports of a protocol."""


class ServiceStateCache:
    """Caches the state of each Service, because most inputs stay the same from one state to the
    next.

    Objects are compared by value, which is fast because almost all are identical.
    """

    def __init__(self) -> None:
        self._triggered: list[float] = []
        # With and without loops: the inputs, and the state.
        self._kept: dict[tuple[_Name, bool], tuple[_Inputs, ServiceState]] = {}

    def state(
        self,
        service: Service,
        slices: tuple[EndpointSlice, ...],
        place: NodeContext,
        loops: frozenset[Loop] = frozenset(),
    ) -> ServiceState:
        """Return :func:`~yurttunnel.proxy.state.service_state.service_state` of these arguments."""
        key = (service.namespace, service.name), bool(loops)
        inputs = service, slices, place, loops
        known = self._kept.get(key)
        if known is not None and known[0] == inputs:
            return known[1]
        if not loops:
            former = () if known is None else known[0][1]
            self._triggered += [
                each.triggered
                for each in slices
                if each.triggered is not None and each not in former
            ]
        state = service_state(*inputs)
        self._kept[key] = inputs, state
        return state

    def take_triggered(self) -> tuple[float, ...]:
        """Return the trigger times of slices that have changed since the last call."""
        taken, self._triggered = tuple(self._triggered), []
        return taken

    def forget_all_but(self, names: Collection[_Name]) -> None:
        """Drop the Services that no longer exist."""
        for key in [key for key in self._kept if key[0] not in names]:
            del self._kept[key]


def desired_state(
    services: Iterable[Service],
    slices: Iterable[EndpointSlice],
    node: NodeFacts,
    memory: ServiceStateCache | None = None,
) -> DesiredState:
    """Return all that is to be served on ``node``; the order of objects makes no difference.

    It is fast with the ``memory`` of the previous call; the result is the same without it.
    """
    memory = ServiceStateCache() if memory is None else memory
    place = NodeContext(
        node.name,
        node.zone,
        frozenset(each for each in node.addresses if each.version == 4 and each.is_link_local),
        node.loopback,
        node.versions,
    )
    grouped = _by_service(slices)
    # The oldest comes first: it keeps a portal that others request, too.
    ordered = sorted(services, key=lambda each: (each.created, each.namespace, each.name))
    memory.forget_all_but({(each.namespace, each.name) for each in ordered})
    inputs = [
        (each, tuple(grouped.get((each.namespace, each.name), ())), place) for each in ordered
    ]
    states = [memory.state(*each) for each in inputs]
    own = {each for each in node.addresses if has_node_ports(each, node.node_port_networks)}
    for index, loops in _loops(states, own).items():
        states[index] = memory.state(*inputs[index], loops)
    return replace(_merged(ordered, states), triggered=memory.take_triggered())


def _by_service(slices: Iterable[EndpointSlice]) -> dict[_Name, list[EndpointSlice]]:
    found: dict[_Name, list[EndpointSlice]] = {}
    for each in slices:
        found.setdefault((each.namespace, each.service), []).append(each)
    return found


def _loops(states: Sequence[ServiceState], own: Collection[Address]) -> dict[int, frozenset[Loop]]:
    """Return, for each state that has any, the endpoints that are portals of this or other
    Services.

    ``own`` are the addresses of this machine that serve node ports.
    """
    found: dict[int, frozenset[Loop]] = {}
    for protocol in Protocol:
        ways = [state.ways.get(protocol, _NO_LOOP_INPUTS) for state in states]
        for index, loops in _loops_of_protocol(ways, own):
            its = frozenset((protocol, each) for each in loops)
            found[index] = found.get(index, frozenset()) | its
    return found


def _loops_of_protocol(
    states: Sequence[LoopInputs], own: Collection[Address]
) -> Iterator[tuple[int, frozenset[Endpoint]]]:
    """Yield those of one protocol.

    An address in ``own`` with a node port is a portal, too. The API's documentation does not allow
    cluster IPs as endpoints (Services without selectors). External portals of others may be
    endpoints, if their Services do not lead back.
    """
    virtual = frozenset[Endpoint]().union(*(state.virtual for state in states))
    node_ports = frozenset[int]().union(*(state.node_ports for state in states))
    around = _around(states)
    for index, state in enumerate(states):
        loops = state.endpoints & virtual | around.get(index, frozenset())
        if not state.endpoint_ports.isdisjoint(node_ports):
            loops |= {
                each for each in state.endpoints if each.port in node_ports and each.address in own
            }
        if loops:
            yield index, loops


def _around(states: Sequence[LoopInputs]) -> dict[int, frozenset[Endpoint]]:
    """Return the endpoints by which states lead to external portals of others, and back."""
    # If several request the same portal, the first one gets it.
    owners = {
        portal: index for index in reversed(range(len(states))) for portal in states[index].external
    }
    portals = frozenset(owners)
    leads = {index: led for index, state in enumerate(states) if (led := state.endpoints & portals)}
    left = _on_cycles({index: {owners[each] for each in led} for index, led in leads.items()})
    return {
        index: frozenset(each for each in leads[index] if owners[each] in left) for index in left
    }


def _on_cycles(leads: Mapping[int, Collection[int]]) -> Collection[int]:
    """Return the members of ``leads`` that lead back to themselves (or are between such)."""
    ahead = _never_ready(leads)
    back: dict[int, list[int]] = {index: [] for index in ahead}
    for index in ahead:
        for owner in ahead.intersection(leads[index]):
            back[owner].append(index)
    return _never_ready(back)


def _never_ready(behind: Mapping[int, Collection[int]]) -> set[int]:
    """Return the members of ``behind`` that have a cycle among their predecessors."""
    sorter = TopologicalSorter(behind)
    left = set(behind)
    with suppress(CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        left.difference_update(ready)
        sorter.done(*ready)
    return left


def _merged(services: Sequence[Service], states: Sequence[ServiceState]) -> DesiredState:
    """Merge states, whose order is the priority for what several request."""
    owners: dict[Claim, str] = {}
    wanted = 0
    for state in states:
        owners.update(state.claims)
        wanted += len(state.claims)
    found: dict[Key, VirtualService] = {}
    checks: dict[int, HealthCheckNodePort] = {}
    problems: list[Problem] = []
    if len(owners) < wanted:
        owners.clear()
        states = [
            _owned(str(service), state, owners)
            for service, state in zip(services, states, strict=True)
        ]
    for state in states:
        found.update(state.services)
        problems += state.problems
        if state.health_check is not None:
            checks[state.health_check.port] = state.health_check
    return DesiredState(found, checks, tuple(problems))


def _owned(owner: str, state: ServiceState, owners: dict[Claim, str]) -> ServiceState:
    """Return a state without what others own already, and record the rest in ``owners``."""
    owned = {claim: owners.setdefault(claim, owner) for claim in state.claims}
    others = {claim: other for claim, other in owned.items() if other != owner}
    if not others:
        return state
    check = state.health_check
    problems = [*state.problems]
    if check is not None and (claim := (Protocol.TCP, None, check.port)) in others:
        text = f"healthCheckNodePort {check.port} {_is_of(others[claim])}: nothing answers for it"
        problems.append(Problem(owner, text))
        check = None
    services = {}
    for key, service in state.services.items():
        kept = tuple(portal for portal in service.portals if _claim(key, portal) not in others)
        if kept == service.portals:
            services[key] = service
            continue
        if kept:
            services[key] = replace(service, portals=kept)
        problems += [
            Problem(str(key.name), f"the {portal} {_is_of(others[_claim(key, portal)])}")
            for portal in service.portals
            if portal not in kept
        ]
    return replace(state, services=services, health_check=check, problems=tuple(problems))


def _claim(key: Key, portal: Portal) -> Claim:
    return key.protocol, portal.address, portal.port


def _is_of(other: str) -> str:
    return f"is that of the Service {other}, which is older"
