"""The watches that run while what is done with their answers changes: by filters, or by keeping.

A filter says what becomes of an object that comes, so when its mind changes, what a client has been
shown before is out of date: a Service has another annotation, or a node has come into the pool.
Then the watches that go through it are ended, and their clients told to list again. Nothing is
remembered of what each has seen.

Changes come in bunches, and lists are large: there is a second for a bunch to be complete, at least
:data:`INTERVAL` between two rounds, and each round is spread.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from twisted.application.service import Service
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from yurttunnel.hub.request.requests import ApiRequest, Caller

SETTLE = 1.0
"""Seconds from a change to what follows from it."""

INTERVAL = 10.0
"""Seconds from one round to the next."""

SPREAD = 2.0
"""Seconds in which the watches of a round are ended; less than to the next one."""

TOLD = 60.0
"""Seconds in which a client whose watch was ended is told to list again, whenever it goes on. One
that has never listed what it watches, such as ``kubectl get pod NAME --watch``, would be told so
for ever."""

MOST_LISTS = 1024
"""Lists of which it is remembered what was done with them; of more, the latest."""

State = tuple[tuple[str, int], ...]
"""What is done: the names of filters and the versions of their minds, or whether it is kept."""


@dataclass(eq=False, slots=True)
class _Watch:
    key: bytes
    state: State
    now: Callable[[], State]
    end: Callable[[], object]
    is_of_before: bool
    """Whether its list is of an earlier run, as far as is known."""
    ending: IDelayedCall | None = field(default=None)


class FollowedWatches(Service):
    """Those of a hub; while it does not run, none is ended."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._watches: set[_Watch] = set()
        # Each with the moment until which it counts.
        self._lists: OrderedDict[bytes, tuple[State, float]] = OrderedDict()
        self._round: IDelayedCall | None = None
        self._next_round = 0.0

    def stopService(self) -> None:
        """End no more of them."""
        super().stopService()
        if self._round is not None:
            self._round.cancel()
            self._round = None
        for watch in tuple(self._watches):
            self._forget(watch)

    def listed(self, caller: Caller, request: ApiRequest, state: State) -> None:
        """Take it what was done with a list; the watch behind it goes on from there.

        Of one that comes in pages the first counts: what a client has of it is the oldest.
        """
        key = _key(caller, request)
        if not request.options.continue_token or key not in self._lists:
            self._remember(key, state)

    def _remember(self, key: bytes, state: State, seconds: float = math.inf) -> None:
        self._lists[key] = state, self._clock.seconds() + seconds
        self._lists.move_to_end(key)
        if len(self._lists) > MOST_LISTS:
            self._lists.popitem(last=False)

    def follow(
        self,
        caller: Caller,
        request: ApiRequest,
        now: Callable[[], State],
        end: Callable[[], object],
    ) -> Callable[[], None]:
        """Have ``end()`` called once ``now()`` is not what it was when the client listed."""
        key, state = _key(caller, request), now()
        listed = None
        if _goes_on(request):
            listed = self._listed_state(key)
            state = state if listed is None else listed
        else:
            self._remember(key, state)
        watch = _Watch(key, state, now, end, listed is None)
        self._watches.add(watch)
        if state != now():
            self.review()
        return lambda: self._forget(watch)

    def is_outdated(self, caller: Caller, request: ApiRequest, now: State) -> bool:
        """Return whether a watch would go on from a list with which something else was done."""
        listed = self._listed_state(_key(caller, request))
        return _goes_on(request) and listed is not None and listed != now

    def review(self) -> None:
        """Look soon which watches are out of date."""
        if self.running and self._round is None:
            seconds = self._clock.seconds()
            wait = max(SETTLE, self._next_round - seconds)
            self._next_round = seconds + wait + INTERVAL
            self._round = self._clock.callLater(wait, self._look)

    def _look(self) -> None:
        self._round = None
        for watch in self._watches:
            if watch.now() != watch.state:
                delay = random.uniform(0, SPREAD)
                watch.ending = self._clock.callLater(delay, self._end, watch)

    def _end(self, watch: _Watch) -> None:
        self._leave(watch)
        watch.end()

    def _leave(self, watch: _Watch) -> None:
        self._watches.discard(watch)
        is_known = self._listed_state(watch.key) is not None
        if watch.is_of_before and not is_known and watch.state != watch.now():
            # Its client may go on where this watch ends.
            self._remember(watch.key, watch.state, TOLD)

    def _listed_state(self, key: bytes) -> State | None:
        state, until = self._lists.get(key, (None, math.inf))
        return state if self._clock.seconds() < until else None

    def _forget(self, watch: _Watch) -> None:
        self._leave(watch)
        if watch.ending is not None and watch.ending.active():
            watch.ending.cancel()


def _goes_on(request: ApiRequest) -> bool:
    """Return whether a watch goes on from a list, and is not a list and a watch in one."""
    options = request.options
    return options.resource_version not in ("", "0") and not options.send_initial_events


def _key(caller: Caller, request: ApiRequest) -> bytes:
    """Return what a list and the watch behind it have in common, however long selectors are."""
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
