"""Many descriptors as one of the reactor's: what is ready is served without its ceremony.

For each event the reactor finds out a name for the log, makes a context for it and calls through
five functions, and for each turn it looks through its timers. Here an event is one call, several
rounds are served in one turn, and what is to be done once for a whole round waits for its end.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IHalfCloseableDescriptor,
    IReadDescriptor,
    IReadWriteDescriptor,
)
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

MOST_EVENTS = 256
"""Events that are asked for at once."""

MOST_ROUNDS = 8
"""Rounds that are served before it is the rest of the reactor's turn."""

PATIENCE = 0.001
"""Seconds that the next round is waited for, if no timer of the reactor is due by then and no
thread has called: the answer to what was just sent mostly comes sooner. Beside the work itself
that puts off what comes by other descriptors of the reactor, such as a thread's next call or a
signal, by no more than ``MOST_ROUNDS`` times this. It is also the least that epoll_wait(2) can
wait."""

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
        self._due_in = _due_in(reactor)
        self._epoll: select.epoll | None = None
        self._members: dict[int, IReadWriteDescriptor] = {}
        self._wanted: dict[int, int] = {}
        self._serving = False
        # Numbers that have been closed, and may be used anew, since this round was asked for.
        self._stale: set[int] = set()
        self._at_end: list[Callable[[], object]] = []
        # Found once: it is called for each close.
        self.callLater = reactor.callLater

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

    def readers(self) -> list[IReadWriteDescriptor]:
        """Give what is read."""
        return [one for number, one in self._members.items() if self._wanted[number] & _IN]

    def writers(self) -> list[IReadWriteDescriptor]:
        """Give what waits to be written."""
        return [one for number, one in self._members.items() if self._wanted[number] & _OUT]

    def at_end_of_round(self, call: Callable[[], object]) -> bool:
        """Have ``call`` called once all that is ready now has been served.

        Gives ``False``, and does nothing, when nothing else waits to be served.
        """
        if self._serving:
            self._at_end.append(call)
        return self._serving

    # -- IReadDescriptor -----------------------------------------------------------------------

    def fileno(self) -> int:
        """Give the descriptor that the reactor watches."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def logPrefix(self) -> str:
        """Name it in the log."""
        return "sockets"

    def doRead(self) -> None:
        """Serve what is ready, and what gets ready soon after."""
        patience = 0.0
        for _ in range(MOST_ROUNDS):
            if self._epoll is None:
                return
            events = self._epoll.poll(patience, MOST_EVENTS)
            if len(events) > 1:
                self._serve_round(events)
            elif events:
                self._serve(*events[0])
            else:
                return
            due_in = self._due_in()
            patience = PATIENCE if due_in is None or due_in > PATIENCE else 0.0
            if not patience and len(events) == 1:
                return

    def connectionLost(self, reason: Failure) -> None:
        """End all of them: the reactor stops."""
        for number, member in list(self._members.items()):
            if self._members.get(number) is member:
                self._forget(number)
                self._guard(member.connectionLost, reason)

    # -- helpers -------------------------------------------------------------------------------

    def _want(self, member: IReadWriteDescriptor, event: int) -> None:
        number = member.fileno()
        wanted = self._wanted.get(number, 0)
        if wanted & event:
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._reactor.addReader(self)
        if wanted:
            self._epoll.modify(number, wanted | event)
        else:
            self._epoll.register(number, event)
            self._members[number] = member
        self._wanted[number] = wanted | event

    def _want_no_more(self, member: IReadWriteDescriptor, event: int) -> None:
        number = member.fileno()
        wanted = self._wanted.get(number, 0)
        if not wanted & event:
            return
        if wanted == event:
            self._forget(number)
        else:
            self._wanted[number] = wanted & ~event
            assert self._epoll is not None  # it has members
            self._epoll.modify(number, wanted & ~event)

    def _forget(self, number: int) -> None:
        del self._members[number], self._wanted[number]
        if self._serving:
            self._stale.add(number)
        assert self._epoll is not None  # it has had a member
        self._epoll.unregister(number)
        if not self._members:
            self._reactor.removeReader(self)
            self._epoll.close()
            self._epoll = None

    def _serve_round(self, events: list[tuple[int, int]]) -> None:
        self._serving = True
        for number, event in events:
            if number not in self._stale:
                self._serve(number, event)
        self._serving = False
        self._stale.clear()
        calls, self._at_end = self._at_end, []
        for call in calls:
            self._guard(call)

    def _serve(self, number: int, event: int) -> None:
        member = self._members[number]
        reading = bool(event & _IN)
        reason: Any = None
        try:
            if reading:
                reason = member.doRead()
            elif event & _BROKEN:
                reading = bool(self._wanted[number] & _IN)
                reason = CONNECTION_DONE if reading else CONNECTION_LOST
            if event & _OUT and reason is None:
                reading = False
                reason = member.doWrite()
        except BaseException as error:
            # As in the reactor, whose other descriptors live on, too.
            self._log.failure("{prefix} failed", prefix=member.logPrefix())
            reason = error
        if reason is not None:
            self._guard(self._disconnect, member, reason, reading)

    def _disconnect(self, member: IReadWriteDescriptor, reason: Exception, reading: bool) -> None:
        """Tell ``member`` that it has ended, as the reactor would."""
        self.removeReader(member)
        if (
            reading
            and isinstance(reason, ConnectionDone)
            and IHalfCloseableDescriptor.providedBy(member)
        ):
            IHalfCloseableDescriptor(member).readConnectionLost(Failure(reason))
        else:
            self.removeWriter(member)
            member.connectionLost(Failure(reason))

    def _guard(self, call: Callable[..., object], *arguments: object) -> None:
        """Call what must not take the others with it."""
        try:
            call(*arguments)
        except BaseException:
            self._log.failure("a descriptor failed")


def _due_in(reactor: Any) -> Callable[[], float | None]:
    """Give what tells in how many seconds ``reactor`` has something to do, ``None`` for never.

    That is a timer, or, at once, the call of a thread.

    Only Twisted's own reactors can tell; of others, such as asyncio's, it is taken that something
    is always due.
    """
    if isinstance(reactor, ReactorBase) and type(reactor).callLater is ReactorBase.callLater:
        return lambda: 0.0 if reactor.threadCallQueue else reactor.timeout()
    return lambda: 0.0
