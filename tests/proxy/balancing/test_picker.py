"""Tests of round-robin and of the fewest connections."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.proxy.services import endpoint, service
from yurttunnel.proxy.balancing.ejections import CONSECUTIVE_FAILURES
from yurttunnel.proxy.balancing.endpoint_state import EndpointState
from yurttunnel.proxy.balancing.picker import EndpointPicker
from yurttunnel.proxy.balancing.schedulers import RoundRobin
from yurttunnel.proxy.interfaces import IEndpointPicker

A, B, C = (endpoint(number) for number in (1, 2, 3))


class PickerTestCase(SynchronousTestCase):
    """A picker with a clock."""

    def setUp(self):
        """Start without a service."""
        self.clock = Clock()
        self._made = None

    def picker(self, *endpoints, **more):
        """Make or update the picker of a service with ``endpoints``."""
        if self._made is None:
            self._made = EndpointPicker(self.clock, service(endpoints, **more))
        else:
            self._made.update(service(endpoints, **more))
        return self._made

    def picked(self, picker, count, tried=(), client="192.0.2.1"):
        """Return how often each endpoint is picked when all dials succeed."""
        found = Counter()
        for _ in range(count):
            one = picker.pick(client, tried)
            picker.connected(one)
            found[one] += 1
        return found


class RoundRobinTests(PickerTestCase):
    """Round-robin."""

    def test_interface(self):
        """The picker provides its interface."""
        verifyObject(IEndpointPicker, self.picker(A))

    def test_equal_counts(self):
        """After 300 connections each of three endpoints has had a hundred."""
        self.assertEqual({A: 100, B: 100, C: 100}, self.picked(self.picker(A, B, C), 300))

    def test_a_removed_endpoint(self):
        """A removed endpoint gets no connections."""
        picker = self.picker(A, B, C)
        self.picked(picker, 10)
        self.picker(A, C)
        self.assertEqual({A: 50, C: 50}, self.picked(picker, 100))

    def test_the_first_one_is_any(self):
        """Not all nodes or services start with the same endpoint."""
        first = set()
        for _ in range(200):
            picker = EndpointPicker(self.clock, service((A, B, C)))
            first.add(picker.pick("192.0.2.1", ()))
        self.assertEqual({A, B, C}, first)

    def test_no_endpoints(self):
        """Without endpoints none is picked; a new one is."""
        picker = self.picker()
        self.assertIsNone(picker.pick("192.0.2.1", ()))
        self.picker(A)
        self.assertEqual(A, picker.pick("192.0.2.1", ()))

    def test_another_endpoint_than_those_tried(self):
        """A retry goes to an endpoint that was not tried, if there is one."""
        picker = self.picker(A, B, C)
        for _ in range(9):
            self.assertEqual(B, picker.pick("192.0.2.1", [A, C]))
        self.assertIn(picker.pick("192.0.2.1", [A, B, C]), {A, B, C})

    def test_an_update_without_change(self):
        """An update without changes keeps the position."""
        picker = self.picker(A, B, C)
        found = Counter()
        for _ in range(300):
            found[picker.pick("192.0.2.1", ())] += 1
            self.picker(A, B, C)
        self.assertEqual({A: 100, B: 100, C: 100}, found)


class SchedulerTests(SynchronousTestCase):
    """The order while endpoints are ejected."""

    def test_previous_one_is_removed(self):
        """When an endpoint is removed, none of the others is skipped."""
        states = [EndpointState(each, 0) for each in (A, B, C)]
        scheduler = RoundRobin(states, 2)
        scheduler.remove(states[0])
        self.assertEqual([C, B, C], [scheduler.next(()).endpoint for _ in range(3)])


class CountTests(PickerTestCase):
    """The stats of endpoints."""

    def active(self, picker):
        """Return the numbers of connections by endpoint."""
        return {each.endpoint: each.active for each in picker.endpoints()}

    def test_connections(self):
        """Connections count from the pick to their end, or to the failure of the dial."""
        for least in (False, True):
            picker = self.picker(A, B, least_connections=least)
            for _ in range(4):
                picker.connected(picker.pick("192.0.2.1", ()))
            self.assertEqual({A: 2, B: 2}, self.active(picker))
            picker.ended(A)
            picker.failed(B, "refused")
            self.assertEqual({A: 1, B: 1}, self.active(picker))
            picker.ended(A)
            picker.ended(B)

    def test_endpoint_that_recovers(self):
        """Connections of an endpoint that is added again still count, once."""
        picker = self.picker(A)
        for _ in range(2):
            picker.connected(picker.pick("192.0.2.1", ()))
        self.picker(B)
        self.assertEqual({B: 0}, self.active(picker))
        picker.ended(A)
        self.picker(A)
        self.assertEqual({A: 1}, self.active(picker))
        picker.ended(A)
        self.assertEqual({A: 0}, self.active(picker))

    def test_what_ends_after_its_endpoint(self):
        """Connections may outlive their endpoint, and their end is no error."""
        picker = self.picker(A)
        for _ in range(3):
            picker.pick("192.0.2.1", ())
        self.picker()
        picker.ended(A)
        picker.failed(A, "refused")
        picker.connected(A)
        picker.ended(A)
        picker.ended(A)
        self.assertEqual([], list(picker.endpoints()))

    def test_failures(self):
        """The last failure is reported with its reason."""
        picker = self.picker(A)
        for why in ("timed out", "refused"):
            picker.pick("192.0.2.1", ())
            picker.failed(A, why)
        [endpoint_state] = picker.endpoints()
        self.assertEqual((2, "refused"), (endpoint_state.failures, endpoint_state.last_failure))


class LeastConnectionsTests(PickerTestCase):
    """The endpoint with the fewest connections."""

    def test_fewest(self):
        """An endpoint whose connections have ended gets the next ones."""
        picker = self.picker(A, B, C, least_connections=True)
        self.assertEqual({A: 10, B: 10, C: 10}, self.picked(picker, 30))
        for _ in range(10):
            picker.ended(B)
        self.assertEqual({B: 10}, self.picked(picker, 10))
        self.assertEqual({A: 1, B: 1, C: 1}, self.picked(picker, 3))

    def test_idle_endpoints_take_turns(self):
        """Connections that never overlap are spread, too."""
        picker = self.picker(A, B, C, least_connections=True)
        found = Counter()
        for _ in range(30):
            one = picker.pick("192.0.2.1", ())
            found[one] += 1
            picker.ended(one)
        self.assertEqual({A: 10, B: 10, C: 10}, found)

    def test_fewest_of_those_not_tried(self):
        """If the best endpoints were tried, the best of the others is picked."""
        picker = self.picker(A, B, C, least_connections=True)
        self.picked(picker, 5, tried=[A, B])
        self.picked(picker, 2, tried=[A, C])
        self.assertEqual(B, picker.pick("192.0.2.1", [A]))
        self.assertEqual(A, picker.pick("192.0.2.1", [A, B, C]))

    def test_policy_changes(self):
        """The policy can change while there are connections."""
        picker = self.picker(A, B)
        self.picked(picker, 6, tried=[B])
        self.picker(A, B, least_connections=True)
        self.assertEqual({B: 6}, self.picked(picker, 6))
        self.picker(A, B)
        self.assertEqual({A: 5, B: 5}, self.picked(picker, 10))

    @given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=60))
    def test_whatever_happens(self, events):
        """It has the fewest connections of those not ejected, and counts are correct."""
        picker = EndpointPicker(self.clock, service(range(5), least_connections=True))
        active, consecutive_failures = Counter(), Counter()
        for what, number in events:
            one = endpoint(number)
            if what < 3:
                live = [
                    endpoint(each)
                    for each in range(5)
                    if consecutive_failures[endpoint(each)] < CONSECUTIVE_FAILURES
                ]
                chosen = picker.pick("192.0.2.1", ())
                if live:
                    self.assertIn(chosen, live)
                    self.assertEqual(min(active[each] for each in live), active[chosen])
                active[chosen] += 1
            elif what == 3:
                picker.connected(one)
                consecutive_failures[one] = 0
            elif active[one]:
                active[one] -= 1
                consecutive_failures[one] += what == 4
                (picker.failed(one, "refused") if what == 4 else picker.ended(one))
        active_now = {each.endpoint: each.active for each in picker.endpoints()}
        self.assertEqual(
            {endpoint(number): active[endpoint(number)] for number in range(5)}, active_now
        )
