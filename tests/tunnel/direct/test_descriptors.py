"""Many descriptors as one: who is served when, and what a failure costs the others."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock
from unittest.mock import Mock, call

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableDescriptor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.selectreactor import SelectReactor
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from yurttunnel.tunnel.direct.descriptors import (
    LEAST_ROUNDS,
    MOST_PASSES,
    MOST_ROUNDS,
    PATIENCE,
    TURN,
    DescriptorSet,
)


class Outer:
    """The reactor: it notes what it is to watch."""

    def __init__(self) -> None:
        self.readers: list[Any] = []
        self.later: list[tuple[float, Callable[..., object], tuple[object, ...]]] = []

    def addReader(self, reader: Any) -> None:
        """Watch."""
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        """Watch no more."""
        self.readers.remove(reader)

    def callLater(self, delay: float, call: Callable[..., object], *arguments: object) -> None:
        """Note what is for another turn."""
        self.later.append((delay, call, arguments))

    def seconds(self) -> float:
        """Return a time."""
        return 0.0


class StoppedReactor(SelectReactor):
    """A reactor of Twisted's that nobody runs, and whose clock stands still."""

    now = 100.0

    def seconds(self) -> float:
        """Return the time of the test."""
        return self.now


class Member:
    """One end of a pair of sockets; it notes what it is told, and does what ``on[...]`` says."""

    def __init__(self) -> None:
        self.socket, self.peer = socket.socketpair()
        self.told: list[str] = []
        self.reason: Failure | None = None
        self.on: dict[str, Callable[[], object]] = {}

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.socket.fileno()

    def logPrefix(self) -> str:
        """Name it."""
        return "member"

    def note(self, what: str) -> Any:
        """Note, and do."""
        self.told.append(what)
        return self.on.get(what, lambda: None)()

    def doRead(self) -> Any:
        """Take what has come."""
        self.socket.recv(100)
        return self.note("read")

    def doWrite(self) -> Any:
        """Send nothing."""
        return self.note("write")

    def connectionLost(self, reason: Failure) -> None:
        """Note why."""
        self.reason = reason
        self.note("lost")


@implementer(IHalfCloseableDescriptor)
class HalfCloseMember(Member):
    """A member that knows half-close."""

    def readConnectionLost(self, reason: Failure) -> None:
        """Note it."""
        self.note("read lost")

    def writeConnectionLost(self, reason: Failure) -> None:
        """Nobody tells this."""


