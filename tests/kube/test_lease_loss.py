"""Leader election: losing the lease, with never two leaders, and a timely takeover."""

from __future__ import annotations

import random

from tests.kube.election import NAME, NAMESPACE, ElectionTestCase
from yurttunnel.kube.lease import RENEW_SECONDS, STOP_SECONDS
from yurttunnel.kube.lease_lock import LEASE_SECONDS
from yurttunnel.kube.resources import LEASES


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

    def test_short_failure(self):
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
