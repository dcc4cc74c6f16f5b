"""Leader election: never two leaders, and a timely takeover."""

from __future__ import annotations

import random

from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.kube.fakes import FakeKubeClient
from tests.logged import Logged
from yurttunnel.kube.errors import ApiUnreachable, NotAllowed
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.lease import (
    RELEASE_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    STOP_SECONDS,
    LeaderElection,
)
from yurttunnel.kube.lease_lock import LEASE_SECONDS
from yurttunnel.kube.resources import LEASES

AWAY = ApiUnreachable("GET https://api:6443/: connection refused")
LONGEST_PAUSE = 2.2 * RETRY_SECONDS
NAMESPACE, NAME = "kube-system", "yurt-tunnel-approver"


class Led(Service):
    """A service to lead; it counts its starts, and stops when the test says so."""

    def __init__(self):
        self.starts = 0
        self.active = False
        self.slow = False
        self.stopping = None
        self.broken = False

    def startService(self):
        """Start."""
        if self.broken:
            raise ValueError("cannot start")
        super().startService()
        self.starts += 1
        self.active = True

    def stopService(self):
        """Stop, now or when :meth:`end` is called."""
        super().stopService()
        if self.slow:
            self.stopping = Deferred()
            return self.stopping
        self.active = False
        return None

    def end(self):
        """Complete a slow stop."""
        self.active = False
        stopping, self.stopping = self.stopping, None
        stopping.callback(None)


@implementer(IKubeClient)
class Link:
    """The connection of one process to the API: it may be cut, silent, late, or lose responses."""

    def __init__(self, client):
        self.client = client
        self.cut = False
        self.silent = False
        self.lose_answers_of = ()
        self.late = None
        self.calls = []

    def _call(self, verb, *arguments):
        self.calls.append(verb)
        if self.cut:
            return fail(AWAY)
        if self.silent:
            return Deferred()
        ask = getattr(self.client, verb)
        if self.late is not None and verb in ("create", "update"):
            self.late.append(lambda: ask(*arguments).addErrback(lambda _: None))
            return Deferred()
        answer = ask(*arguments)
        if verb in self.lose_answers_of:
            return answer.addBoth(lambda _: fail(AWAY))
        return answer

    def get(self, resource, name, namespace=None):
        """Read."""
        return self._call("get", resource, name, namespace)

    def create(self, resource, body, namespace=None):
        """Create."""
        return self._call("create", resource, body, namespace)

    def update(self, resource, body, subresource=None):
        """Replace."""
        return self._call("update", resource, body, subresource)


class Process:
    """A candidate."""

    def __init__(self, clock, client, identity):
        self.identity = identity
        self.link = Link(client)
        self.led = Led()
        self.election = LeaderElection(clock, self.link, NAMESPACE, NAME, identity, self.led)


