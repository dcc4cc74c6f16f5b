"""The desired state of all Services; if two have the same portal, only one gets it."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from yurttunnel.ops.slices import gather, visit
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
        # With and without loops: the inputs, and the state, from the previous computation and from
        # this one.
        self._former: dict[tuple[_Name, bool], tuple[_Inputs, ServiceState]] = {}
        self._states: dict[tuple[_Name, bool], tuple[_Inputs, ServiceState]] = {}

    def state(
        self,
        service: Service,
        slices: tuple[EndpointSlice, ...],
        node_context: NodeContext,
        loops: frozenset[Loop] = frozenset(),
    ) -> ServiceState:
        """Return :func:`~yurttunnel.proxy.state.service_state.service_state` of these arguments."""
        key = (service.namespace, service.name), bool(loops)
        inputs = service, slices, node_context, loops
        known = self._former.get(key)
        if known is not None and known[0] == inputs:
            self._states[key] = known
            return known[1]
        if not loops:
            previous = () if known is None else known[0][1]
            self._triggered += [
                each.triggered
                for each in slices
                if each.triggered is not None and each not in previous
            ]
        state = service_state(*inputs)
        self._states[key] = inputs, state
        return state

    def finish(self) -> tuple[float, ...]:
        """Drop the states that have not been requested since the last call; return the trigger
        times of slices that have changed since then.
        """
        self._former, self._states = self._states, {}
        triggered, self._triggered = tuple(self._triggered), []
        return triggered


def desired_state(
    services: Iterable[Service],
    slices: Iterable[EndpointSlice],
    node: NodeFacts,
    cache: ServiceStateCache | None = None,
) -> Generator[str, None, DesiredState]:
    """Return all that is to be served on ``node``; the order of objects makes no difference.

    It is fast with the ``cache`` of the previous call; the result is the same without it. It yields
    between slices of work (:func:`yurttunnel.ops.slices.visit`).
    """
    cache = ServiceStateCache() if cache is None else cache
    node_context = NodeContext(
        node.name,
        node.zone,
        frozenset(each for each in node.addresses if each.version == 4 and each.is_link_local),
        node.loopback,
        node.versions,
    )
    grouped = yield from _by_service(slices)
    # The oldest comes first: it keeps a portal that others request, too. Sorting texts takes a
    # fifth of the time of sorting tuples.
    by_age: dict[str, Service] = {}
    yield from visit(
        services,
        lambda each: by_age.setdefault(f"{each.created}\0{each.namespace}\0{each.name}", each),
    )
    ordered = [by_age[key] for key in sorted(by_age)]
    yield ""
    inputs = yield from gather(
        (each, tuple(grouped.get((each.namespace, each.name), ())), node_context)
        for each in ordered
    )
    states = yield from gather(cache.state(*each) for each in inputs)
    own_addresses = {
        each for each in node.addresses if has_node_ports(each, node.node_port_networks)
    }
    loops = yield from _loops(states, own_addresses)
    for index, its in loops.items():
        states[index] = cache.state(*inputs[index], its)
    merged = yield from _merge(ordered, states)
    return replace(merged, triggered=cache.finish())


def _by_service(
    slices: Iterable[EndpointSlice],
) -> Generator[str, None, dict[_Name, list[EndpointSlice]]]:
    found: dict[_Name, list[EndpointSlice]] = {}
    yield from visit(
        slices, lambda each: found.setdefault((each.namespace, each.service), []).append(each)
    )
    return found


def _loops(
    states: Sequence[ServiceState], own_addresses: Collection[Address]
) -> Generator[str, None, dict[int, frozenset[Loop]]]:
    """Return, for each state that has any, the endpoints that are portals of this or other
    Services.

    ``own_addresses`` are the addresses of this machine that serve node ports.
    """
    found: dict[int, frozenset[Loop]] = {}
    for protocol in Protocol:
        loop_inputs = [state.loop_inputs.get(protocol, _NO_LOOP_INPUTS) for state in states]
        of_protocol = yield from _loops_of_protocol(loop_inputs, own_addresses)
        for index, loops in of_protocol.items():
            its = frozenset((protocol, each) for each in loops)
            found[index] = found.get(index, frozenset()) | its
    return found


def _loops_of_protocol(
    states: Sequence[LoopInputs], own_addresses: Collection[Address]
) -> Generator[str, None, dict[int, frozenset[Endpoint]]]:
    """Return those of one protocol.

    An address in ``own_addresses`` with a node port is a portal, too. The API's documentation does
    not allow cluster IPs as endpoints (Services without selectors). External portals of others may
    be endpoints, if their Services do not lead back.
    """
    virtual: set[Endpoint] = set()
    node_ports: set[int] = set()

    def add_portals(state: LoopInputs) -> None:
        virtual.update(state.virtual)
        node_ports.update(state.node_ports)

    yield from visit(states, add_portals)
    external_loops = yield from _external_loops(states)
    found: dict[int, frozenset[Endpoint]] = {}

    def find(numbered: tuple[int, LoopInputs]) -> None:
        index, state = numbered
        loops = state.endpoints & virtual | external_loops.get(index, frozenset())
        if not state.endpoint_ports.isdisjoint(node_ports):
            loops |= {
                each
                for each in state.endpoints
                if each.port in node_ports and each.address in own_addresses
            }
        if loops:
            found[index] = loops

    yield from visit(enumerate(states), find)
    return found


def _external_loops(
    states: Sequence[LoopInputs],
) -> Generator[str, None, dict[int, frozenset[Endpoint]]]:
    """Return the endpoints by which states lead to external portals of others, and back."""
    owners: dict[Endpoint, int] = {}

    def add_portals(numbered: tuple[int, LoopInputs]) -> None:
        index, state = numbered
        for portal in state.external:
            # If several request the same portal, the first one gets it.
            owners.setdefault(portal, index)

    yield from visit(enumerate(states), add_portals)
    portals = frozenset(owners)
    redirects: dict[int, frozenset[Endpoint]] = {}

    def find(numbered: tuple[int, LoopInputs]) -> None:
        index, state = numbered
        if redirected := state.endpoints & portals:
            redirects[index] = redirected

    yield from visit(enumerate(states), find)
    remaining = _on_cycles(
        {index: {owners[each] for each in redirected} for index, redirected in redirects.items()}
    )
    return {
        index: frozenset(each for each in redirects[index] if owners[each] in remaining)
        for index in remaining
    }


def _on_cycles(redirects: Mapping[int, Collection[int]]) -> Collection[int]:
    """Return the members of ``redirects`` that lead back to themselves (or are between such)."""
    candidates = _behind_cycles(redirects)
    back: dict[int, list[int]] = {index: [] for index in candidates}
    for index in candidates:
        for owner in candidates.intersection(redirects[index]):
            back[owner].append(index)
    return _behind_cycles(back)


def _behind_cycles(predecessors: Mapping[int, Collection[int]]) -> set[int]:
    """Return the members of ``predecessors`` that have a cycle among their predecessors."""
    sorter = TopologicalSorter(predecessors)
    remaining = set(predecessors)
    with suppress(CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        remaining.difference_update(ready)
        sorter.done(*ready)
    return remaining


def _merge(
    services: Sequence[Service], states: Sequence[ServiceState]
) -> Generator[str, None, DesiredState]:
    """Merge states, whose order is the priority for what several request."""
    owners: dict[Claim, str] = {}
    yield from visit(states, lambda state: owners.update(state.claims))
    found: dict[Key, VirtualService] = {}
    checks: dict[int, HealthCheckNodePort] = {}
    problems: list[Problem] = []
    if len(owners) < sum(len(state.claims) for state in states):
        owners.clear()
        states = yield from gather(
            _without_owned(str(service), state, owners)
            for service, state in zip(services, states, strict=True)
        )

    def add(state: ServiceState) -> None:
        found.update(state.services)
        problems.extend(state.problems)
        if state.health_check is not None:
            checks[state.health_check.port] = state.health_check

    yield from visit(states, add)
    return DesiredState(found, checks, tuple(problems))


def _without_owned(owner: str, state: ServiceState, owners: dict[Claim, str]) -> ServiceState:
    """Return a state without what others own already, and record the rest in ``owners``."""
    owned = {claim: owners.setdefault(claim, owner) for claim in state.claims}
    others = {claim: other for claim, other in owned.items() if other != owner}
    if not others:
        return state
    check = state.health_check
    problems = [*state.problems]
    if check is not None and (claim := (Protocol.TCP, None, check.port)) in others:
        text = f"healthCheckNodePort {check.port} {_owner_text(others[claim])}: it is not served"
        problems.append(Problem(owner, text))
        check = None
    services = {}
    for key, service in state.services.items():
        portals = tuple(portal for portal in service.portals if _claim(key, portal) not in others)
        if portals == service.portals:
            services[key] = service
            continue
        if portals:
            services[key] = replace(service, portals=portals)
        problems += [
            Problem(str(key.name), f"the {portal} {_owner_text(others[_claim(key, portal)])}")
            for portal in service.portals
            if portal not in portals
        ]
    return replace(state, services=services, health_check=check, problems=tuple(problems))


def _claim(key: Key, portal: Portal) -> Claim:
    return key.protocol, portal.address, portal.port


def _owner_text(other: str) -> str:
    return f"belongs to the older Service {other}"
