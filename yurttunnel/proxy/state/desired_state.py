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
        # With and without loops: the inputs, and the state.
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
        known = self._states.get(key)
        if known is not None and known[0] == inputs:
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

    def pop_triggered(self) -> tuple[float, ...]:
        """Return the trigger times of slices that have changed since the last call."""
        triggered, self._triggered = tuple(self._triggered), []
        return triggered

    def retain(self, names: Collection[_Name]) -> None:
        """Drop the Services that no longer exist."""
        for key in [key for key in self._states if key[0] not in names]:
            del self._states[key]


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
    # The oldest comes first: it keeps a portal that others request, too.
    ordered = sorted(services, key=lambda each: (each.created, each.namespace, each.name))
    yield ""
    cache.retain({(each.namespace, each.name) for each in ordered})
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
    return replace(merged, triggered=cache.pop_triggered())


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
    virtual = frozenset[Endpoint]().union(*(state.virtual for state in states))
    node_ports = frozenset[int]().union(*(state.node_ports for state in states))
    yield ""
    external_loops = _external_loops(states)
    yield ""
    found: dict[int, frozenset[Endpoint]] = {}
    for index, state in enumerate(states):
        loops = state.endpoints & virtual | external_loops.get(index, frozenset())
        if not state.endpoint_ports.isdisjoint(node_ports):
            loops |= {
                each
                for each in state.endpoints
                if each.port in node_ports and each.address in own_addresses
            }
        if loops:
            found[index] = loops
    yield ""
    return found


def _external_loops(states: Sequence[LoopInputs]) -> dict[int, frozenset[Endpoint]]:
    """Return the endpoints by which states lead to external portals of others, and back."""
    # If several request the same portal, the first one gets it.
    owners = {
        portal: index for index in reversed(range(len(states))) for portal in states[index].external
    }
    portals = frozenset(owners)
    redirects = {
        index: redirected
        for index, state in enumerate(states)
        if (redirected := state.endpoints & portals)
    }
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
    claim_count = 0
    for state in states:
        owners.update(state.claims)
        claim_count += len(state.claims)
    yield ""
    found: dict[Key, VirtualService] = {}
    checks: dict[int, HealthCheckNodePort] = {}
    problems: list[Problem] = []
    if len(owners) < claim_count:
        owners.clear()
        states = [
            _without_owned(str(service), state, owners)
            for service, state in zip(services, states, strict=True)
        ]
    for state in states:
        found.update(state.services)
        problems += state.problems
        if state.health_check is not None:
            checks[state.health_check.port] = state.health_check
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
