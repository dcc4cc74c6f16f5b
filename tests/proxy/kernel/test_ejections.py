"""Tests of the ejection of endpoints until they respond."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import endpoint
from yurttunnel.proxy.kernel.ejections import (
    FIRST_SECONDS,
    MAX_SECONDS,
    TRIAL_SECONDS,
    UDP_FACTOR,
    Ejections,
)
from yurttunnel.proxy.kernel.prober import Outcome
from yurttunnel.proxy.kernel.targets import Target
from yurttunnel.proxy.state.virtual_services import Protocol

ONE, TWO = (Target(Protocol.TCP, endpoint(number)) for number in (1, 2))
DNS = Target(Protocol.UDP, endpoint(1))


class EjectionsTests(SynchronousTestCase):
    """The ejection of an endpoint that does not respond."""

    def setUp(self):
        """Make probes whose results the test sets."""
        self.clock = Clock()
        self.outcome = Outcome.REFUSED
        self.probed = []
        self.changed = []
        self.ejections = Ejections(self.clock, self.probe)
        self.ejections.on_changed.append(self.changed.append)

    def probe(self, where):
        """Record the time."""
        self.probed.append(self.clock.seconds())
        return self.outcome if isinstance(self.outcome, Deferred) else succeed(self.outcome)

    def pass_time(self, seconds):
        """Let time pass in small steps."""
        self.clock.pump([0.5] * round(seconds / 0.5))

    def is_ejected(self, target=ONE):
        """Return whether the endpoint is ejected."""
        return self.ejections.is_ejected(*target)

    def test_ejection(self):
        """It is left out from then on, which is logged once; others are not."""
        with capturedLogs() as logged:
            self.ejections.eject(ONE, Outcome.REFUSED)
            self.ejections.eject(ONE, Outcome.REFUSED)
        self.assertEqual(1, len(logged))
        self.assertTrue(self.is_ejected())
        self.assertFalse(self.is_ejected(TWO))
        self.assertFalse(self.is_ejected(DNS))
        self.assertEqual([ONE], self.changed)

    def test_return(self):
        """It returns when a probe is answered, and not earlier."""
        self.ejections.eject(ONE, Outcome.SILENT)
        self.clock.advance(FIRST_SECONDS)
        self.assertTrue(self.is_ejected())
        self.outcome = Outcome.ANSWERED
        self.clock.advance(2 * FIRST_SECONDS)
        self.assertFalse(self.is_ejected())
        self.assertEqual([ONE, ONE], self.changed)
        self.pass_time(100)
        self.assertEqual(2, len(self.probed))

    def test_growing_pauses(self):
        """Each pause is twice as long as the previous one, up to a limit."""
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.pass_time(100)
        pauses = [after - at for at, after in zip([0.0, *self.probed], self.probed, strict=False)]
        self.assertEqual([1.0, 2.0, 4.0, 8.0, 16.0, MAX_SECONDS, MAX_SECONDS], pauses)

    def test_ejected_again(self):
        """One that failed before is ejected for longer, unless it has answered clients since."""
        self.outcome = Outcome.ANSWERED
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.clock.advance(FIRST_SECONDS)
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.clock.advance(FIRST_SECONDS)
        self.assertTrue(self.is_ejected())
        self.clock.advance(FIRST_SECONDS)
        self.assertFalse(self.is_ejected())
        self.ejections.answered(ONE)
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.clock.advance(FIRST_SECONDS)
        self.assertFalse(self.is_ejected())

    def test_trial(self):
        """One that does not respond to probes returns after a minute; one that refuses does not."""
        self.pass_time(TRIAL_SECONDS)
        self.outcome = Outcome.SILENT
        self.ejections.eject(ONE, Outcome.SILENT)
        self.pass_time(TRIAL_SECONDS - 1)
        self.assertTrue(self.is_ejected())
        self.pass_time(MAX_SECONDS + 1)
        self.assertFalse(self.is_ejected())
        self.outcome = Outcome.REFUSED
        self.ejections.eject(TWO, Outcome.SILENT)
        self.pass_time(10 * TRIAL_SECONDS)
        self.assertTrue(self.is_ejected(TWO))

    def test_udp(self):
        """A UDP endpoint cannot be probed, and returns after some time."""
        self.ejections.eject(DNS, Outcome.REFUSED)
        self.clock.advance(FIRST_SECONDS * UDP_FACTOR)
        self.assertFalse(self.is_ejected(DNS))
        self.assertEqual([], self.probed)

    def test_udp_again(self):
        """It is ejected for longer each time, unless it has not refused anybody for long."""
        for pause in (FIRST_SECONDS, 2 * FIRST_SECONDS):
            self.ejections.eject(DNS, Outcome.REFUSED)
            self.clock.advance(pause * UDP_FACTOR - 0.1)
            self.assertTrue(self.is_ejected(DNS))
            self.clock.advance(0.1)
            self.assertFalse(self.is_ejected(DNS))
        self.clock.advance(MAX_SECONDS)
        self.ejections.eject(DNS, Outcome.REFUSED)
        self.clock.advance(FIRST_SECONDS * UDP_FACTOR)
        self.assertFalse(self.is_ejected(DNS))

    def test_reconsidered(self):
        """It is probed at once, and in doubt until the result; the pause stays the same."""
        ejected = []
        self.ejections.on_ejected.append(ejected.append)
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.ejections.eject(DNS, Outcome.REFUSED)
        self.assertEqual([ONE, DNS], ejected)
        answer = self.outcome = Deferred()
        self.ejections.reconsider([ONE, TWO, DNS])
        self.ejections.reconsider([ONE])
        self.assertEqual([0.0], self.probed)
        doubts = [self.ejections.is_in_doubt(*each) for each in (ONE, TWO, DNS)]
        self.assertEqual([True, False, False], doubts)
        del self.changed[:]
        answer.callback(Outcome.SILENT)
        self.assertFalse(self.ejections.is_in_doubt(*ONE))
        self.assertTrue(self.is_ejected())
        self.assertEqual([ONE], self.changed)
        self.outcome = Outcome.ANSWERED
        self.clock.advance(FIRST_SECONDS)
        self.assertFalse(self.is_ejected())
        self.assertEqual([0.0, FIRST_SECONDS], self.probed)

    def test_reconsidered_between_growing_pauses(self):
        """The next pause is as long as the one that was cut short."""
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.pass_time(4)
        self.ejections.reconsider([ONE])
        self.pass_time(4)
        self.assertEqual([1.0, 3.0, 4.0, 8.0], self.probed)

    def test_removed_services(self):
        """Endpoints without services are dropped, also during a probe."""
        self.outcome = Deferred()
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.clock.advance(FIRST_SECONDS)
        self.ejections.retain(lambda target: target == TWO)
        self.outcome.callback(Outcome.ANSWERED)
        self.assertFalse(self.is_ejected())
        self.assertEqual([ONE], self.changed)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_services_that_are_added_again(self):
        """The result of an earlier probe does not apply to a new ejection."""
        self.ejections.eject(ONE, Outcome.REFUSED)
        former = self.outcome = Deferred()
        self.clock.advance(FIRST_SECONDS)
        self.ejections.retain(lambda target: False)
        self.ejections.eject(ONE, Outcome.REFUSED)
        former.callback(Outcome.ANSWERED)
        self.assertTrue(self.is_ejected())
        self.outcome = Outcome.ANSWERED
        self.clock.advance(FIRST_SECONDS)
        self.assertFalse(self.is_ejected())

    def test_stop(self):
        """After the stop nothing is probed or ejected, whatever probes are in progress."""
        answer = self.outcome = Deferred()
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.ejections.eject(DNS, Outcome.REFUSED)
        self.clock.advance(FIRST_SECONDS)
        self.ejections.stop()
        answer.callback(Outcome.REFUSED)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertFalse(self.is_ejected())

    def test_what_the_page_shows(self):
        """The failures of each endpoint, its last failure or probe result, and its ejection's
        end.
        """
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.ejections.eject(ONE, Outcome.SILENT)
        one, two = self.ejections.endpoints(Protocol.TCP, [endpoint(1), endpoint(2)])
        self.assertEqual((2, "it does not answer", FIRST_SECONDS),
                         (one.failures, one.last_failure, one.ejected_until))  # fmt: skip
        self.assertEqual((0, "", None), (two.failures, two.last_failure, two.ejected_until))
        self.clock.advance(FIRST_SECONDS)
        [one] = self.ejections.endpoints(Protocol.TCP, [endpoint(1)])
        self.assertEqual((2, Outcome.REFUSED.value), (one.failures, one.last_failure))
