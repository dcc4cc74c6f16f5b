"""Connections to origins, kept and shared.

Connecting through the tunnel costs round trips and a TLS handshake, so connections are used
again, the one used last first, and new ones are bounded for each origin; who comes too many waits
for one that becomes free. Exchanges that last (a log that is followed, a watch) do not count
against that bound once their answers have begun, or from the start if they are known to last: they
would keep those that are over in milliseconds from ever getting their turn. Any other answer that
has not begun counts, however long it takes: an origin that is slow does not get more to do at once.
All connections to an origin, whatever they do, have a wider bound, and so have those in use of all
origins that are one machine's: what lasts on them holds what they all come by.

Uploads, the requests whose bodies still come, have a bound of their own: how long they take is up
to who sends them, and those whose requests are complete are not to wait for that. So have upgrades
until their 101: somebody waits at a terminal, and is not to wait for answers that never begin.

Of each bound, and of the places of those who wait, one caller may have as many as it leaves free:
half if it is alone, so whoever comes next finds room. This is the dynamic threshold of
``yurttunnel.tunnel.shares``, with a smaller factor, since there are fewer to share.
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
from yurttunnel.http.places import Places

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a pool may hold; all times are in seconds."""

    max_per_key: int = 32
    """Connections to one origin that are in use for a short time, being made, or idle."""
    max_upgrades_per_key: int = 32
    """Connections to one origin for upgrades that are not answered, or being made for them."""
    max_uploads_per_key: int = 32
    """Connections to one origin that are in use for uploads, or being made for them."""
    max_connections_per_key: int = 1024
    """Connections to one origin, those in use for long included, and those in use to all origins
    that belong together."""
    max_waiting: int = 1024
    """Who may wait for a connection to one origin, as many with an upgrade, and with an upload."""
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

    def events(self) -> tuple[tuple[str, int], ...]:
        """Return how often what has happened, by the names that metrics have for it."""
        return (
            ("reuse", self.reuses),
            ("connect", self.connects),
            ("connect_failed", self.failed_connects),
            ("refusal", self.refusals),
        )


class PoolBusy(Exception):
    """No connection became free: too many requests for one origin; to be answered with 503."""


