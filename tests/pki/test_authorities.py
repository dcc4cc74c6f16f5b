"""Changes of the cluster's authorities."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.support import Issuer
from yurttunnel.pki.authorities import CHECK_INTERVAL, AuthorityBundle, BadBundle
from yurttunnel.pki.credentials import certificates_to_pem


def bundle(*issuers):
    """Write the authorities of issuers as a bundle."""
    return certificates_to_pem([issuer.authority.certificate for issuer in issuers])


class AuthoritiesTests(SynchronousTestCase):
    """A bundle that is read every 10 seconds."""

    def setUp(self):
        """Start with one authority."""
        self.clock = Clock()
        self.one, self.two = Issuer.make(self), Issuer.make(self)
        self.content = bundle(self.one)
        self.error = None
        self.used = []
        self.authorities = AuthorityBundle.cluster(self.clock, self.read, self.use)
        self.authorities.startService()
        self.addCleanup(self.authorities.stopService)

    def read(self):
        """Return the content of the bundle."""
        if isinstance(self.content, Exception):
            raise self.content
        return self.content

    def use(self, authorities):
        """Use the authorities, which are current by then, or reject them."""
        self.assertIs(authorities, self.authorities.certificates)
        if self.error is not None:
            raise self.error
        self.used.append(authorities)

    def test_first(self):
        """The first bundle is read at once, and is no change."""
        self.assertEqual(self.authorities.certificates, (self.one.authority.certificate,))
        self.clock.advance(CHECK_INTERVAL)
        self.assertEqual(self.used, [])
        self.assertIsNone(self.authorities.problem)

    def test_changed(self):
        """A new bundle is used within a minute."""
        self.content = bundle(self.one, self.two)
        self.clock.advance(CHECK_INTERVAL)
        both = (self.one.authority.certificate, self.two.authority.certificate)
        self.assertEqual(self.used, [both])
        self.assertEqual(self.authorities.certificates, both)
        self.assertEqual(self.authorities.not_after, max(each.not_valid_after_utc for each in both))
        self.clock.advance(CHECK_INTERVAL)
        self.assertEqual(len(self.used), 1)

    def test_broken(self):
        """While a bundle is broken, the old one stays in use, and the problem is reported."""
        before = self.authorities.certificates
        whole = bundle(self.two)
        for content, words in (
            (b"", "the cluster's authorities"),
            (b"nonsense", "broken"),
            (whole[:-100], "broken"),
            (bundle(self.one) + whole[:-100], "broken"),
            (OSError(2, "No such file"), "cannot be read"),
            (ValueError("two\nlines"), "cannot be read: two lines"),
        ):
            self.content = content
            with capturedLogs() as events:
                self.clock.advance(CHECK_INTERVAL)
                self.clock.advance(CHECK_INTERVAL)
            self.assertIn(words, self.authorities.problem)
            self.assertIn("stay in use", self.authorities.problem)
            self.assertEqual((self.authorities.certificates, self.used), (before, []))
            self.content = bundle(self.one)
            self.clock.advance(CHECK_INTERVAL)
            self.assertIsNone(self.authorities.problem)
            self.assertEqual(len([e for e in events if e["log_level"].name == "error"]), 1)

    def test_not_usable(self):
        """A bundle that cannot be used is retried, and the old one stays in use."""
        before = self.authorities.certificates
        self.error = ValueError("no")
        self.content = bundle(self.two)
        self.clock.advance(CHECK_INTERVAL)
        self.assertIn("cannot be used: no", self.authorities.problem)
        self.assertEqual(self.authorities.certificates, before)
        self.error = None
        self.clock.advance(CHECK_INTERVAL)
        self.assertIsNone(self.authorities.problem)
        self.assertEqual(self.used, [(self.two.authority.certificate,)])

    def test_none(self):
        """The error for a kubeconfig without authorities explains why they are needed."""
        for self.content in (b"", b" \n"):
            error = self.assertRaises(
                BadBundle, AuthorityBundle.cluster, self.clock, self.read, self.use
            )
            for words in ("--kube-config", "certificate-authority", "verify each other"):
                self.assertIn(words, str(error))
            self.assertNotIn("broken", str(error))

    def test_broken_from_the_beginning(self):
        """A first bundle that is broken is an error."""
        for content in (b"", OSError(2, "No such file")):
            self.content = content
            self.assertRaises(BadBundle, AuthorityBundle.cluster, self.clock, self.read, self.use)
