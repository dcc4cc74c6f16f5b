"""Endpoints whose dials fail are left out for a while."""

from __future__ import annotations

from tests.proxy.balancing.test_picker import A, B, C, PickerTestCase
from yurttunnel.proxy.balancing.ejections import FAILURES, FIRST, LONGEST, PROBE


class EjectionTests(PickerTestCase):
    """When an endpoint is left out, for how long, and what becomes of it."""

    def fail(self, picker, endpoint, times=FAILURES):
        """Have dials to ``endpoint`` fail."""
        for _ in range(times):
            others = {each.endpoint for each in picker.endpoints()} - {endpoint}
            self.assertEqual(endpoint, picker.pick("192.0.2.1", others))
            picker.failed(endpoint, "refused")

    def ejected(self, picker):
        """Return who is left out."""
        return {each.endpoint for each in picker.endpoints() if each.ejected_until is not None}

    def test_failures_in_a_row(self):
        """After some an endpoint gets no connections; the page says until when."""
        picker = self.picker(A, B, C)
        self.clock.advance(100)
        self.fail(picker, A)
        self.assertEqual({B: 15, C: 15}, self.picked(picker, 30))
        [told] = [each for each in picker.endpoints() if each.endpoint == A]
        self.assertEqual(100 + FIRST, told.ejected_until)

    def test_one_packet_that_was_lost(self):
        """A single failure, or some with successes between them, is no reason."""
        picker = self.picker(A, B)
        for _ in range(5):
            self.fail(picker, A, FAILURES - 1)
            picker.connected(A)
        self.assertEqual(set(), self.ejected(picker))

    def test_two_of_three_are_dead(self):
        """As soon as they are left out, all go to the one that lives, at the first dial."""
        picker = self.picker(A, B, C)
        dials = []
        for _ in range(20):
            tried = []
            while (one := picker.pick("192.0.2.1", tried)) != C:
                picker.failed(one, "refused")
                tried.append(one)
            picker.connected(C)
            dials.append(len(tried) + 1)
        self.assertEqual(2 * FAILURES, sum(dials) - len(dials))
        self.assertLessEqual(max(dials), 3)
        self.assertEqual([1] * 10, dials[10:])

    def test_one_probe_at_its_end(self):
        """A single connection finds out; if it stands, the endpoint is one as the others."""
        picker = self.picker(A, B)
        self.fail(picker, A)
        self.clock.advance(FIRST)
        picked = [picker.pick("192.0.2.1", ()) for _ in range(10)]
        self.assertEqual([A] + [B] * 9, picked)
        picker.connected(A)
        self.assertEqual({A: 5, B: 5}, self.picked(picker, 10))

    def test_the_probe_fails(self):
        """It is left out for twice as long, each time, up to a bound."""
        picker = self.picker(A, B)
        self.fail(picker, A)
        pauses = []
        for _ in range(8):
            [told] = [each for each in picker.endpoints() if each.endpoint == A]
            pauses.append(told.ejected_until - self.clock.seconds())
            self.clock.advance(pauses[-1] - 0.001)
            self.assertEqual(B, picker.pick("192.0.2.1", ()))
            self.clock.advance(0.002)
            self.assertEqual(A, picker.pick("192.0.2.1", ()))
            picker.failed(A, "timed out")
        self.assertEqual([FIRST * 2**number for number in range(5)], [round(p) for p in pauses[:5]])
        self.assertEqual([LONGEST] * 3, [round(each) for each in pauses[5:]])

    def test_short_again_after_success(self):
        """An endpoint that has served meanwhile is left out as at first."""
        picker = self.picker(A, B)
        for _ in range(3):
            self.fail(picker, A)
            [told] = [each for each in picker.endpoints() if each.endpoint == A]
            self.assertEqual(FIRST, told.ejected_until - self.clock.seconds())
            self.clock.advance(FIRST)
            self.assertEqual(A, picker.pick("192.0.2.1", [B]))
            picker.connected(A)

    def test_dials_from_before(self):
        """Those that were under way, and fail later, do not make it longer."""
        picker = self.picker(A, B)
        for _ in range(100):
            self.assertEqual(A, picker.pick("192.0.2.1", [B]))
        for _ in range(100):
            picker.failed(A, "timed out")
        [told] = [each for each in picker.endpoints() if each.endpoint == A]
        self.assertEqual(FIRST, told.ejected_until)

    def test_a_probe_without_outcome(self):
        """If its client has gone before, the next one is tried some time later."""
        picker = self.picker(A, B)
        self.fail(picker, A)
        self.clock.advance(FIRST)
        self.assertEqual(A, picker.pick("192.0.2.1", ()))
        picker.ended(A)
        self.assertEqual(B, picker.pick("192.0.2.1", ()))
        self.clock.advance(PROBE)
        self.assertEqual(A, picker.pick("192.0.2.1", ()))

    def test_nobody_else_is_left(self):
        """Then those that are left out are chosen, one after the other, rather than none."""
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
        """One that is left out is a better try than another one of those that just failed."""
        picker = self.picker(A, B, C)
        self.fail(picker, A)
        self.assertEqual(A, picker.pick("192.0.2.1", [B, C]))

    def test_it_goes_meanwhile(self):
        """An endpoint that was removed, and comes back, is a new one."""
        picker = self.picker(A, B)
        self.fail(picker, A)
        self.picker(B)
        self.clock.advance(FIRST)
        self.assertEqual({B: 10}, self.picked(picker, 10))
        self.picker(A, B)
        self.assertEqual(set(), self.ejected(picker))
        self.assertEqual({A: 5, B: 5}, self.picked(picker, 10))

    def test_a_dial_outlives_it(self):
        """One that goes well after its endpoint has been removed does not bring that back."""
        picker = self.picker(A, B)
        self.assertEqual(A, picker.pick("192.0.2.1", [B]))
        self.fail(picker, A)
        self.picker(B)
        picker.connected(A)
        self.assertEqual({B: 10}, self.picked(picker, 10))

    def test_the_one_with_the_fewest_connections(self):
        """When it is left out the next fewest are found."""
        picker = self.picker(A, B, C, least_connections=True)
        self.picked(picker, 3, tried=[A, B])
        self.picked(picker, 2, tried=[A, C])
        self.fail(picker, A)
        self.assertEqual({B: 1}, self.picked(picker, 1))

    def test_other_endpoints_change(self):
        """One that is left out stays so."""
        picker = self.picker(A, B)
        self.fail(picker, A)
        self.picker(A, C)
        self.assertEqual({C: 10}, self.picked(picker, 10))
        self.assertEqual({A}, self.ejected(picker))
