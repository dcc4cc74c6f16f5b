"""A set of descriptors: the order of events, and the isolation of failures."""

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
    ITERATION_TIME,
    MAX_EVENTS,
    MAX_PASSES,
    MAX_ROUNDS,
    POLL_TIMEOUT,
    DescriptorSet,
)


class Outer:
    """The reactor; records the descriptors that it watches."""

    def __init__(self) -> None:
        self.readers: list[Any] = []
        self.later: list[tuple[float, Callable[..., object], tuple[object, ...]]] = []

    def addReader(self, reader: Any) -> None:
        """Start watching."""
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        """Stop watching."""
        self.readers.remove(reader)

    def callLater(self, delay: float, call: Callable[..., object], *arguments: object) -> None:
        """Record a call for a later iteration."""
        self.later.append((delay, call, arguments))

    def seconds(self) -> float:
        """Return a time."""
        return 0.0


class StoppedReactor(SelectReactor):
    """A Twisted reactor that is not run, with a clock that stands still."""

    now = 100.0

    def seconds(self) -> float:
        """Return the time of the test."""
        return self.now


class Member:
    """One end of a socket pair; records its events, and runs the callback in ``on``."""

    def __init__(self) -> None:
        self.socket, self.peer = socket.socketpair()
        self.events: list[str] = []
        self.reason: Failure | None = None
        self.on: dict[str, Callable[[], object]] = {}

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.socket.fileno()

    def logPrefix(self) -> str:
        """Return its name."""
        return "member"

    def note(self, what: str) -> Any:
        """Record an event, and run its callback."""
        self.events.append(what)
        return self.on.get(what, lambda: None)()

    def doRead(self) -> Any:
        """Read the data."""
        self.socket.recv(100)
        return self.note("read")

    def doWrite(self) -> Any:
        """Send nothing."""
        return self.note("write")

    def connectionLost(self, reason: Failure) -> None:
        """Record the event."""
        self.reason = reason
        self.note("lost")


@implementer(IHalfCloseableDescriptor)
class HalfCloseMember(Member):
    """A member with half-close support."""

    def readConnectionLost(self, reason: Failure) -> None:
        """Record the event."""
        self.note("read lost")

    def writeConnectionLost(self, reason: Failure) -> None:
        """Do nothing: this is never called."""