class ElectionTestCase(SynchronousTestCase):
    """Two processes and an API in memory."""

    def setUp(self):
        """Create them; they are not started."""
        self.clock = Clock()
        self.clock.advance(1_800_000_000)
        self.client = FakeKubeClient(self.clock)
        self.a, self.b = (Process(self.clock, self.client, name) for name in "ab")
        self.lines = Logged(self)

    def spec(self):
        """Return the spec of the lease."""
        return self.client.look(LEASES, NAME, NAMESPACE)["spec"]

    def edit(self, **spec):
        """Edit the lease as an operator does."""
        lease = self.client.look(LEASES, NAME, NAMESPACE)
        self.client.put(LEASES, {**lease, "spec": {**lease["spec"], **spec}})

    def pass_time(self, seconds):
        """Advance the clock; assert that the two never lead at once."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.assertFalse(self.a.led.active and self.b.led.active, "two lead")

    def start(self, *processes):
        """Start the elections of some processes."""
        for process in processes:
            process.election.startService()

    def both(self):
        """Start both, so that a leads."""
        self.start(self.a, self.b)
        self.pass_time(5)
        self.assertEqual((True, False), (self.a.led.active, self.b.led.active))


class CampaignTests(ElectionTestCase):
    """Acquiring the lease."""

    def test_first(self):
        """The first process creates the lease and leads at once."""
        self.start(self.a)
        self.assertTrue(self.a.led.active)
        self.assertTrue(self.a.election.leading)
        self.assertIsNone(self.a.election.problem())
        time = "2027-01-15T08:00:00.000000Z"
        self.assertEqual(
            {
                "holderIdentity": "a",
                "leaseDurationSeconds": 15,
                "acquireTime": time,
                "renewTime": time,
                "leaseTransitions": 0,
            },
            self.spec(),
        )

    def test_renewed(self):
        """The leader renews every two seconds; the others only read, without a problem."""
        self.both()
        del self.a.link.calls[:], self.b.link.calls[:]
        self.pass_time(600)
        self.assertEqual("a", self.spec()["holderIdentity"])
        self.assertEqual("2027-01-15T08:00:00.000000Z", self.spec()["acquireTime"])
        self.assertRegex(self.spec()["renewTime"], "2027-01-15T08:10:0[2-5]")
        self.assertEqual({"update"}, set(self.a.link.calls))
        self.assertEqual({"get"}, set(self.b.link.calls))
        self.assertTrue(270 <= len(self.a.link.calls) <= 300)
        self.assertTrue(120 <= len(self.b.link.calls) <= 300)
        self.assertEqual(1, self.a.led.starts)
        self.assertFalse(self.b.election.leading)
        self.assertIsNone(self.b.election.problem())

    def test_taken_over(self):
        """A lease that is not renewed is taken over after its duration, not before."""
        self.both()
        self.a.link.cut = True
        self.pass_time(LEASE_SECONDS - 4)
        self.assertFalse(self.b.led.active)
        # At most two reads: one sees the last renewal, and one the expiry.
        self.pass_time(4 + 2 * LONGEST_PAUSE + 0.2)
        self.assertTrue(self.b.led.active)
        self.assertEqual("b", self.spec()["holderIdentity"])
        self.assertEqual(1, self.spec()["leaseTransitions"])

    def test_duration_of_the_holder(self):
        """The lease's duration is what its holder has written."""
        self.both()
        self.successResultOf(self.b.election.stopService())
        self.a.link.cut = True
        self.pass_time(RENEW_SECONDS)
        self.edit(leaseDurationSeconds=60)
        self.start(self.b)
        self.pass_time(59)
        self.assertFalse(self.b.led.active)
        self.pass_time(6)
        self.assertTrue(self.b.led.active)

    def test_remote_clocks(self):
        """Only changes of the times in the lease count, not their values."""
        self.start(self.a)
        self.successResultOf(self.a.election.stopService())
        self.edit(
            holderIdentity="c", renewTime="1999-01-01T00:00:00.000000Z", leaseDurationSeconds=15
        )
        self.start(self.b)
        self.pass_time(LEASE_SECONDS - 0.2)
        self.assertFalse(self.b.led.active)
        self.pass_time(5)
        self.assertTrue(self.b.led.active)

    def test_malformed(self):
        """A lease with malformed fields is free; one without a duration has the usual one."""
        for spec in (None, [], {"leaseTransitions": "x", "leaseDurationSeconds": "x"}):
            self.client.put(
                LEASES, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec}
            )
            self.start(self.a)
            self.assertTrue(self.a.led.active)
            self.successResultOf(self.a.election.stopService())
        self.edit(holderIdentity="c", leaseDurationSeconds=None)
        self.start(self.a)
        self.pass_time(LEASE_SECONDS - 1)
        self.assertFalse(self.a.led.active)
        self.pass_time(6)
        self.assertTrue(self.a.led.active)

    def test_conflict(self):
        """Of two simultaneous takeovers one succeeds, and the other process waits."""
        self.start(self.a)
        self.successResultOf(self.a.election.stopService())
        get = self.client.get

        def get_and_be_overtaken(*arguments):
            answer = get(*arguments)
            self.client.get = get
            self.edit(holderIdentity="c", leaseDurationSeconds=15)
            return answer

        self.client.get = get_and_be_overtaken
        self.start(self.b)
        self.assertFalse(self.b.led.active)
        self.pass_time(10)
        self.assertEqual("c", self.spec()["holderIdentity"])

    def test_lost_answer(self):
        """A takeover whose response was lost is noticed by a read, and counts from then on."""
        for verb in ("create", "update"):
            self.a.link.lose_answers_of = (verb,)
            self.start(self.a)
            self.assertFalse(self.a.led.active)
            self.assertEqual("a", self.spec()["holderIdentity"])
            self.assertIn("connection refused", self.a.election.problem())
            self.a.link.lose_answers_of = ()
            self.pass_time(5)
            self.assertTrue(self.a.led.active)
            self.successResultOf(self.a.election.stopService())
            self.assertEqual("", self.spec()["holderIdentity"])

    def test_silent(self):
        """An API that does not respond is retried, and logged."""
        self.a.link.silent = True
        self.start(self.a)
        self.pass_time(RENEW_SECONDS + 0.1)
        self.assertIn("did not answer in time", self.a.election.problem())
        self.a.link.silent = False
        self.pass_time(5)
        self.assertTrue(self.a.led.active)
        self.assertIsNone(self.a.election.problem())

    def test_answer_comes_too_late(self):
        """A takeover that is confirmed after the renewal timeout does not count."""
        self.client.hold()
        self.start(self.a)
        self.pass_time(RENEW_SECONDS + 0.1)
        self.client.release()
        self.assertFalse(self.a.led.active)
        self.pass_time(5)
        self.assertTrue(self.a.led.active)

    def test_held_up(self):
        """A process that was suspended during a takeover does not lead by it."""
        create = self.client.create

        def create_without_answer(*arguments):
            self.client.hold()
            return create(*arguments)

        self.client.create = create_without_answer
        self.start(self.a)
        self.clock.rightNow += RENEW_SECONDS + 1
        self.client.release()
        self.assertFalse(self.a.led.active)
        self.pass_time(5)
        self.assertTrue(self.a.led.active)

    def test_not_allowed(self):
        """Without permission for leases, the error names what the role lacks."""
        self.client.fail(NotAllowed(403, "Forbidden", "leases is forbidden"))
        self.start(self.a)
        self.assertIn("coordination.k8s.io", self.a.election.problem())
        self.pass_time(60)
        self.assertEqual(1, len([line for line in self.lines if "leases is forbidden" in line]))

    def test_no_leader(self):
        """A waiting process reports a problem only if no leader is known any more."""
        self.both()
        self.client.fail(AWAY)
        self.pass_time(9)
        self.assertIsNone(self.b.election.problem())
        self.pass_time(10)
        self.assertIn("connection refused", self.b.election.problem())
        self.assertIn("connection refused", self.a.election.problem())


