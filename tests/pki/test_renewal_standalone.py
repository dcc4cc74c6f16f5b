"""Renewal of a certificate without a cluster."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.renewal_support import LIFE
from tests.pki.support import Issuer, SteppedClock, clock_now
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.embedded_issuer import EmbeddedIssuer
from yurttunnel.pki.issuer import CertificateTemplate, NotIssued
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.renewal_schedule import STANDALONE_SCHEDULE


class _LocalIssuer:
    """Issues certificates of one hour, or fails on request."""

    final_errors = (ZeroDivisionError,)

    def __init__(self, clock, issuer):
        self._clock = clock
        self._issuer = EmbeddedIssuer(issuer.authority, "client auth", LIFE)
        self.attempts = []
        self.problem = None

    async def issue(self, request, on_waiting):
        """Issue a certificate."""
        self.attempts.append(self._clock.seconds())
        if self.problem is not None:
            raise self.problem
        return await self._issuer.issue(request, on_waiting)


class _MemoryStore:
    """Stores certificates, or fails on request."""

    path = Path("node.pem")

    def __init__(self):
        self.stored = []
        self.problem = ""

    def load(self):
        """Return the last certificate."""
        return self.stored[-1] if self.stored else None

    def save(self, issued):
        """Store a certificate."""
        if self.problem:
            raise StateError(self.problem)
        self.stored.append(issued)


class StandaloneTests(SynchronousTestCase):
    """A certificate of one hour without a cluster."""

    def setUp(self):
        """Start the service, with a certificate that was just issued."""
        self.make(clock_now())

    def make(self, clock):
        """Start the service with a clock."""
        self.clock = clock
        self.issuer = _LocalIssuer(clock, Issuer.make(self, clock))
        self.store = _MemoryStore()
        self.service = self.renewal()
        self.service.startService()
        self.addCleanup(lambda: self.service.running and self.service.stopService())
        self.issuer.attempts.clear()
        self.store.stored.clear()

    def renewal(self):
        """Create the service."""
        template = CertificateTemplate("edge-1", (), "client auth")
        return CertificateRenewal(
            self.clock,
            "certificate of node edge-1",
            self.issuer,
            self.store,
            STANDALONE_SCHEDULE,
            lambda: template,
            template.problem,
        )

    @property
    def attempts(self):
        """The times of the attempts."""
        return self.issuer.attempts

    @property
    def stored(self):
        """The stored certificates."""
        return self.store.stored

    def pass_time(self, seconds):
        """Advance the clock by seconds."""
        self.clock.pump([1.0] * int(seconds))

    def test_in_time(self):
        """It is renewed after about two thirds of its lifetime, and then in use."""
        self.pass_time(LIFE * 0.58)
        self.assertEqual(self.attempts, [])
        self.pass_time(LIFE * 0.12)
        self.assertEqual(len(self.attempts), 1)
        self.assertEqual(self.stored, [self.service.current])

    def test_repeated(self):
        """Over several lifetimes, the certificate in use is always valid."""
        for _ in range(6):
            self.pass_time(LIFE / 2)
            self.assertGreater(self.service.not_after, utc_now(self.clock))
        self.assertGreaterEqual(len(self.stored), 4)

    def test_steps_of_the_clock(self):
        """Failures while the clock is ahead do not delay the attempt that is due."""
        self.make(SteppedClock())
        self.issuer.problem = NotIssued("no")
        self.clock.ahead = 200 * 86400.0
        self.pass_time(100)
        self.assertGreater(len(self.attempts), 1)
        self.clock.ahead = 0.0
        self.attempts.clear()
        self.pass_time(1000)
        self.assertEqual(self.attempts, [])
        self.assertIsNone(self.service.warning())
        self.issuer.problem = None
        self.pass_time(1500)
        self.assertEqual(len(self.attempts), 1)

        # A certificate issued by such a clock is replaced, since peers do not accept it yet.
        self.clock.ahead = 200 * 86400.0
        self.pass_time(100)
        begin = self.service.current.certificate.not_valid_before_utc
        self.assertGreater(begin.timestamp(), self.clock.seconds() + 86400)
        self.clock.ahead = 0.0
        self.pass_time(100)
        begin = self.service.current.certificate.not_valid_before_utc
        self.assertLess(begin.timestamp(), self.clock.seconds())

    def test_clock_far_ahead(self):
        """While the clock is beyond the authority's end nothing is issued, which is no defect."""
        self.make(SteppedClock())
        self.clock.ahead = 11 * 365 * 86400.0
        self.pass_time(100)
        self.assertGreater(len(self.attempts), 1)
        self.assertIn("the server's authority expired at", self.service.problem())
        self.assertEqual([], self.flushLoggedErrors())
        self.clock.ahead = 0.0
        self.pass_time(1)
        self.assertIsNone(self.service.problem())

    def test_clock_that_is_behind(self):
        """One that begins in the future is replaced with backoff, as the clock may stay wrong."""
        self.make(SteppedClock())
        self.service.stopService()
        ahead = Issuer.make(self, SteppedClock(3600.0))
        self.issuer._issuer = EmbeddedIssuer(ahead.authority, "client auth", LIFE)
        service = self.renewal()
        service.startService()
        self.addCleanup(service.stopService)
        self.pass_time(2000)
        self.assertEqual(len(self.attempts), 6)
        self.assertEqual((service.problem(), service.warning()), (None, None))
        self.pass_time(1500)
        self.attempts.clear()
        self.pass_time(300)
        self.assertEqual(self.attempts, [])

    def test_spread(self):
        """Certificates that were issued together are not renewed together."""
        self.store.save(self.service.current)
        due = {self.renewal()._holder.current.renewal_at for _ in range(20)}
        self.assertGreater(len(due), 15)

    def test_started_ahead(self):
        """One that had expired by a wrong clock is used as soon as the clock is right."""
        self.make(SteppedClock())
        self.service.stopService()
        self.store.save(self.service.current)
        for problem in (NotIssued("the server is away"), ZeroDivisionError("no token")):
            self.issuer.problem = problem
            self.clock.ahead = 200 * 86400.0
            service = self.renewal()
            service.startService()
            ready = service.when_ready()
            self.pass_time(100)
            self.assertNoResult(ready)
            self.assertIn("If the clock is wrong, set it", service.problem())
            self.clock.ahead = 0.0
            self.pass_time(1)
            self.successResultOf(ready)
            self.assertEqual((service.problem(), service.warning()), (None, None))
            self.assertEqual(service.current, self.stored[-1])
            service.stopService()

    def test_final(self):
        """Without a certificate, a final error fails the waiting callers."""
        self.issuer.problem = ZeroDivisionError("no token")
        service = self.renewal()
        before = service.when_ready()
        service.startService()
        self.addCleanup(service.stopService)
        for ready in (before, service.when_ready()):
            self.failureResultOf(ready, ZeroDivisionError)
        self.assertIn("no token", service.problem())
        self.issuer.problem = None
        self.pass_time(2)
        self.successResultOf(service.when_ready())

    def test_failures(self):
        """A failure is retried with growing pauses, until it succeeds."""
        self.issuer.problem = NotIssued("the server is away")
        self.pass_time(LIFE * 0.95)
        pauses = [
            later - earlier
            for earlier, later in zip(self.attempts, self.attempts[1:], strict=False)
        ]
        self.assertGreaterEqual(len(self.attempts), 4)
        self.assertLess(len(self.attempts), 30)
        self.assertGreaterEqual(min(pauses), 36)
        self.assertGreater(max(pauses), 72)
        self.assertIn("the server is away", self.service.warning())
        self.issuer.problem = None
        self.pass_time(LIFE * 0.05)
        self.assertEqual((len(self.stored), self.service.warning()), (1, None))

    def test_begun_near_the_end(self):
        """One that expires soon after a start is requested several times before that."""
        self.service.stopService()
        self.store.save(self.service.current)
        self.clock.advance(LIFE - 30)
        self.issuer.problem = NotIssued("the network is not there yet")
        service = self.renewal()
        service.startService()
        self.addCleanup(service.stopService)
        self.pass_time(20)
        self.assertGreater(len(self.attempts), 1)
        self.issuer.problem = None
        self.pass_time(9)
        self.assertGreater(service.not_after.timestamp(), self.clock.seconds() + LIFE / 2)

    def test_offline_for_weeks(self):
        """However many attempts have failed, the next one waits for its pause."""
        self.issuer.problem = NotIssued("the server is away")
        with mock.patch.object(self.service, "_failures", 2000):
            self.pass_time(LIFE * 0.95)
        self.assertLess(len(self.attempts), 30)

    def test_goes_on_after_the_end(self):
        """Renewal is still attempted after the certificate has expired."""
        self.issuer.problem = NotIssued("the server is away")
        self.pass_time(2 * LIFE)
        self.issuer.problem = None
        self.pass_time(120)
        self.assertGreater(self.service.not_after, utc_now(self.clock))

    def test_not_renewed(self):
        """While the certificate is valid a failed renewal is a warning, afterwards a problem."""
        self.assertEqual((self.service.problem(), self.service.warning()), (None, None))
        end = f"{self.service.not_after:%F %T} UTC"
        self.issuer.problem = NotIssued("the server is away")
        self.pass_time(LIFE * 0.95)
        self.assertEqual(
            (self.service.problem(), self.service.warning()),
            (
                None,
                f"the certificate of node edge-1, valid until {end}, is not renewed:"
                " the server is away",
            ),
        )
        self.pass_time(LIFE * 0.05)
        self.assertEqual(
            (self.service.problem(), self.service.warning()),
            (
                f"the certificate of node edge-1 has expired at {end}: the server is away",
                None,
            ),
        )
        self.issuer.problem = None
        # The longest pause for such a lifetime.
        self.pass_time(LIFE / 50)
        self.assertEqual((self.service.problem(), self.service.warning()), (None, None))

    def test_not_stored(self):
        """On a full disk the new certificate is used, and is stored once that succeeds."""
        self.store.problem = "node.pem cannot be written, the disk is full: make room"
        before = self.service.current
        with capturedLogs() as events:
            self.pass_time(LIFE * 0.7)
            renewed = self.service.current
            self.pass_time(LIFE * 0.1)
        self.assertEqual((len(self.attempts), self.stored), (1, []))
        self.assertIsNot(renewed, before)
        problem = (
            "the certificate of node edge-1 is in use but not stored for a restart:"
            f" {self.store.problem}"
        )
        self.assertEqual((self.service.problem(), self.service.warning()), (None, problem))
        # Every attempt is made, but the failure is logged once.
        errors = [formatEvent(e) for e in events if e["log_level"] is LogLevel.error]
        self.assertEqual(errors, [problem])
        self.store.problem = ""
        self.pass_time(40)
        self.assertEqual((self.stored, self.service.warning()), ([renewed], None))
        self.pass_time(40)
        self.assertEqual(len(self.stored), 1)

    def test_never_stored(self):
        """While the disk is full, certificates are still renewed."""
        self.store.problem = "node.pem cannot be written, the disk is full: make room"
        for _ in range(6):
            self.pass_time(LIFE / 2)
            self.assertGreater(self.service.not_after, utc_now(self.clock))
        self.store.problem = ""
        self.pass_time(40)
        self.assertEqual(self.stored, [self.service.current])

    def test_bad_certificate(self):
        """An invalid certificate is neither stored nor used."""
        before = self.service.current
        other = CertificateTemplate("edge-1", (), "client auth").request(new_key())
        issue = self.issuer.issue

        async def swapped(request, on_waiting):
            return await issue(other, on_waiting)

        self.issuer.issue = swapped
        self.pass_time(LIFE * 0.7)
        self.assertEqual((self.stored, self.service.current), ([], before))
        self.assertIn("is for another key", self.service.warning())

    def test_stopped(self):
        """Stopping ends an attempt in progress, without errors."""
        pending = Deferred()

        async def issue(request, on_waiting):
            return await pending

        self.issuer.issue = issue
        self.pass_time(LIFE * 0.7)
        self.service.stopService()
        self.assertTrue(pending.called)
        self.assertIsNone(self.service.warning())
        self.assertEqual(self.clock.getDelayedCalls(), [])
