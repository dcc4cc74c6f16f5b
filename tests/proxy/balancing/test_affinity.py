"""Tests of session affinity."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.balancing.test_picker import A, B, C, PickerTestCase
from yurttunnel.proxy.balancing.ejections import CONSECUTIVE_FAILURES
from yurttunnel.proxy.balancing.endpoint_state import EndpointState
from yurttunnel.proxy.balancing.picker import AffinityRecords

TTL = 10800.0


class AffinityTests(PickerTestCase):
    """``sessionAffinity: ClientIP``."""

    def stays(self, picker, client="192.0.2.1", times=10):
        """Return the only endpoint that a client gets."""
        [found] = self.picked(picker, times, client=client)
        return found

    def test_the_same_endpoint(self):
        """A client keeps its endpoint, and clients are spread over the endpoints."""
        picker = self.picker(A, B, C, affinity=TTL)
        found = [self.stays(picker, f"192.0.2.{number}") for number in range(30)]
        self.assertEqual([10, 10, 10], [found.count(each) for each in (A, B, C)])

    def test_sliding(self):
        """The timeout starts with the last connection, not the first."""
        picker = self.picker(A, B, C, affinity=10)
        own = self.stays(picker, times=1)
        for _ in range(10):
            self.clock.advance(9)
            self.assertEqual(own, self.stays(picker, times=1))
        self.clock.advance(10)
        self.assertNotEqual(own, self.stays(picker, times=1))

    def test_time_changes(self):
        """A changed timeout applies to existing records as well."""
        picker = self.picker(A, B, C, affinity=10)
        own = self.stays(picker)
        self.picker(A, B, C, affinity=1000)
        self.clock.advance(900)
        self.assertEqual(own, self.stays(picker))
        self.clock.advance(20)
        self.picker(A, B, C, affinity=10)
        self.assertNotEqual(own, self.stays(picker))

    def test_removed_endpoint(self):
        """Clients of a removed endpoint get another one; other clients keep theirs."""
        picker = self.picker(A, B, C, affinity=TTL)
        before = {number: self.stays(picker, f"192.0.2.{number}") for number in range(30)}
        self.picker(A, C, affinity=TTL)
        after = {number: self.stays(picker, f"192.0.2.{number}") for number in range(30)}
        self.assertNotIn(B, after.values())
        kept = [number for number, one in before.items() if one != B]
        self.assertEqual([before[number] for number in kept], [after[number] for number in kept])

    def test_endpoints_vanish(self):
        """The policy stays without endpoints; one that is added again has lost its clients."""
        picker = self.picker(A, B, C, affinity=TTL)
        for number in range(30):
            self.stays(picker, f"192.0.2.{number}")
        self.picker(affinity=TTL)
        self.assertIsNone(picker.pick("192.0.2.1", ()))
        self.picker(A, affinity=TTL)
        self.picker(A, B, affinity=TTL)
        found = {self.stays(picker, f"192.0.2.{number}") for number in range(30)}
        self.assertEqual({A, B}, found)

    def test_failed_dial(self):
        """After a failed dial the client gets another endpoint, and keeps it."""
        picker = self.picker(A, B, C, affinity=TTL)
        own = self.stays(picker)
        picker.failed(picker.pick("192.0.2.1", ()), "refused")
        other = picker.pick("192.0.2.1", [own])
        self.assertNotEqual(own, other)
        self.assertEqual(other, self.stays(picker))

    def test_ejected_endpoint(self):
        """Clients of an ejected endpoint are not sent to it first."""
        picker = self.picker(A, B, affinity=TTL)
        own = self.stays(picker)
        for _ in range(CONSECUTIVE_FAILURES):
            picker.pick("192.0.2.1", ())
        for _ in range(CONSECUTIVE_FAILURES):
            picker.failed(own, "timed out")
        self.assertNotEqual(own, self.stays(picker))

    def test_given_up(self):
        """When affinity is disabled, clients are spread again."""
        picker = self.picker(A, B, C, affinity=TTL)
        self.stays(picker)
        self.picker(A, B, C)
        self.assertEqual({A: 3, B: 3, C: 3}, self.picked(picker, 9))

    def test_with_least_connections(self):
        """A client's own endpoint takes precedence over the number of connections."""
        picker = self.picker(A, B, affinity=TTL, least_connections=True)
        self.stays(picker, times=50)


class AffinityRecordsTests(SynchronousTestCase):
    """The limit of records."""

    def setUp(self):
        """Set a small limit."""
        self.clock = Clock()
        self.records = AffinityRecords(10, self.clock.seconds, max_records=100)
        self.state = EndpointState(A, 0)

    def test_bounded(self):
        """Over the limit, the least recently used records are dropped."""
        for number in range(100):
            self.records.put(f"client {number}", self.state)
        self.records.put("client 0", self.state)
        for number in range(100, 150):
            self.records.put(f"client {number}", self.state)
        self.assertEqual(100, len(self.records._records))
        self.assertIs(self.state, self.records.get("client 0"))
        self.assertIsNone(self.records.get("client 1"))
        self.assertIsNotNone(self.records.get("client 51"))

    def test_old_ones_go(self):
        """Expired records are dropped as new ones are added, without a pass over all of them."""
        for number in range(100):
            self.records.put(f"old {number}", self.state)
        self.clock.advance(10)
        for number in range(50):
            self.records.put(f"new {number}", self.state)
        self.assertEqual(50, len(self.records._records))
