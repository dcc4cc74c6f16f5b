"""Tests of the ejection of endpoints whose dials fail."""

from __future__ import annotations

from tests.proxy.balancing.test_picker import A, B, C, PickerTestCase
from yurttunnel.proxy.balancing.ejections import (
    CONSECUTIVE_FAILURES,
    FIRST_SECONDS,
    MAX_SECONDS,
    PROBE_SECONDS,
)


class EjectionTests(PickerTestCase):
    """When an endpoint is ejected, and for how long."""

    def fail(self, picker, endpoint, times=CONSECUTIVE_FAILURES):
        """Have dials to ``endpoint`` fail."""
        for _ in range(times):
            others = {each.endpoint for each in picker.endpoints()} - {endpoint}
            self.assertEqual(endpoint, picker.pick("192.0.2.1", others))
            picker.failed(endpoint, "refused")

    def ejected(self, picker):
        """Return the ejected endpoints."""
        return {each.endpoint for each in picker.endpoints() if each.ejected_until is not None}

    def test_failures_in_a_row(self):
        """After consecutive failures an endpoint gets no connections; the page shows until when."""
        picker = self.picker(A, B, C)
        self.clock.advance(100)
        self.fail(picker, A)
        self.assertEqual({B: 15, C: 15}, self.picked(picker, 30))
        [endpoint_state] = [each for each in picker.endpoints() if each.endpoint == A]
        self.assertEqual(100 + FIRST_SECONDS, endpoint_state.ejected_until)

    def test_one_packet_that_was_lost(self):
        """A single failure, or failures with successes in between, cause no ejection."""
        picker = self.picker(A, B)
        for _ in range(5):
            self.fail(picker, A, CONSECUTIVE_FAILURES - 1)
            picker.connected(A)
        self.assertEqual(set(), self.ejected(picker))

    def test_two_of_three_are_dead(self):
        """Once two of three endpoints are ejected, each first dial goes to the third."""
        picker = self.picker(A, B, C)
        dials = []
        for _ in range(20):
            tried = []
            while (one := picker.pick("192.0.2.1", tried)) != C:
                picker.failed(one, "refused")
                tried.append(one)
            picker.connected(C)
            dials.append(len(tried) + 1)
        self.assertEqual(2 * CONSECUTIVE_FAILURES, sum(dials) - len(dials))
        self.assertLessEqual(max(dials), 3)
        self.assertEqual([1] * 10, dials[10:])

    def test_one_probe_at_its_end(self):
        """One connection probes the endpoint at the end; if it succeeds, the ejection is over."""
        picker = self.picker(A, B)
        self.fail(picker, A)
        self.clock.advance(FIRST_SECONDS)
        picked = [picker.pick("192.0.2.1", ()) for _ in range(10)]
        self.assertEqual([A] + [B] * 9, picked)
        picker.connected(A)
        self.assertEqual({A: 5, B: 5}, self.picked(picker, 10))

    def test_the_probe_fails(self):
        """If the probe fails, the ejection doubles, up to a limit."""
        picker = self.picker(A, B)
        self.fail(picker, A)
        pauses = []
        for _ in range(8):
            [endpoint_state] = [each for each in picker.endpoints() if each.endpoint == A]
            pauses.append(endpoint_state.ejected_until - self.clock.seconds())
            self.clock.advance(pauses[-1] - 0.001)
            self.assertEqual(B, picker.pick("192.0.2.1", ()))
            self.clock.advance(0.002)
            self.assertEqual(A, picker.pick("192.0.2.1", ()))
            picker.failed(A, "timed out")
        self.assertEqual(
            [FIRST_SECONDS * 2**number for number in range(5)], [round(p) for p in pauses[:5]]
        )
        self.assertEqual([MAX_SECONDS] * 3, [round(each) for each in pauses[5:]])

    def test_short_again_after_success(self):
        """After a success the next ejection is as short as the first."""
        picker = self.picker(A, B)
        for _ in range(3):
            self.fail(picker, A)
            [endpoint_state] = [each for each in picker.endpoints() if each.endpoint == A]
            self.assertEqual(FIRST_SECONDS, endpoint_state.ejected_until - self.clock.seconds())
            self.clock.advance(FIRST_SECONDS)
            self.assertEqual(A, picker.pick("192.0.2.1", [B]))
            picker.connected(A)

    def test_dials_from_before(self):
        """Dials that began before the ejection and fail later do not extend it."""
        picker = self.picker(A, B)
        for _ in range(100):
            self.assertEqual(A, picker.pick("192.0.2.1", [B]))
        for _ in range(100):
            picker.failed(A, "timed out")
        [endpoint_state] = [each for each in picker.endpoints() if each.endpoint == A]
        self.assertEqual(FIRST_SECONDS, endpoint_state.ejected_until)

    def test_a_probe_without_outcome(self):
        """If the client of the probe has gone, another connection probes some time later."""
        picker = self.picker(A, B)
        self.fail(picker, A)
        self.clock.advance(FIRST_SECONDS)
        self.assertEqual(A, picker.pick("192.0.2.1", ()))
        picker.ended(A)
        self.assertEqual(B, picker.pick("192.0.2.1", ()))
        self.clock.advance(PROBE_SECONDS)
        self.assertEqual(A, picker.pick("192.0.2.1", ()))

    def test_no_other_endpoint_is_left(self):
        """If all endpoints are ejected, they are used in turn."""
        for least in (False, True):
            picker = self.picker(A, B, least_connections=least)
            self.fail(picker, A)
            self.fail(picker, B)
            picked = [picker.pick("192.0.2.1", ()) for _ in range(4)]
            self.assertEqual(2, picked.count(A))
            self.assertEqual({A, B}, {picker.pick("192.0.2.1", [A]), picker.pick("192.0.2.1", [B])})
            self.assertIsNotNone(picker.pick("192.0.2.1", [A, B]))
            picker.connected(A)
            self.assertEqual({A: 10}, self.picked(picker, 10))
            picker.connected(B)

    def test_the_others_were_tried(self):
        """An ejected endpoint is preferred to those that have just failed."""
        picker = self.picker(A, B, C)
        self.fail(picker, A)
        self.assertEqual(A, picker.pick("192.0.2.1", [B, C]))

    def test_removed_meanwhile(self):
        """An endpoint that is removed and added again is not ejected."""
        picker = self.picker(A, B)
        self.fail(picker, A)
        self.picker(B)
        self.clock.advance(FIRST_SECONDS)
        self.assertEqual({B: 10}, self.picked(picker, 10))
        self.picker(A, B)
        self.assertEqual(set(), self.ejected(picker))
        self.assertEqual({A: 5, B: 5}, self.picked(picker, 10))

    def test_a_dial_outlives_it(self):
        """A dial that succeeds after its endpoint was removed does not add it again."""
        picker = self.picker(A, B)
        self.assertEqual(A, picker.pick("192.0.2.1", [B]))
        self.fail(picker, A)
        self.picker(B)
        picker.connected(A)
        self.assertEqual({B: 10}, self.picked(picker, 10))

    def test_the_one_with_the_fewest_connections(self):
        """When the endpoint with the fewest connections is ejected, the next one is selected."""
        picker = self.picker(A, B, C, least_connections=True)
        self.picked(picker, 3, tried=[A, B])
        self.picked(picker, 2, tried=[A, C])
        self.fail(picker, A)
        self.assertEqual({B: 1}, self.picked(picker, 1))

    def test_other_endpoints_change(self):
        """An endpoint stays ejected when other endpoints change."""
        picker = self.picker(A, B)
        self.fail(picker, A)
        self.picker(A, C)
        self.assertEqual({C: 10}, self.picked(picker, 10))
        self.assertEqual({A}, self.ejected(picker))
