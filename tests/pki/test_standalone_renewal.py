"""Renewal in good time, and what happens when it fails."""

from __future__ import annotations

from unittest import mock

from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import TestCase

from tests.pki.support import Issuer, SteppedClock, clock_now
from yurttunnel.pki.authority import utc_now
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.standalone_renewal import CertificateRenewal

LIFE = 3600.0


class RenewalTests(TestCase):
    """A certificate of one hour."""

    def setUp(self) -> None:
        """Start the service."""
        self.clock = clock_now()
        self.start = self.clock.seconds()
        self.issuer = Issuer.make(self, self.clock)
        self.contexts = ClientContexts(self.issuer.node(lifetime=LIFE))
        self.attempts: list[float] = []
        self.stored: list[Credentials] = []
        self.problem: Exception | None = None
        self.disk_problem = ""
        self.renewal = CertificateRenewal(
            self.clock, "node edge-1", self.contexts, self.obtain, self.store
        )
        self.renewal.startService()
        self.addCleanup(self.renewal.stopService)

    async def obtain(self) -> Credentials:
        """Renew, or fail as told."""
        self.attempts.append(self.clock.seconds() - self.start)
        if self.problem is not None:
            raise self.problem
        return self.issuer.node(lifetime=LIFE)

    def store(self, credentials: Credentials) -> None:
        """Keep a certificate, or fail as told."""
        if self.disk_problem:
            raise StateError(self.disk_problem)
        self.stored.append(credentials)

    def pass_time(self, seconds: float) -> None:
        """Let time pass in seconds."""
        self.clock.pump([1.0] * int(seconds))

    def test_in_time(self) -> None:
        """Renewal comes after about two thirds of the life, and the certificate is then in use."""
        self.pass_time(LIFE * 0.58)
        self.assertEqual(self.attempts, [])
        self.pass_time(LIFE * 0.12)
        self.assertEqual(len(self.attempts), 1)
        self.assertEqual(self.stored, [self.contexts.credentials])
        self.assertEqual(
            self.renewal.not_after, self.contexts.credentials.certificate.not_valid_after_utc
        )

    def test_again_and_again(self) -> None:
        """Over several lives the certificate in use is always good."""
        for _ in range(6):
            self.pass_time(LIFE / 2)
            self.assertGreater(self.renewal.not_after, utc_now(self.clock))
        self.assertGreaterEqual(len(self.stored), 4)

    def test_steps_of_the_clock(self) -> None:
        """Attempts that fail by a clock that is ahead do not put off the one that is due."""
        clock = SteppedClock()
        issuer = Issuer.make(self, clock)
        contexts = ClientContexts(issuer.node(lifetime=LIFE))
        attempts: list[float] = []
        broken = [ValueError("no")]

        async def obtain() -> Credentials:
            attempts.append(clock.seconds())
            if broken:
                raise broken[0]
            return issuer.node(lifetime=LIFE)

        renewal = CertificateRenewal(clock, "node edge-1", contexts, obtain, self.store)
        renewal.startService()
        self.addCleanup(renewal.stopService)
        clock.ahead = 200 * 86400.0
        clock.pump([1.0] * 100)
        self.assertGreater(len(attempts), 1)
        clock.ahead = 0.0
        del attempts[:]
        clock.pump([1.0] * 1000)
        self.assertEqual(attempts, [])
        broken.clear()
        clock.pump([1.0] * 1500)
        self.assertEqual(len(attempts), 1)

        # And one that was made by such a clock is replaced: to others it is not good yet.
        clock.ahead = 200 * 86400.0
        clock.pump([1.0] * 100)
        begin = contexts.credentials.certificate.not_valid_before_utc
        self.assertGreater(begin.timestamp(), clock.seconds() + 86400)
        clock.ahead = 0.0
        clock.pump([1.0] * 100)
        begin = contexts.credentials.certificate.not_valid_before_utc
        self.assertLess(begin.timestamp(), clock.seconds())

    def test_spread(self) -> None:
        """Certificates of the same moment are not renewed at the same moment."""
        due = {
            CertificateRenewal(
                self.clock, "a node", self.contexts, self.obtain, self.stored.append
            )._renewal_time()
            for _ in range(20)
        }
        self.assertGreater(len(due), 15)

    def test_failures(self) -> None:
        """A failure is tried again with growing pauses, until it works."""
        self.problem = OSError("the server is away")
        self.pass_time(LIFE * 0.95)
        pauses = [
            later - earlier
            for earlier, later in zip(self.attempts, self.attempts[1:], strict=False)
        ]
        self.assertGreaterEqual(len(self.attempts), 4)
        self.assertLess(len(self.attempts), 30)
        self.assertGreaterEqual(min(pauses), 36)
        self.assertGreater(max(pauses), 72)
        self.assertEqual(self.renewal.last_error, "the server is away")
        self.problem = None
        self.pass_time(LIFE * 0.05)
        self.assertEqual((len(self.stored), self.renewal.last_error), (1, ""))

    def test_away_for_weeks(self) -> None:
        """However many attempts have failed, the next one keeps its distance."""
        self.problem = OSError("the server is away")
        with mock.patch.object(self.renewal, "_attempts", 2000):
            self.pass_time(LIFE * 0.95)
        self.assertLess(len(self.attempts), 30)

    def test_goes_on_after_the_end(self) -> None:
        """A certificate that has expired is still tried to be renewed."""
        self.problem = OSError("the server is away")
        self.pass_time(2 * LIFE)
        self.problem = None
        self.pass_time(120)
        self.assertGreater(self.renewal.not_after, utc_now(self.clock))

    def test_not_renewed(self) -> None:
        """While the certificate is good a failed renewal is a warning, afterwards a problem."""
        self.assertEqual((self.renewal.problem(), self.renewal.warning()), (None, None))
        end = f"{self.renewal.not_after:%F %T} UTC"
        self.problem = OSError("the server is away")
        self.pass_time(LIFE * 0.95)
        self.assertEqual(
            (self.renewal.problem(), self.renewal.warning()),
            (
                None,
                f"the certificate of node edge-1, good until {end}, is not renewed:"
                " the server is away",
            ),
        )
        self.pass_time(LIFE * 0.05)
        self.assertEqual(
            (self.renewal.problem(), self.renewal.warning()),
            (
                f"the certificate of node edge-1 has expired at {end}: the server is away",
                None,
            ),
        )
        self.problem = None
        self.pass_time(60)
        self.assertEqual((self.renewal.problem(), self.renewal.warning()), (None, None))

    def test_not_stored(self) -> None:
        """On a full disk the new certificate is in use, and is stored as soon as that works."""
        self.disk_problem = "node.pem cannot be written, the disk is full: make room"
        before = self.contexts.credentials
        with capturedLogs() as events:
            self.pass_time(LIFE * 0.7)
            renewed = self.contexts.credentials
            self.pass_time(LIFE * 0.1)
        self.assertEqual((len(self.attempts), self.stored), (1, []))
        self.assertIsNot(renewed, before)
        problem = (
            "the certificate of node edge-1 is in use but not kept for a restart:"
            f" {self.disk_problem}"
        )
        self.assertEqual((self.renewal.problem(), self.renewal.warning()), (None, problem))
        # It is tried all the time, and told once.
        errors = [formatEvent(e) for e in events if e["log_level"] is LogLevel.error]
        self.assertEqual(errors, [problem])
        self.disk_problem = ""
        self.pass_time(40)
        self.assertEqual((self.stored, self.renewal.warning()), ([renewed], None))
        self.pass_time(40)
        self.assertEqual(len(self.stored), 1)

    def test_never_stored(self) -> None:
        """For as long as the disk is full, one certificate follows the other."""
        self.disk_problem = "node.pem cannot be written, the disk is full: make room"
        for _ in range(6):
            self.pass_time(LIFE / 2)
            self.assertGreater(self.renewal.not_after, utc_now(self.clock))
        self.disk_problem = ""
        self.pass_time(40)
        self.assertEqual(self.stored, [self.contexts.credentials])

    def test_bad_credentials(self) -> None:
        """What cannot be used is neither stored nor put into use."""
        before = self.contexts.credentials
        good, other = self.issuer.node(), self.issuer.node()
        bad = Credentials(other.key, good.certificate, good.chain, good.authorities)

        async def obtain() -> Credentials:
            return bad

        self.renewal._obtain = obtain
        self.pass_time(LIFE * 0.7)
        self.assertEqual((self.stored, self.contexts.credentials), ([], before))
        self.assertIn("does not belong", self.renewal.last_error)

    def test_stopped(self) -> None:
        """Stopping ends an attempt that is under way, without complaint."""
        pending: Deferred[Credentials] = Deferred()

        async def obtain() -> Credentials:
            return await pending

        self.renewal._obtain = obtain
        self.pass_time(LIFE * 0.7)
        self.renewal.stopService()
        self.assertTrue(pending.called)
        self.assertEqual(self.renewal.last_error, "")
        self.assertEqual(self.clock.getDelayedCalls(), [])