class DescriptorSetTests(SynchronousTestCase):
    """Over real pairs of sockets; the test is the reactor, and calls when it likes."""

    def setUp(self) -> None:
        """Nothing is watched yet."""
        self.outer = Outer()
        self.descriptors = DescriptorSet(self.outer)

    def member(self, kind: type[Member] = Member, ready: bool = True) -> Member:
        """Return a member that is watched for reading, with something to read or not."""
        member = kind()
        self.addCleanup(member.peer.close)
        self.addCleanup(member.socket.close)
        self.addCleanup(self.remove, member)
        self.descriptors.addReader(member)
        if ready:
            member.peer.send(b"x")
        return member

    def remove(self, member: Member) -> None:
        """Leave nothing behind."""
        self.descriptors.removeReader(member)
        self.descriptors.removeWriter(member)

    def serve(self) -> None:
        """Be told by the reactor that something is ready, if that is so."""
        self.descriptors.doRead()

    # The reactor

    def test_the_reactor_watches_while_there_are_members(self) -> None:
        """One descriptor for all of them, and none when there are none."""
        self.assertEqual(self.descriptors.fileno(), -1)
        one, other = self.member(), self.member()
        self.assertEqual(self.outer.readers, [self.descriptors])
        ready = select.select([self.descriptors], [], [], 0)[0]
        self.assertEqual(ready, [self.descriptors])
        self.remove(one)
        self.assertEqual(self.outer.readers, [self.descriptors])
        self.remove(other)
        self.assertEqual((self.outer.readers, self.descriptors.fileno()), ([], -1))
        self.assertEqual(self.descriptors.logPrefix(), "sockets")

    def test_a_reactor_that_cannot_watch(self) -> None:
        """The first member fails, and so does the next one, until the set is watched."""
        member = self.member()
        self.remove(member)
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(self.outer, "addReader", side_effect=full):
            for _ in range(2):
                self.assertRaises(OSError, self.descriptors.addReader, member)
        self.assertEqual(self.outer.readers, [])
        self.descriptors.addReader(member)
        self.assertEqual(self.outer.readers, [self.descriptors])

    def test_a_stopping_reactor_ends_all_members(self) -> None:
        """Each is told the reason that the set was told, even when another one fails."""
        one, other = self.member(), self.member()
        one.on["lost"] = lambda: 1 / 0
        self.descriptors.connectionLost(Failure(CONNECTION_LOST))
        for member in (one, other):
            self.assertEqual(member.told, ["lost"])
            member.reason.trap(ConnectionLost)
        self.assertEqual(self.outer.readers, [])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_a_member_that_another_one_has_ended_is_told_once(self) -> None:
        """A proxy's ends close one another when the reactor stops."""
        one, other = self.member(), self.member()
        one.on["lost"] = lambda: self.remove(other)
        self.descriptors.connectionLost(Failure(CONNECTION_LOST))
        self.assertEqual((one.told, other.told), (["lost"], []))

    # Who is served

    def test_what_is_wanted_is_served(self) -> None:
        """Reading and writing, each until it is wanted no more; asking twice is once."""
        member = self.member()
        self.descriptors.addReader(member)
        self.descriptors.addWriter(member)
        self.assertEqual(self.descriptors.readers(), [member])
        self.assertEqual(self.descriptors.writers(), [member])
        self.serve()
        self.assertEqual(member.told, ["read", "write"])
        self.descriptors.removeReader(member)
        self.descriptors.removeReader(member)
        self.assertEqual(self.descriptors.readers(), [])
        member.peer.send(b"y")
        self.serve()
        self.assertEqual(member.told, ["read", "write", "write"])

    def test_what_is_watched_already_costs_nothing(self) -> None:
        """Most pauses are over before anything comes: the kernel hears of what changes alone."""
        kernel = Mock()
        self.patch(select, "epoll", lambda: kernel)
        member = self.member(ready=False)
        for _ in range(2):
            self.descriptors.addReader(member)
            self.descriptors.addWriter(member)
        number, both = member.fileno(), select.EPOLLIN | select.EPOLLOUT
        changes = [call.register(number, select.EPOLLIN), call.modify(number, both)]
        self.assertEqual(kernel.method_calls, changes)

    def test_nothing_is_served_when_nothing_is_ready(self) -> None:
        """The reactor may call in vain."""
        self.serve()
        member = self.member(ready=False)
        self.serve()
        self.assertEqual(member.told, [])

    def test_busy_members_leave_the_reactor_its_turn(self) -> None:
        """Those that are always ready are served a bounded number of times."""
        members = [self.member() for _ in range(2)]
        for member in members:
            member.on["read"] = lambda member=member: member.peer.send(b"x") and None
        self.serve()
        self.assertEqual([len(member.told) for member in members], [MOST_ROUNDS] * 2)

    def test_all_members_may_go_while_they_are_served(self) -> None:
        """There is nothing to ask any more then."""
        members = [self.member() for _ in range(2)]
        for member in members:
            member.on["read"] = lambda member=member: self.remove(member)
        self.serve()
        self.assertEqual([member.told for member in members], [["read"]] * 2)

    def test_a_number_that_was_closed_is_not_served_in_the_same_round(self) -> None:
        """It may be another one's by now, for which nothing was ready."""
        members = [self.member() for _ in range(2)]
        told: list[Member] = []

        def close_other(member: Member, other: Member) -> None:
            told.append(member)
            self.remove(other)
            self.descriptors.addWriter(other)
            other.on["write"] = lambda: self.remove(other)

        for member, other in (members, members[::-1]):
            member.on["read"] = lambda one=member, two=other: close_other(one, two)
        self.serve()
        self.assertEqual(len(told), 1)
        told[0].on.clear()
        self.serve()
        (other,) = (member for member in members if member is not told[0])
        self.assertEqual(other.told, ["write"])

    def test_what_was_removed_is_not_served_in_the_same_round(self) -> None:
        """Though it was ready when the round began."""
        members = [self.member() for _ in range(2)]
        for member, other in (members, members[::-1]):
            member.on["read"] = partial(self.remove, other)
        self.serve()
        self.assertEqual(sorted(member.told for member in members), [[], ["read"]])

    def test_what_is_desired_no_more_is_not_served_in_the_same_round(self) -> None:
        """Whether another member has asked for that, or this one when it was read."""
        members = [self.member() for _ in range(2)]

        def leave_the_other_its_writing(member: Member, other: Member) -> None:
            self.descriptors.removeWriter(member)
            self.descriptors.removeReader(other)

        for member, other in (members, members[::-1]):
            self.descriptors.addWriter(member)
            member.on["read"] = partial(leave_the_other_its_writing, member, other)
            member.on["write"] = partial(self.descriptors.removeWriter, member)
        self.serve()
        self.assertEqual(sorted(member.told for member in members), [["read"], ["write"]])

    def test_what_breaks_while_it_pauses_for_a_moment_is_read_first(self) -> None:
        """Its peer has sent something and ended; in the same round it is desired again."""
        members = [self.member() for _ in range(2)]

        def pause(member: Member, other: Member) -> Exception:
            self.descriptors.removeReader(other)
            return CONNECTION_DONE

        for member, other in (members, members[::-1]):
            self.descriptors.addWriter(member)
            member.peer.close()
            member.on["read"] = partial(pause, member, other)
            member.on["write"] = partial(self.descriptors.addReader, member)
        self.serve()
        self.assertEqual(
            sorted(member.told for member in members),
            [["read", "lost"], ["write", "read", "lost"]],
        )

    def test_what_comes_soon_is_waited_for(self) -> None:
        """A reactor with nothing to do by its clock is not gone back to before the answer."""
        self.begin(self.real_reactor())
        asking, answering = self.member(), self.member(ready=False)
        answers = [lambda: answering.peer.send(b"x"), lambda: None]
        asking.on["read"] = lambda: answers.pop(0)() and None
        self.serve()
        self.assertEqual((asking.told, answering.told), (["read"], ["read"]))

    def test_nothing_is_waited_for_where_events_are_rare(self) -> None:
        """Then the wait would mostly be in vain."""
        reactor = self.real_reactor()
        self.begin(reactor)
        asking, answering = self.member(), self.member(ready=False)
        asking.on["read"] = lambda: answering.peer.send(b"x") and None
        reactor.now += PATIENCE
        self.serve()
        self.assertEqual((asking.told, answering.told), (["read"], []))

    def test_a_turn_ends_in_time(self) -> None:
        """The rest of the reactor waits; but it has a few rounds, however long they take."""
        reactor = self.real_reactor()
        self.begin(reactor)
        members = [self.member() for _ in range(2)]

        def read(member: Member, pause: float) -> None:
            member.peer.send(b"x")
            reactor.now += pause

        for pause, rounds in ((TURN / 31, 16), (TURN, LEAST_ROUNDS)):
            for member in members:
                member.told.clear()
                member.on["read"] = lambda member=member, pause=pause: read(member, pause)
            self.serve()
            self.assertEqual([len(member.told) for member in members], [rounds] * 2)

    def test_nothing_is_waited_for_when_a_timer_is_due(self) -> None:
        """It is the reactor's turn then."""
        self.assert_not_waited_for(lambda reactor: reactor.callLater(0, lambda: None))

    def test_nothing_is_waited_for_when_a_member_has_set_a_timer(self) -> None:
        """One that is due at once, although none was when the reactor was asked before."""
        self.begin(self.real_reactor())
        asking, answering = self.member(), self.member(ready=False)

        def read() -> None:
            asking.peer.send(b"x")
            self.descriptors.callLater(0, self.fail)

        asking.on["read"] = lambda: answering.peer.send(b"x") and None
        answering.on["read"] = read
        self.serve()
        self.assertEqual((asking.told, answering.told), (["read"], ["read"]))

    def test_nothing_is_waited_for_when_a_thread_has_called(self) -> None:
        """Nor does a thread wait for the sockets."""
        self.assert_not_waited_for(lambda reactor: reactor.callFromThread(lambda: None))

    def test_nothing_is_waited_for_in_the_turn_of_another_reactor(self) -> None:
        """One that keeps its timers elsewhere, as asyncio's does, cannot tell what is due."""

        class OtherReactor(StoppedReactor):
            def callLater(self, *details: Any) -> Any:
                """Keep it elsewhere."""

        self.assert_not_waited_for(lambda reactor: None, OtherReactor())

    def assert_not_waited_for(
        self,
        occupy: Callable[[SelectReactor], object],
        reactor: StoppedReactor | None = None,
    ) -> None:
        """Check that the answer to what is served is left for later, when the reactor is busy."""
        reactor = self.real_reactor(reactor)
        self.begin(reactor)
        asking, answering = self.member(), self.member(ready=False)
        asking.on["read"] = lambda: answering.peer.send(b"x") and None
        occupy(reactor)
        self.serve()
        self.assertEqual((asking.told, answering.told), (["read"], []))

    def real_reactor(self, reactor: StoppedReactor | None = None) -> StoppedReactor:
        """Return a reactor of Twisted's that nobody runs."""
        reactor = reactor or StoppedReactor()
        self.addCleanup(reactor.disconnectAll)
        return reactor

    def begin(self, reactor: SelectReactor) -> None:
        """Begin with a set of ``reactor`` that has just served an event."""
        self.descriptors = DescriptorSet(reactor)
        first = self.member()
        first.on["read"] = lambda: self.remove(first)
        self.serve()
        self.assertEqual(first.told, ["read"])

    # The end of a round

    def test_calls_wait_for_the_end_of_the_round(self) -> None:
        """Until everything that was ready has been served; each is called once."""
        members = [self.member() for _ in range(3)]
        order: list[str] = []

        def at_end() -> None:
            order.append("end")

        def read() -> None:
            order.append("read")
            self.assertTrue(self.descriptors.at_end_of_round(at_end))

        for member in members:
            member.on["read"] = read
        self.serve()
        self.assertEqual(order, ["read"] * 3 + ["end"] * 3)

    def test_nothing_waits_when_one_member_is_ready(self) -> None:
        """There is nothing to wait for, nor is there outside of a round."""
        member = self.member()
        waits: list[bool] = []
        member.on["read"] = lambda: waits.append(self.descriptors.at_end_of_round(self.fail))
        self.serve()
        self.assertEqual(waits, [False])
        self.assertFalse(self.descriptors.at_end_of_round(self.fail))

    def test_nothing_waits_after_a_round(self) -> None:
        """What comes then, from a timer or another descriptor, has no round that would end."""
        for _ in range(2):
            self.member()
        self.serve()
        self.assertFalse(self.descriptors.at_end_of_round(self.fail))

    def test_a_call_that_fails_is_logged(self) -> None:
        """The next one is called nevertheless."""
        members = [self.member() for _ in range(2)]
        called: list[Member] = []

        def at_end(member: Member) -> None:
            called.append(member)
            raise ZeroDivisionError

        for member in members:
            member.on["read"] = lambda member=member: (
                self.descriptors.at_end_of_round(lambda: at_end(member)) and None
            )
        self.serve()
        self.assertEqual(len(called), 2)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    # What is to be done soon

    def test_soon_is_when_all_that_is_ready_has_been_served(self) -> None:
        """And before what is called once for a round, which sends what that has written."""
        members = [self.member() for _ in range(2)]
        order: list[str] = []

        def read() -> None:
            order.append("read")
            self.descriptors.at_end_of_round(lambda: order.append("end"))
            self.descriptors.call_soon(order.append, "soon")

        for member in members:
            member.on["read"] = read
        self.serve()
        self.assertEqual(order, ["read", "read", "soon", "soon", "end", "end"])

    def test_soon_is_after_a_member_that_is_served_alone(self) -> None:
        """Never within it."""
        member = self.member()
        order: list[str] = []

        def read() -> None:
            self.descriptors.call_soon(order.append, "soon")
            order.append("read")

        member.on["read"] = read
        self.serve()
        self.assertEqual(order, ["read", "soon"])

    def test_soon_is_the_next_turn_while_nothing_is_served(self) -> None:
        """A timer, or what the reactor watches besides, has asked."""
        self.descriptors.call_soon(self.fail, "too soon")
        self.assertEqual(self.outer.later, [(0, self.fail, ("too soon",))])
        self.member()
        self.serve()
        self.descriptors.call_soon(self.fail)
        self.assertEqual(len(self.outer.later), 2)

    def test_what_leads_to_more_of_it_without_end_leaves_the_reactor_its_turn(self) -> None:
        """As a producer does that is pulled by a transport which takes all at once."""
        member = self.member()
        calls: list[int] = []

        def again() -> None:
            calls.append(1)
            self.descriptors.call_soon(again)

        member.on["read"] = again
        self.serve()
        self.assertEqual(len(calls), 1 + MOST_PASSES)
        self.assertEqual(self.outer.later, [(0, again, ())])

    def test_what_fails_soon_is_logged(self) -> None:
        """The next one is called nevertheless."""
        member = self.member()
        called: list[int] = []

        def fail() -> None:
            called.append(1)
            raise ZeroDivisionError

        def read() -> None:
            for _ in range(2):
                self.descriptors.call_soon(fail)

        member.on["read"] = read
        self.serve()
        self.assertEqual(len(called), 2)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    # Ends and failures

    def test_a_member_that_says_that_it_has_ended_is_told_why(self) -> None:
        """It is watched no more."""
        member = self.member()
        self.descriptors.addWriter(member)
        member.on["read"] = lambda: CONNECTION_DONE
        self.serve()
        self.assertEqual(member.told, ["read", "lost"])
        member.reason.trap(ConnectionDone)
        self.assertEqual(self.outer.readers, [])

    def test_the_end_of_reading_is_told_to_who_knows_half_close(self) -> None:
        """It goes on writing."""
        member = self.member(HalfCloseMember)
        self.descriptors.addWriter(member)
        member.on["read"] = lambda: CONNECTION_DONE
        self.serve()
        self.assertEqual(member.told, ["read", "read lost"])
        self.assertEqual(self.descriptors.writers(), [member])

    def test_a_failing_write_is_a_loss_for_who_knows_half_close(self) -> None:
        """Only an end that reading has found is half of one."""
        member = self.member(HalfCloseMember, ready=False)
        self.descriptors.addWriter(member)
        member.on["write"] = lambda: CONNECTION_LOST
        self.serve()
        self.assertEqual(member.told, ["write", "lost"])

    def test_a_socket_that_breaks_while_nobody_reads_it_is_lost(self) -> None:
        """The kernel tells of a hang-up whether one asks or not."""
        member = self.member(ready=False)
        self.descriptors.addWriter(member)
        self.descriptors.removeReader(member)
        member.peer.close()
        self.serve()
        self.assertEqual(member.told, ["lost"])
        member.reason.trap(ConnectionLost)

    def test_a_failing_member_is_logged_and_ended(self) -> None:
        """The others are served."""
        one, other = self.member(), self.member()
        one.on["read"] = other.on["read"] = lambda: 1 / 0
        self.serve()
        for member in (one, other):
            self.assertEqual(member.told, ["read", "lost"])
            member.reason.trap(ZeroDivisionError)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
