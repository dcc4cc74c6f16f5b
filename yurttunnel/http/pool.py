"""A pool of keep-alive connections to origins.

Connecting through the tunnel costs round trips and a TLS handshake, so connections are reused, the
most recently used first. The number of connections to each origin is limited; further requests wait
until one becomes free. Long-running exchanges (a followed log, a watch) do not count against that
limit once their responses have begun, or from the start if they are known to run long: they would
starve requests that take milliseconds. A response that has not begun always counts, however long it
takes, so a slow origin does not get more concurrent requests. A higher limit applies to all
connections to an origin, and to the connections in use to all origins on one machine, because they
share what leads to that machine.

Uploads, requests whose bodies are incomplete, have a limit of their own: their duration is up to
the client, and complete requests must not wait for them. So do upgrades until their 101: a user at
a terminal must not wait for responses that never begin.

Of each limit, and of each queue, one caller may use as much as remains free: half if it is the
only one, so there is room for the next caller. This is the dynamic threshold of
``yurttunnel.tunnel.shares``, with a smaller factor, because there is less to share.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from yurttunnel.http.client import ClientConnection
from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.shared_limit import SharedLimit

Key = TypeVar("Key", bound=Hashable)


class PoolSettings(NamedTuple):
    """The limits and timeouts of a pool; all times are in seconds."""

    max_per_key: int = 32
    """Connections to one origin that are idle, connecting, or in short use."""
    max_upgrades_per_key: int = 32
    """Connections to one origin that wait for the response to an upgrade, or connect for one."""
    max_uploads_per_key: int = 32
    """Connections to one origin that are in use for uploads, or connecting for one."""
    max_connections_per_key: int = 1024
    """All connections to one origin, those in long use included; also all connections in use to a
    group of origins."""
    max_waiting: int = 1024
    """Requests that wait for a connection to one origin; upgrades and uploads each have a queue of
    the same size."""
    waiting_timeout: float = 15.0
    long_after: float = 1.0
    """The time from the head of a response until the connection counts as in long use. Measured
    from the request instead, a slow response would change to long use just as it ends."""
    idle_timeout: float = 60.0
    """The time after which an idle connection is closed; shorter than the timeout of origins, so
    that they do not close while a request is in flight."""


@dataclass(slots=True)
class PoolStatistics:
    """Counters of events, and gauges, over all origins."""

    connects: int = 0
    """Connection attempts."""
    failed_connects: int = 0
    reuses: int = 0
    """Requests on a connection that had been used before."""
    refusals: int = 0
    """Requests without a connection: the queue was full, the wait timed out, or too many
    connections were in long use."""
    idle: int = 0
    in_use: int = 0
    waiting: int = 0

    def events(self) -> tuple[tuple[str, int], ...]:
        """Return the counters by their names in metrics."""
        return (
            ("reuse", self.reuses),
            ("connect", self.connects),
            ("connect_failed", self.failed_connects),
            ("refusal", self.refusals),
        )


class PoolBusy(Exception):
    """No connection became free: too many requests to one origin; to be answered with 503."""


class ConnectionPool(Generic[Key]):
    """A pool of connections by key, which ``connect(key, caller)`` establishes.

    Its ``caller`` is set for a connection for an upgrade or for long use, and ``None`` for a
    connection that callers share. The ``Deferred`` that ``connect`` returns has a timeout of its
    own, and can be cancelled. When a connection becomes free it is closed unless ``may_keep(key)``.
    Keys with the same ``group_of(key)`` are a group.
    """

    def __init__(
        self,
        clock: IReactorTime,
        connect: Callable[[Key, Hashable], Deferred[ClientConnection]],
        settings: PoolSettings | None = None,
        may_keep: Callable[[Key], bool] = lambda key: True,
        group_of: Callable[[Key], Hashable] = lambda key: key,
    ) -> None:
        self.connect = connect
        self.may_keep = may_keep
        self.settings = settings = settings or PoolSettings()
        self.counters = PoolStatistics()
        self.draining = False
        self.idle: Deadlines[_Member] = Deadlines(clock, settings.idle_timeout, _Member.discard)
        self.short: Deadlines[_Member] = Deadlines(clock, settings.long_after, _Member.become_long)
        self.waiting: Deadlines[_Waiter] = Deadlines(
            clock, settings.waiting_timeout, _Waiter.overdue
        )
        self._origins: dict[Key, _Origin] = {}
        self._group_of = group_of
        # The origins of a group hold the only strong references.
        self._in_use: weakref.WeakValueDictionary[Hashable, _GroupLimit] = (
            weakref.WeakValueDictionary()
        )

    def acquire(
        self,
        key: Key,
        *,
        fresh: bool = False,
        long_running: bool = False,
        upload: bool = False,
        upgrade: bool = False,
        caller: Hashable = None,
    ) -> Deferred[ClientConnection] | ClientConnection:
        """Return an idle connection, or a ``Deferred`` of one.

        The caller has to send exactly one request on it at once, or in the callback. The connection
        returns to the pool by itself when the exchange has ended. With ``fresh`` it is a new
        connection. With ``long_running`` it is in long use from the start: a kubelet sends no
        response head for a followed log that has no line yet. With ``upload`` it counts as an
        upload, and else with ``upgrade`` as an upgrade, until it becomes idle or in long use.
        ``caller`` is the caller whose share is charged, ``None`` if the pool is not shared.

        Fails with :class:`PoolBusy`, or as ``connect`` does. Cancelling it cancels the attempt.
        """
        origin = self._origins.get(key)
        if origin is None:
            origin = self._origins[key] = _Origin(self, key, self._group_limit(key))
        use = _SHORT
        if upload:
            use = _UPLOAD
        elif upgrade:
            use = _UPGRADE
        elif long_running:
            use = _LONG
        plain = not fresh and caller is None
        checkout = _PLAIN_CHECKOUTS[use] if plain else _Checkout(use, fresh, caller)
        got = origin.get(checkout)
        return origin.wait(checkout) if got is None else got

    def idle_connections(self) -> list[ClientConnection]:
        """Return the idle connections."""
        return [member.connection for member in self.idle.items()]

    def in_use_connections(self) -> Iterator[tuple[ClientConnection, Hashable]]:
        """Iterate over the connections in use, each with its caller."""
        for origin in list(self._origins.values()):
            for member in list(origin.members):
                if member.checkout is not None:
                    yield member.connection, member.checkout.caller

    def close_idle(self, matches: Callable[[Key], bool] = lambda key: True) -> None:
        """Close the idle connections of the keys for which ``matches(key)``."""
        for key, origin in list(self._origins.items()):
            if matches(key):
                origin.close_idle()

    def drain(self) -> None:
        """Close the idle connections now, and each of the others once it is free."""
        self.draining = True
        self.close_idle()

    def close_all(self, matches: Callable[[Key], bool], why: str) -> None:
        """Close all connections of the keys for which ``matches(key)``, attempts included.

        Exchanges on them fail, and waiting requests are rejected with ``why``.
        """
        origins = [origin for key, origin in list(self._origins.items()) if matches(key)]
        # Rejected first, so that a connection freed at one origin is not given to a waiter of
        # another.
        for origin in origins:
            origin.refuse_waiters(why)
        for origin in origins:
            origin.close()

    def close(self) -> None:
        """Close everything and stop the timers; exchanges and waiting requests fail."""
        self.draining = True
        self.close_all(lambda key: True, "the server is stopping")
        for deadlines in (self.idle, self.short, self.waiting):
            deadlines.stop()

    def forget(self, origin: _Origin) -> None:
        """Remove an origin without connections; another may have its key by now."""
        if self._origins.get(origin.key) is origin:
            del self._origins[origin.key]

    def _group_limit(self, key: Key) -> _GroupLimit:
        """Return the limit of the group of ``key``."""
        group = self._group_of(key)
        limit = self._in_use.get(group)
        if limit is None:
            limit = self._in_use[group] = _GroupLimit(self.settings.max_connections_per_key)
        return limit

    @property
    def statistics(self) -> PoolStatistics:
        """A snapshot."""
        in_use = sum(1 for _ in self.in_use_connections())
        return replace(self.counters, idle=len(self.idle), in_use=in_use, waiting=len(self.waiting))


class _Use(enum.IntEnum):
    """The use of a connection; an ``IntEnum``, because its hash takes no Python function call."""

    SHORT = enum.auto()
    """It is expected to be free again soon."""
    UPGRADE = enum.auto()
    """It is for an upgrade that has not been answered."""
    UPLOAD = enum.auto()
    """It is for a request that was not complete when the connection was acquired."""
    LONG = enum.auto()
    """It is in long use or was upgraded; only the limit for all connections counts it."""


# Unpacked once: an attribute access to an enum costs as much as a function call.
_SHORT, _UPGRADE, _UPLOAD, _LONG = _Use


class _Checkout(NamedTuple):
    """What a connection is acquired for, and by whom."""

    use: _Use
    fresh: bool
    caller: Hashable


_PLAIN_CHECKOUTS = {use: _Checkout(use, False, None) for use in _Use}
"""Those without a caller that accept an idle connection, created once."""


class _GroupLimit(SharedLimit):
    """The limit of a group of origins, and the order in which origins with waiters are served."""

    def __init__(self, maximum: int) -> None:
        super().__init__(maximum)
        self.short = 0
        """The number of connections that are not in long use."""
        self.waiting_origins: dict[_Origin, None] = {}
        """The origins with waiters; the next to serve is first (round robin)."""
        self._serving = False
        self._more = False

    def serve(self) -> None:
        """Serve waiting requests within the limits; an origin that was served moves to the end.

        A connection attempt may fail synchronously, which calls this again from within itself. The
        inner call returns at once, and the outer one serves another round.
        """
        if not self.waiting_origins:
            return
        self._more = True
        if self._serving:
            return
        self._serving = True
        try:
            while self._more:
                self._more = False
                self._serve_all()
        finally:
            self._serving = False

    def _serve_all(self) -> None:
        for origin in list(self.waiting_origins):
            if origin.serve() and origin in self.waiting_origins:
                del self.waiting_origins[origin]
                self.waiting_origins[origin] = None
            # Its last waiter may have been rejected by now.
            origin.forget_if_empty()


class _Queue:
    """The FIFO queue of waiters for one use."""

    def __init__(self, maximum: int) -> None:
        self.limit = SharedLimit(maximum)
        self.waiters: dict[_Waiter, None] = {}

    def add(self, waiter: _Waiter) -> None:
        self.waiters[waiter] = None
        self.limit.add(waiter.checkout.caller, 1)

    def remove(self, waiter: _Waiter) -> None:
        del self.waiters[waiter]
        self.limit.add(waiter.checkout.caller, -1)


class _Origin:
    """The connections to one origin, and the requests that wait for one.

    At most ``max_per_key`` connections are idle, connecting or in short use,
    ``max_upgrades_per_key`` are for upgrades, ``max_uploads_per_key`` for uploads, and
    ``max_connections_per_key`` exist in total. ``in_use`` counts all connections that are in use or
    connecting, including those of the other origins in the group.
    """

    def __init__(self, pool: ConnectionPool[Any], key: Any, in_use: _GroupLimit) -> None:
        self.pool = pool
        self.key = key
        self.members: set[_Member] = set()
        self.idle: list[_Member] = []
        """The idle connections, the most recently used last."""
        settings = pool.settings
        self.in_use = in_use
        self.limits = {
            _UPGRADE: SharedLimit(settings.max_upgrades_per_key),
            _SHORT: SharedLimit(settings.max_per_key),
            _UPLOAD: SharedLimit(settings.max_uploads_per_key),
        }
        """The limits of this origin by use; their order is the priority in which waiters are
        served."""
        self.waiters = {use: _Queue(settings.max_waiting) for use in self.limits}
        self._attempts: set[Deferred[ClientConnection]] = set()

    def get(self, checkout: _Checkout) -> Deferred[ClientConnection] | ClientConnection | None:
        """Return an idle connection, or an attempt, or ``None`` if the request has to wait.

        The connection is counted before it is looked for, and an attempt is counted, too.
        """
        caller, in_use, limit = checkout.caller, self.in_use, self.limits.get(checkout.use)
        if not in_use.take(caller):
            return None
        if limit is not None:
            if not limit.take(caller):
                in_use.add(caller, -1)
                return None
            in_use.short += 1
        while self.idle and not checkout.fresh:
            member = self.idle.pop()
            self.pool.idle.discard(member)
            if member.connection.reusable:
                return member.check_out(checkout)
        if self._make_room(checkout):
            return self._make(checkout)
        self.count(checkout, -1)
        return None

    def wait(self, checkout: _Checkout) -> Deferred[ClientConnection]:
        """Queue a request, or reject it if that is pointless or the queue is full."""
        if checkout.use is _LONG or not self.in_use.short:
            # No connection will become free soon.
            return self._refuse("too many connections are in long use, in total or by this caller")
        queue = self.waiters[checkout.use]
        if not queue.limit.has_room_for(checkout.caller):
            return self._refuse(
                "too many requests wait for a connection, in total or from this caller"
            )
        waiter = _Waiter(self, checkout)
        queue.add(waiter)
        self.in_use.waiting_origins.setdefault(self)
        self.pool.waiting.add(waiter)
        return waiter.result

    def serve(self) -> bool:
        """Serve the waiters in order while possible; return whether any was served."""
        served = False
        for queue in self.waiters.values():
            while queue.waiters and (waiter := self._next(queue)) is not None:
                got = self.get(waiter.checkout)
                if got is None:
                    break
                self.remove(waiter)
                waiter.follow(got)
                served = True
        return served

    def freed(self) -> None:
        """Serve the waiters of the group after a connection has become free."""
        self.in_use.serve()
        self.forget_if_empty()

    def remove(self, waiter: _Waiter) -> None:
        """Remove a waiter from its queue."""
        self.waiters[waiter.checkout.use].remove(waiter)
        self.pool.waiting.discard(waiter)
        if not any(queue.waiters for queue in self.waiters.values()):
            del self.in_use.waiting_origins[self]

    def keep(self, member: _Member) -> None:
        """Take back a connection that can be used again."""
        self.idle.append(member)
        self.pool.idle.add(member)
        if self.in_use.waiting_origins:
            self.in_use.serve()

    def close_surplus(self) -> None:
        """Close an idle connection that did not count in its use, if another has replaced it."""
        short = self.limits[_SHORT].used + len(self.idle)
        if short > self.pool.settings.max_per_key and self.idle:
            self.idle[0].discard()

    def count(self, checkout: _Checkout, change: int) -> None:
        """Change the number of connections in a use by ``change``."""
        self.in_use.add(checkout.caller, change)
        limit = self.limits.get(checkout.use)
        if limit is not None:
            limit.add(checkout.caller, change)
            self.in_use.short += change

    def forget_if_empty(self) -> None:
        if not (self.members or self._attempts or self in self.in_use.waiting_origins):
            self.pool.forget(self)

    def close_idle(self) -> None:
        for member in list(self.idle):
            member.discard()

    def refuse_waiters(self, why: str) -> None:
        for queue in self.waiters.values():
            # A rejected waiter may cancel others in its errback.
            while queue.waiters:
                waiter = next(iter(queue.waiters))
                self.remove(waiter)
                waiter.refuse(why)

    def close(self) -> None:
        for attempt in list(self._attempts):
            attempt.cancel()
        for member in list(self.members):
            member.connection.close()
        self.forget_if_empty()

    def _next(self, queue: _Queue) -> _Waiter | None:
        """Return the first waiter whose caller has not used up its share."""
        return next(
            (waiter for waiter in queue.waiters if self._has_room_for(waiter.checkout)), None
        )

    def _has_room_for(self, checkout: _Checkout) -> bool:
        """Return whether neither limit, of all connections or of this use, is reached."""
        caller, limit = checkout.caller, self.limits.get(checkout.use, self.in_use)
        return self.in_use.has_room_for(caller) and limit.has_room_for(caller)

    def _refuse(self, text: str) -> Deferred[ClientConnection]:
        self.pool.counters.refusals += 1
        self.forget_if_empty()
        return fail(PoolBusy(text))

    def _make_room(self, checkout: _Checkout) -> bool:
        """Return whether a counted connection may be made; a fresh one may replace an idle one."""
        settings = self.pool.settings
        total = len(self.members) + len(self._attempts)
        short = self.limits[_SHORT].used + len(self.idle)
        if total < settings.max_connections_per_key and (
            checkout.use is not _SHORT or short <= settings.max_per_key
        ):
            return True
        if checkout.fresh and self.idle:
            self.idle[0].discard()
            return True
        return False

    def _make(self, checkout: _Checkout) -> Deferred[ClientConnection]:
        """Attempt to connect; the connection is counted already."""
        self.pool.counters.connects += 1
        caller = checkout.caller if checkout.use in (_LONG, _UPGRADE) else None
        attempt = maybeDeferred(self.pool.connect, self.key, caller)
        self._attempts.add(attempt)

        def connected(connection: ClientConnection) -> ClientConnection:
            self._attempts.discard(attempt)
            if not connection.reusable:
                self.count(checkout, -1)
                self.freed()
                raise ExchangeFailed("the connection was closed at once", unanswered=True)
            return _Member(self, connection).check_out(checkout)

        def failed(failure: Failure) -> Failure:
            self._attempts.discard(attempt)
            self.count(checkout, -1)
            self.pool.counters.failed_connects += 1
            self.freed()
            return failure

        return attempt.addCallbacks(connected, failed)


class _Member:
    """A connection of the pool and its current use."""

    def __init__(self, origin: _Origin, connection: ClientConnection) -> None:
        self.connection = connection
        self._origin = origin
        self._pool = origin.pool
        self.checkout: _Checkout | None = None
        """What it is used for, ``None`` while idle."""
        connection.on_response = self._response_began
        connection.on_idle = self._became_idle
        connection.on_lost = self._lost
        origin.members.add(self)

    def check_out(self, checkout: _Checkout) -> ClientConnection:
        """Record the use, which is counted already, and return the connection."""
        self._pool.counters.reuses += self.connection.requests > 0
        self.checkout = checkout
        return self.connection

    def become_long(self) -> None:
        """Mark the connection as in long use, so another may be opened."""
        checkout = self.checkout
        assert checkout is not None
        self.checkout = checkout._replace(use=_LONG)
        self._origin.count(checkout, -1)
        self._origin.count(self.checkout, 1)
        self._origin.in_use.serve()

    def discard(self) -> None:
        """Close the idle connection."""
        self._origin.idle.remove(self)
        self._pool.idle.discard(self)
        self.connection.close()

    def _response_began(self, connection: ClientConnection, switched: bool) -> None:
        if self.checkout is None or self.checkout.use is _LONG:
            return
        if switched:
            self.become_long()
        else:
            self._pool.short.add(self)

    def _became_idle(self, connection: ClientConnection) -> None:
        checkout = self._end_use()
        origin = self._origin
        if self._pool.draining or not self._pool.may_keep(origin.key):
            connection.close()
            return
        origin.keep(self)
        if checkout is None or checkout.use is not _SHORT:
            origin.close_surplus()

    def _lost(self, connection: ClientConnection) -> None:
        self._end_use()
        origin = self._origin
        origin.members.discard(self)
        if self in self._pool.idle:
            self._pool.idle.discard(self)
            origin.idle.remove(self)
        origin.freed()

    def _end_use(self) -> _Checkout | None:
        """End the use, and return what it was for."""
        checkout, self.checkout = self.checkout, None
        if checkout is not None:
            self._origin.count(checkout, -1)
            self._pool.short.discard(self)
        return checkout


class _Waiter:
    """A request that waits for a connection."""

    def __init__(self, origin: _Origin, checkout: _Checkout) -> None:
        self.checkout = checkout
        self.result: Deferred[ClientConnection] = Deferred(self._cancel)
        self._origin = origin
        self._attempt: Deferred[ClientConnection] | None = None

    def follow(self, attempt: Deferred[ClientConnection] | ClientConnection) -> None:
        """Succeed with a connection, or with the result of an attempt."""
        if not isinstance(attempt, Deferred):
            self.result.callback(attempt)
            return
        self._attempt = attempt
        # Nothing is chained to the result; assigned to satisfy mypy.
        _ = attempt.addCallbacks(self.result.callback, self._failed)

    def _failed(self, failure: Failure) -> None:
        """Fail as the attempt did, unless the waiter has been cancelled meanwhile."""
        if not self.result.called:
            self.result.errback(failure)

    def overdue(self) -> None:
        """Fail after the timeout."""
        self._origin.remove(self)
        self.refuse("no connection became free in time")
        self._origin.forget_if_empty()

    def refuse(self, text: str) -> None:
        """Fail with :class:`PoolBusy`."""
        self._origin.pool.counters.refusals += 1
        self.result.errback(PoolBusy(text))

    def _cancel(self, result: Deferred[ClientConnection]) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
        else:
            self._origin.remove(self)
            self._origin.forget_if_empty()
