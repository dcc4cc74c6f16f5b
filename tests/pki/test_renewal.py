"""When a certificate is asked for, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest import mock

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.signing import SigningApi, issue
from tests.pki.support import Issuer, SteppedClock, clock_now
from yurttunnel.kube.errors import NotAllowed
from yurttunnel.pki.authority import utc_now
from yurttunnel.pki.certificate_store import DatedStore, open_certificate_directory
from yurttunnel.pki.certificate_template import proxy_client_template, serving_template
from yurttunnel.pki.cluster_issuer import ClusterIssuer
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.desired_template import SETTLE_TIME, TemplateUnknown
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.embedded_issuer import EmbeddedIssuer
from yurttunnel.pki.issuer import CertificateTemplate, NotIssued
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.renewal_schedule import CLUSTER_SCHEDULE, STANDALONE_SCHEDULE

LIFE = 3600.0


class Kept(SynchronousTestCase):
    """The service for the serving certificate of a cluster."""

    def setUp(self):
        """Make an API that answers at once."""
        self.clock = clock_now()
        self.start = self.clock.seconds()
        self.issuer = Issuer.make(self, self.clock)
        self.api = SigningApi(self.issuer, prompt=True, lifetime=LIFE)
        self.directory = open_certificate_directory(self.mktemp())
        self.template = serving_template(["one.example"])
        self.unknown = None
        self.changes = []
        self.times = []
        create = self.api.create

        def timed(resource, body, namespace=None):
            self.times.append(self.clock.seconds())
            return create(resource, body, namespace)

        self.api.create = timed

    def desired(self):
        """Return what is wanted, or that it is not known."""
        if self.unknown is not None:
            raise self.unknown
        return self.template

    def renewal(self, misfit=None):
        """Start a service, which has what the last one left."""
        store = DatedStore(self.clock, self.directory, "yurttunnel-server")
        purpose = serving_template()
        renewal = CertificateRenewal(
            self.clock,
            "serving certificate",
            ClusterIssuer(self.clock, self.api, purpose.signer, purpose.usages),
            store,
            CLUSTER_SCHEDULE,
            self.desired,
            misfit or purpose.problem,
            (self.issuer.authority.certificate,),
        )
        renewal.on_change.append(self.changes.append)
        renewal.startService()
        self.addCleanup(self.stop, renewal)
        return renewal

    def stop(self, renewal):
        """Stop it, if that has not been done."""
        if renewal.running:
            renewal.stopService()

    def store(self, template, issuer=None, lifetime=LIFE):
        """Leave a certificate as an earlier run would have."""
        issued = issue(issuer or self.issuer, template, lifetime)
        DatedStore(self.clock, self.directory, "yurttunnel-server").save(issued)
        return issued.certificate

    def pass_time(self, seconds):
        """Let time pass in seconds."""
        self.clock.pump([1.0] * int(seconds))

    @property
    def requests(self):
        """How many requests there have been."""
        return len(self.api.created)


class FirstCertificateTests(Kept):
    """From nothing, or from what an earlier run has left, to a certificate."""

    def test_at_once(self):
        """Without a certificate one is asked for at once, kept and handed on."""
        renewal = self.renewal()
        self.successResultOf(renewal.when_ready())
        self.assertEqual(self.requests, 1)
        self.assertEqual(self.changes, [renewal.current])
        self.assertEqual(renewal.not_after, renewal.current.certificate.not_valid_after_utc)
        self.assertEqual((renewal.problem(), renewal.warning()), (None, None))
        again = self.renewal()
        self.assertEqual(again.current.certificate, renewal.current.certificate)
        self.assertEqual(self.requests, 1)

    def test_waiting(self):
        """Whoever waits is told when it is there, unless he has given up."""
        self.api.prompt = False
        renewal = self.renewal()
        waiting, leaving = renewal.when_ready(), renewal.when_ready()
        leaving.cancel()
        self.failureResultOf(leaving, CancelledError)
        self.pass_time(5)
        self.assertNoResult(waiting)
        self.api.sign("csr-0")
        self.pass_time(10)
        self.successResultOf(waiting)
        self.successResultOf(renewal.when_ready())

    def test_problem(self):
        """Until then the problem names the request and the command that approves it."""
        self.api.prompt = False
        renewal = self.renewal()
        self.assertEqual(
            renewal.problem(),
            "there is no serving certificate yet: waits for approval of csr-0: "
            "kubectl certificate approve csr-0",
        )
        self.assertIsNone(renewal.warning())

    def test_stored(self):
        """A stored certificate is in use without the API, however long that is away."""
        certificate = self.store(self.template)
        self.api.unreachable()
        renewal = self.renewal()
        self.successResultOf(renewal.when_ready())
        self.assertEqual(renewal.current.certificate, certificate)
        self.pass_time(600)
        self.assertEqual((renewal.problem(), renewal.warning()), (None, None))

    def test_stored_while_names_are_unknown(self):
        """It is in use even while it is not known which names are wanted."""
        self.store(self.template)
        self.unknown = TemplateUnknown("services have not been read")
        renewal = self.renewal()
        self.successResultOf(renewal.when_ready())
        self.pass_time(10)
        self.assertEqual(self.requests, 0)
        self.assertIn("services have not been read", renewal.warning())

    def test_names_unknown(self):
        """Without one, the request waits for the names, and the problem says so."""
        self.unknown = TemplateUnknown("services have not been read")
        renewal = self.renewal()
        self.pass_time(10)
        self.assertEqual(
            renewal.problem(),
            "there is no serving certificate yet: services have not been read",
        )
        self.unknown = None
        self.pass_time(2)
        self.assertEqual(self.requests, 1)
        self.assertIsNone(renewal.problem())

    def test_other_purpose(self):
        """A stored certificate for another purpose (yurttunnel 1.2 mixed them up) is not used."""
        self.store(proxy_client_template())
        with capturedLogs() as events:
            renewal = self.renewal()
        self.assertTrue(any("tunnel-proxy-client" in str(e.get("problem")) for e in events))
        self.assertEqual(self.requests, 1)
        self.assertIsNone(self.template.problem(renewal.current.certificate))

    def test_accepted_meanwhile(self):
        """One that is let through is in use until there is a better one."""
        old = self.store(proxy_client_template())
        self.api.prompt = False
        renewal = self.renewal(misfit=lambda certificate: None)
        self.successResultOf(renewal.when_ready())
        self.assertEqual(renewal.current.certificate, old)
        self.pass_time(SETTLE_TIME + 1)
        self.assertEqual(self.requests, 1)
        self.api.sign("csr-0")
        self.pass_time(10)
        self.assertIsNone(self.template.problem(renewal.current.certificate))

    def test_expired(self):
        """A stored certificate that has expired is not used, and another one is asked for."""
        self.store(self.template, lifetime=-1)
        self.api.prompt = False
        renewal = self.renewal()
        self.assertFalse(renewal.is_usable)
        self.assertNoResult(renewal.when_ready())
        self.assertEqual(self.requests, 1)
        self.assertIn("the serving certificate has expired at", renewal.problem())

    def test_of_another_cluster(self):
        """A stored one that no authority of the cluster has issued is replaced, once."""
        self.store(self.template, Issuer.make(self))
        renewal = self.renewal()
        self.assertEqual(self.requests, 1)
        self.assertTrue(renewal.current.is_from([self.issuer.authority.certificate]))

    def test_foreign_signer(self):
        """A signer that is none of the authorities is asked again ever less often, and told of."""
        self.api.issuer = Issuer.make(self, self.clock)
        self.api.lifetime = 86400.0
        renewal = self.renewal()
        self.assertIn("is not from an authority", renewal.warning())
        self.assertIsNone(renewal.problem())
        self.pass_time(50)
        self.assertEqual(self.requests, 1)
        self.pass_time(15)
        self.assertEqual(self.requests, 2)
        self.pass_time(3600)
        self.assertEqual(self.requests, 6)

    def test_signer_changes_late(self):
        """One that is changed after the bundle was is found without a restart."""
        mine, other = self.issuer, Issuer.make(self, self.clock)
        self.api.issuer = other
        renewal = self.renewal()
        self.api.issuer = mine
        self.pass_time(65)
        self.assertTrue(renewal.current.is_from([mine.authority.certificate]))
        self.assertIsNone(renewal.warning())

    def test_new_authorities(self):
        """When its authority is dropped from the bundle, a new certificate is asked for."""
        renewal = self.renewal()
        other = Issuer.make(self, self.clock)
        both = (self.issuer.authority.certificate, other.authority.certificate)
        renewal.authorities_changed(both)
        self.pass_time(10)
        self.assertEqual(self.requests, 1)
        self.api.issuer = other
        renewal.authorities_changed(both[1:])
        self.pass_time(10)
        self.assertEqual(self.requests, 2)
        self.assertTrue(renewal.current.is_from(both[1:]))

    def test_not_kept(self):
        """A certificate that cannot be stored is in use all the same, and a warning says so."""

        def full(self, issued):
            raise StateError("pki: the disk is full")

        self.patch(DatedStore, "save", full)
        renewal = self.renewal()
        self.assertEqual(self.changes, [renewal.current])
        self.assertIsNone(renewal.problem())
        self.assertIn("not kept for a restart: pki: the disk is full", renewal.warning())


class RotationTests(Kept):
    """Replacing the certificate in use."""

    def test_in_time(self):
        """A new one is asked for after 70 to 90 % of its life."""
        renewal = self.renewal()
        first = renewal.current
        self.pass_time(LIFE * 0.7 - 2)
        self.assertEqual(self.requests, 1)
        self.pass_time(LIFE * 0.2 + 4)
        self.assertEqual(self.requests, 2)
        self.assertEqual(self.changes, [first, renewal.current])
        self.assertEqual((renewal.problem(), renewal.warning()), (None, None))

    def test_stored_in_time(self):
        """A stored one counts its life from its own beginning."""
        self.store(self.template)
        self.pass_time(LIFE * 0.85)
        renewal = self.renewal()
        self.pass_time(LIFE * 0.1)
        self.assertEqual(self.requests, 1)
        self.assertGreater((renewal.not_after - utc_now(self.clock)).total_seconds(), LIFE * 0.8)

    def test_spread(self):
        """Replicas do not all renew at the same moment."""
        times = set()
        for _ in range(20):
            self.directory = open_certificate_directory(self.mktemp())
            times.add(self.renewal()._in_use.held.renewal_at)
        self.assertEqual(len(times), 20)

    def test_short_lives(self):
        """Certificates that live for less than they are dated back are not renewed all the time."""
        self.api.lifetime = 30.0
        renewal = self.renewal()
        for _ in range(10):
            self.pass_time(30)
            self.assertTrue(renewal.is_usable)
        self.assertLessEqual(self.requests, 16)

    def test_missing_name(self):
        """A wanted name that is missing means a new request, as soon as the names have settled."""
        renewal = self.renewal()
        self.template = serving_template(["one.example", "two.example"])
        self.pass_time(SETTLE_TIME - 1)
        self.assertEqual(self.requests, 1)
        self.pass_time(3)
        self.assertEqual(self.requests, 2)
        self.assertIsNone(self.template.problem(renewal.current.certificate))

    def test_burst(self):
        """A burst of changes makes one request."""
        self.renewal()
        for number in range(10):
            self.template = serving_template([f"{each}.example" for each in range(number)])
            self.pass_time(2)
        self.pass_time(60)
        self.assertEqual(self.requests, 2)

    def test_fewer_names(self):
        """A name that is not wanted any more costs nothing, nor does another order."""
        self.template = serving_template(["one.example", "two.example"])
        self.renewal()
        self.template = serving_template(["one.example"])
        self.pass_time(60)
        self.template = replace(self.template, dns_names=("two.example", "one.example"))
        self.pass_time(60)
        self.assertEqual(self.requests, 1)

    def test_restless_names(self):
        """Names that never settle do not keep a certificate from being renewed."""
        renewal = self.renewal()
        for number in range(int(LIFE)):
            self.template = serving_template(["one.example", f"{number}.example"])
            self.pass_time(1)
        self.assertEqual(self.requests, 2)
        self.assertTrue(renewal.is_usable)

    def test_names_change_while_waiting(self):
        """A request that lacks a wanted name is given up for a new one."""
        self.api.prompt = False
        renewal = self.renewal()
        self.pass_time(60)
        self.template = serving_template(["two.example"])
        self.pass_time(SETTLE_TIME + 3)
        self.assertEqual(self.requests, 2)
        self.assertEqual(self.api.names("csr-1"), ["two.example"])
        self.api.sign("csr-0")
        self.pass_time(30)
        self.assertIsNone(renewal.current)
        self.api.sign("csr-1")
        self.pass_time(10)
        self.assertIsNone(self.template.problem(renewal.current.certificate))
        self.assertEqual((renewal.counters.issued, renewal.counters.failed), (1, 0))

    def test_burst_while_waiting(self):
        """A burst of changes gives a request up once, when it is over."""
        self.api.prompt = False
        self.renewal()
        for number in range(10):
            self.template = serving_template([f"{number}.example"])
            self.pass_time(2)
        self.assertEqual(self.requests, 1)
        self.pass_time(10)
        self.assertEqual(self.requests, 2)
        self.assertEqual(self.api.names("csr-1"), ["9.example"])

    def test_shuffled_names(self):
        """Names that come in another order each time have settled all the same."""
        self.renewal()
        names = ["one.example", "two.example"]
        for _ in range(10):
            names.reverse()
            self.template = replace(self.template, dns_names=tuple(names))
            self.pass_time(1)
        self.assertEqual(self.requests, 2)

    def test_fewer_names_while_waiting(self):
        """One that has more than is wanted now goes on."""
        self.api.prompt = False
        self.template = serving_template(["one.example", "two.example"])
        self.renewal()
        self.template = serving_template(["one.example"])
        self.pass_time(60)
        self.assertEqual(self.requests, 1)

    def test_callback_that_fails(self):
        """One user of the certificate that fails does not keep it from the others."""
        renewal = self.renewal()

        def broken(issued):
            raise ZeroDivisionError

        renewal.on_change.insert(0, broken)
        self.template = serving_template(["two.example"])
        self.pass_time(10)
        self.assertEqual(self.changes[-1], renewal.current)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)


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


class _LocalIssuer:
    """Issues certificates of one hour, or fails as told."""

    final = (ZeroDivisionError,)

    def __init__(self, clock, issuer):
        self._clock = clock
        self._issuer = EmbeddedIssuer(issuer.authority, "client auth", LIFE)
        self.attempts = []
        self.problem = None

    async def issue(self, request, waits):
        """Issue one."""
        self.attempts.append(self._clock.seconds())
        if self.problem is not None:
            raise self.problem
        return await self._issuer.issue(request, waits)


class _MemoryStore:
    """Keeps certificates, or fails as told."""

    path = Path("node.pem")

    def __init__(self):
        self.stored = []
        self.problem = ""

    def load(self):
        """Return the last one."""
        return self.stored[-1] if self.stored else None

    def save(self, issued):
        """Keep one."""
        if self.problem:
            raise StateError(self.problem)
        self.stored.append(issued)


class StandaloneTests(SynchronousTestCase):
    """A certificate of one hour that no cluster issues."""

    def setUp(self):
        """Start the service, with a certificate that was issued just now."""
        self.make(clock_now())

    def make(self, clock):
        """Start the service by a clock."""
        self.clock = clock
        self.issuer = _LocalIssuer(clock, Issuer.make(self, clock))
        self.store = _MemoryStore()
        self.service = self.renewal()
        self.service.startService()
        self.addCleanup(lambda: self.service.running and self.service.stopService())
        self.issuer.attempts.clear()
        self.store.stored.clear()

    def renewal(self):
        """Make the service."""
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
        """When there was an attempt."""
        return self.issuer.attempts

    @property
    def stored(self):
        """What has been kept."""
        return self.store.stored

    def pass_time(self, seconds):
        """Let time pass in seconds."""
        self.clock.pump([1.0] * int(seconds))

    def test_in_time(self):
        """Renewal comes after about two thirds of the life, and the certificate is then in use."""
        self.pass_time(LIFE * 0.58)
        self.assertEqual(self.attempts, [])
        self.pass_time(LIFE * 0.12)
        self.assertEqual(len(self.attempts), 1)
        self.assertEqual(self.stored, [self.service.current])

    def test_again_and_again(self):
        """Over several lives the certificate in use is always good."""
        for _ in range(6):
            self.pass_time(LIFE / 2)
            self.assertGreater(self.service.not_after, utc_now(self.clock))
        self.assertGreaterEqual(len(self.stored), 4)

    def test_steps_of_the_clock(self):
        """Attempts that fail by a clock that is ahead do not put off the one that is due."""
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

        # And one that was made by such a clock is replaced: to others it is not good yet.
        self.clock.ahead = 200 * 86400.0
        self.pass_time(100)
        begin = self.service.current.certificate.not_valid_before_utc
        self.assertGreater(begin.timestamp(), self.clock.seconds() + 86400)
        self.clock.ahead = 0.0
        self.pass_time(100)
        begin = self.service.current.certificate.not_valid_before_utc
        self.assertLess(begin.timestamp(), self.clock.seconds())

    def test_clock_that_is_behind(self):
        """One that begins in the future is replaced ever less often: the clock may stay so."""
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
        """Certificates of the same moment are not renewed at the same moment."""
        self.store.save(self.service.current)
        due = {self.renewal()._in_use.held.renewal_at for _ in range(20)}
        self.assertGreater(len(due), 15)

    def test_started_ahead(self):
        """One that has ended by a wrong clock is used as soon as the clock is right."""
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
        """Without a certificate, what another attempt would not change is told to who waits."""
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
        """A failure is tried again with growing pauses, until it works."""
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

    def test_away_for_weeks(self):
        """However many attempts have failed, the next one keeps its distance."""
        self.issuer.problem = NotIssued("the server is away")
        with mock.patch.object(self.service, "_failures", 2000):
            self.pass_time(LIFE * 0.95)
        self.assertLess(len(self.attempts), 30)

    def test_goes_on_after_the_end(self):
        """A certificate that has expired is still tried to be renewed."""
        self.issuer.problem = NotIssued("the server is away")
        self.pass_time(2 * LIFE)
        self.issuer.problem = None
        self.pass_time(120)
        self.assertGreater(self.service.not_after, utc_now(self.clock))

    def test_not_renewed(self):
        """While the certificate is good a failed renewal is a warning, afterwards a problem."""
        self.assertEqual((self.service.problem(), self.service.warning()), (None, None))
        end = f"{self.service.not_after:%F %T} UTC"
        self.issuer.problem = NotIssued("the server is away")
        self.pass_time(LIFE * 0.95)
        self.assertEqual(
            (self.service.problem(), self.service.warning()),
            (
                None,
                f"the certificate of node edge-1, good until {end}, is not renewed:"
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
        # The longest pause of such a life.
        self.pass_time(LIFE / 50)
        self.assertEqual((self.service.problem(), self.service.warning()), (None, None))

    def test_not_stored(self):
        """On a full disk the new certificate is in use, and is stored as soon as that works."""
        self.store.problem = "node.pem cannot be written, the disk is full: make room"
        before = self.service.current
        with capturedLogs() as events:
            self.pass_time(LIFE * 0.7)
            renewed = self.service.current
            self.pass_time(LIFE * 0.1)
        self.assertEqual((len(self.attempts), self.stored), (1, []))
        self.assertIsNot(renewed, before)
        problem = (
            "the certificate of node edge-1 is in use but not kept for a restart:"
            f" {self.store.problem}"
        )
        self.assertEqual((self.service.problem(), self.service.warning()), (None, problem))
        # It is tried all the time, and told once.
        errors = [formatEvent(e) for e in events if e["log_level"] is LogLevel.error]
        self.assertEqual(errors, [problem])
        self.store.problem = ""
        self.pass_time(40)
        self.assertEqual((self.stored, self.service.warning()), ([renewed], None))
        self.pass_time(40)
        self.assertEqual(len(self.stored), 1)

    def test_never_stored(self):
        """For as long as the disk is full, one certificate follows the other."""
        self.store.problem = "node.pem cannot be written, the disk is full: make room"
        for _ in range(6):
            self.pass_time(LIFE / 2)
            self.assertGreater(self.service.not_after, utc_now(self.clock))
        self.store.problem = ""
        self.pass_time(40)
        self.assertEqual(self.stored, [self.service.current])

    def test_bad_certificate(self):
        """What cannot be used is neither stored nor put into use."""
        before = self.service.current
        other = CertificateTemplate("edge-1", (), "client auth").request(new_key())
        issue = self.issuer.issue

        async def swapped(request, waits):
            return await issue(other, waits)

        self.issuer.issue = swapped
        self.pass_time(LIFE * 0.7)
        self.assertEqual((self.stored, self.service.current), ([], before))
        self.assertIn("is for another key", self.service.warning())

    def test_stopped(self):
        """Stopping ends an attempt that is under way, without complaint."""
        pending = Deferred()

        async def issue(request, waits):
            return await pending

        self.issuer.issue = issue
        self.pass_time(LIFE * 0.7)
        self.service.stopService()
        self.assertTrue(pending.called)
        self.assertIsNone(self.service.warning())
        self.assertEqual(self.clock.getDelayedCalls(), [])