class LossTests(ElectionTestCase):
    """Losing the lease."""

    def test_unreachable(self):
        """The service has stopped when the lease could not be renewed for ten seconds."""
        self.both()
        self.a.link.cut = True
        self.pass_time(RENEW_SECONDS - 2.1)
        self.assertTrue(self.a.led.active)
        self.pass_time(2.2)
        self.assertFalse(self.a.led.active)
        self.assertFalse(self.a.election.leading)
        self.pass_time(20)
        self.assertTrue(self.b.led.active)
        self.a.link.cut = False
        self.pass_time(60)
        self.assertFalse(self.a.led.active)
        self.assertIsNone(self.a.election.problem())

    def test_silent(self):
        """A missing response does not prolong the leadership."""
        self.both()
        self.a.link.silent = True
        self.pass_time(RENEW_SECONDS + 0.1)
        self.assertFalse(self.a.led.active)
        self.pass_time(20)
        self.assertTrue(self.b.led.active)

    def test_short_trouble(self):
        """An outage of less than ten seconds interrupts nothing."""
        self.both()
        self.a.link.cut = True
        self.pass_time(RENEW_SECONDS - 3)
        self.a.link.cut = False
        self.pass_time(60)
        self.assertTrue(self.a.led.active)
        self.assertEqual(1, self.a.led.starts)

    def test_slow_answer(self):
        """A renewal counts from its request, not from its response."""
        self.start(self.a)
        self.client.hold()
        self.pass_time(9)
        self.client.release()
        self.assertTrue(self.a.led.active)
        self.a.link.cut = True
        self.pass_time(2)
        self.assertTrue(self.a.led.active)
        self.pass_time(1.2)
        self.assertFalse(self.a.led.active)

    def test_lost_answers(self):
        """Renewals whose responses are lost do not count; later ones do."""
        self.both()
        self.a.link.lose_answers_of = ("update",)
        self.pass_time(RENEW_SECONDS - 4)
        self.a.link.lose_answers_of = ()
        self.pass_time(30)
        self.assertEqual(1, self.a.led.starts)
        self.a.link.lose_answers_of = ("update",)
        self.pass_time(RENEW_SECONDS + 0.1)
        self.assertFalse(self.a.led.active)
        self.pass_time(30)

    def test_late_writes(self):
        """Writes that arrive after another process has taken over change nothing."""
        self.both()
        self.a.link.late = late = []
        self.pass_time(RENEW_SECONDS + LEASE_SECONDS + 5)
        self.assertTrue(self.b.led.active)
        for write in late:
            write()
        self.assertTrue(late)
        self.assertEqual("b", self.spec()["holderIdentity"])
        self.a.link.late = None
        self.pass_time(60)
        self.assertTrue(self.b.led.active)

    def test_late_renewal(self):
        """A renewal that arrives after it timed out only delays the others."""
        self.both()
        self.a.link.late = late = []
        self.pass_time(RENEW_SECONDS + 0.5)
        self.assertFalse(self.a.led.active)
        self.a.link.cut = True
        late[0]()
        self.pass_time(LEASE_SECONDS - 0.5)
        self.assertFalse(self.b.led.active)
        self.pass_time(10)
        self.assertTrue(self.b.led.active)

    def test_taken_away(self):
        """A leader that finds another holder stops at once."""
        self.start(self.a)
        self.edit(holderIdentity="c")
        self.pass_time(2.1)
        self.assertFalse(self.a.led.active)
        self.assertTrue(any("lost to c" in line for line in self.lines))

    def test_edited(self):
        """An edit that leaves the holder unchanged interrupts nothing."""
        self.both()
        lease = self.client.look(LEASES, NAME, NAMESPACE)
        lease["metadata"]["labels"] = {"a": "b"}
        self.client.put(LEASES, lease)
        self.pass_time(30)
        self.assertEqual(1, self.a.led.starts)
        lease = self.client.look(LEASES, NAME, NAMESPACE)
        self.assertEqual({"a": "b"}, lease["metadata"]["labels"])

    def test_deleted(self):
        """The leader creates a deleted lease again; others do not take it over."""
        for _ in range(20):
            self.start(self.a, self.b)
            self.pass_time(random.uniform(5, 10))
            starts = self.a.led.starts + self.b.led.starts
            self.client.remove(LEASES, NAME, NAMESPACE)
            self.pass_time(40)
            self.assertEqual(starts, self.a.led.starts + self.b.led.starts)
            self.assertIn(self.spec()["holderIdentity"], "ab")
            for process in (self.a, self.b):
                self.successResultOf(process.election.stopService())

    def test_deleted_without_leader(self):
        """A lease deleted without a leader is created by a candidate after its duration."""
        self.both()
        self.a.link.cut = True
        self.client.remove(LEASES, NAME, NAMESPACE)
        self.pass_time(LEASE_SECONDS - 0.5)
        self.assertFalse(self.b.led.active)
        self.pass_time(10)
        self.assertTrue(self.b.led.active)

    def test_held_up(self):
        """A process that was suspended beyond its lease does not continue as the leader."""
        self.start(self.a)
        self.a.led.slow = True
        del self.a.link.calls[:]
        self.clock.rightNow += 100
        self.assertFalse(self.a.election.leading)
        self.clock.advance(0)
        self.assertIsNotNone(self.a.led.stopping)
        self.assertEqual([], self.a.link.calls)

    def test_slow_stop(self):
        """While the service stops, the lease is not touched, and a possible overlap is logged."""
        self.start(self.a)
        self.a.led.slow = True
        self.a.link.cut = True
        self.pass_time(RENEW_SECONDS + 0.1)
        self.assertIsNotNone(self.a.led.stopping)
        self.a.link.cut = False
        del self.a.link.calls[:]
        self.pass_time(4)
        self.assertFalse(any("still stopping" in line for line in self.lines))
        self.pass_time(20)
        self.assertTrue(any("still stopping" in line for line in self.lines))
        self.assertEqual([], self.a.link.calls)
        self.a.led.end()
        self.pass_time(5)
        self.assertEqual(2, self.a.led.starts)

    def test_stop_in_time(self):
        """A stop within the rest of the lease is not logged, and overlaps with nobody."""
        self.both()
        self.a.led.slow = True
        self.a.link.cut = True
        self.pass_time(RENEW_SECONDS + 2.5)
        self.a.led.end()
        self.pass_time(20)
        self.assertTrue(self.b.led.active)
        self.assertFalse(any("still stopping" in line for line in self.lines))

    def test_stop_never_ends(self):
        """A stop that does not end times out with an error, and the campaign continues."""
        self.start(self.a)
        self.a.led.slow = True
        self.a.link.cut = True
        self.pass_time(RENEW_SECONDS + STOP_SECONDS)
        self.a.link.cut = False
        self.pass_time(6)
        self.assertTrue(any("has not stopped in 60 s" in line for line in self.lines))
        self.assertEqual(2, self.a.led.starts)

    def test_start_fails(self):
        """A process that cannot start the service lets another lead."""
        self.a.led.broken = True
        self.start(self.a, self.b)
        self.assertEqual(1, len(self.flushLoggedErrors(ValueError)))
        self.pass_time(10)
        self.assertTrue(self.b.led.active)


