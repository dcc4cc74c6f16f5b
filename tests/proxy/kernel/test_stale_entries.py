"""Tests of deleting conntrack entries that lead clients to dead endpoints."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import endpoint
from yurttunnel.proxy.kernel.ejections import Ejections
from yurttunnel.proxy.kernel.failure_detector import ANSWER_TIMEOUT, RECENT_SECONDS, FailureDetector
from yurttunnel.proxy.kernel.prober import Outcome
from yurttunnel.proxy.kernel.stale_entries import MAX_WAITING, StaleEntries
from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.proxy.state.virtual_services import Protocol
from yurttunnel.steering.failures import SteeringFailed

ONE, TWO = (Target(Protocol.TCP, endpoint(number)) for number in (1, 2))
CLIENT = ip_address("10.5.0.2")
FIRST, SECOND = (Attempt(ONE, CLIENT, port) for port in (40000, 40001))


class StaleEntriesTests(SynchronousTestCase):
    """A service of two endpoints, and probes whose results the test sets."""

    def setUp(self):
        """Make a kernel that deletes all entries except those in ``kept``."""
        self.clock = Clock()
        self.deleted, self.kept = [], []
        self.probes = []
        self.service = [ONE.endpoint, TWO.endpoint]
        self.ejections = Ejections(self.clock, lambda where: Deferred())
        self.detector = FailureDetector(
            self.clock, lambda attempt: True, self.probe, self.siblings, self.ejections
        )
        self.entries = StaleEntries(self.clock, self.delete_entry, self.probe, self.detector)

    def delete_entry(self, attempt):
        """Delete an entry."""
        if attempt in self.kept:
            raise SteeringFailed("the table is not given")
        self.deleted.append(attempt)

    def probe(self, where):
        """Start a probe."""
        self.probes.append((where, Deferred()))
        return self.probes[-1][1]

    def siblings(self, target):
        """Return the other endpoint."""
        if target.endpoint not in self.service:
            return None
        return [each for each in self.service if each != target.endpoint] or None

    def ends(self, outcome):
        """End the probe of the first endpoint."""
        ((_, probing),) = [probe for probe in self.probes if probe[0] == ONE.endpoint]
        probing.callback(outcome)

    def is_ejected(self):
        """Return whether the endpoint is ejected."""
        return self.ejections.is_ejected(*ONE)

    def test_a_refusal(self):
        """The entry is deleted at once, and the endpoint is ejected if it refuses a probe."""
        for outcome, is_ejected in ((Outcome.ANSWERED, False), (Outcome.REFUSED, True)):
            self.deleted.clear()
            self.probes.clear()
            self.clock.advance(RECENT_SECONDS + 1)
            self.entries.refused(FIRST)
            self.assertEqual([FIRST], self.deleted)
            self.ends(outcome)
            self.assertIs(is_ejected, self.is_ejected())

    def test_an_endpoint_that_answers(self):
        """The entry is valid, even if the endpoint was removed: its client is connected."""
        self.service.remove(ONE.endpoint)
        self.entries.attempted(FIRST)
        self.ends(Outcome.ANSWERED)
        self.assertEqual(([], False), (self.deleted, self.is_ejected()))

    def test_an_endpoint_that_refuses_a_probe(self):
        """It is treated as if it had refused the client."""
        self.entries.attempted(FIRST)
        self.assertEqual([], self.deleted)
        self.ends(Outcome.REFUSED)
        self.assertEqual(([FIRST], True), (self.deleted, self.is_ejected()))

    def test_a_silent_endpoint(self):
        """All entries that wait for its probe are deleted, and it is suspected as usual."""
        self.entries.attempted(FIRST)
        self.entries.attempted(SECOND)
        self.assertEqual(1, len(self.probes))
        probing = self.probes.pop()[1]
        probing.callback(Outcome.SILENT)
        self.assertEqual([FIRST, SECOND], self.deleted)
        self.assertIn(ONE.endpoint, [where for where, _ in self.probes])

    def test_an_endpoint_that_is_silent_to_probes_alone(self):
        """If clients have just been answered, failed probes are ignored."""
        self.detector.attempted(FIRST)
        self.clock.advance(ANSWER_TIMEOUT)
        self.entries.attempted(SECOND)
        self.clock.advance(RECENT_SECONDS - 0.1)
        self.ends(Outcome.SILENT)
        self.assertEqual([], self.deleted)

    def test_an_endpoint_that_cannot_be_probed(self):
        """Nothing is known and nothing is done; the next attempt causes another probe."""
        self.entries.attempted(FIRST)
        self.ends(Outcome.UNKNOWN)
        self.assertEqual([], self.deleted)
        self.probes.clear()
        self.entries.attempted(FIRST)
        self.ends(Outcome.REFUSED)
        self.assertEqual([FIRST], self.deleted)

    def test_many(self):
        """The number of waiting attempts is limited; other clients retry."""
        for port in range(MAX_WAITING + 1):
            self.entries.attempted(FIRST._replace(port=port))
        self.ends(Outcome.REFUSED)
        self.assertEqual(MAX_WAITING, len(self.deleted))

    def test_entries_that_cannot_be_deleted(self):
        """The failure is logged, and the next entry is deleted all the same."""
        self.kept.append(FIRST)
        self.entries.attempted(FIRST)
        self.entries.attempted(SECOND)
        with capturedLogs() as logged:
            self.ends(Outcome.REFUSED)
        self.assertIn("the table is not given", str(logged[-1]["error"]))
        self.assertEqual([SECOND], self.deleted)

    def test_the_end(self):
        """A cancelled probe has no effect."""
        self.entries.attempted(FIRST)
        self.probes[0][1].cancel()
        self.assertEqual([], self.deleted)
        self.assertEqual([], self.flushLoggedErrors())
