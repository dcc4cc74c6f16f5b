"""The endpoints of one virtual service, and the selection among them."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from itertools import islice

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from yurttunnel.proxy.balancing.ejections import Ejections
from yurttunnel.proxy.balancing.endpoint_state import EndpointState
from yurttunnel.proxy.balancing.schedulers import LeastConnections, RoundRobin, Scheduler
from yurttunnel.proxy.interfaces import EndpointStats, IEndpointPicker
from yurttunnel.proxy.state.virtual_services import Endpoint, VirtualService

MAX_RECORDS = 65_536
"""The maximum number of records of one virtual service; the least recently used are dropped."""

_EXPIRED_PER_PUT = 2
"""The maximum number of expired records dropped for each new one: one more than are added, so that
all of them are removed over time, and no call takes long."""


class AffinityRecords:
    """Records the endpoints of clients for ``ttl`` seconds after each one's last connection.

    This is ``sessionAffinity: ClientIP``. A change of ``ttl`` applies to all records. A record of a
    removed endpoint is invalid, even if an endpoint with the same address is added again.
    """

    def __init__(
        self, ttl: float, seconds: Callable[[], float], max_records: int = MAX_RECORDS
    ) -> None:
        self.ttl = ttl
        self._seconds = seconds
        self._max_records = max_records
        # In the order of their last use.
        self._records: OrderedDict[str, tuple[EndpointState, float]] = OrderedDict()

    def get(self, client: str) -> EndpointState | None:
        """Return the endpoint of ``client``, if it has one."""
        record = self._records.get(client)
        if record is None:
            return None
        state, used = record
        return None if state.removed or used + self.ttl <= self._seconds() else state

    def put(self, client: str, state: EndpointState) -> None:
        """Record that ``client`` uses an endpoint now."""
        records, now = self._records, self._seconds()
        records[client] = state, now
        records.move_to_end(client)
        for oldest in list(islice(records, _EXPIRED_PER_PUT)):
            if len(records) <= self._max_records and now < records[oldest][1] + self.ttl:
                return
            del records[oldest]

    def drop(self, client: str) -> None:
        """Drop the record of ``client``."""
        self._records.pop(client, None)


@implementer(IEndpointPicker)
class EndpointPicker:
    """The picker of one virtual service; ``clock`` is used for affinity and ejections."""

    _scheduler: Scheduler

    def __init__(self, clock: IReactorTime, service: VirtualService) -> None:
        self._clock = clock
        self._service = service
        # Includes removed endpoints while they have connections.
        self._states: dict[Endpoint, EndpointState] = {}
        self._ejections = Ejections(clock.seconds)
        self._affinity: AffinityRecords | None = None
        self._apply_affinity(service.affinity)
        self._apply_endpoints()

    def update(self, service: VirtualService) -> None:
        """Apply endpoints and policies of ``service``; keep the state of endpoints that stay."""
        former, self._service = self._service, service
        self._apply_affinity(service.affinity)
        if (former.endpoints, former.least_connections) != (
            service.endpoints,
            service.least_connections,
        ):
            self._apply_endpoints()

    def pick(self, client: str, tried: Collection[Endpoint]) -> Endpoint | None:
        if self._affinity is None:
            state = self._choose(tried)
        else:
            state = self._pick_with_affinity(client, tried, self._affinity)
        if state is None:
            return None
        self._count(state, 1)
        return state.endpoint

    def connected(self, endpoint: Endpoint) -> None:
        state = self._states.get(endpoint)
        if state is not None and self._ejections.connected(state):
            self._scheduler.add(state)

    def failed(self, endpoint: Endpoint, why: str) -> None:
        state = self._states.get(endpoint)
        if state is None:
            return
        state.failures += 1
        state.last_failure = why
        self._count(state, -1)
        if not state.removed and self._ejections.failed(state):
            self._scheduler.remove(state)

    def ended(self, endpoint: Endpoint) -> None:
        state = self._states.get(endpoint)
        if state is not None:
            self._count(state, -1)

    def endpoints(self) -> Sequence[EndpointStats]:
        return [state.stats() for state in self._current()]

    # -- helpers -------------------------------------------------------------------------------

    def _pick_with_affinity(
        self, client: str, tried: Collection[Endpoint], affinity: AffinityRecords
    ) -> EndpointState | None:
        state = affinity.get(client)
        if state is None or state.endpoint in tried or state.ejected_until is not None:
            state = self._choose(tried)
        if state is None:
            affinity.drop(client)
        else:
            affinity.put(client, state)
        return state

    def _choose(self, tried: Collection[Endpoint]) -> EndpointState | None:
        if not self._ejections:
            return self._scheduler.next(tried) or self._scheduler.next(())
        return (
            self._ejections.probe(tried)
            or self._scheduler.next(tried)
            or self._ejections.last_resort(tried)
            or self._scheduler.next(())
            or self._ejections.last_resort(())
        )

    def _count(self, state: EndpointState, change: int) -> None:
        if state.ejected_until is None and not state.removed:
            self._scheduler.count(state, change)
            return
        state.active += change
        if state.removed and not state.active:
            del self._states[state.endpoint]

    def _apply_affinity(self, ttl: float | None) -> None:
        if ttl is None:
            self._affinity = None
        elif self._affinity is None:
            self._affinity = AffinityRecords(ttl, self._clock.seconds)
        else:
            self._affinity.ttl = ttl

    def _apply_endpoints(self) -> None:
        endpoints = self._service.endpoints
        for endpoint in self._states.keys() - set(endpoints):
            self._remove(self._states[endpoint])
        for endpoint in endpoints:
            state = self._states.get(endpoint)
            if state is None or state.removed:
                # Only the connections of a removed endpoint with the same address are kept.
                self._states[endpoint] = EndpointState(endpoint, state.active if state else 0)
        kind = LeastConnections if self._service.least_connections else RoundRobin
        live = [each for each in self._current() if each.ejected_until is None]
        # Start at a random one, so that not all nodes, and not all changes, begin with the same
        # endpoint.
        self._scheduler = kind(live, random.randrange(len(live) or 1))

    def _remove(self, state: EndpointState) -> None:
        state.removed = True
        self._ejections.remove(state)
        state.ejected_until = None
        if not state.active:
            del self._states[state.endpoint]

    def _current(self) -> list[EndpointState]:
        return [self._states[endpoint] for endpoint in self._service.endpoints]
