"""Watches that are ended when the processing of their responses changes: by filters, or by caching.

A filter's result for an object may change over time: a Service gets another annotation, or a node
joins the pool. Objects that were sent to a client before are then out of date. So the hub ends the
watches that use the filter, and makes their clients list again. It does not track what each client
has seen.

Changes come in bursts, and lists are large: the hub waits a second for further changes, and at
least :data:`INTERVAL` between two rounds, and spreads each round over time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from twisted.application.service import Service
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from yurttunnel.hub.request.requests import ApiRequest, Caller
from yurttunnel.ops.bounded_dict import BoundedDict

SETTLE = 1.0
"""The delay in seconds from a change to the round that it causes."""

INTERVAL = 10.0
"""Minimum time in seconds between two rounds."""

SPREAD = 2.0
"""The time in seconds over which the watches of a round are ended; less than :data:`INTERVAL`."""

EXPIRED_SECONDS = 60.0
"""How long, in seconds, a client whose watch was ended gets a 410 when it resumes. A client that
never lists what it watches, such as ``kubectl get pod NAME --watch``, would get it forever."""

MAX_LISTS = 1024
"""Maximum number of lists whose processing is remembered; the most recent are kept."""

State = tuple[tuple[str, int], ...]
"""The processing of a response: the names and versions of filters, or whether it is cached."""


@dataclass(eq=False, slots=True)
class _Watch:
    key: bytes
    state: State
    now: Callable[[], State]
    end: Callable[[], object]
    predates_run: bool
    """Whether its list may be from an earlier run."""
    ending: IDelayedCall | None = field(default=None)


class _List(NamedTuple):
    state: State
    until: float
    """The end of its validity."""
    is_assumed: bool = False
    """Whether the client may never have listed."""


class TrackedWatches(Service):
    """The watches of a hub; while the service is not running, none is ended."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._watches: set[_Watch] = set()
        self._lists = BoundedDict[bytes, _List](MAX_LISTS)
        self._round: IDelayedCall | None = None
        self._next_round = 0.0

    def stopService(self) -> None:
        """Stop ending watches."""
        super().stopService()
        if self._round is not None:
            self._round.cancel()
            self._round = None
        for watch in tuple(self._watches):
            self._forget(watch)

    def record_list(self, caller: Caller, request: ApiRequest, state: State) -> None:
        """Record the processing of a list; the watch that follows it continues from there.

        Of a list in pages, the first page counts, because it has the oldest state.
        """
        key = _key(caller, request)
        if not request.options.continue_token or key not in self._lists:
            self._lists[key] = _List(state, math.inf)

    def assume_list(self, caller: Caller, request: ApiRequest, state: State) -> None:
        """Record the processing of a watch, as if it was that of its list as well.

        :meth:`is_outdated` is then true once, because the client may never list.
        """
        self._lists[_key(caller, request)] = _List(state, math.inf, is_assumed=True)

    def track(
        self,
        caller: Caller,
        request: ApiRequest,
        now: Callable[[], State],
        end: Callable[[], object],
    ) -> Callable[[], None]:
        """Call ``end()`` once ``now()`` differs from its value when the client listed."""
        key, state = _key(caller, request), now()
        listed = None
        if _continues_list(request):
            listed = self._valid_list(key)
            state = state if listed is None else listed.state
        else:
            self._lists[key] = _List(state, math.inf)
        watch = _Watch(key, state, now, end, listed is None)
        self._watches.add(watch)
        if state != now():
            self.review()
        return lambda: self._forget(watch)

    def is_outdated(self, caller: Caller, request: ApiRequest, now: State, earlier: State) -> bool:
        """Return whether a watch would continue a list that was processed differently.

        ``earlier`` is the processing of lists that are not remembered, such as those of an earlier
        run. If it differs, the result is true once: a client that never lists would get 410
        forever.
        """
        if not _continues_list(request):
            return False
        key = _key(caller, request)
        listed = self._valid_list(key) or _List(earlier, math.inf, is_assumed=True)
        if listed.state != now and listed.is_assumed:
            self._lists[key] = _List(now, math.inf)
        return listed.state != now

    def review(self) -> None:
        """Schedule a round that ends the watches that are out of date."""
        if self.running and self._round is None:
            seconds = self._clock.seconds()
            wait = max(SETTLE, self._next_round - seconds)
            self._next_round = seconds + wait + INTERVAL
            self._round = self._clock.callLater(wait, self._begin_round)

    def _begin_round(self) -> None:
        self._round = None
        for watch in self._watches:
            if watch.now() != watch.state:
                delay = random.uniform(0, SPREAD)
                watch.ending = self._clock.callLater(delay, self._end, watch)

    def _end(self, watch: _Watch) -> None:
        self._stop_tracking(watch)
        watch.end()

    def _stop_tracking(self, watch: _Watch) -> None:
        self._watches.discard(watch)
        is_known = self._valid_list(watch.key) is not None
        if watch.predates_run and not is_known and watch.state != watch.now():
            # The client may resume where this watch ends.
            until = self._clock.seconds() + EXPIRED_SECONDS
            self._lists[watch.key] = _List(watch.state, until)

    def _valid_list(self, key: bytes) -> _List | None:
        listed = self._lists.get(key)
        return listed if listed and self._clock.seconds() < listed.until else None

    def _forget(self, watch: _Watch) -> None:
        self._stop_tracking(watch)
        if watch.ending is not None and watch.ending.active():
            watch.ending.cancel()


def _continues_list(request: ApiRequest) -> bool:
    """Return whether a watch continues a list, and does not begin with the current state."""
    options = request.options
    return options.resource_version not in ("", "0") and not options.send_initial_events


def _key(caller: Caller, request: ApiRequest) -> bytes:
    """Return a hash of the fields that a list and its watch share; selectors may be long."""
    options = request.options
    common = (
        caller,
        caller.token,
        request.resource,
        request.namespace,
        options.label_selector,
        options.field_selector,
    )
    return sha256(repr(common).encode()).digest()
