"""Connections to origins, kept and shared.

Connecting through the tunnel costs round trips and a TLS handshake, so connections are used
again, the one used last first, and new ones are bounded for each origin; who comes too many waits
for one that becomes free. Exchanges that last (a log that is followed, a watch) do not count
against that bound once their answers have begun, or from the start if they are known to last, nor
do upgrades once they have got their 101: they would keep those that are over in milliseconds from
ever getting their turn. Any other answer that has not begun counts, however long it takes: an
origin that is slow does not get more to do at once. All connections to an origin, whatever they
do, have a wider bound.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from yurttunnel.http.client import ClientConnection
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.interfaces import ExchangeFailed

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a pool may hold; all times are in seconds."""

    max_per_key: int = 32
    """Connections to one origin that are in use for a short time, being made, or idle."""
    max_connections_per_key: int = 1024
    """Connections to one origin, those in use for long included."""
    max_waiting: int = 1024
    """Who may wait for a connection to one origin."""
    waiting_timeout: float = 15.0
    long_after: float = 1.0
    """After the head of an answer. When its body takes longer, the connection is in use for long;
    counted from the request, each slow answer would count as long just as it is over."""
    idle_timeout: float = 60.0
    """Before an unused connection is closed; to be less than what origins allow, so that they do
    not close while a request is on its way."""


@dataclass(slots=True)
class PoolStatistics:
    """What has happened, and what there is, over all origins."""

    connects: int = 0
    """Connections asked for."""
    failed_connects: int = 0
    reuses: int = 0
    """Requests that found a connection that had been used before."""
    refusals: int = 0
    """Requests that got none: too many waited, they waited too long, or too many lasted."""
    idle: int = 0
    in_use: int = 0
    waiting: int = 0


class PoolBusy(Exception):
    """No connection became free: too many requests for one origin; to be answered with 503."""


class ConnectionPool(Generic[Key]):
    """Keeps connections by key; ``connect(key)`` makes one.

    The ``Deferred`` that ``connect`` returns has its own time limit, and can be canceled.
    ``keeps(key)`` is asked when a connection becomes free; what is not kept is closed.
    """

    def __init__(
        self,
        clock: IReactorTime,
        connect: Callable[[Key], Deferred[ClientConnection]],
        settings: PoolSettings | None = None,
        keeps: Callable[[Key], bool] = lambda key: True,
    ) -> None:
        self.connect = connect
        self.keeps = keeps
        self.settings = settings = settings or PoolSettings()
        self.counters = PoolStatistics()
        self.draining = False
        self.idle: Deadlines[_Member] = Deadlines(clock, settings.idle_timeout, _Member.discard)
        self.short: Deadlines[_Member] = Deadlines(clock, settings.long_after, _Member.become_long)
        self.waiting: Deadlines[_Waiter] = Deadlines(
            clock, settings.waiting_timeout, _Waiter.overdue
        )
        self._origins: dict[Key, _Origin] = {}

    def acquire(
        self, key: Key, *, fresh: bool = False, lasting: bool = False
    ) -> Deferred[ClientConnection]:
        """Get a connection on which the caller makes one request, in the callback.

        With ``fresh`` it is a new one. One that is ``lasting`` is in use for long from the
        beginning: a kubelet sends no head for a log that is followed and has no line yet. The
        connection comes back by itself when its exchange is over.

        Fails with :class:`PoolBusy`, or as ``connect`` does. Canceling it cancels the attempt.
        """
        origin = self._origins.get(key)
        if origin is None:
            origin = self._origins[key] = _Origin(self, key, lambda: self._origins.pop(key, None))
        return origin.acquire(fresh, lasting)

    def close_idle(self, concerned: Callable[[Key], bool] = lambda key: True) -> None:
        """Close what nobody uses, of the keys that are ``concerned``."""
        for key, origin in list(self._origins.items()):
            if concerned(key):
                origin.close_idle()

    def drain(self) -> None:
        """Keep nothing from now on: each connection is closed once it is free."""
        self.draining = True
        self.close_idle()

    def close(self) -> None:
        """Abort everything and stop the timers; exchanges fail, and so does who waits."""
        self.draining = True
        for origin in list(self._origins.values()):
            origin.close()
        for deadlines in (self.idle, self.short, self.waiting):
            deadlines.stop()

    @property
    def statistics(self) -> PoolStatistics:
        """Give a snapshot."""
        return replace(self.counters, idle=len(self.idle), waiting=len(self.waiting))


