"""The first certificate."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.logger import capturedLogs

from tests.pki.renewal_support import RenewalTestCase
from tests.pki.support import Issuer
from yurttunnel.pki.certificate_store import DatedStore
from yurttunnel.pki.certificate_template import proxy_client_template
from yurttunnel.pki.desired_template import SETTLE_TIME, TemplateUnknown
from yurttunnel.pki.directory import StateError


class FirstCertificateTests(RenewalTestCase):
    """The start without a certificate, or with a stored one."""

    def test_at_once(self):
        """Without a certificate one is requested at once, stored and passed on."""
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
        """Waiting callers are notified when it is issued, unless they have cancelled."""
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
        """Until then, the problem names the request and the command that approves it."""
        self.api.prompt = False
        renewal = self.renewal()
        self.assertEqual(
            renewal.problem(),
            "there is no serving certificate yet: waiting for approval of csr-0: "
            "kubectl certificate approve csr-0",
        )
        self.assertIsNone(renewal.warning())

    def test_stored(self):
        """A stored certificate is used without the API, however long the outage."""
        certificate = self.store(self.template)
        self.api.unreachable()
        renewal = self.renewal()
        self.successResultOf(renewal.when_ready())
        self.assertEqual(renewal.current.certificate, certificate)
        self.pass_time(600)
        self.assertEqual((renewal.problem(), renewal.warning()), (None, None))

    def test_stored_while_names_are_unknown(self):
        """It is used even while the desired names are unknown."""
        self.store(self.template)
        self.unknown = TemplateUnknown("services have not been read")
        renewal = self.renewal()
        self.successResultOf(renewal.when_ready())
        self.pass_time(10)
        self.assertEqual(self.requests, 0)
        self.assertIn("services have not been read", renewal.warning())

    def test_names_unknown(self):
        """Without one, the request waits for the names, and the problem gives the reason."""
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
        """A stored certificate for another purpose (yurttunnel 1.2 confused them) is not used."""
        self.store(proxy_client_template())
        with capturedLogs() as events:
            renewal = self.renewal()
        self.assertTrue(any("tunnel-proxy-client" in str(e.get("problem")) for e in events))
        self.assertEqual(self.requests, 1)
        self.assertIsNone(self.template.problem(renewal.current.certificate))

    def test_accepted_meanwhile(self):
        """One that ``find_problem`` accepts is used until there is a better one."""
        old = self.store(proxy_client_template())
        self.api.prompt = False
        renewal = self.renewal(find_problem=lambda certificate: None)
        self.successResultOf(renewal.when_ready())
        self.assertEqual(renewal.current.certificate, old)
        self.pass_time(SETTLE_TIME + 1)
        self.assertEqual(self.requests, 1)
        self.api.sign("csr-0")
        self.pass_time(10)
        self.assertIsNone(self.template.problem(renewal.current.certificate))

    def test_expired(self):
        """An expired stored certificate is not usable, and another one is requested."""
        self.store(self.template, lifetime=-1)
        self.api.prompt = False
        renewal = self.renewal()
        self.assertFalse(renewal.is_usable)
        self.assertNoResult(renewal.when_ready())
        self.assertEqual(self.requests, 1)
        self.assertIn("the serving certificate has expired at", renewal.problem())

    def test_of_another_cluster(self):
        """A stored certificate that no authority of the cluster has issued is replaced, once."""
        self.store(self.template, Issuer.make(self))
        renewal = self.renewal()
        self.assertEqual(self.requests, 1)
        self.assertTrue(renewal.current.is_from([self.issuer.authority.certificate]))

    def test_foreign_signer(self):
        """A signer that is not among the authorities is retried with backoff, with a warning."""
        self.api.issuer = Issuer.make(self, self.clock)
        self.api.lifetime = 86400.0
        renewal = self.renewal()
        self.assertIn("is not signed by an authority", renewal.warning())
        self.assertIsNone(renewal.problem())
        self.pass_time(50)
        self.assertEqual(self.requests, 1)
        self.pass_time(15)
        self.assertEqual(self.requests, 2)
        self.pass_time(3600)
        self.assertEqual(self.requests, 6)

    def test_signer_changes_late(self):
        """A signer that changes after the bundle is noticed without a restart."""
        mine, other = self.issuer, Issuer.make(self, self.clock)
        self.api.issuer = other
        renewal = self.renewal()
        self.api.issuer = mine
        self.pass_time(65)
        self.assertTrue(renewal.current.is_from([mine.authority.certificate]))
        self.assertIsNone(renewal.warning())

    def test_new_authorities(self):
        """If its authority is removed from the bundle, a new certificate is requested."""
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
        """A certificate that cannot be stored is used, with a warning."""

        def full(self, issued):
            raise StateError("pki: the disk is full")

        self.patch(DatedStore, "save", full)
        renewal = self.renewal()
        self.assertEqual(self.changes, [renewal.current])
        self.assertIsNone(renewal.problem())
        self.assertIn("not stored for a restart: pki: the disk is full", renewal.warning())
