"""How a renewal that fails goes on."""

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs

from tests.pki.renewing import LIFE, Kept
from yurttunnel.kube.errors import NotAllowed
from yurttunnel.pki.certificate_template import serving_template


class _SlowToClose:
    """Never issues anything, and closes two connections when it is given up."""

    final = ()

    def __init__(self, clock):
        self._clock = clock
        self.asked = self.closed = 0

    async def issue(self, request, waits):
        """Wait until that is cancelled."""
        self.asked += 1
        try:
            await Deferred()
        finally:
            for _ in range(2):
                await deferLater(self._clock, 1.5)
                self.closed += 1


class FailureTests(Kept):
    """What happens when no certificate is to be had."""

    def pauses(self):
        """Return the seconds between attempts."""
        return [later - earlier for earlier, later in pairwise(self.times)]

    def test_pauses(self):
        """Pauses are doubled from 2 seconds to 32, and there is no end of attempts."""
        self.api.unreachable()
        renewal = self.renewal()
        self.pass_time(3600)
        pauses = self.pauses()
        # Looks are a second apart, and a pause is up to a tenth longer.
        for pause, expected in zip(pauses, (2, 4, 8, 16, 32, 32, 32), strict=False):
            self.assertGreaterEqual(pause, expected)
            self.assertLessEqual(pause, expected * 1.1 + 1)
        self.assertLessEqual(max(pauses), 37)
        self.assertGreater(len(pauses), 90)
        self.assertIn("connection refused", renewal.problem())
        self.assertEqual(renewal.counters.failed, len(self.times))

    def test_recovery(self):
        """When the API is back the certificate is there within a pause, and pauses are short."""
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
        """An outage of a day is told again and again, but not thousands of times."""
        self.api.unreachable()
        with capturedLogs() as events:
            self.renewal()
            self.pass_time(86400 // 4)
        errors = [event for event in events if event["log_level"].name == "error"]
        self.assertGreater(len(errors), 5)
        self.assertLess(len(errors), 20)

    def test_denied(self):
        """A denial counts as a failure, is told, and is followed by another attempt."""
        self.api.prompt = False
        renewal = self.renewal()
        self.api.condition("csr-0", "Denied", message="not for you")
        self.pass_time(2)
        self.assertIn("csr-0 was denied: not for you", renewal.problem())
        self.assertEqual((renewal.counters.denied, renewal.counters.failed), (1, 0))
        self.pass_time(3)
        self.assertEqual(self.requests, 2)
        self.assertIn("waits for approval of csr-1", renewal.problem())
        self.assertIn("before that: csr-0 was denied", renewal.problem())

    def test_not_allowed(self):
        """So does an API that does not take the request."""
        self.api.fail(NotAllowed(403, "Forbidden", "csr is forbidden"))
        renewal = self.renewal()
        self.assertIn("csr is forbidden", renewal.problem())
        self.api.recover()
        self.pass_time(5)
        self.assertIsNone(renewal.problem())

    def test_not_renewed(self):
        """The certificate in use stays; until it expires that is a warning, then a problem."""
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
        """A renewal is worth a word only when nobody approves it for a while."""
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
        """An error that nobody has thought of is logged, and the next attempt comes."""

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
        """A source of names that raises anything at all is logged once and asked again."""
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
        """Stopping ends what is under way, without complaint and without a trace."""
        self.api.prompt = False
        renewal = self.renewal()
        self.pass_time(10)
        with capturedLogs() as events:
            renewal.stopService()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(events, [])

    def test_stopped_within_a_call(self):
        """Stopping cancels a call that the API has not answered."""
        self.api.hold()
        renewal = self.renewal()
        stopped = renewal.stopService()
        self.successResultOf(stopped)
        self.api.release()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual((renewal.counters.failed, renewal.counters.issued), (0, 0))

    def test_given_up(self):
        """What an issuer closes when it is given up is not cut short, and told of once."""
        issuer = _SlowToClose(self.clock)
        renewal = self.renewal(issuer=issuer)
        self.pass_time(5)
        with capturedLogs() as events:
            self.template = serving_template(["two.example"])
            self.pass_time(10)
        self.assertEqual((2, 2), (issuer.asked, issuer.closed))
        changed = [event for event in events if "asked for again" in event["log_format"]]
        self.assertEqual(1, len(changed))

        stopped = renewal.stopService()
        self.pass_time(4)
        self.successResultOf(stopped)
        self.assertEqual(4, issuer.closed)