class _Origin:
    """The connections to one origin, and who waits for them.

    Those that are idle, used for a short time or being made are ``max_per_key`` at most, and all
    together ``max_connections_per_key``.
    """

    def __init__(
        self,
        pool: ConnectionPool[Any],
        key: Hashable,
        on_empty: Callable[[], object],
    ) -> None:
        self.pool = pool
        self.key = key
        self.members: set[_Member] = set()
        self.idle: list[_Member] = []
        """The one used last is last."""
        self.waiters: deque[_Waiter] = deque()
        self.busy = 0
        """Connections in use for a short time, or being made for that."""
        self._on_empty = on_empty
        self._attempts: set[Deferred[ClientConnection]] = set()

    def acquire(self, fresh: bool, lasting: bool) -> Deferred[ClientConnection]:
        if not fresh and (member := self._take_idle()) is not None:
            return succeed(member.lend(lasting))
        if self._make_room(fresh, lasting):
            return self._make(lasting)
        if lasting or not self.busy:
            # Nothing will be free soon.
            return self._refuse("too many connections are in use for long")
        if len(self.waiters) >= self.pool.settings.max_waiting:
            return self._refuse("too many requests wait for a connection")
        waiter = _Waiter(self, fresh)
        self.waiters.append(waiter)
        self.pool.waiting.add(waiter)
        return waiter.result

    def serve(self) -> None:
        """Give those who wait what there is, in their order."""
        while self.waiters:
            waiter = self.waiters[0]
            member = None if waiter.fresh else self._take_idle()
            if member is None and not self._make_room(waiter.fresh, False):
                return
            self.waiters.popleft()
            self.pool.waiting.discard(waiter)
            if member is not None:
                waiter.result.callback(member.lend(False))
            else:
                waiter.follow(self._make(False))
        self.forget_if_empty()

    def keep(self, member: _Member) -> None:
        """Take back a connection that can be used again."""
        self.idle.append(member)
        self.pool.idle.add(member)
        self.serve()
        if self.busy + len(self.idle) > self.pool.settings.max_per_key and self.idle:
            # It did not count while it was used for long, and another has come for it.
            self.idle[0].discard()

    def forget_if_empty(self) -> None:
        if not (self.members or self.waiters or self._attempts):
            self._on_empty()

    def close_idle(self) -> None:
        for member in list(self.idle):
            member.discard()

    def close(self) -> None:
        waiters = list(self.waiters)
        self.waiters.clear()
        for waiter in waiters:
            waiter.refuse("the server is stopping")
        for attempt in list(self._attempts):
            attempt.cancel()
        for member in list(self.members):
            member.connection.close()

    def _take_idle(self) -> _Member | None:
        while self.idle:
            member = self.idle.pop()
            self.pool.idle.discard(member)
            if member.connection.reusable:
                return member
        return None

    def _refuse(self, text: str) -> Deferred[ClientConnection]:
        self.pool.counters.refusals += 1
        return fail(PoolBusy(text))

    def _make_room(self, fresh: bool, lasting: bool) -> bool:
        """Tell whether another connection may be made; for a fresh one an idle one may go."""
        settings = self.pool.settings
        short = self.busy + len(self.idle)
        total = len(self.members) + len(self._attempts)
        if total < settings.max_connections_per_key and (lasting or short < settings.max_per_key):
            return True
        if fresh and self.idle:
            self.idle[0].discard()
            return True
        return False

    def _make(self, lasting: bool) -> Deferred[ClientConnection]:
        self.pool.counters.connects += 1
        self.busy += not lasting
        attempt = maybeDeferred(self.pool.connect, self.key)
        self._attempts.add(attempt)

        def connected(connection: ClientConnection) -> ClientConnection:
            self._attempts.discard(attempt)
            self.busy -= not lasting
            if not connection.reusable:
                self.serve()
                raise ExchangeFailed("the connection was closed at once", unanswered=True)
            return _Member(self, connection).lend(lasting)

        def failed(failure: Failure) -> Failure:
            self._attempts.discard(attempt)
            self.busy -= not lasting
            self.pool.counters.failed_connects += 1
            self.serve()
            return failure

        return attempt.addCallbacks(connected, failed)