class ConnectionPool(Generic[Key]):
    """Keeps connections by key; ``connect(key, caller)`` makes one.

    It is told the ``caller`` whose use of the connection is to last, ``None`` where it is shared.

    The ``Deferred`` that ``connect`` returns has its own time limit, and can be canceled.
    ``keeps(key)`` is asked when a connection becomes free; what is not kept is closed. Keys belong
    together for which ``together(key)`` is the same.
    """

    def __init__(
        self,
        clock: IReactorTime,
        connect: Callable[[Key, Hashable], Deferred[ClientConnection]],
        settings: PoolSettings | None = None,
        keeps: Callable[[Key], bool] = lambda key: True,
        together: Callable[[Key], Hashable] = lambda key: key,
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
        self._together = together
        # Each is kept by the origins that belong together.
        self._in_use: weakref.WeakValueDictionary[Hashable, _SharedPlaces] = (
            weakref.WeakValueDictionary()
        )

    def take(
        self,
        key: Key,
        *,
        fresh: bool = False,
        lasting: bool = False,
        upload: bool = False,
        upgrade: bool = False,
        caller: Hashable = None,
    ) -> Deferred[ClientConnection] | ClientConnection:
        """Return a connection that is kept, on which the caller makes one request at once.

        Where none is free, what is returned fires with one, for one request in the callback. With
        ``fresh`` it is a new one. One that is ``lasting`` is in use for long from the beginning: a
        kubelet sends no head for a log that is followed and has no line yet. One for an ``upload``,
        whatever else it is, counts as such until its answer has taken its time, and one for an
        ``upgrade`` until the protocol has changed. ``caller`` tells whose share it is of, ``None``
        that nobody shares the pool. The connection comes back by itself when its exchange is over.

        Fails with :class:`PoolBusy`, or as ``connect`` does. Canceling it cancels the attempt.
        """
        origin = self._origins.get(key)
        if origin is None:
            origin = self._origins[key] = _Origin(self, key, self._places(key))
        use = _Use.SHORT
        if upload:
            use = _Use.UPLOAD
        elif upgrade:
            use = _Use.UPGRADE
        elif lasting:
            use = _Use.LONG
        usual = not fresh and caller is None
        return origin.take(_USUAL_WISHES[use] if usual else _Wish(use, fresh, caller))

    def unused(self) -> list[ClientConnection]:
        """Return the connections that are kept for the next request."""
        return [member.connection for member in self.idle.items()]

    def lent(self) -> Iterator[tuple[ClientConnection, Hashable]]:
        """Go through the connections that are in use, each with the caller that uses it."""
        for origin in list(self._origins.values()):
            for member in list(origin.members):
                if member.wish is not None:
                    yield member.connection, member.wish.caller

    def close_idle(self, concerned: Callable[[Key], bool] = lambda key: True) -> None:
        """Close what nobody uses, of the keys that are ``concerned``."""
        for key, origin in list(self._origins.items()):
            if concerned(key):
                origin.close_idle()

    def drain(self) -> None:
        """Keep nothing from now on: each connection is closed once it is free."""
        self.draining = True
        self.close_idle()

    def close_all(self, concerned: Callable[[Key], bool], why: str) -> None:
        """Close all connections of the keys that are ``concerned``, also those being made.

        Exchanges on them fail, and who waits for one is refused with ``why``.
        """
        origins = [origin for key, origin in list(self._origins.items()) if concerned(key)]
        # What the connections of one free is not to be given to those who wait for another.
        for origin in origins:
            origin.refuse_waiters(why)
        for origin in origins:
            origin.close()

    def close(self) -> None:
        """Abort everything and stop the timers; exchanges fail, and so does who waits."""
        self.draining = True
        self.close_all(lambda key: True, "the server is stopping")
        for deadlines in (self.idle, self.short, self.waiting):
            deadlines.stop()

    def forget(self, origin: _Origin) -> None:
        """Keep an origin no more that has nothing; another may have its key by now."""
        if self._origins.get(origin.key) is origin:
            del self._origins[origin.key]

    def _places(self, key: Key) -> _SharedPlaces:
        """Return the places of all that belong together with ``key``."""
        which = self._together(key)
        places = self._in_use.get(which)
        if places is None:
            places = self._in_use[which] = _SharedPlaces(self.settings.max_connections_per_key)
        return places

    @property
    def statistics(self) -> PoolStatistics:
        """A snapshot."""
        return replace(self.counters, idle=len(self.idle), waiting=len(self.waiting))


class _Use(enum.IntEnum):
    """What a connection is wanted for; an ``IntEnum``, as its hash is no function of Python."""

    SHORT = enum.auto()
    """To be free again soon."""
    UPGRADE = enum.auto()
    """For another protocol, to which it has not changed."""
    UPLOAD = enum.auto()
    """For a request that has not been read to its end."""
    LONG = enum.auto()
    """For long, or in another protocol; only the bound of all counts it."""


class _Wish(NamedTuple):
    """What somebody wants of a pool."""

    use: _Use
    fresh: bool
    caller: Hashable


_USUAL_WISHES = {use: _Wish(use, False, None) for use in _Use}
"""Those that share with nobody and take what is kept, made once."""


class _SharedPlaces(Places):
    """Places of all origins that belong together, and whose turn it is where somebody waits."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.short = 0
        """How many of those taken are to be free again soon."""
        self.waited_for: dict[_Origin, None] = {}
        """The origins for which somebody waits; the next one in turn is first."""
        self._serving = False
        self._more = False

    def serve(self) -> None:
        """Serve those who wait with what there is; an origin that got something is last next.

        A connection that cannot be made says so at once, perhaps, so that this is called within
        itself: then it goes on with what has become free once it is done with who is served.
        """
        if not self.waited_for:
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
        for origin in list(self.waited_for):
            if origin.serve() and origin in self.waited_for:
                del self.waited_for[origin]
                self.waited_for[origin] = None
            # The last one who waited may have been refused by now.
            origin.forget_if_empty()


class _Queue:
    """Who waits for one use, in their order."""

    def __init__(self, most: int) -> None:
        self.places = Places(most)
        self.waiters: dict[_Waiter, None] = {}

    def add(self, waiter: _Waiter) -> None:
        self.waiters[waiter] = None
        self.places.count(waiter.wish.caller, 1)

    def remove(self, waiter: _Waiter) -> None:
        del self.waiters[waiter]
        self.places.count(waiter.wish.caller, -1)


class _Origin:
    """The connections to one origin, and who waits for them.

    Those that are idle, used for a short time or being made are ``max_per_key`` at most, those for
    upgrades ``max_upgrades_per_key``, those for uploads ``max_uploads_per_key``, and all together
    ``max_connections_per_key``. ``in_use`` counts those in use, or being made, for whatever it is,
    with those of the origins that belong together with this one.
    """

    def __init__(self, pool: ConnectionPool[Any], key: Any, in_use: _SharedPlaces) -> None:
        self.pool = pool
        self.key = key
        self.members: set[_Member] = set()
        self.idle: list[_Member] = []
        """The one used last is last."""
        settings = pool.settings
        self.in_use = in_use
        self.bounded = {
            _Use.UPGRADE: Places(settings.max_upgrades_per_key),
            _Use.SHORT: Places(settings.max_per_key),
            _Use.UPLOAD: Places(settings.max_uploads_per_key),
        }
        """Those of this origin whose use is to be over before others may have it; the order is that
        in which those who wait are served."""
        self.waiters = {use: _Queue(settings.max_waiting) for use in self.bounded}
        self._attempts: set[Deferred[ClientConnection]] = set()

    def take(self, wish: _Wish) -> Deferred[ClientConnection] | ClientConnection:
        got = self._get(wish)
        if got is not None:
            return got
        if wish.use is _Use.LONG or not self.in_use.short:
            # Nothing will be free soon.
            return self._refuse(
                "too many connections are in use for long, of all or of this caller"
            )
        queue = self.waiters[wish.use]
        if not queue.places.has_one_for(wish.caller):
            return self._refuse("too many requests wait for a connection, of all or of this caller")
        waiter = _Waiter(self, wish)
        queue.add(waiter)
        self.in_use.waited_for.setdefault(self)
        self.pool.waiting.add(waiter)
        return waiter.result

    def serve(self) -> bool:
        """Hand what there is to those who wait, in their order; return whether anybody got some."""
        served = False
        for queue in self.waiters.values():
            while queue.waiters and (waiter := self._next(queue)) is not None:
                got = self._get(waiter.wish)
                if got is None:
                    break
                self.remove(waiter)
                waiter.follow(got)
                served = True
        return served

    def freed(self) -> None:
        """Have what there is given to who waits, for this origin or one that belongs to it."""
        self.in_use.serve()
        self.forget_if_empty()

    def remove(self, waiter: _Waiter) -> None:
        """Have somebody wait no more."""
        self.waiters[waiter.wish.use].remove(waiter)
        self.pool.waiting.discard(waiter)
        if not any(queue.waiters for queue in self.waiters.values()):
            del self.in_use.waited_for[self]

    def keep(self, member: _Member) -> None:
        """Take back a connection that can be used again."""
        self.idle.append(member)
        self.pool.idle.add(member)
        self.in_use.serve()
        if self._short > self.pool.settings.max_per_key and self.idle:
            # It did not count while it was used for long, and another has come for it.
            self.idle[0].discard()

    def count(self, wish: _Wish, change: int) -> None:
        """Count one more or one less of a use."""
        self.in_use.count(wish.caller, change)
        if wish.use in self.bounded:
            self.bounded[wish.use].count(wish.caller, change)
            self.in_use.short += change

    def forget_if_empty(self) -> None:
        if not (self.members or self._attempts or self in self.in_use.waited_for):
            self.pool.forget(self)

    def close_idle(self) -> None:
        for member in list(self.idle):
            member.discard()

    def refuse_waiters(self, why: str) -> None:
        for queue in self.waiters.values():
            # Who is refused may have others wait no more.
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

    @property
    def _short(self) -> int:
        """Connections that are idle, in use for a short time, or being made for that."""
        return self.bounded[_Use.SHORT].taken + len(self.idle)

    def _next(self, queue: _Queue) -> _Waiter | None:
        """Return the first whose caller has not got its share."""
        return next((waiter for waiter in queue.waiters if self._has_one_for(waiter.wish)), None)

    def _has_one_for(self, wish: _Wish) -> bool:
        """Return whether the caller may have one more, of all and of those for this use."""
        places = self.bounded.get(wish.use, self.in_use)
        return self.in_use.has_one_for(wish.caller) and places.has_one_for(wish.caller)

    def _get(self, wish: _Wish) -> Deferred[ClientConnection] | ClientConnection | None:
        if not self._has_one_for(wish):
            return None
        if not wish.fresh and (member := self._take_idle()) is not None:
            return member.lend(wish)
        return self._make(wish) if self._make_room(wish) else None

    def _take_idle(self) -> _Member | None:
        while self.idle:
            member = self.idle.pop()
            self.pool.idle.discard(member)
            if member.connection.reusable:
                return member
        return None

    def _refuse(self, text: str) -> Deferred[ClientConnection]:
        self.pool.counters.refusals += 1
        self.forget_if_empty()
        return fail(PoolBusy(text))

    def _make_room(self, wish: _Wish) -> bool:
        """Return whether another connection may be made; for a fresh one an idle one may go."""
        settings = self.pool.settings
        total = len(self.members) + len(self._attempts)
        counts = wish.use is _Use.SHORT
        if total < settings.max_connections_per_key and (
            not counts or self._short < settings.max_per_key
        ):
            return True
        if wish.fresh and self.idle:
            self.idle[0].discard()
            return True
        return False

    def _make(self, wish: _Wish) -> Deferred[ClientConnection]:
        self.pool.counters.connects += 1
        self.count(wish, 1)
        caller = wish.caller if wish.use in (_Use.LONG, _Use.UPGRADE) else None
        attempt = maybeDeferred(self.pool.connect, self.key, caller)
        self._attempts.add(attempt)

        def connected(connection: ClientConnection) -> ClientConnection:
            self._attempts.discard(attempt)
            self.count(wish, -1)
            if not connection.reusable:
                self.freed()
                raise ExchangeFailed("the connection was closed at once", unanswered=True)
            return _Member(self, connection).lend(wish)

        def failed(failure: Failure) -> Failure:
            self._attempts.discard(attempt)
            self.count(wish, -1)
            self.pool.counters.failed_connects += 1
            self.freed()
            return failure

        return attempt.addCallbacks(connected, failed)


class _Member:
    """A connection and what it is used for."""

    def __init__(self, origin: _Origin, connection: ClientConnection) -> None:
        self.connection = connection
        self._origin = origin
        self._pool = origin.pool
        self.wish: _Wish | None = None
        """What it is lent for."""
        connection.on_answer = self._answer_began
        connection.on_idle = self._became_idle
        connection.on_lost = self._lost
        origin.members.add(self)

    def lend(self, wish: _Wish) -> ClientConnection:
        """Note the use, and give the connection."""
        counters = self._pool.counters
        counters.in_use += 1
        counters.reuses += self.connection.requests > 0
        self.wish = wish
        self._origin.count(wish, 1)
        return self.connection

    def become_long(self) -> None:
        """Stop counting, which gives room to another."""
        wish = self.wish
        assert wish is not None
        self.wish = wish._replace(use=_Use.LONG)
        self._origin.count(wish, -1)
        self._origin.count(self.wish, 1)
        self._origin.in_use.serve()

    def discard(self) -> None:
        """Close the idle connection."""
        self._origin.idle.remove(self)
        self._pool.idle.discard(self)
        self.connection.close()

    def _answer_began(self, connection: ClientConnection, switched: bool) -> None:
        if self.wish is None or self.wish.use is _Use.LONG:
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
        origin.freed()

    def _end_use(self) -> None:
        wish, self.wish = self.wish, None
        if wish is None:
            return
        self._pool.counters.in_use -= 1
        self._origin.count(wish, -1)
        self._pool.short.discard(self)


class _Waiter:
    """Somebody who waits for a connection."""

    def __init__(self, origin: _Origin, wish: _Wish) -> None:
        self.wish = wish
        self.result: Deferred[ClientConnection] = Deferred(self._cancel)
        self._origin = origin
        self._attempt: Deferred[ClientConnection] | None = None

    def follow(self, attempt: Deferred[ClientConnection] | ClientConnection) -> None:
        """Take a connection, or the result of an attempt."""
        if not isinstance(attempt, Deferred):
            self.result.callback(attempt)
            return
        self._attempt = attempt
        # The chain ends here; mypy wants to see the Deferred used.
        _ = attempt.addCallbacks(self.result.callback, self._failed)

    def _failed(self, failure: Failure) -> None:
        """Fail as the attempt did, unless one who was served by that has had this one canceled."""
        if not self.result.called:
            self.result.errback(failure)

    def overdue(self) -> None:
        """Give up waiting."""
        self._origin.remove(self)
        self.refuse("no connection became free in time")
        self._origin.forget_if_empty()

    def refuse(self, text: str) -> None:
        """Fail."""
        self._origin.pool.counters.refusals += 1
        self.result.errback(PoolBusy(text))

    def _cancel(self, result: Deferred[ClientConnection]) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
        else:
            self._origin.remove(self)
            self._origin.forget_if_empty()
