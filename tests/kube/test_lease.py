"""Leader election: acquiring the lease, and stopping."""

from __future__ import annotations

from twisted.internet.defer import fail

from tests.kube.election import MAX_PAUSE, NAME, NAMESPACE, UNREACHABLE, ElectionTestCase
from yurttunnel.kube.errors import NotAllowed, NotFound
from yurttunnel.kube.lease import RELEASE_SECONDS, RENEW_SECONDS, STOP_SECONDS
from yurttunnel.kube.lease_lock import LEASE_SECONDS
from yurttunnel.kube.resources import LEASES


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
        self.pass_time(4 + 2 * MAX_PAUSE + 0.2)
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

    def test_no_namespace(self):
        """Without its namespace the lease cannot be created, which is reported."""

        def create(resource, body, namespace=None):
            return fail(NotFound(404, "NotFound", f'namespaces "{namespace}" not found'))

        self.patch(self.a.link, "create", create)
        self.start(self.a)
        self.pass_time(60)
        self.assertIn('namespaces "kube-system" not found', self.a.election.problem())
        self.assertEqual(1, len([line for line in self.lines if "cannot be acquired" in line]))

    def test_no_leader(self):
        """A waiting process reports a problem only if no leader is known any more."""
        self.both()
        self.client.fail(UNREACHABLE)
        self.pass_time(9)
        self.assertIsNone(self.b.election.problem())
        self.pass_time(10)
        self.assertIn("connection refused", self.b.election.problem())
        self.assertIn("connection refused", self.a.election.problem())


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
        self.pass_time(MAX_PAUSE + 0.1)
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
