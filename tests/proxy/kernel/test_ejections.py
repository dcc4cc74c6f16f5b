"""Endpoints that are left out until they answer."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import endpoint
from yurttunnel.proxy.kernel.ejections import FIRST, LONGEST, TRIAL, UDP_FACTOR, Ejections
from yurttunnel.proxy.kernel.prober import Outcome
from yurttunnel.proxy.kernel.targets import Target
from yurttunnel.proxy.state.virtual_services import Protocol

ONE, TWO = (Target(Protocol.TCP, endpoint(number)) for number in (1, 2))
DNS = Target(Protocol.UDP, endpoint(1))


class EjectionsTests(SynchronousTestCase):
    """What becomes of one that does not answer."""

    def setUp(self):
        """Have probes that do what the test says."""
        self.clock = Clock()
        self.outcome = Outcome.REFUSED
        self.probed = []
        self.changed = []
        self.ejections = Ejections(self.clock, self.probe)
        self.ejections.on_changed.append(self.changed.append)

    def probe(self, where):
        """Note when."""
        self.probed.append(self.clock.seconds())
        return self.outcome if isinstance(self.outcome, Deferred) else succeed(self.outcome)

    def pass_time(self, seconds):
        """Let time pass in small steps."""
        self.clock.pump([0.5] * round(seconds / 0.5))

    def is_ejected(self, target=ONE):
        """Return whether it is."""
        return self.ejections.is_ejected(*target)

    def test_ejection(self):
        """It is left out from then on, which is told once; others are not."""
        with capturedLogs() as logged:
            self.ejections.eject(ONE, Outcome.REFUSED)
            self.ejections.eject(ONE, Outcome.REFUSED)
        self.assertEqual(1, len(logged))
        self.assertTrue(self.is_ejected())
        self.assertFalse(self.is_ejected(TWO))
        self.assertFalse(self.is_ejected(DNS))
        self.assertEqual([ONE], self.changed)

    def test_return(self):
        """It returns when a probe is answered, and not before."""
        self.ejections.eject(ONE, Outcome.SILENT)
        self.clock.advance(FIRST)
        self.assertTrue(self.is_ejected())
        self.outcome = Outcome.ANSWERED
        self.clock.advance(2 * FIRST)
        self.assertFalse(self.is_ejected())
        self.assertEqual([ONE, ONE], self.changed)
        self.pass_time(100)
        self.assertEqual(2, len(self.probed))

    def test_growing_pauses(self):
        """Each is twice as long as the one before, up to a bound."""
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.pass_time(100)
        pauses = [after - at for at, after in zip([0.0, *self.probed], self.probed, strict=False)]
        self.assertEqual([1.0, 2.0, 4.0, 8.0, 16.0, LONGEST, LONGEST], pauses)

    def test_ejected_again(self):
        """One that failed before is left out for longer, unless it has answered clients since."""
        self.outcome = Outcome.ANSWERED
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.clock.advance(FIRST)
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.clock.advance(FIRST)
        self.assertTrue(self.is_ejected())
        self.clock.advance(FIRST)
        self.assertFalse(self.is_ejected())
        self.ejections.answered(ONE)
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.clock.advance(FIRST)
        self.assertFalse(self.is_ejected())

    def test_trial(self):
        """One that only our probes do not reach returns after a minute; one that refuses not."""
        self.pass_time(TRIAL)
        self.outcome = Outcome.SILENT
        self.ejections.eject(ONE, Outcome.SILENT)
        self.pass_time(TRIAL - 1)
        self.assertTrue(self.is_ejected())
        self.pass_time(LONGEST + 1)
        self.assertFalse(self.is_ejected())
        self.outcome = Outcome.REFUSED
        self.ejections.eject(TWO, Outcome.SILENT)
        self.pass_time(10 * TRIAL)
        self.assertTrue(self.is_ejected(TWO))

    def test_udp(self):
        """It cannot be probed, and returns after a time."""
        self.ejections.eject(DNS, Outcome.REFUSED)
        self.clock.advance(FIRST * UDP_FACTOR)
        self.assertFalse(self.is_ejected(DNS))
        self.assertEqual([], self.probed)

    def test_udp_again(self):
        """It is left out for longer each time, but for one that has not refused for long."""
        for pause in (FIRST, 2 * FIRST):
            self.ejections.eject(DNS, Outcome.REFUSED)
            self.clock.advance(pause * UDP_FACTOR - 0.1)
            self.assertTrue(self.is_ejected(DNS))
            self.clock.advance(0.1)
            self.assertFalse(self.is_ejected(DNS))
        self.clock.advance(LONGEST)
        self.ejections.eject(DNS, Outcome.REFUSED)
        self.clock.advance(FIRST * UDP_FACTOR)
        self.assertFalse(self.is_ejected(DNS))

    def test_reconsidered(self):
        """It is probed at once, and in doubt until it is known; the pause is that of before."""
        told = []
        self.ejections.on_ejected.append(told.append)
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.ejections.eject(DNS, Outcome.REFUSED)
        self.assertEqual([ONE, DNS], told)
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
        self.clock.advance(FIRST)
        self.assertFalse(self.is_ejected())
        self.assertEqual([0.0, FIRST], self.probed)

    def test_reconsidered_between_growing_pauses(self):
        """The pause that follows is as long as the one that was cut short."""
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.pass_time(4)
        self.ejections.reconsider([ONE])
        self.pass_time(4)
        self.assertEqual([1.0, 3.0, 4.0, 8.0], self.probed)

    def test_services_that_are_gone(self):
        """What no service has any more is forgotten, also while it is probed."""
        self.outcome = Deferred()
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.clock.advance(FIRST)
        self.ejections.keep(lambda target: target == TWO)
        self.outcome.callback(Outcome.ANSWERED)
        self.assertFalse(self.is_ejected())
        self.assertEqual([ONE], self.changed)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_services_that_come_back(self):
        """What a probe of before has found counts no more for one that is ejected anew."""
        self.ejections.eject(ONE, Outcome.REFUSED)
        former = self.outcome = Deferred()
        self.clock.advance(FIRST)
        self.ejections.keep(lambda target: False)
        self.ejections.eject(ONE, Outcome.REFUSED)
        former.callback(Outcome.ANSWERED)
        self.assertTrue(self.is_ejected())
        self.outcome = Outcome.ANSWERED
        self.clock.advance(FIRST)
        self.assertFalse(self.is_ejected())

    def test_stop(self):
        """Nothing is probed afterwards, and nothing is ejected, whatever is being probed."""
        answer = self.outcome = Deferred()
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.ejections.eject(DNS, Outcome.REFUSED)
        self.clock.advance(FIRST)
        self.ejections.stop()
        answer.callback(Outcome.REFUSED)
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertFalse(self.is_ejected())

    def test_what_the_page_shows(self):
        """The failures of each endpoint, the last of them or what the last probe has found, and
        until when it is left out.
        """
        self.ejections.eject(ONE, Outcome.REFUSED)
        self.ejections.eject(ONE, Outcome.SILENT)
        one, two = self.ejections.endpoints(Protocol.TCP, [endpoint(1), endpoint(2)])
        self.assertEqual((2, "it does not answer", FIRST),
                         (one.failures, one.last_failure, one.ejected_until))  # fmt: skip
        self.assertEqual((0, "", None), (two.failures, two.last_failure, two.ejected_until))
        self.clock.advance(FIRST)
        [one] = self.ejections.endpoints(Protocol.TCP, [endpoint(1)])
        self.assertEqual((2, Outcome.REFUSED.value), (one.failures, one.last_failure))
