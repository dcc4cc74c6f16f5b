"""A set of descriptors that the reactor sees as one, to serve events with less overhead.

For each event the reactor determines a log prefix, creates a log context and calls through five
functions; for each iteration it checks its timers. Here an event is one call, several rounds (a
round is all events that one poll has returned) are served in one iteration, calls for "soon" need
no timer, and calls that are needed once for a whole round wait for its end.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IDelayedCall,
    IHalfCloseableDescriptor,
    IReadDescriptor,
    IReadWriteDescriptor,
)
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

MAX_EVENTS = 32
"""The maximum number of events in a round, which is not interrupted. The loss of an agent takes 0.2
ms, a step of a TLS handshake 1 to 2 ms, and thousands of agents may be lost or return at once."""

MAX_ROUNDS = 64
ITERATION_TIME = 0.008
"""The rounds in one iteration of the reactor: up to 64 within 8 ms. Returning to the reactor costs
half as much as an event, and lets its timers start new connections before those in progress are
completed."""

MAX_PASSES = 8
"""How many times calls for "soon" may schedule further ones before these are deferred to the next
iteration of the reactor. Closing a connection takes up to four passes; a pull producer schedules
calls without end."""

POLL_TIMEOUT = 0.001
"""The time in seconds to wait for the next round, if the last two were less than this apart, no
timer of the reactor is due within it and no thread has scheduled a call: the response to what was
just sent usually arrives sooner. If events are rarer, waiting would only add a system call. Apart
from the work itself, this delays other descriptors of the reactor (such as a thread's next call or
a signal), and timers not set by :meth:`DescriptorSet.callLater`, by at most :data:`ITERATION_TIME`
plus once this value. It is also the shortest timeout of epoll_wait(2)."""

_NEVER = float("inf")

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_BROKEN = select.EPOLLERR | select.EPOLLHUP


@implementer(IReadDescriptor)
class DescriptorSet:
    """The part of ``IReactorFDSet`` that transports use, with its own epoll(7) instance.

    An epoll instance is itself a descriptor, readable when one of its members is ready. ``reactor``
    watches it while it has members.
    """

    _log = Logger()

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._reports_next_timer = _reports_next_timer(reactor)
        # Whether a timer has been set since _due was computed.
        self._timer_set = True
        self._due = 0.0
        # When the last round ended.
        self._served_at = -_NEVER
        # Looked up once.
        self._call_later: Callable[..., IDelayedCall] = reactor.callLater
        self._epoll: select.epoll | None = None
        self._members: dict[int, IReadWriteDescriptor] = {}
        # Their descriptor numbers, which fileno() no longer returns after a close.
        self._numbers: dict[IReadWriteDescriptor, int] = {}
        self._desired: dict[int, int] = {}
        # Whether a round is being served, and whether it has several events.
        self._inside = False
        self._serving = False
        # Numbers closed since this round was polled; they may have been reused.
        self._stale: set[int] = set()
        self._at_end: list[Callable[[], object]] = []
        self._soon: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    # -- for transports ------------------------------------------------------------------------

    def addReader(self, member: IReadWriteDescriptor) -> None:
        """Call ``member.doRead`` whenever there is something to read."""
        self._want(member, _IN)

    def addWriter(self, member: IReadWriteDescriptor) -> None:
        """Call ``member.doWrite`` whenever something can be written."""
        self._want(member, _OUT)

    def removeReader(self, member: IReadWriteDescriptor) -> None:
        """Stop calling ``member.doRead``."""
        self._want_no_more(member, _IN)

    def removeWriter(self, member: IReadWriteDescriptor) -> None:
        """Stop calling ``member.doWrite``."""
        self._want_no_more(member, _OUT)

    def remove(self, member: IReadWriteDescriptor) -> None:
        """Remove ``member`` from the set."""
        number = self._numbers.get(member)
        if number is not None:
            self._forget(number)

    def readers(self) -> list[IReadWriteDescriptor]:
        """Return the members that are watched for reading."""
        return [member for member in self._numbers if self._desires(member, _IN)]

    def writers(self) -> list[IReadWriteDescriptor]:
        """Return the members that are watched for writing."""
        return [member for member in self._numbers if self._desires(member, _OUT)]

    def at_end_of_round(self, call: Callable[[], object]) -> bool:
        """Schedule ``call`` for the end of the current round.

        Returns ``False``, and does nothing, if the round has no other event, or none is running.
        """
        if self._serving:
            self._at_end.append(call)
        return self._serving

    def callLater(
        self, delay: float, callable: Callable[..., Any], *args: object, **kwargs: object
    ) -> IDelayedCall:
        """Set a timer of the reactor; see ``IReactorTime``."""
        self._timer_set = True
        return self._call_later(delay, callable, *args, **kwargs)

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call ``call`` after the events of this round, or else in the reactor's next iteration."""
        if self._inside:
            self._soon.append((call, arguments))
        else:
            self.callLater(0, call, *arguments)

    # -- IReadDescriptor -----------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._epoll is None else self._epoll.fileno()

    def logPrefix(self) -> str:
        return "sockets"

    def doRead(self) -> None:
        """Serve the members that are ready, and those that become ready soon after."""
        timeout = 0.0
        reactor = self._reactor
        self._timer_set = True
        until = reactor.seconds() + ITERATION_TIME
        for _ in range(MAX_ROUNDS):
            if self._epoll is None:
                return
            events = self._epoll.poll(timeout, MAX_EVENTS)
            if not events:
                return
            self._inside = True
            self._serving = len(events) > 1
            for number, event in events:
                if number not in self._stale:
                    self._serve(number, event)
            if self._soon:
                self._call_soon_calls()
            self._inside = self._serving = False
            if self._stale or self._at_end:
                self._end_round()
            now = reactor.seconds()
            follows, self._served_at = now < self._served_at + POLL_TIMEOUT, now
            if follows and self._timer_set:
                self._update_next_timer()
            # For a reactor that does not report its next timer, _due stays 0: always due.
            idle = follows and now + POLL_TIMEOUT < self._due and not reactor.threadCallQueue
            timeout = POLL_TIMEOUT if idle else 0.0
            if now > until or (not timeout and len(events) == 1):
                return

    def connectionLost(self, reason: Failure) -> None:
        """Disconnect all members: the reactor stops."""
        for number, member in list(self._members.items()):
            if self._members.get(number) is member:
                self._forget(number)
                self._guard(member.connectionLost, reason)

    # -- helpers -------------------------------------------------------------------------------

    def _desires(self, member: IReadWriteDescriptor, event: int) -> bool:
        number = self._numbers.get(member)
        return number is not None and bool(self._desired[number] & event)

    def _want(self, member: IReadWriteDescriptor, event: int) -> None:
        number = self._numbers.get(member)
        desired = 0 if number is None else self._desired[number]
        if desired & event:
            return
        epoll = self._open() if self._epoll is None else self._epoll
        if number is not None:
            epoll.modify(number, desired | event)
        else:
            number = member.fileno()
            epoll.register(number, event)
            self._members[number] = member
            self._numbers[member] = number
        self._desired[number] = desired | event

    def _open(self) -> select.epoll:
        """Create the epoll and add it to the reactor; on ``OSError`` nothing is changed."""
        epoll = self._epoll = select.epoll()
        try:
            self._reactor.addReader(self)
        except OSError:
            epoll.close()
            self._epoll = None
            raise
        return epoll

    def _want_no_more(self, member: IReadWriteDescriptor, event: int) -> None:
        number = self._numbers.get(member)
        if number is None:
            return
        desired = self._desired[number]
        if not desired & event:
            return
        if desired == event:
            self._forget(number)
        else:
            self._desired[number] = desired & ~event
            assert self._epoll is not None  # it has members
            self._epoll.modify(number, desired & ~event)

    def _forget(self, number: int) -> None:
        del self._numbers[self._members.pop(number)], self._desired[number]
        if self._serving:
            self._stale.add(number)
        assert self._epoll is not None  # it has had a member
        self._epoll.unregister(number)
        if not self._members:
            self._reactor.removeReader(self)
            self._epoll.close()
            self._epoll = None

    def _update_next_timer(self) -> None:
        """Store when the reactor's next timer is due."""
        if self._reports_next_timer:
            self._timer_set = False
            due_in = self._reactor.timeout()
            self._due = _NEVER if due_in is None else self._reactor.seconds() + due_in

    def _end_round(self) -> None:
        self._stale.clear()
        calls, self._at_end = self._at_end, []
        for call in calls:
            self._guard(call)

    def _call_soon_calls(self) -> None:
        for _ in range(MAX_PASSES):
            calls, self._soon = self._soon, []
            for call, arguments in calls:
                try:
                    call(*arguments)
                except BaseException:
                    self._log.failure("a descriptor failed")
            if not self._soon:
                return
        calls, self._soon = self._soon, []
        for call, arguments in calls:
            self.callLater(0, call, *arguments)

    def _serve(self, number: int, event: int) -> None:
        member = self._members[number]
        # Events that were wanted when the round began may be unwanted by now, after an event of
        # another member, or this one's reading.
        reading = bool(self._desired[number] & _IN)
        reason: Any = None
        try:
            if event & _IN:
                if reading:
                    reason = member.doRead()
            elif event & _BROKEN:
                reason = CONNECTION_DONE if reading else CONNECTION_LOST
            if event & _OUT and reason is None and self._desires(member, _OUT):
                reading = False
                reason = member.doWrite()
        except BaseException as error:
            # As in the reactor, the other descriptors are not affected.
            self._log.failure("{prefix} failed", prefix=member.logPrefix())
            reason = error
        if reason is not None:
            self._guard(self._disconnect, member, reason, reading)

    def _disconnect(self, member: IReadWriteDescriptor, reason: Exception, reading: bool) -> None:
        """Notify ``member`` that it is disconnected, as the reactor would."""
        done = isinstance(reason, ConnectionDone)
        failure = connectionDone if done else Failure(reason)
        if reading and done and IHalfCloseableDescriptor.providedBy(member):
            self.removeReader(member)
            IHalfCloseableDescriptor(member).readConnectionLost(failure)
        else:
            self.remove(member)
            member.connectionLost(failure)

    def _guard(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function, and log an exception so that other members are not affected."""
        try:
            call(*arguments)
        except BaseException:
            self._log.failure("a descriptor failed")


def _reports_next_timer(reactor: Any) -> bool:
    """Return whether ``reactor`` reports when its next timer is due.

    Only Twisted's own reactors do. For others, such as asyncio's, a timer is assumed to be due
    always.
    """
    return isinstance(reactor, ReactorBase) and type(reactor).callLater is ReactorBase.callLater
