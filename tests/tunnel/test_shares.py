"""The shares of streams."""

from __future__ import annotations

from base64 import urlsafe_b64encode

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.tunnel.memory import MIB, Acceptor, SessionPair, User
from yurttunnel.http.pool import PoolSettings
from yurttunnel.server.siblings.hello import SIBLING_LIMITS
from yurttunnel.tunnel.cancelled_dials import CANCELLED_DIAL_HOLD
from yurttunnel.tunnel.interfaces import IStream, StreamFailed
from yurttunnel.tunnel.session import SessionContext
from yurttunnel.tunnel.shares import (
    FOR_KUBELETS,
    OTHER,
    Holder,
    Kind,
    Share,
    Shares,
    ShareUsedUp,
    _digest,
    caller_at,
    for_kubelets,
)
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.bdp_estimate import ACK_DELAY
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import RESERVE, MemoryBudget
from yurttunnel.wire.flood import CANCELS_PER_SECOND
from yurttunnel.wire.hello import Limits

MAX_STREAMS = Limits().max_streams


def holder(entry: str, caller: str = "192.0.2.1", kind: Kind = Kind.FORWARD) -> Holder:
    """Return the holder for a caller of a forward."""
    return Holder.of(kind, entry, caller)


class SharesTestCase(SynchronousTestCase):
    """The streams of one session, with the default maximum."""

    def setUp(self) -> None:
        """Start without streams."""
        self.shares = Shares(
            "to edge-1", MAX_STREAMS, lambda: MAX_STREAMS - self.shares.held.total()
        )

    def take(self, desired: Holder, most: int = 10 * MAX_STREAMS) -> int:
        """Take as many streams as possible for a holder; return how many."""
        for number in range(most):
            try:
                self.shares.check(desired)
            except ShareUsedUp:
                return number
            self.shares.acquire(desired)
        return most

    def refused(self, desired: Holder) -> ShareUsedUp:
        """Check that the holder may take none; return the exception."""
        return self.assertRaises(ShareUsedUp, self.shares.check, desired)