class StopTests(ElectionTestCase):
    """Stopping an election."""

    def test_released(self):
        """The service stops, then the lease is released, and the next process leads at once."""
        self.both()
        self.a.led.slow = True
        stopped = self.a.election.stopService()
        self.pass_time(1)
        self.assertEqual("a", self.spec()["holderIdentity"])
        self.assertNoResult(stopped)
        self.a.led.end()
        self.successResultOf(stopped)
        self.assertEqual("", self.spec()["holderIdentity"])
        self.assertEqual(1, self.spec()["leaseDurationSeconds"])
        self.pass_time(5)
        self.assertTrue(self.b.led.active)
        self.assertEqual(1, self.spec()["leaseTransitions"])

    def test_again(self):
        """An election can be started and stopped any number of times."""
        for starts in range(1, 5):
            self.start(self.a)
            self.assertEqual(starts, self.a.led.starts)
            self.successResultOf(self.a.election.stopService())
            self.assertFalse(self.a.led.active)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_started_while_it_stops(self):
        """A start during a stop waits for its end."""
        self.start(self.a)
        self.a.led.slow = True
        stopped = self.a.election.stopService()
        self.start(self.a)
        self.pass_time(5)
        self.assertEqual(1, self.a.led.starts)
        self.a.led.end()
        self.successResultOf(stopped)
        self.assertEqual(2, self.a.led.starts)
        self.assertEqual("a", self.spec()["holderIdentity"])

    def test_never_started(self):
        """An election that was never started can be stopped."""
        self.successResultOf(self.a.election.stopService())
        self.assertEqual([], self.a.link.calls)

    def test_unreachable(self):
        """An API that does not respond delays the stop for two seconds."""
        for silent in (True, False):
            self.start(self.a)
            self.pass_time(6)
            self.assertTrue(self.a.led.active)
            self.a.link.silent, self.a.link.cut = silent, not silent
            stopped = self.a.election.stopService()
            self.assertFalse(self.a.led.active)
            self.pass_time(RELEASE_SECONDS + 0.1)
            self.successResultOf(stopped)
            self.assertTrue(any("not released" in line for line in self.lines))
            self.a.link.silent = self.a.link.cut = False

    def test_while_waiting(self):
        """A waiting process stops without a write, in a pause and during a request."""
        self.both()
        self.successResultOf(self.b.election.stopService())
        self.b.link.silent = True
        self.start(self.b)
        self.successResultOf(self.b.election.stopService())
        self.assertEqual("a", self.spec()["holderIdentity"])
        self.assertNotIn("update", self.b.link.calls)

    def test_after_a_lost_answer(self):
        """A lease whose acquisition was not confirmed is released."""
        self.a.link.lose_answers_of = ("create",)
        self.start(self.a)
        self.successResultOf(self.a.election.stopService())
        self.assertEqual("", self.spec()["holderIdentity"])

    def test_while_renewing(self):
        """A renewal that arrives late does not undo the release."""
        self.both()
        self.a.link.late = late = []
        self.pass_time(2.1)
        self.assertEqual(1, len(late))
        # Only the renewal is late; the release arrives before it.
        self.a.link.late = None
        self.successResultOf(self.a.election.stopService())
        late[0]()
        self.assertEqual("", self.spec()["holderIdentity"])
        self.pass_time(LONGEST_PAUSE + 0.1)
        self.assertTrue(self.b.led.active)

    def test_while_it_stops(self):
        """A stop in progress is awaited."""
        self.start(self.a)
        self.a.led.slow = True
        self.a.link.cut = True
        self.pass_time(RENEW_SECONDS + 0.1)
        self.a.link.cut = False
        stopped = self.a.election.stopService()
        self.pass_time(1)
        self.assertNoResult(stopped)
        self.a.led.end()
        self.successResultOf(stopped)
        self.assertEqual("", self.spec()["holderIdentity"])

    def test_stop_never_ends(self):
        """If the service does not stop, the lease is not released: the service may still work."""
        self.both()
        self.a.led.slow = True
        stopped = self.a.election.stopService()
        self.a.link.calls.clear()
        for _ in range(round(STOP_SECONDS) + 1):
            self.clock.advance(1)
        self.successResultOf(stopped)
        self.assertEqual([], self.a.link.calls)


class ChaosTests(ElectionTestCase):
    """Random failures."""

    def test_never_two(self):
        """Whatever fails, no two processes lead; after the recovery, one does."""
        for seed in range(15):
            chance = random.Random(seed)
            self.start(self.a, self.b)
            for _ in range(60):
                for process in (self.a, self.b):
                    link = process.link
                    link.cut = chance.random() < 0.25
                    link.silent = chance.random() < 0.15
                    link.lose_answers_of = chance.choice([(), (), ("update", "create")])
                    late, link.late = link.late, chance.choice([None, None, []])
                    for write in late or ():
                        write()
                if chance.random() < 0.1:
                    process = chance.choice([self.a, self.b])
                    _ = process.election.stopService()
                    self.start(process)
                self.pass_time(chance.uniform(0.5, 12))
            for process in (self.a, self.b):
                process.link.__init__(self.client)
            self.pass_time(40)
            self.assertTrue(self.a.led.active or self.b.led.active)
            for process in (self.a, self.b):
                self.successResultOf(process.election.stopService())
