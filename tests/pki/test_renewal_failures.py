"""Failures of renewals."""

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs

from tests.pki.renewal_support import LIFE, RenewalTestCase
from yurttunnel.kube.errors import NotAllowed
from yurttunnel.pki.certificate_template import serving_template


class _SlowToClose:
    """An issuer that never issues, and closes two connections after a cancellation."""

    final_errors = ()

    def __init__(self, clock):
        self._clock = clock
        self.requested = self.closed = 0

    async def issue(self, request, on_waiting):
        """Wait until cancelled."""
        self.requested += 1
        try:
            await Deferred()
        finally:
            for _ in range(2):
                await deferLater(self._clock, 1.5)
                self.closed += 1


class FailureTests(RenewalTestCase):
    """Renewals without a certificate from the issuer."""

    def pauses(self):
        """Return the seconds between attempts."""
        return [later - earlier for earlier, later in pairwise(self.times)]

    def test_pauses(self):
        """Pauses double from 2 seconds to 32, and attempts never end."""
        self.api.unreachable()
        renewal = self.renewal()
        self.pass_time(3600)
        pauses = self.pauses()
        # Checks are a second apart, and a pause is up to a tenth longer.
        for pause, expected in zip(pauses, (2, 4, 8, 16, 32, 32, 32), strict=False):
            self.assertGreaterEqual(pause, expected)
            self.assertLessEqual(pause, expected * 1.1 + 1)
        self.assertLessEqual(max(pauses), 37)
        self.assertGreater(len(pauses), 90)
        self.assertIn("connection refused", renewal.problem())
        self.assertEqual(renewal.counters.failed, len(self.times))

    def test_recovery(self):
        """When the API is back, the certificate is issued within a pause, and backoff is reset."""
        self.api.unreachable()
        renewal = self.renewal()
        self.pass_time(3600)
        self.api.recover()
        self.pass_time(37)
        self.assertEqual((renewal.problem(), renewal.warning()), (None, None))
        self.api.unreachable()
        self.template = serving_template(["two.example"])
        self.times.clear()
        self.pass_time(10)
        self.assertLess(self.pauses()[0], 4)

    def test_quiet(self):
        """An outage of a day is logged repeatedly, but not thousands of times."""
        self.api.unreachable()
        with capturedLogs() as events:
            self.renewal()
            self.pass_time(86400 // 4)
        errors = [event for event in events if event["log_level"].name == "error"]
        self.assertGreater(len(errors), 5)
        self.assertLess(len(errors), 20)

    def test_denied(self):
        """A denial counts as a failure, is logged, and is retried."""
        self.api.prompt = False
        renewal = self.renewal()
        self.api.condition("csr-0", "Denied", message="not for you")
        self.pass_time(2)
        self.assertIn("csr-0 was denied: not for you", renewal.problem())
        self.assertEqual((renewal.counters.denied, renewal.counters.failed), (1, 0))
        self.pass_time(3)
        self.assertEqual(self.requests, 2)
        self.assertIn("waiting for approval of csr-1", renewal.problem())
        self.assertIn("before that: csr-0 was denied", renewal.problem())

    def test_not_allowed(self):
        """So does an API that rejects the request."""
        self.api.fail(NotAllowed(403, "Forbidden", "csr is forbidden"))
        renewal = self.renewal()
        self.assertIn("csr is forbidden", renewal.problem())
        self.api.recover()
        self.pass_time(5)
        self.assertIsNone(renewal.problem())

    def test_not_renewed(self):
        """The certificate stays in use; a warning until it expires becomes a problem."""
        renewal = self.renewal()
        self.api.unreachable()
        self.pass_time(LIFE * 0.95)
        self.assertIsNone(renewal.problem())
        self.assertIn("is not renewed", renewal.warning())
        self.assertIn("connection refused", renewal.warning())
        self.pass_time(LIFE * 0.1)
        self.assertFalse(renewal.is_usable)
        self.assertIn("the serving certificate has expired at", renewal.problem())
        self.assertIsNone(renewal.warning())
        waiting = renewal.when_ready()
        self.api.recover()
        self.pass_time(37)
        self.successResultOf(waiting)
        self.assertIsNone(renewal.problem())

    def test_renewal_that_waits(self):
        """A pending renewal is reported only after a while."""
        renewal = self.renewal()
        self.api.prompt = False
        self.template = serving_template(["two.example"])
        self.pass_time(30)
        self.assertEqual(self.requests, 2)
        self.assertIsNone(renewal.warning())
        self.pass_time(60)
        self.assertIn("kubectl certificate approve csr-1", renewal.warning())
        self.assertIsNone(renewal.problem())

    def test_defect(self):
        """An unexpected exception is logged, and the next attempt follows."""

        def broken(*_):
            raise ZeroDivisionError

        create, self.api.create = self.api.create, broken
        renewal = self.renewal()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertIsNotNone(renewal.problem())
        self.api.create = create
        self.pass_time(5)
        self.assertIsNone(renewal.problem())

    def test_defect_of_the_template(self):
        """An unexpected exception of a template is logged once and retried."""
        self.store(self.template)
        renewal = self.renewal()
        self.unknown = ZeroDivisionError()
        self.pass_time(10)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.unknown = None
        self.template = serving_template(["two.example"])
        self.pass_time(10)
        self.assertEqual(self.requests, 1)
        self.assertIsNone(renewal.warning())

    def test_stopped(self):
        """Stopping ends the attempt in progress, without errors and leftovers."""
        self.api.prompt = False
        renewal = self.renewal()
        self.pass_time(10)
        with capturedLogs() as events:
            renewal.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(events, [])

    def test_stopped_within_a_call(self):
        """Stopping cancels a call to which the API has not responded."""
        self.api.hold()
        renewal = self.renewal()
        stopped = renewal.stopService()
        self.successResultOf(stopped)
        self.api.release()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual((renewal.counters.failed, renewal.counters.issued), (0, 0))

    def test_cancelled_once(self):
        """The issuer's cleanup after a cancellation is not interrupted, and logged once."""
        issuer = _SlowToClose(self.clock)
        renewal = self.renewal(issuer=issuer)
        self.pass_time(5)
        with capturedLogs() as events:
            self.template = serving_template(["two.example"])
            self.pass_time(10)
        self.assertEqual((2, 2), (issuer.requested, issuer.closed))
        changed = [event for event in events if "requested again" in event["log_format"]]
        self.assertEqual(1, len(changed))

        stopped = renewal.stopService()
        self.pass_time(4)
        self.successResultOf(stopped)
        self.assertEqual(4, issuer.closed)
