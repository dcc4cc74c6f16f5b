"""Passive ejection: endpoints whose dials fail are left out for a while."""

from __future__ import annotations

from collections.abc import Callable, Collection

from yurttunnel.ops.backoff import exponential
from yurttunnel.proxy.balancing.endpoint_state import EndpointState
from yurttunnel.proxy.state.virtual_services import Endpoint

CONSECUTIVE_FAILURES = 2
"""The number of consecutive failed dials before an ejection. A single one may be due to a lost
packet: the shortest timeout of a dial, 0.25 s, is less than that of TCP's first retransmission (1
s, RFC 6298). With two, consecutive clients wait twice for an endpoint that does not respond, and no
dial takes longer than two timeouts of three endpoints."""

FIRST_SECONDS, MAX_SECONDS = 10.0, 300.0
"""The first and the longest duration of an ejection in seconds."""

PROBE_SECONDS = 10.0
"""How long to wait for the result of a connection that probes an endpoint after its ejection before
trying another, in seconds; longer than a dial takes."""


class Ejections:
    """The ejected endpoints of one virtual service; ``seconds`` returns the time."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._states: dict[Endpoint, EndpointState] = {}
        self._earliest = 0.0

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._states)

    def failed(self, state: EndpointState) -> bool:
        """Record a failed dial; return whether this has ejected the endpoint."""
        state.consecutive_failures += 1
        if state.ejected_until is None:
            if state.consecutive_failures < CONSECUTIVE_FAILURES:
                return False
        elif not state.probed:
            # The dial began before the ejection, or there was no other endpoint: do not extend the
            # ejection.
            return False
        new = state.ejected_until is None
        state.probed = False
        self._eject(state, exponential(state.ejections, FIRST_SECONDS, MAX_SECONDS))
        state.ejections += 1
        return new

    def connected(self, state: EndpointState) -> bool:
        """Record a successful dial; return whether this ends an ejection."""
        state.consecutive_failures = state.ejections = 0
        if state.ejected_until is None:
            return False
        state.ejected_until = None
        state.probed = False
        self.remove(state)
        return True

    def probe(self, tried: Collection[Endpoint]) -> EndpointState | None:
        """Return an endpoint whose ejection is over, to be probed by one connection."""
        if self._seconds() < self._earliest:
            return None
        for state in self._states.values():
            assert state.ejected_until is not None  # else it were not among them
            if state.ejected_until <= self._seconds() and state.endpoint not in tried:
                state.probed = True
                self._eject(state, PROBE_SECONDS)
                return state
        return None

    def last_resort(self, tried: Collection[Endpoint]) -> EndpointState | None:
        """Return an ejected endpoint if no other is left, each in turn."""
        for endpoint, state in self._states.items():
            if endpoint not in tried:
                self._states[endpoint] = self._states.pop(endpoint)
                return state
        return None

    def remove(self, state: EndpointState) -> None:
        """Remove an endpoint, if it is ejected."""
        if self._states.pop(state.endpoint, None) is not None:
            self._find_earliest()

    def _eject(self, state: EndpointState, seconds: float) -> None:
        state.ejected_until = self._seconds() + seconds
        self._states[state.endpoint] = state
        self._find_earliest()

    def _find_earliest(self) -> None:
        self._earliest = min(
            (each.ejected_until or 0.0 for each in self._states.values()), default=0.0
        )
