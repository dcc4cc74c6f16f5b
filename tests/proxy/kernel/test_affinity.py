"""Tests of the numbers by which the kernel stores a client's endpoint."""

from __future__ import annotations

import itertools

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import endpoint, key
from yurttunnel.proxy.kernel import affinity
from yurttunnel.proxy.kernel.affinity import ClientsSets, EndpointNumbers

ONE, TWO, THREE = map(endpoint, (1, 2, 3))
WEB, DNS = key("web"), key("dns")


class EndpointNumbersTests(SynchronousTestCase):
    """An endpoint keeps its number while it is present, and only then."""

    def setUp(self):
        """Make two endpoints of a service."""
        self.numbers = EndpointNumbers()
        self.first = self.numbers.of(WEB, [ONE, TWO])

    def test_the_same_in_each_process(self):
        """Numbers are unique, and the same in each process, so that a restart keeps affinity."""
        self.assertEqual(self.first, EndpointNumbers().of(WEB, [TWO, ONE]))
        self.assertEqual(2, len(set(self.first.values())))
        self.assertLess(max(self.first.values()), 2**32)

    def test_others_are_added_and_removed(self):
        """Changes of other endpoints do not change the number."""
        self.assertEqual(self.first[ONE], self.numbers.of(WEB, [ONE, THREE])[ONE])

    def test_return(self):
        """An endpoint that returns has another number each time: its clients have other ones."""
        seen = {self.first[TWO]}
        for _ in range(3):
            self.numbers.of(WEB, [ONE])
            seen.add(self.numbers.of(WEB, [ONE, TWO])[TWO])
        self.assertEqual(4, len(seen))

    def test_another_service(self):
        """Changes of another service do not matter."""
        before = self.numbers.of(DNS, [ONE, TWO])
        self.numbers.of(WEB, [ONE])
        self.assertEqual(before, self.numbers.of(DNS, [ONE, TWO]))

    def test_bounds(self):
        """Removed endpoints and services are not remembered forever."""
        self.patch(affinity, "MAX_REMOVED", 1)
        self.setUp()
        self.numbers.of(WEB, [])
        self.assertEqual(
            [True, False],
            [self.numbers.of(WEB, [ONE, TWO])[each] == self.first[each] for each in (ONE, TWO)],
        )
        self.patch(affinity, "MAX_SERVICES", 1)
        self.setUp()
        self.numbers.of(DNS, [ONE])
        self.numbers.of(WEB, [ONE])
        self.assertEqual(self.first[TWO], self.numbers.of(WEB, [TWO])[TWO])


class ClientsSetsTests(SynchronousTestCase):
    """A service gets another set only when its timeout becomes shorter."""

    def setUp(self):
        """Set a timeout."""
        self.sets = ClientsSets()
        self.first = self.sets.of(WEB, 3600.0)

    def test_the_same_in_each_process(self):
        """Clients keep their endpoints across a restart, also after the timeout was shortened."""
        self.assertEqual(self.first, ClientsSets().of(WEB, 3600.0))
        self.assertEqual(self.sets.of(WEB, 60.0), ClientsSets().of(WEB, 60.0))

    def test_a_longer_time(self):
        """With a longer timeout the set stays."""
        self.assertEqual(self.first, self.sets.of(WEB, 7200.0))
        self.assertEqual(self.first, self.sets.of(WEB, 7200.0))

    def test_shorter_times(self):
        """Each shorter timeout makes another set, which stays; other services do not matter."""
        seen = [self.first, self.sets.of(WEB, 60.0)]
        for _ in range(3):
            seen.append(self.sets.of(WEB, 30.0))
            self.sets.of(DNS, 1.0)
            self.assertEqual(seen[-1], self.sets.of(WEB, 60.0))
        self.assertTrue(all(one != other for one, other in itertools.pairwise(seen)))

    def test_a_shorter_time_since_the_last_process(self):
        """A timeout that was shortened between two processes makes another set as well."""
        self.assertNotEqual(self.first, ClientsSets().of(WEB, 60.0))

    def test_bounds(self):
        """Services are not remembered forever."""
        self.patch(affinity, "MAX_SERVICES", 1)
        self.setUp()
        self.sets.of(WEB, 7200.0)
        self.sets.of(DNS, 1.0)
        self.assertNotEqual(self.first, self.sets.of(WEB, 7200.0))
