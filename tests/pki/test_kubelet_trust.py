"""Updates of the certificates and authorities for kubelets."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.pki.support import Issuer, clock_now, state_directory
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki import authority
from yurttunnel.pki.authorities import CHECK_INTERVAL, BadBundle
from yurttunnel.pki.credentials import certificates_to_pem
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.embedded_issuer import EmbeddedIssuer
from yurttunnel.pki.issuer import NotIssued
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.server.standalone_trust import StandaloneServerTrust

DAY = 86400


class KubeletTrustTests(SynchronousTestCase):
    """A server's trust in kubelets, over restarts and changes of its files."""

    def setUp(self):
        """Create an authority, a state directory, and a file of authorities."""
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.directory = state_directory(self)
        self.path = Path(self.mktemp())
        self.write(self.issuer)

    def write(self, *issuers):
        """Write the file of authorities."""
        self.path.write_bytes(certificates_to_pem([i.authority.certificate for i in issuers]))

    def open(self, path=None):
        """Open and start the trust."""
        trust = StandaloneServerTrust(
            self.clock,
            self.directory.path,
            ["127.0.0.1"],
            kubelet_verify=KubeletVerification.CA,
            kubelet_ca=path,
        )
        trust.startService()
        self.addCleanup(trust.stopService)
        return trust

    def trusted(self, trust):
        """Return the authorities in use."""
        return trust.kubelets.credentials.authorities

    def test_kept(self):
        """A restart keeps the certificate, and a broken file is replaced."""
        first = self.open().kubelets.credentials.certificate
        self.assertEqual(first, self.open().kubelets.credentials.certificate)
        self.directory.write("kubelet-client.pem", b"nonsense")
        self.assertNotEqual(first, self.open().kubelets.credentials.certificate)

    def test_renewed(self):
        """The certificate is renewed while the service runs, and stored for the next start."""
        trust = self.open()
        first = trust.kubelets.credentials.certificate
        self.clock.advance(250 * DAY)
        second = trust.kubelets.credentials.certificate
        self.assertNotEqual(first, second)
        self.assertEqual(second, self.open().kubelets.credentials.certificate)
        self.assertIsNone(trust.kubelet_problem())

    def test_not_kept(self):
        """A renewed certificate that cannot be stored is in use, with a warning."""
        trust = self.open()
        first = trust.kubelets.credentials.certificate

        def full(directory, name, content):
            raise StateError("the disk is full")

        self.patch(StateDirectory, "write", full)
        self.clock.advance(250 * DAY)
        self.assertNotEqual(first, trust.kubelets.credentials.certificate)
        self.assertEqual(
            "the certificate of the server for kubelets is in use but not stored for a restart:"
            " the disk is full",
            trust.kubelet_problem(),
        )

    def test_not_renewed(self):
        """A failed renewal is reported, before and after the certificate has expired."""
        trust = self.open()
        self.patch(EmbeddedIssuer, "issue", _nothing)
        self.clock.advance(250 * DAY)
        self.assertIn("is not renewed: no", trust.kubelet_problem())
        self.clock.advance(250 * DAY)
        self.assertIn("has expired", trust.kubelet_problem())

    def test_own_authority(self):
        """Without a file, kubelets are verified by the embedded authority."""
        trust = self.open()
        self.assertEqual((trust.authority.certificate,), self.trusted(trust))
        self.assertIsNone(trust.kubelet_problem())

    def test_file(self):
        """With a file, they are verified by its authorities, also after changes."""
        other = Issuer.make(self)
        trust = self.open(self.path)
        self.assertEqual((self.issuer.authority.certificate,), self.trusted(trust))
        self.write(other, self.issuer)
        self.clock.advance(CHECK_INTERVAL)
        self.assertEqual(
            (other.authority.certificate, self.issuer.authority.certificate), self.trusted(trust)
        )

    def test_broken_file(self):
        """A broken file changes nothing, is reported, and is used once it is repaired."""
        trust = self.open(self.path)
        before = self.trusted(trust)
        for harm, words in (
            (lambda: self.path.write_text("nonsense"), "does not hold certificates"),
            (self.path.unlink, "cannot be read"),
        ):
            harm()
            self.clock.advance(CHECK_INTERVAL)
            self.assertIn(words, trust.kubelet_problem())
            self.assertIn(str(self.path), trust.kubelet_problem())
            self.assertEqual(before, self.trusted(trust))
        other = Issuer.make(self)
        self.write(other)
        self.clock.advance(CHECK_INTERVAL)
        self.assertIsNone(trust.kubelet_problem())
        self.assertEqual((other.authority.certificate,), self.trusted(trust))

    def test_expired(self):
        """A file whose authorities have all expired is reported: no kubelet can be verified."""
        former = clock_now()
        former.rightNow -= 20 * 365 * DAY
        self.patch(authority, "_EARLIEST_TIME", utc_now(former))
        old = Issuer.make(self, former)
        self.write(old, self.issuer)
        trust = self.open(self.path)
        self.assertIsNone(trust.kubelet_problem())
        self.write(old)
        self.clock.advance(CHECK_INTERVAL)
        self.assertEqual(
            f"all authorities in {self.path} have expired: replace them", trust.kubelet_problem()
        )

    def test_broken_from_the_beginning(self):
        """A first file that is broken is an error."""
        for harm in (lambda: self.path.write_text(""), self.path.unlink):
            harm()
            error = self.assertRaises(BadBundle, self.open, self.path)
            self.assertIn(str(self.path), str(error))


async def _nothing(*_):
    raise NotIssued("no")
