"""Many descriptors as one of the reactor's: what is ready is served without its ceremony.

For each event the reactor finds out a name for the log, makes a context for it and calls through
five functions, and for each turn it looks through its timers. Here an event is one call, several
rounds are served in one turn, what is to be done soon is no timer, and what is to be done once for
a whole round waits for its end.
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

MOST_EVENTS = 256
"""Events that are asked for at once."""

LEAST_ROUNDS = 8
MOST_ROUNDS = 64
TURN = 0.008
"""Rounds that are served before it is the turn of the rest of the reactor: eight however long they
take, and up to 64 within 8 ms. Going there and back costs half as much as an event; but its timers
begin new connections, and with fewer rounds those that are begun would not come to their end."""

MOST_PASSES = 8
"""How often what is to be done soon may lead to more of it, before that is put off to the reactor's
next turn: closing a connection takes up to four, a producer that is pulled has no end."""

PATIENCE = 0.001
"""Seconds that the next round is waited for, if the last two came within that, no timer of the
reactor is due by then and no thread has called: the answer to what was just sent mostly comes
sooner. Where events are rarer it would only be one more wait. Beside the work itself
that puts off what comes by other descriptors of the reactor, such as a thread's next call or a
signal, and timers that are not set by :meth:`DescriptorSet.callLater`, by no more than
:data:`TURN` and once this. It is also the least that epoll_wait(2) can wait."""

_NEVER = float("inf")

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_BROKEN = select.EPOLLERR | select.EPOLLHUP


@implementer(IReadDescriptor)
class DescriptorSet:
    """The part of ``IReactorFDSet`` that transports use, over an epoll(7) of its own.

    That is a descriptor itself, readable when one of the others is ready, which ``reactor``
    watches while there are any.
    """

    _log = Logger()

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._tells_when_due = _tells_when_due(reactor)
        # Whether a timer has been set since it was asked when the next one is due.
        self._timer_set = True
        self._due = 0.0
        # When the last round was over.
        self._served_at = -_NEVER
        # Found once.
        self._call_later: Callable[..., IDelayedCall] = reactor.callLater
        self._epoll: select.epoll | None = None
        self._members: dict[int, IReadWriteDescriptor] = {}
        # Their numbers, which they cannot tell any more once they are closed.
        self._numbers: dict[IReadWriteDescriptor, int] = {}
        self._desired: dict[int, int] = {}
        # Whether events are being served, and whether there were several.
        self._inside = False
        self._serving = False
        # Numbers that have been closed, and may be used anew, since this round was asked for.
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
        """Call ``member.doRead`` no more."""
        self._want_no_more(member, _IN)

    def removeWriter(self, member: IReadWriteDescriptor) -> None:
        """Call ``member.doWrite`` no more."""
        self._want_no_more(member, _OUT)

    def remove(self, member: IReadWriteDescriptor) -> None:
        """Call neither ``member.doRead`` nor ``member.doWrite`` any more."""
        number = self._numbers.get(member)
        if number is not None:
            self._forget(number)

    def readers(self) -> list[IReadWriteDescriptor]:
        """Return what is read."""
        return [member for member in self._numbers if self._desires(member, _IN)]

    def writers(self) -> list[IReadWriteDescriptor]:
        """Return what waits to be written."""
        return [member for member in self._numbers if self._desires(member, _OUT)]

    def at_end_of_round(self, call: Callable[[], object]) -> bool:
        """Have ``call`` called once all that is ready now has been served.

        Gives ``False``, and does nothing, when nothing else waits to be served.
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
        """Call ``call`` once all that is ready now has been served; else in the next turn."""
        if self._inside:
            self._soon.append((call, arguments))
        else:
            self.callLater(0, call, *arguments)

    # -- IReadDescriptor -----------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor that the reactor watches."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def logPrefix(self) -> str:
        """Name it in the log."""
        return "sockets"

    def doRead(self) -> None:
        """Serve what is ready, and what gets ready soon after."""
        patience = 0.0
        reactor = self._reactor
        self._timer_set = True
        until = reactor.seconds() + TURN
        for rounds in range(1, MOST_ROUNDS + 1):
            if self._epoll is None:
                return
            events = self._epoll.poll(patience, MOST_EVENTS)
            if not events:
                return
            self._inside = True
            self._serving = len(events) > 1
            for number, event in events:
                if number not in self._stale:
                    self._serve(number, event)
            if self._soon:
                self._call_what_is_soon()
            self._inside = self._serving = False
            if self._stale or self._at_end:
                self._end_round()
            if self._timer_set:
                self._ask_when_due()
            # Of a reactor that cannot tell it is taken that something is due.
            now = reactor.seconds()
            follows, self._served_at = now < self._served_at + PATIENCE, now
            idle = follows and now + PATIENCE < self._due and not reactor.threadCallQueue
            patience = PATIENCE if idle else 0.0
            if rounds >= LEAST_ROUNDS and now > until:
                return
            if not patience and len(events) == 1:
                return

    def connectionLost(self, reason: Failure) -> None:
        """End all of them: the reactor stops."""
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
        """Have the reactor look at the set, or raise ``OSError`` and leave all as it was."""
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

    def _ask_when_due(self) -> None:
        """Note when the reactor's next timer is due."""
        if self._tells_when_due:
            self._timer_set = False
            due_in = self._reactor.timeout()
            self._due = _NEVER if due_in is None else self._reactor.seconds() + due_in

    def _end_round(self) -> None:
        self._stale.clear()
        calls, self._at_end = self._at_end, []
        for call in calls:
            self._guard(call)

    def _call_what_is_soon(self) -> None:
        for _ in range(MOST_PASSES):
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
        # What was asked for when the round began may be desired no more by now: another member, or
        # this one's reading, has had its event first.
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
            # As in the reactor, whose other descriptors live on, too.
            self._log.failure("{prefix} failed", prefix=member.logPrefix())
            reason = error
        if reason is not None:
            self._guard(self._disconnect, member, reason, reading)

    def _disconnect(self, member: IReadWriteDescriptor, reason: Exception, reading: bool) -> None:
        """Notify ``member`` that it has ended, as the reactor would."""
        done = isinstance(reason, ConnectionDone)
        failure = connectionDone if done else Failure(reason)
        if reading and done and IHalfCloseableDescriptor.providedBy(member):
            self.removeReader(member)
            IHalfCloseableDescriptor(member).readConnectionLost(failure)
        else:
            self.remove(member)
            member.connectionLost(failure)

    def _guard(self, call: Callable[..., object], *arguments: object) -> None:
        """Call what must not take the others with it."""
        try:
            call(*arguments)
        except BaseException:
            self._log.failure("a descriptor failed")


def _tells_when_due(reactor: Any) -> bool:
    """Return whether ``reactor`` can tell when it has something to do.

    Only Twisted's own reactors can; of others, such as asyncio's, it is taken that something is
    always due.
    """
    return isinstance(reactor, ReactorBase) and type(reactor).callLater is ReactorBase.callLater