class SharesTests(SharesTestCase):
    """The streams that greedy callers leave to others."""

    def test_one_caller_alone(self) -> None:
        """A single caller gets more than half, but other callers, entries and kubelets get some."""
        self.assertEqual(572, self.take(holder("a")))
        self.assertEqual(Share.CALLER, self.refused(holder("a")).share)
        self.assertGreater(self.take(holder("a", "192.0.2.2")), 10)
        self.assertGreater(self.take(holder("b")), 100)
        self.assertGreaterEqual(self.take(FOR_KUBELETS), MAX_STREAMS // RESERVE)

    def test_one_entry_alone(self) -> None:
        """Many callers of one entry get two thirds without the reserve, and no more."""
        taken = sum(self.take(holder("a", f"192.0.2.{number}")) for number in range(200))
        self.assertLessEqual(taken, 584)
        self.assertGreater(taken, 570)
        self.assertEqual(Share.ENTRY, self.refused(holder("a", "198.51.100.1", Kind.FORWARD)).share)
        self.assertGreater(self.take(holder("b", kind=Kind.CONNECT)), 100)

    def test_reserve_is_for_kubelets(self) -> None:
        """The reserve is for kubelets through any entry, even if a caller has used up its share."""
        for kind in (Kind.CONNECT, Kind.PASSTHROUGH):
            self.setUp()
            greedy = holder("a", kind=kind)
            self.take(greedy)
            self.assertGreaterEqual(self.take(greedy.for_port(10250)), MAX_STREAMS // RESERVE // 2)
            self.refused(greedy.for_port(10250))
            self.assertGreater(self.take(holder("b")), 100)
            self.assertGreater(self.take(FOR_KUBELETS), 100)

    def test_limit_of_the_reserve(self) -> None:
        """A new caller always finds room, and half of the reserve is left to the ports."""
        for number in range(4):
            desired = holder(str(number), kind=Kind.CONNECT).for_port(10255)
            self.assertGreater(self.take(desired), 1, number)
        self.assertGreaterEqual(self.take(FOR_KUBELETS), MAX_STREAMS // RESERVE // 2)

    def test_what_goes_to_kubelets(self) -> None:
        """The port decides, except for entries that lead only to kubelets."""
        for kind in Kind:
            desired = holder("a", kind=kind)
            self.assertTrue(desired.for_port(10250).to_kubelet, kind)
            leads_there = kind in (Kind.KUBELETS, Kind.PASSTHROUGH)
            self.assertEqual(leads_there, desired.for_port(443).to_kubelet, kind)
            self.assertEqual(desired[:3], desired.for_port(10250)[:3])

    def test_however_many_entries_are_greedy_the_next_one_finds_room(self) -> None:
        """With any number of greedy entries the next one finds room, and kubelets the reserve."""
        for number in range(4):
            self.assertGreater(self.take(holder(str(number))), 1, number)
        self.assertGreaterEqual(self.take(FOR_KUBELETS), MAX_STREAMS // RESERVE)

    def test_requests_to_kubelets_leave_room(self) -> None:
        """The ports for requests to kubelets have the reserve, and a share like other entries."""
        taken = self.take(FOR_KUBELETS)
        self.assertGreater(taken, MAX_STREAMS // 2)
        self.assertEqual(Share.ENTRY, self.refused(FOR_KUBELETS).share)
        self.assertGreater(self.take(holder("a")), 100)

    def test_one_caller_of_kubelets(self) -> None:
        """A caller's lasting streams leave room for those of others, and for short requests."""
        self.assertGreater(self.take(for_kubelets("mallory")), MAX_STREAMS // 2)
        self.assertEqual(Share.CALLER, self.refused(for_kubelets("mallory")).share)
        self.assertGreater(self.take(for_kubelets("jane")), 100)
        self.assertGreater(self.take(FOR_KUBELETS), 20)

    def test_one_caller_on_connections_of_all(self) -> None:
        """One caller's share of the shared connections leaves room for others, as documented."""
        most = PoolSettings().max_connections_per_key // 2
        self.assertEqual(512, self.take(FOR_KUBELETS, most))
        left = self.take(FOR_KUBELETS)
        self.assertEqual((197, 709), (left, most + left))
        for _ in range(left):
            self.shares.release(FOR_KUBELETS)
        self.assertGreater(self.take(for_kubelets("jane")), 50)

    def test_released_streams_are_available(self) -> None:
        """Released streams can be taken by any holder."""
        taken = self.take(holder("a"))
        for _ in range(taken):
            self.shares.release(holder("a"))
        self.assertEqual(0, self.shares.held.total())
        self.assertEqual(taken, self.take(holder("b")))

    def test_the_server_itself(self) -> None:
        """Only the total limit applies to the server's own streams."""
        self.assertEqual(MAX_STREAMS, self.take(OTHER))
        self.assertEqual(Share.ALL, self.refused(OTHER).share)

    def test_sentences(self) -> None:
        """The messages contain the share that is used up, where, and what to do."""
        self.take(holder("a"))
        self.assertEqual(
            "this caller has 572 streams to edge-1 through this entry, its share of 1000: close"
            " some, or reuse connections",
            str(self.refused(holder("a"))),
        )
        self.take(OTHER)
        self.assertEqual(
            "1000 streams are open to edge-1, of 1000: close some, or try again later",
            str(self.refused(holder("b"))),
        )

    def test_sentences_about_memory(self) -> None:
        """If memory is used up, they say so instead of a number, even at 0."""
        room = 10
        shares = Shares("to edge-1", MAX_STREAMS, lambda: room)
        for _ in range(2):
            shares.acquire(holder("a"))
        room = 0
        refusal = self.assertRaises(ShareUsedUp, shares.check, holder("a"))
        self.assertEqual(Share.ALL, refusal.share)
        self.assertEqual(
            "there is no memory for another stream to edge-1 in addition to the 2 open ones: read"
            " the data that is buffered for them, or try again later",
            str(refusal),
        )

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=300))
    def test_a_new_holder_gets_a_share(self, takers: list[tuple[int, int]]) -> None:
        """Up to a third of all streams no holder is refused, whoever holds them."""
        self.setUp()
        for entry, caller in takers:
            desired = holder(str(entry), str(caller))
            self.shares.check(desired)
            self.shares.acquire(desired)


class HolderTests(SynchronousTestCase):
    """Holders encoded for other servers."""

    @given(st.sampled_from(Kind), st.text(), st.text())
    def test_what_is_written_can_be_read(self, kind: Kind, flag: str, caller: str) -> None:
        """The encoding has twelve characters, without a slash."""
        desired = Holder.of(kind, flag, caller)
        written = str(desired)
        self.assertEqual(12, len(written))
        self.assertNotIn("/", written)
        self.assertEqual(desired, Holder.parse(written))

    def test_what_nobody_has_written_cannot_be_read(self) -> None:
        """Unknown kinds are rejected, up to the highest encodable one."""
        bits = 72 - 3
        for kind in range(len(Kind), 8):
            text = urlsafe_b64encode((kind << bits).to_bytes(9, "big")).decode()
            self.assertRaises(ValueError, Holder.parse, text)

    def test_callers_by_address(self) -> None:
        """A whole IPv6 /64 is one caller, since a caller may use any address of it."""
        self.assertEqual(caller_at("192.0.2.1"), caller_at("::ffff:192.0.2.1"))
        self.assertNotEqual(caller_at("192.0.2.1"), caller_at("192.0.2.2"))
        self.assertEqual(caller_at("2001:db8::1"), caller_at("2001:db8::ffff:2"))
        self.assertNotEqual(caller_at("2001:db8::1"), caller_at("2001:db8:0:1::1"))
        self.assertEqual("::1", caller_at("::1"))

    def test_holders_are_created_once(self) -> None:
        """The form of an address, and the digests of it and of the flag, are cached."""
        for made in (caller_at, _digest):
            made.cache_clear()
        for _ in range(2):
            Holder.of(Kind.FORWARD, "--forward a", caller_at("2001:db8::1"))
        self.assertEqual([1, 2], [made.cache_info().misses for made in (caller_at, _digest)])


class SessionTests(SynchronousTestCase):
    """The streams of a session count from their OPEN to their end."""

    def setUp(self) -> None:
        """Connect an agent that accepts everything."""
        self.pair = SessionPair()
        self.addCleanup(self.pair.close)

    def open(self, desired: Holder = OTHER, port: int = 80):
        """Open a stream."""
        return self.pair.server.open_stream("192.0.2.80", port, 15.0, "r", desired)

    def held(self) -> dict[str, int]:
        """Return the held streams, as shown in /agents."""
        return dict(self.pair.server.snapshot().streams_by_entry)

    def test_a_greedy_caller_leaves_streams_to_others(self) -> None:
        """A greedy caller gets OVERLOADED; callers of another entry, and kubelets, do not."""
        failures = []
        for _ in range(MAX_STREAMS):
            self.open(holder("a")).addErrback(failures.append)
        self.assertGreater(len(failures), 400)
        error = failures[0].value
        self.assertIsInstance(error, StreamFailed)
        self.assertEqual(Code.OVERLOADED, error.code)
        self.assertIn("this caller has 572 streams to", error.text)
        for other in (holder("b"), FOR_KUBELETS):
            for _ in range(50):
                self.assertNoResult(self.open(other).addErrback(lambda _: None))
        self.assertEqual({"forward": 622, "kubelets": 50}, self.held())

    def test_reserve_depends_on_the_destination(self) -> None:
        """The API server's connections to a kubelet by CONNECT use the reserve, and release it."""
        desired = holder("a", kind=Kind.CONNECT)
        for _ in range(MAX_STREAMS):
            self.open(desired).addErrback(lambda _: None)
        for _ in range(2):
            dials = [self.open(desired, 10250) for _ in range(MAX_STREAMS // RESERVE // 2)]
            for dial in dials:
                self.assertNoResult(dial)
            self.failureResultOf(self.open(desired, 10250), StreamFailed)
            for dial in dials:
                dial.cancel()
                self.failureResultOf(dial)
            self.pair.pass_time(CANCELLED_DIAL_HOLD)

    def test_what_has_ended_counts_no_more(self) -> None:
        """A stream does not count after an abort or its session's end, and soon after a cancel."""
        for end in ("abort", "cancel", "session"):
            self.setUp()
            opened = self.open(holder("a"))
            opened.addErrback(lambda _: None)
            self.assertEqual({"forward": 1}, self.held())
            if end == "cancel":
                opened.cancel()
            elif end == "session":
                self.pair.server.close(Code.REVOKED, "it is over")
            else:
                self.pair.pump()
                self.pair.acceptor.requests[-1].accept()
                self.pair.pump()
                stream = self.successResultOf(opened)
                stream.attach(User())
                stream.abortConnection()
            self.pair.pump()
            self.assertEqual({"forward": 1} if end == "cancel" else {}, self.held(), end)
            self.pair.pass_time(CANCELLED_DIAL_HOLD)
            self.assertEqual({}, self.held(), end)

    def test_canceled_dials_count_until_the_agent_confirms(self) -> None:
        """A cancelled dial counts without a connection until that is back, or the session ends."""
        for ends in (False, True):
            self.setUp()
            self.pair.cut(by_peer=False)
            opened = self.open(holder("a"))
            opened.addErrback(lambda _: None)
            opened.cancel()
            for _ in range(3):
                self.pair.clock.advance(CANCELLED_DIAL_HOLD)
            self.assertEqual({"forward": 1}, self.held())
            if ends:
                self.pair.server.close(Code.REVOKED, "it is over")
            else:
                self.pair.connect()
                self.pair.pass_time(CANCELLED_DIAL_HOLD + ACK_DELAY)
            self.assertEqual({}, self.held())
            self.pair.close()
            self.assertEqual([], self.pair.clock.getDelayedCalls())

    def test_each_canceled_dial_counts_as_long(self) -> None:
        """Cancelled dials are released one after the other, with one timer."""
        timers = len(self.pair.clock.getDelayedCalls())
        for count in (1, 2, 3):
            dial = self.open(holder("a"))
            dial.addErrback(lambda _: None)
            dial.cancel()
            self.pair.pump()
            self.assertEqual(count, self.held()["forward"])
            self.assertLessEqual(len(self.pair.clock.getDelayedCalls()), timers + 2)
            self.pair.pass_time(0.25)
        held = []
        for _ in range(4):
            held.append(self.held().get("forward", 0))
            self.pair.pass_time(0.25)
        self.assertEqual([3, 2, 1, 0], held)

    def test_canceled_dials_are_no_flood(self) -> None:
        """Any number of them, received by the agent at any time, leaves its session open."""
        self.pair.acceptor.answer = None
        self.pair.silent = True
        clock = self.pair.clock
        ended_at = clock.seconds() + 6
        while clock.seconds() < ended_at:
            for number in range(4):
                for _ in range(100):
                    dial = self.open(holder(f"caller {number}"))
                    dial.addErrback(lambda _: None)
                    dial.cancel()
            # The agent sleeps for two seconds, then processes everything at once.
            self.pair.silent = clock.seconds() % 3 < 2
            clock.advance(0.1)
            while self.pair.move():
                pass
        self.assertFalse(self.pair.server.closed)
        self.assertFalse(self.pair.agent.closed)

    def test_nor_where_more_may_be_open(self) -> None:
        """A session with another server, for all of its nodes, lives as well."""
        self.pair = SessionPair(SIBLING_LIMITS)
        self.addCleanup(self.pair.close)
        dials = []
        for number in range(2400):
            dials.append(self.open(holder(f"entry {number % 2}")))
            dials[-1].addErrback(lambda _: None)
            self.pair.turn()
        self.assertGreater(len(self.pair.agent.wire.streams), CANCELS_PER_SECOND)
        for dial in dials:
            dial.cancel()
        self.pair.pump()
        self.assertEqual({}, self.pair.agent.wire.streams)
        self.assertFalse(self.pair.agent.closed)


class ProcessTests(SynchronousTestCase):
    """Two sessions of a process with memory for a few streams."""

    def setUp(self) -> None:
        """Connect the agents of two nodes."""
        clock = Clock()
        budget = MemoryBudget(2 * MIB)
        context = SessionContext(clock, TunnelCounters(), budget, Acceptor())
        self.shares = context.shares
        self.pairs = [SessionPair(clock=clock, server_context=context) for _ in range(2)]

    def tearDown(self) -> None:
        """Nothing is held when the sessions have ended."""
        for pair in self.pairs:
            pair.server.close(Code.DONE, "the test is over")
        for pair in self.pairs:
            pair.close()

    def fill(self, number: int) -> list[Deferred[IStream]]:
        """Open as many streams in one session as a caller may."""
        opened = []
        for _ in range(MAX_STREAMS):
            dial = self.pairs[number].server.open_stream("192.0.2.80", 80, 15.0, "r", holder("a"))
            if dial.called:
                self.refusal = self.failureResultOf(dial, StreamFailed).value
                return opened
            opened.append(dial.addErrback(lambda _: None))
        raise AssertionError("nothing was refused")

    def test_sessions_share_the_limit(self) -> None:
        """Streams of one session reduce those of the other until they, or it, have ended."""
        opened = self.fill(0)
        self.assertGreater(len(opened), 10)
        self.assertIn("in this process of the server", self.refusal.text)
        self.assertEqual([], self.fill(1))
        self.assertEqual(len(opened), self.shares.held.total())
        for dial in opened:
            dial.cancel()
        self.pairs[0].pump()
        self.assertEqual(0, self.shares.held.total())
        self.assertGreater(len(self.fill(1)), 10)
        self.assertEqual([], self.fill(0))
        self.pairs[1].server.close(Code.REVOKED, "it is over")
        self.pairs[1].pump()
        self.assertGreater(len(self.fill(0)), 10)

    def test_canceled_dials_do_not_count_in_other_sessions(self) -> None:
        """Cancelled dials to lost nodes do not reduce the shares of others."""
        lost = self.pairs[0]
        lost.cut(by_peer=False)
        for _ in range(5):
            for dial in self.fill(0):
                dial.cancel()
        self.assertGreater(lost.server.shares.held.total(), 50)
        self.assertEqual(0, self.shares.held.total())
        self.assertGreater(len(self.fill(1)), 10)

    def test_what_is_not_acknowledged_leaves_room_for_what_goes_to_kubelets(self) -> None:
        """Much unacknowledged data to one node does not prevent streams to another's kubelet."""
        one, other = self.pairs
        one.acceptor.answer = lambda request: request.accept().attach(User())
        opened = self.fill(0)
        one.pump()
        one.server_carrier.capacity = 1 << 30
        for dial in opened:
            stream = self.successResultOf(dial)
            stream.attach(User())
            stream.write(bytes(MIB))
        for _ in range(100):
            one.clock.advance(0)
            one.server.flush()
        budget = one.server_context.budget
        self.assertGreaterEqual(budget.used, budget.limit - budget.limit // RESERVE)
        self.assertGreater(one.server.wire.unacknowledged, 0.5 * MIB)
        dials = [
            other.server.open_stream("127.0.0.1", 10250, 15.0, "r", FOR_KUBELETS) for _ in range(2)
        ]
        other.acceptor.answer = lambda request: request.accept()
        other.pump()
        for dial in dials:
            self.successResultOf(dial)
        self.assertLessEqual(budget.used, budget.limit)