class _Use(enum.Enum):
    """What a connection is doing."""

    NONE = enum.auto()
    SHORT = enum.auto()
    """In use, and expected to be free soon."""
    LONG = enum.auto()
    """In use for long, or by another protocol; it does not count."""


class _Member:
    """A connection and what it is used for."""

    def __init__(self, origin: _Origin, connection: ClientConnection) -> None:
        self.connection = connection
        self._origin = origin
        self._pool = origin.pool
        self._use = _Use.NONE
        connection.on_answer = self._answer_began
        connection.on_idle = self._became_idle
        connection.on_lost = self._lost
        origin.members.add(self)

    def lend(self, lasting: bool) -> ClientConnection:
        """Note the use, and give the connection."""
        counters = self._pool.counters
        counters.in_use += 1
        counters.reuses += self.connection.requests > 0
        if lasting:
            self._use = _Use.LONG
        else:
            self._use = _Use.SHORT
            self._origin.busy += 1
        return self.connection

    def become_long(self) -> None:
        """Stop counting, which gives room to another."""
        self._use = _Use.LONG
        self._origin.busy -= 1
        self._origin.serve()

    def discard(self) -> None:
        """Close the idle connection."""
        self._origin.idle.remove(self)
        self._pool.idle.discard(self)
        self.connection.close()

    def _answer_began(self, connection: ClientConnection, switched: bool) -> None:
        if self._use is not _Use.SHORT:
            return
        if switched:
            self.become_long()
        else:
            self._pool.short.add(self)

    def _became_idle(self, connection: ClientConnection) -> None:
        self._end_use()
        if self._pool.draining or not self._pool.keeps(self._origin.key):
            connection.close()
        else:
            self._origin.keep(self)

    def _lost(self, connection: ClientConnection) -> None:
        self._end_use()
        origin = self._origin
        origin.members.discard(self)
        if self in self._pool.idle:
            self._pool.idle.discard(self)
            origin.idle.remove(self)
        origin.serve()

    def _end_use(self) -> None:
        use, self._use = self._use, _Use.NONE
        if use is _Use.NONE:
            return
        self._pool.counters.in_use -= 1
        if use is _Use.SHORT:
            self._origin.busy -= 1
            self._pool.short.discard(self)


class _Waiter:
    """Somebody who waits for a connection."""

    def __init__(self, origin: _Origin, fresh: bool) -> None:
        self.fresh = fresh
        self.result: Deferred[ClientConnection] = Deferred(self._cancel)
        self._origin = origin
        self._attempt: Deferred[ClientConnection] | None = None

    def follow(self, attempt: Deferred[ClientConnection]) -> None:
        """Take the result of an attempt."""
        self._attempt = attempt
        # The chain ends here; mypy wants to see the Deferred used.
        _ = attempt.addCallbacks(self.result.callback, self.result.errback)

    def overdue(self) -> None:
        """Give up waiting."""
        self._origin.waiters.remove(self)
        self.refuse("no connection became free in time")
        self._origin.forget_if_empty()

    def refuse(self, text: str) -> None:
        """Fail."""
        pool = self._origin.pool
        pool.waiting.discard(self)
        pool.counters.refusals += 1
        self.result.errback(PoolBusy(text))

    def _cancel(self, result: Deferred[ClientConnection]) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
        else:
            self._origin.waiters.remove(self)
            self._origin.pool.waiting.discard(self)
            self._origin.forget_if_empty()