class DescriptorSetTests(SynchronousTestCase):
    """Tests with real socket pairs; the test acts as the reactor."""

    def setUp(self) -> None:
        """Start without members."""
        self.outer = Outer()
        self.descriptors = DescriptorSet(self.outer)

    def member(self, kind: type[Member] = Member, ready: bool = True) -> Member:
        """Return a member that is watched for reading, with data to read or not."""
        member = kind()
        self.addCleanup(member.peer.close)
        self.addCleanup(member.socket.close)
        self.addCleanup(self.remove, member)
        self.descriptors.addReader(member)
        if ready:
            member.peer.send(b"x")
        return member

    def remove(self, member: Member) -> None:
        """Remove a member completely."""
        self.descriptors.removeReader(member)
        self.descriptors.removeWriter(member)

    def serve(self) -> None:
        """Simulate the event of the reactor that the set is ready."""
        self.descriptors.doRead()

    # Registration with the reactor

    def test_the_reactor_watches_while_there_are_members(self) -> None:
        """The reactor watches one descriptor for all members, and none without members."""
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
        """Each gets the reason, even if another one fails."""
        one, other = self.member(), self.member()
        one.on["lost"] = lambda: 1 / 0
        self.descriptors.connectionLost(Failure(CONNECTION_LOST))
        for member in (one, other):
            self.assertEqual(member.events, ["lost"])
            member.reason.trap(ConnectionLost)
        self.assertEqual(self.outer.readers, [])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_a_member_that_another_one_has_ended_is_notified_once(self) -> None:
        """The ends of a proxy close each other when the reactor stops."""
        one, other = self.member(), self.member()
        one.on["lost"] = lambda: self.remove(other)
        self.descriptors.connectionLost(Failure(CONNECTION_LOST))
        self.assertEqual((one.events, other.events), (["lost"], []))

    # Order of events

    def test_registered_events_are_served(self) -> None:
        """Reading and writing are served until they are removed; adding twice has no effect."""
        member = self.member()
        self.descriptors.addReader(member)
        self.descriptors.addWriter(member)
        self.assertEqual(self.descriptors.readers(), [member])
        self.assertEqual(self.descriptors.writers(), [member])
        self.serve()
        self.assertEqual(member.events, ["read", "write"])
        self.descriptors.removeReader(member)
        self.descriptors.removeReader(member)
        self.assertEqual(self.descriptors.readers(), [])
        member.peer.send(b"y")
        self.serve()
        self.assertEqual(member.events, ["read", "write", "write"])

    def test_what_is_watched_already_costs_nothing(self) -> None:
        """Most pauses are short, so only changes cause a system call."""
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
        """The reactor may call the set without a ready member."""
        self.serve()
        member = self.member(ready=False)
        self.serve()
        self.assertEqual(member.events, [])

    def test_busy_members_do_not_block_the_reactor(self) -> None:
        """Members that are always ready are served a limited number of times."""
        members = [self.member() for _ in range(2)]
        for member in members:
            member.on["read"] = lambda member=member: member.peer.send(b"x") and None
        self.serve()
        self.assertEqual([len(member.events) for member in members], [MAX_ROUNDS] * 2)

    def test_all_members_may_go_while_they_are_served(self) -> None:
        """All members may be removed within a round; then nothing is left to poll."""
        members = [self.member() for _ in range(2)]
        for member in members:
            member.on["read"] = lambda member=member: self.remove(member)
        self.serve()
        self.assertEqual([member.events for member in members], [["read"]] * 2)

    def test_a_number_that_was_closed_is_not_served_in_the_same_round(self) -> None:
        """The number may have been reused by a member that is not ready."""
        members = [self.member() for _ in range(2)]
        events: list[Member] = []

        def close_other(member: Member, other: Member) -> None:
            events.append(member)
            self.remove(other)
            self.descriptors.addWriter(other)
            other.on["write"] = lambda: self.remove(other)

        for member, other in (members, members[::-1]):
            member.on["read"] = lambda one=member, two=other: close_other(one, two)
        self.serve()
        self.assertEqual(len(events), 1)
        events[0].on.clear()
        self.serve()
        (other,) = (member for member in members if member is not events[0])
        self.assertEqual(other.events, ["write"])

    def test_what_was_removed_is_not_served_in_the_same_round(self) -> None:
        """A removed member is not served, even if it was ready when the round began."""
        members = [self.member() for _ in range(2)]
        for member, other in (members, members[::-1]):
            member.on["read"] = partial(self.remove, other)
        self.serve()
        self.assertEqual(sorted(member.events for member in members), [[], ["read"]])

    def test_what_is_desired_no_more_is_not_served_in_the_same_round(self) -> None:
        """An event is not served if another member, or its own member's read, has removed it."""
        members = [self.member() for _ in range(2)]

        def leave_the_other_its_writing(member: Member, other: Member) -> None:
            self.descriptors.removeWriter(member)
            self.descriptors.removeReader(other)

        for member, other in (members, members[::-1]):
            self.descriptors.addWriter(member)
            member.on["read"] = partial(leave_the_other_its_writing, member, other)
            member.on["write"] = partial(self.descriptors.removeWriter, member)
        self.serve()
        self.assertEqual(sorted(member.events for member in members), [["read"], ["write"]])

    def test_what_breaks_while_it_pauses_for_a_moment_is_read_first(self) -> None:
        """A member whose peer has sent data and ended is read before the end is reported."""
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
            sorted(member.events for member in members),
            [["read", "lost"], ["write", "read", "lost"]],
        )

    def test_imminent_events_are_awaited(self) -> None:
        """If no timer of the reactor is due, the set waits for the response."""
        self.begin(self.real_reactor())
        asking, answering = self.member(), self.member(ready=False)
        answers = [lambda: answering.peer.send(b"x"), lambda: None]
        asking.on["read"] = lambda: answers.pop(0)() and None
        self.serve()
        self.assertEqual((asking.events, answering.events), (["read"], ["read"]))

    def test_nothing_is_waited_for_where_events_are_rare(self) -> None:
        """If events are rare the set does not wait, because waiting would usually be in vain."""
        reactor = self.real_reactor()
        self.begin(reactor)
        asking, answering = self.member(), self.member(ready=False)
        asking.on["read"] = lambda: answering.peer.send(b"x") and None
        reactor.now += POLL_TIMEOUT
        self.serve()
        self.assertEqual((asking.events, answering.events), (["read"], []))

    def test_an_iteration_ends_in_time(self) -> None:
        """An iteration is limited in time."""
        reactor = self.real_reactor()
        self.begin(reactor)
        members = [self.member() for _ in range(2)]

        def read(member: Member, pause: float) -> None:
            member.peer.send(b"x")
            reactor.now += pause

        for pause, rounds in ((ITERATION_TIME / 31, 16), (ITERATION_TIME, 1)):
            for member in members:
                member.events.clear()
                member.on["read"] = lambda member=member, pause=pause: read(member, pause)
            self.serve()
            self.assertEqual([len(member.events) for member in members], [rounds] * 2)

    def test_many_slow_events_do_not_block_the_reactor(self) -> None:
        """If thousands are lost at once, each is served once, a round in each iteration."""
        reactor = self.real_reactor()
        self.begin(reactor)
        members = [self.member() for _ in range(2 * MAX_EVENTS)]

        def read() -> None:
            reactor.now += ITERATION_TIME

        for member in members:
            member.on["read"] = read
        for served in (MAX_EVENTS, 2 * MAX_EVENTS):
            self.serve()
            self.assertEqual(sum(len(member.events) for member in members), served)
        self.assertTrue(all(member.events == ["read"] for member in members))

    def test_nothing_is_waited_for_when_a_timer_is_due(self) -> None:
        """If a timer of the reactor is due, the set returns to the reactor."""
        self.assert_not_waited_for(lambda reactor: reactor.callLater(0, lambda: None))

    def test_nothing_is_waited_for_when_a_member_has_set_a_timer(self) -> None:
        """The timer is due at once, although none was when the reactor was last checked."""
        self.begin(self.real_reactor())
        asking, answering = self.member(), self.member(ready=False)

        def read() -> None:
            asking.peer.send(b"x")
            self.descriptors.callLater(0, self.fail)

        asking.on["read"] = lambda: answering.peer.send(b"x") and None
        answering.on["read"] = read
        self.serve()
        self.assertEqual((asking.events, answering.events), (["read"], ["read"]))

    def test_nothing_is_waited_for_when_a_thread_has_called(self) -> None:
        """A thread's call does not wait for the sockets."""
        self.assert_not_waited_for(lambda reactor: reactor.callFromThread(lambda: None))

    def test_no_wait_in_the_iteration_of_another_reactor(self) -> None:
        """A reactor with its own timers, such as asyncio's, does not report when one is due."""

        class OtherReactor(StoppedReactor):
            def callLater(self, *details: Any) -> Any:
                """Store it elsewhere."""

        self.assert_not_waited_for(lambda reactor: None, OtherReactor())

    def assert_not_waited_for(
        self,
        occupy: Callable[[SelectReactor], object],
        reactor: StoppedReactor | None = None,
    ) -> None:
        """Check that the response is served later, if the reactor is busy."""
        reactor = self.real_reactor(reactor)
        self.begin(reactor)
        asking, answering = self.member(), self.member(ready=False)
        asking.on["read"] = lambda: answering.peer.send(b"x") and None
        occupy(reactor)
        self.serve()
        self.assertEqual((asking.events, answering.events), (["read"], []))

    def real_reactor(self, reactor: StoppedReactor | None = None) -> StoppedReactor:
        """Return a Twisted reactor that is not run."""
        reactor = reactor or StoppedReactor()
        self.addCleanup(reactor.disconnectAll)
        return reactor

    def begin(self, reactor: SelectReactor) -> None:
        """Create a set for ``reactor`` that has just served an event."""
        self.descriptors = DescriptorSet(reactor)
        first = self.member()
        first.on["read"] = lambda: self.remove(first)
        self.serve()
        self.assertEqual(first.events, ["read"])

    # The end of a round

    def test_calls_wait_for_the_end_of_the_round(self) -> None:
        """Calls for the end of a round run after all ready members have been served, once each."""
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
        """With a single event, or outside of a round, no call waits."""
        member = self.member()
        waits: list[bool] = []
        member.on["read"] = lambda: waits.append(self.descriptors.at_end_of_round(self.fail))
        self.serve()
        self.assertEqual(waits, [False])
        self.assertFalse(self.descriptors.at_end_of_round(self.fail))

    def test_nothing_waits_after_a_round(self) -> None:
        """A call from a timer or another descriptor has no round whose end it could wait for."""
        for _ in range(2):
            self.member()
        self.serve()
        self.assertFalse(self.descriptors.at_end_of_round(self.fail))

    def test_a_call_that_fails_is_logged(self) -> None:
        """A call that raises is logged, and the next one still runs."""
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

    # Calls for soon

    def test_soon_is_when_all_that_is_ready_has_been_served(self) -> None:
        """Calls for soon run before those for the end of the round, which send what they wrote."""
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
        """Calls for soon never run within the event of a member that is served alone."""
        member = self.member()
        order: list[str] = []

        def read() -> None:
            self.descriptors.call_soon(order.append, "soon")
            order.append("read")

        member.on["read"] = read
        self.serve()
        self.assertEqual(order, ["read", "soon"])

    def test_no_wait_while_nothing_is_served(self) -> None:
        """The caller was a timer, or another descriptor of the reactor."""
        self.descriptors.call_soon(self.fail, "too soon")
        self.assertEqual(self.outer.later, [(0, self.fail, ("too soon",))])
        self.member()
        self.serve()
        self.descriptors.call_soon(self.fail)
        self.assertEqual(len(self.outer.later), 2)

    def test_endless_events_do_not_block_the_reactor(self) -> None:
        """An example is a pull producer on a transport that accepts everything at once."""
        member = self.member()
        calls: list[int] = []

        def again() -> None:
            calls.append(1)
            self.descriptors.call_soon(again)

        member.on["read"] = again
        self.serve()
        self.assertEqual(len(calls), 1 + MAX_PASSES)
        self.assertEqual(self.outer.later, [(0, again, ())])

    def test_what_fails_soon_is_logged(self) -> None:
        """A call for soon that raises is logged, and the next one still runs."""
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

    def test_a_member_that_ends_itself_gets_its_reason(self) -> None:
        """A member that reports its end gets the reason, and is removed."""
        member = self.member()
        self.descriptors.addWriter(member)
        member.on["read"] = lambda: CONNECTION_DONE
        self.serve()
        self.assertEqual(member.events, ["read", "lost"])
        member.reason.trap(ConnectionDone)
        self.assertEqual(self.outer.readers, [])

    def test_the_end_of_reading_with_half_close(self) -> None:
        """A member with half-close support continues to write after the end of reading."""
        member = self.member(HalfCloseMember)
        self.descriptors.addWriter(member)
        member.on["read"] = lambda: CONNECTION_DONE
        self.serve()
        self.assertEqual(member.events, ["read", "read lost"])
        self.assertEqual(self.descriptors.writers(), [member])

    def test_a_failing_write_with_half_close_is_a_loss(self) -> None:
        """Only an end that was found by reading is a half-close."""
        member = self.member(HalfCloseMember, ready=False)
        self.descriptors.addWriter(member)
        member.on["write"] = lambda: CONNECTION_LOST
        self.serve()
        self.assertEqual(member.events, ["write", "lost"])

    def test_a_socket_that_breaks_while_nobody_reads_it_is_lost(self) -> None:
        """The kernel reports a hang-up even if it was not requested."""
        member = self.member(ready=False)
        self.descriptors.addWriter(member)
        self.descriptors.removeReader(member)
        member.peer.close()
        self.serve()
        self.assertEqual(member.events, ["lost"])
        member.reason.trap(ConnectionLost)

    def test_a_failing_member_is_logged_and_ended(self) -> None:
        """A member that raises is logged and disconnected; the others are still served."""
        one, other = self.member(), self.member()
        one.on["read"] = other.on["read"] = lambda: 1 / 0
        self.serve()
        for member in (one, other):
            self.assertEqual(member.events, ["read", "lost"])
            member.reason.trap(ZeroDivisionError)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)
