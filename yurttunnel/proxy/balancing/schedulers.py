"""Schedulers for endpoints, known from IPVS as ``rr`` and ``lc``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Protocol

from yurttunnel.proxy.balancing.endpoint_state import EndpointState
from yurttunnel.proxy.state.virtual_services import Endpoint


class Scheduler(Protocol):
    """Selects among its endpoints.

    It is notified of each connection that begins or ends, so that the common case takes the same
    time for any number of endpoints.
    """

    def add(self, state: EndpointState) -> None:
        """Add ``state`` to the endpoints."""
        ...

    def remove(self, state: EndpointState) -> None:
        """Remove ``state``, which it has."""
        ...

    def next(self, tried: Collection[Endpoint]) -> EndpointState | None:
        """Return the next endpoint, ``None`` if all have been ``tried``."""
        ...

    def count(self, state: EndpointState, change: int) -> None:
        """Record that a connection to ``state``, which it has, begins (1) or ends (-1)."""
        ...


class RoundRobin:
    """Selects one after the other, starting with the one at ``start``."""

    def __init__(self, states: Iterable[EndpointState], start: int) -> None:
        self._states = list(states)
        self._position = start

    def add(self, state: EndpointState) -> None:
        """See :class:`Scheduler`."""
        self._states.append(state)

    def remove(self, state: EndpointState) -> None:
        """See :class:`Scheduler`; the order of the others stays the same."""
        index = self._states.index(state)
        del self._states[index]
        if index < self._position:
            self._position -= 1

    def next(self, tried: Collection[Endpoint]) -> EndpointState | None:
        """See :class:`Scheduler`; checks at most one endpoint more than there are in ``tried``."""
        states = self._states
        position = self._position
        for _ in states:
            if position >= len(states):
                position = 0
            state = states[position]
            position += 1
            if state.endpoint not in tried:
                self._position = position
                return state
        return None

    def count(self, state: EndpointState, change: int) -> None:
        """See :class:`Scheduler`."""
        state.active += change


class LeastConnections:
    """Selects the endpoint with the fewest connections; among several, the least recently used.

    Endpoints with equal numbers of connections are in one queue. A connection moves its endpoint to
    the end of the next queue, so the smallest number is known without checking all of them.
    """

    def __init__(self, states: Iterable[EndpointState], start: int) -> None:
        self._queues: dict[int, OrderedDict[EndpointState, None]] = {}
        self._min_active = 0
        ordered = list(states)
        for state in ordered[start:] + ordered[:start]:
            self.add(state)

    def add(self, state: EndpointState) -> None:
        """See :class:`Scheduler`."""
        if not self._queues:
            self._min_active = state.active
        self._enqueue(state)

    def remove(self, state: EndpointState) -> None:
        """See :class:`Scheduler`."""
        self._dequeue(state)
        if self._min_active not in self._queues:
            self._min_active = min(self._queues, default=0)

    def next(self, tried: Collection[Endpoint]) -> EndpointState | None:
        """See :class:`Scheduler`; it checks all endpoints only if the first was ``tried``."""
        if not self._queues:
            return None
        first = next(iter(self._queues[self._min_active]))
        if first.endpoint not in tried:
            return first
        untried = (
            state
            for queue in self._queues.values()
            for state in queue
            if state.endpoint not in tried
        )
        return min(untried, key=lambda state: state.active, default=None)

    def count(self, state: EndpointState, change: int) -> None:
        """See :class:`Scheduler`."""
        former = state.active
        self._dequeue(state)
        state.active += change
        self._enqueue(state)
        if former == self._min_active and former not in self._queues:
            # It was the only one with so few.
            self._min_active = state.active

    def _enqueue(self, state: EndpointState) -> None:
        self._queues.setdefault(state.active, OrderedDict())[state] = None
        self._min_active = min(self._min_active, state.active)

    def _dequeue(self, state: EndpointState) -> None:
        queue = self._queues[state.active]
        del queue[state]
        if not queue:
            del self._queues[state.active]
