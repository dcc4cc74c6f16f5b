"""Tests of the number of connections, as read from the kernel's counters."""

from __future__ import annotations

from twisted.internet.defer import fail, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import key, service
from yurttunnel.proxy.interfaces import KernelStats
from yurttunnel.proxy.kernel.connection_counts import (
    PAUSE_FACTOR,
    PERIOD_SECONDS,
    RETRY_SECONDS,
    ConnectionCounts,
    Reading,
    Table,
)
from yurttunnel.proxy.kernel.parts import counter_name
from yurttunnel.proxy.state.virtual_services import Protocol
from yurttunnel.steering.failures import SteeringFailed

WEB, DNS = key("web"), key("dns", Protocol.UDP)


class Active:
    """Open connections, the same number for each service."""

    def __init__(self, number):
        self.number = number

    def of(self, service):
        """Return the number."""
        return self.number


class ConnectionCountsTests(SynchronousTestCase):
    """A kernel whose counts a test sets."""

    def setUp(self):
        """Start reading."""
        self.clock = Clock()
        self.table = Table(None, 0.0)
        self.result = self.read({})
        self.readings = 0
        self.counts = ConnectionCounts(self.clock, self.run_job, (4, 6))
        self.counts.startService()
        self.addCleanup(self.counts.stopService)

    def run_job(self, job):
        """Return what a test has set instead of the kernel's counts."""
        self.readings += 1
        self.asked = job
        return self.result

    def read(self, counted):
        """Return a reading."""
        return succeed(Reading(counted, self.table))

    def total(self, its, counts=None):
        """Return the total of a service."""
        return (counts or self.counts).of(service([1], key=its)).total

    def count(self, **counted):
        """Set counters by the names of services for the next reading."""
        keys = {"web": WEB, "dns": DNS}
        self.pass_period(self.read({counter_name(keys[name]): n for name, n in counted.items()}))

    def pass_period(self, result):
        """Read a result."""
        self.result = result
        self.clock.advance(PERIOD_SECONDS)

    def test_by_service_and_by_protocol(self):
        """Counts are as of the last reading; a service without a counter has none."""
        self.assertIsNone(self.total(WEB))
        self.assertEqual({}, self.counts.totals())
        self.count(web=3, dns=1)
        self.count(web=5, dns=1)
        self.assertEqual((5, 1), (self.total(WEB), self.total(DNS)))
        self.assertEqual({Protocol.TCP: 5, Protocol.UDP: 1}, self.counts.totals())

    def test_service_is_removed(self):
        """Totals only increase, also when a service returns, whose counter restarts at 0."""
        self.count(web=3, dns=1)
        self.count(dns=2)
        self.assertIsNone(self.total(WEB))
        self.count(web=2, dns=2)
        self.assertEqual({Protocol.TCP: 5, Protocol.UDP: 2}, self.counts.totals())

    def test_a_counter_begins_anew(self):
        """If another program has removed the table, new counts are added to the old total."""
        self.count(web=3)
        self.count(web=2)
        self.assertEqual(2, self.total(WEB))
        self.assertEqual({Protocol.TCP: 5}, self.counts.totals())

    def test_change_during_a_reading(self):
        """After a change during a reading the old counts stay, and they are read again soon."""
        self.count(web=3)
        self.pass_period(self.read(None))
        self.assertEqual(3, self.total(WEB))
        before, self.result = self.readings, self.read({counter_name(WEB): 4})
        self.clock.advance(RETRY_SECONDS)
        self.assertEqual((before + 1, 4), (self.readings, self.total(WEB)))
        self.assertEqual({Protocol.TCP: 4}, self.counts.totals())

    def test_counters_of_somebody_else(self):
        """Counters of other programs are ignored."""
        self.pass_period(self.read({"mine": 100, counter_name(WEB): 3}))
        self.assertEqual({Protocol.TCP: 3}, self.counts.totals())

    def test_kernel_that_does_not_report(self):
        """An error is logged once in a while; totals stay, open connections are unknown."""
        self.table = Table(Active(2), 0.0)
        self.count(web=3)
        with capturedLogs() as logged:
            for _ in range(3):
                self.pass_period(fail(SteeringFailed("not permitted")))
        (warning,) = logged
        self.assertIn("not counted", warning["log_format"])
        self.assertEqual(KernelStats(None, 3), self.counts.of(service([1], key=WEB)))
        self.count(web=4)
        self.assertEqual(4, self.total(WEB))

    def test_those_of_the_moment(self):
        """Open connections are from the conntrack table, unknown if it is too large."""
        self.table = Table(Active(2), 0.0)
        self.count(web=3)
        self.assertEqual(KernelStats(2, 3), self.counts.of(service([1], key=WEB)))
        self.table = Table(None, 0.0)
        self.count(web=4)
        self.assertEqual(KernelStats(None, 4), self.counts.of(service([1], key=WEB)))

    def test_table_that_takes_long_to_read(self):
        """A slow table is read less often, and its counts stay; counters are read as before."""
        self.table = Table(Active(2), 0.5)
        self.count(web=3)
        self.table = None
        for number in range(int(PAUSE_FACTOR * 0.5 / PERIOD_SECONDS) - 1):
            self.count(web=4 + number)
            self.assertFalse(self.asked.args[-1])
            self.assertEqual(KernelStats(2, 4 + number), self.counts.of(service([1], key=WEB)))
        self.table = Table(Active(1), 0.0)
        self.count(web=9)
        self.assertTrue(self.asked.args[-1])
        self.assertEqual(KernelStats(1, 9), self.counts.of(service([1], key=WEB)))

    def test_a_table_that_cannot_be_read(self):
        """If the table cannot be read, this is logged, and counters are read all the same."""
        self.table = Table(None, 0.0, SteeringFailed("not permitted"))
        with capturedLogs() as logged:
            self.count(web=3)
        (warning,) = logged
        self.assertIn("Open connections", warning["log_format"])
        self.assertEqual(KernelStats(None, 3), self.counts.of(service([1], key=WEB)))

    def test_a_former_process(self):
        """A service continues the counts of a previous process, while totals start at 0."""
        self.count(web=3, dns=0)
        later = ConnectionCounts(self.clock, self.run_job, (4, 6))
        later.startService()
        self.addCleanup(later.stopService)
        self.assertEqual((3, {}), (self.total(WEB, later), later.totals()))
        self.count(web=5, dns=1)
        self.assertEqual({Protocol.TCP: 2, Protocol.UDP: 1}, later.totals())

    def test_the_end(self):
        """Nothing is read after the stop."""
        self.counts.stopService()
        before = self.readings
        self.clock.advance(10 * PERIOD_SECONDS)
        self.assertEqual(before, self.readings)
