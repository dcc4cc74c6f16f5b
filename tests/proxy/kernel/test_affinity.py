"""The numbers by which the kernel remembers a client's endpoint."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import endpoint, key
from yurttunnel.proxy.kernel import affinity
from yurttunnel.proxy.kernel.affinity import EndpointNumbers

ONE, TWO, THREE = map(endpoint, (1, 2, 3))
WEB, DNS = key("web"), key("dns")


class EndpointNumbersTests(SynchronousTestCase):
    """An endpoint keeps its number while it is there, and only then."""

    def setUp(self):
        """Have two endpoints of a service."""
        self.numbers = EndpointNumbers()
        self.first = self.numbers.of(WEB, [ONE, TWO])

    def test_the_same_in_each_process(self):
        """Else clients would lose their endpoints by a restart; no two have the same."""
        self.assertEqual(self.first, EndpointNumbers().of(WEB, [TWO, ONE]))
        self.assertEqual(2, len(set(self.first.values())))
        self.assertLess(max(self.first.values()), 2**32)

    def test_others_come_and_go(self):
        """That is nothing to those that stay."""
        self.assertEqual(self.first[ONE], self.numbers.of(WEB, [ONE, THREE])[ONE])

    def test_return(self):
        """Who returns has another number each time: its clients have other endpoints by now."""
        seen = {self.first[TWO]}
        for _ in range(3):
            self.numbers.of(WEB, [ONE])
            seen.add(self.numbers.of(WEB, [ONE, TWO])[TWO])
        self.assertEqual(4, len(seen))

    def test_another_service(self):
        """It does not matter what becomes of the endpoint there."""
        before = self.numbers.of(DNS, [ONE, TWO])
        self.numbers.of(WEB, [ONE])
        self.assertEqual(before, self.numbers.of(DNS, [ONE, TWO]))

    def test_bounds(self):
        """What has gone is not kept for ever, and neither are services."""
        self.patch(affinity, "MOST_GONE", 1)
        self.numbers.of(WEB, [])
        self.assertEqual(
            [True, False],
            [self.numbers.of(WEB, [ONE, TWO])[each] == self.first[each] for each in (ONE, TWO)],
        )
        self.patch(affinity, "MOST_SERVICES", 1)
        self.numbers.of(DNS, [ONE])
        self.numbers.of(WEB, [ONE])
        self.assertEqual(self.first[TWO], EndpointNumbers().of(WEB, [TWO])[TWO])
