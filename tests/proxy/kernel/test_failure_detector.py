"""Tests of the detection of dead endpoints, by logged packets and by probes."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import endpoint
from yurttunnel.proxy.kernel.ejections import Ejections
from yurttunnel.proxy.kernel.failure_detector import ANSWER_TIMEOUT, MAX_SIBLINGS, FailureDetector
from yurttunnel.proxy.kernel.prober import TIMEOUT, Outcome
from yurttunnel.proxy.kernel.targets import Attempt, Target
from yurttunnel.proxy.state.virtual_services import Protocol
from yurttunnel.steering.failures import SteeringFailed

ONE, TWO, THREE = (Target(Protocol.TCP, endpoint(number)) for number in (1, 2, 3))
FIRST_RETRANSMISSION = 1.0
APPLYING = 0.5
"""Seconds that remain to change the rules, beside other programs."""


class FailureDetectorTests(SynchronousTestCase):
    """A service of three endpoints."""

    def setUp(self):
        """Make a kernel that knows ``answered``, and probes whose results the test sets."""
        self.clock = Clock()
        self.answered = {}
        self.outcomes = {}
        self.probes = []
        self.service = [ONE.endpoint, TWO.endpoint, THREE.endpoint]
        self.ejections = Ejections(self.clock, lambda where: Deferred())
        self.detector = FailureDetector(
            self.clock, self.is_answered, self.probe, self.siblings, self.ejections
        )

    def is_answered(self, attempt):
        """Return the kernel's view of an attempt."""
        found = self.answered.get(attempt.target.endpoint)
        if isinstance(found, Exception):
            raise found
        return found

    def probe(self, where):
        """Answer or refuse at once, or be silent until the probe times out."""
        self.probes.append(where)
        outcome = self.outcomes.get(where, Outcome.ANSWERED)
        result = Deferred()
        delay = TIMEOUT if outcome is Outcome.SILENT else 0.001
        self.clock.callLater(delay, result.callback, outcome)
        return result

    def siblings(self, target):
        """Return the others."""
        if target.endpoint not in self.service:
            return None
        return [each for each in self.service if each != target.endpoint]

    def attempt(self, target):
        """Log a client's first packet."""
        self.detector.attempted(Attempt(target, ip_address("10.5.0.2"), 40000))

    def pass_time(self, seconds=FIRST_RETRANSMISSION - APPLYING):
        """Let time pass in small steps."""
        self.clock.pump([0.01] * round(seconds / 0.01))

    def ejected(self):
        """Return the ejected endpoints."""
        return [each for each in (ONE, TWO, THREE) if self.ejections.is_ejected(*each)]

    def test_an_answer(self):
        """Nothing is suspected, and nothing is probed."""
        self.answered[ONE.endpoint] = True
        self.attempt(ONE)
        self.pass_time()
        self.assertEqual([], self.probes)
        self.assertEqual([], self.ejected())

    def test_no_answer(self):
        """An endpoint that is also silent to a probe is ejected before the client retries."""
        self.answered[ONE.endpoint] = False
        self.outcomes[ONE.endpoint] = Outcome.SILENT
        self.attempt(ONE)
        self.pass_time()
        self.assertEqual([ONE], self.ejected())

    def test_a_lost_packet(self):
        """An endpoint that answers a probe is not ejected."""
        self.answered[ONE.endpoint] = False
        self.attempt(ONE)
        self.pass_time()
        self.assertIn(ONE.endpoint, self.probes)
        self.assertEqual([], self.ejected())

    def test_a_refusal(self):
        """An endpoint that refuses is ejected at once."""
        self.detector.refused(ONE)
        self.assertEqual([ONE], self.ejected())

    def test_neighbors(self):
        """Endpoints to which the client might be sent next are probed, and found dead in time."""
        self.outcomes[TWO.endpoint] = Outcome.SILENT
        self.detector.refused(ONE)
        self.pass_time()
        self.assertEqual([ONE, TWO], self.ejected())

    def test_neighbors_that_have_just_answered(self):
        """They are not probed."""
        for target in (TWO, THREE):
            self.answered[target.endpoint] = True
            self.attempt(target)
        self.pass_time(ANSWER_TIMEOUT + 0.1)
        self.detector.refused(ONE)
        self.assertEqual([], self.probes)

    def test_probes_that_are_blocked(self):
        """If no probe is answered, only the endpoint that did not answer a client is ejected."""
        self.outcomes.update(dict.fromkeys(self.service, Outcome.SILENT))
        self.answered[ONE.endpoint] = False
        self.attempt(ONE)
        self.pass_time()
        self.assertEqual([ONE], self.ejected())

    def test_an_answer_after_all(self):
        """One that answers another client meanwhile is not ejected for a failed probe."""
        self.outcomes[ONE.endpoint] = Outcome.SILENT
        self.answered[ONE.endpoint] = False
        self.attempt(ONE)
        self.pass_time(ANSWER_TIMEOUT - 0.05)
        self.attempt(ONE)
        self.pass_time(0.1)
        self.answered[ONE.endpoint] = True
        self.pass_time()
        self.assertEqual([], self.ejected())

    def test_all_refuse(self):
        """All are ejected before the client retries, which then gets a refusal."""
        self.outcomes.update(dict.fromkeys(self.service, Outcome.REFUSED))
        self.detector.refused(ONE)
        self.pass_time()
        self.assertEqual([ONE, TWO, THREE], self.ejected())

    def test_endpoints_of_no_service(self):
        """Endpoints without a service are ignored, also if they have lost it meanwhile."""
        self.service.remove(ONE.endpoint)
        self.detector.refused(ONE)
        self.answered[ONE.endpoint] = False
        self.attempt(ONE)
        self.pass_time()
        self.assertEqual([], self.probes)
        self.assertEqual([], self.ejected())

    def test_connections_without_an_entry(self):
        """Attempts without an entry are ignored."""
        self.attempt(ONE)
        self.pass_time()
        self.assertEqual([], self.probes)

    def test_many_neighbors(self):
        """The number of concurrent probes is limited, and none is probed twice."""
        self.service += [endpoint(number) for number in range(10, 500)]
        for _ in range(10):
            self.detector.refused(ONE)
        self.assertLessEqual(len(self.probes), 10 * MAX_SIBLINGS)
        self.assertEqual(len(self.probes), len(set(self.probes)))

    def test_udp(self):
        """A UDP endpoint that refuses is ejected; none can be probed."""
        dns = Target(Protocol.UDP, ONE.endpoint)
        self.detector.refused(dns)
        self.assertTrue(self.ejections.is_ejected(*dns))
        self.assertEqual([], self.probes)

    def test_a_kernel_that_does_not_answer(self):
        """The error is logged; the next attempt is checked."""
        self.answered[ONE.endpoint] = SteeringFailed("the table is not given")
        self.answered[TWO.endpoint] = False
        self.attempt(ONE)
        self.attempt(TWO)
        with capturedLogs() as logged:
            self.pass_time(ANSWER_TIMEOUT + 0.1)
        self.assertIn("the table is not given", str(logged[0]["error"]))
        self.assertIn(TWO.endpoint, self.probes)

    def test_stop(self):
        """Attempts are no longer checked."""
        self.attempt(ONE)
        self.detector.stop()
        self.assertEqual([], self.clock.getDelayedCalls())
